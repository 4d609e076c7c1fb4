"""Files of tensors that carry a digest of all that they say: a crash may leave ones that no
checkpoint knows."""

import hashlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

DIGEST = "content"


def sealed(tensors: Mapping[str, np.ndarray], labels: Mapping[str, str]) -> bytes:
    """The content of a file of tensors and labels."""
    return save(dict(tensors), metadata={**labels, DIGEST: _digest(labels, tensors)})


def read(path: Path) -> tuple[dict[str, str], dict[str, np.ndarray]]:
    """A file's labels and tensors.

    Raises:
        ValueError: it is damaged; the message names it.
    """
    remedy = "restore it from a copy, or start a new run"
    try:
        with safe_open(path, "np") as file:
            labels, names = file.metadata() or {}, file.keys()
            tensors = {name: file.get_tensor(name) for name in names}
    except SafetensorError as fault:
        raise ValueError(f"{path} is damaged ({fault}): {remedy}") from None
    if labels.pop(DIGEST, None) != _digest(labels, tensors):
        raise ValueError(f"{path} is damaged (its digest does not match): {remedy}")
    return labels, tensors


def _digest(labels: Mapping[str, str], tensors: Mapping[str, np.ndarray]) -> str:
    found = hashlib.blake2b(repr(sorted(labels.items())).encode())
    for name in sorted(tensors):
        found.update(repr((name, tensors[name].dtype.str, tensors[name].shape)).encode())
        found.update(tensors[name].tobytes())
    return found.hexdigest()
