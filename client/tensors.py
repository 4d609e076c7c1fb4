"""Files of tensors that carry a digest of all that they say: a crash may leave ones that no
checkpoint knows."""

import hashlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from mechanisms import durable

DIGEST, RUN, ROUND, LEDGER = "content", "run", "round", "ledger"
"""Labels: the digest, the digest of the run's manifest, the number of the round, and the places of
ledger files that had paid for what the file holds, as JSON."""


def sealed(tensors: Mapping[str, np.ndarray], labels: Mapping[str, str]) -> bytes:
    """The content of a file of tensors and labels."""
    return save(dict(tensors), metadata={**labels, DIGEST: _digest(labels, tensors)})


def read(path: Path, **named: str) -> tuple[dict[str, str], dict[str, np.ndarray]]:
    """A file's labels and tensors; labels that are ``named`` must be so. Empty names say nothing.

    Raises:
        ValueError: it is damaged, or of another run or round; the message names it.
    """
    durable.check_file(path)
    remedy = "restore it from a copy, or start a new run"
    try:
        with safe_open(path, "np") as file:
            labels, names = file.metadata() or {}, file.keys()
            tensors = {name: file.get_tensor(name) for name in names}
    except SafetensorError as fault:
        raise ValueError(f"{path} is damaged ({fault}): {remedy}") from None
    if labels.pop(DIGEST, None) != _digest(labels, tensors):
        raise ValueError(f"{path} is damaged (its digest does not match): {remedy}")
    for name, expected in named.items():
        if expected and labels.get(name) != expected:
            raise ValueError(f"{path} is of another {name}: {remedy}")
    return labels, tensors


def labels_of(path: Path) -> dict[str, str]:
    """A file's labels, whether or not they are as they were; none if it is damaged."""
    try:
        with safe_open(path, "np") as file:
            return file.metadata() or {}
    except (SafetensorError, OSError):
        return {}


def _digest(labels: Mapping[str, str], tensors: Mapping[str, np.ndarray]) -> str:
    found = hashlib.blake2b(repr(sorted(labels.items())).encode())
    for name in sorted(tensors):
        found.update(repr((name, tensors[name].dtype.str, tensors[name].shape)).encode())
        found.update(tensors[name].tobytes())
    return found.hexdigest()
