"""A run's inputs that a resumed run must share: a keyed digest of all records, and the device kind.

A plain digest would let an attacker who knows all records but one test candidates for the last. So
the digest is keyed (BLAKE2b); the key is in a separate file that only its owner may read and that
must not be shared with the rest.
"""

import hashlib
import json
import secrets
from pathlib import Path

import numpy as np
import torch

from mechanisms import durable
from sim.job.device import device_of
from sim.job.job import Job

INPUTS, KEY = "inputs.json", "inputs.key"
KEY_BYTES = 32


def write(folder: Path, job: Job) -> None:
    """Write both files, with a fresh key, into a new run directory."""
    key = secrets.token_bytes(KEY_BYTES)
    durable.write(folder / KEY, key, private=True)
    durable.write(folder / INPUTS, json.dumps(_inputs(job, key), indent=1).encode())


def check(folder: Path, job: Job) -> None:
    """Refuse to resume with other records or on another kind of device than the run began with.

    A replayed round is charged once because it repeats the same draws on the same sums; on other
    inputs it would be a new release.

    Raises:
        ValueError: an input differs, or the key is missing or damaged.
    """
    key, began = read_key(folder), json.loads(durable.read(folder / INPUTS))
    for name, now in _inputs(job, key).items():
        if began[name] != now:
            raise ValueError(
                f"{name} = {now} is not what {folder} began with, {began[name]}: a resumed run "
                "goes on with the same records on the same kind of device; restore them, or "
                "start a new run"
            )


def constants(job: Job) -> dict[str, torch.Tensor]:
    """The model's untrained tensors by name, such as given word vectors."""
    frozen = {name: p.detach() for name, p in job.model.named_parameters() if not p.requires_grad}
    return {name: t.contiguous() for name, t in (frozen | dict(job.model.named_buffers())).items()}


def _inputs(job: Job, key: bytes) -> dict[str, str]:
    data, parts = job.dataset, job.partition
    digest = hashlib.blake2b(key=key, digest_size=16)
    beside: tuple[np.ndarray, ...] = () if job.held is None else (job.held.x, job.held.y)
    beside += job.holdout or ()
    for array in (data.x, data.y, data.x_test, data.y_test, parts.indices, parts.offsets, *beside):
        digest.update(np.ascontiguousarray(array).data)
    for tensor in constants(job).values():
        digest.update(tensor.numpy().data)
    return {"records": digest.hexdigest(), "device": _device(job)}


def _device(job: Job) -> str:
    """The kind of device; where a round is replayed, also what its sums depend on on a CPU, or its
    draws and sums on a GPU."""
    kind = device_of(job.config).type
    if job.seed is None:
        return kind
    if kind == "cpu":
        return f"{kind} ({torch.backends.cpu.get_cpu_capability()})"
    return f"{kind} ({torch.cuda.get_device_name()})"


def read_key(folder: Path) -> bytes:
    """The key of the digest.

    Raises:
        ValueError: the file is missing or damaged.
    """
    path = folder / KEY
    try:
        key = durable.read(path)
    except OSError as fault:
        raise ValueError(
            f"{path} cannot be read ({fault.strerror}), so nobody can tell whether these are the "
            "records that the run began with: restore it, or start a new run"
        ) from None
    if len(key) != KEY_BYTES:
        raise ValueError(
            f"{path} has {len(key)} bytes, it must have {KEY_BYTES}: restore it, or start a new run"
        )
    return key
