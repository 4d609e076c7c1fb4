"""Saves arrays that a Python program gives as its data set, so that the run can be resumed.

The file is named by a digest of the arrays, so giving them again writes nothing. The name appears
in `config.toml` and in the report, and a plain digest would let an attacker who knows all records
but one test candidates for the last. So it is keyed (BLAKE2b). Only their owner may read key and
arrays; never share them.
"""

import hashlib
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mechanisms import durable
from sim.config.settings import CROSS_ENTROPY
from sim.data.arrays import NAMES, parts
from sim.sources.functions import by_name

FOLDER, KEY = "datasets", "datasets.key"
KEY_BYTES = 32


def keep(
    arrays: Sequence[Any] | Mapping[str, Any], parent: Path, loss: str = CROSS_ENTROPY
) -> Path:
    """Save these arrays in ``datasets/`` of an existing folder; returns the file's absolute path.

    Args:
        arrays: x and y, or x, y, x_test and y_test, or arrays by name, as in `sim.data.arrays`:
            NumPy arrays, PyTorch tensors, or lists.
        parent: parent of the folder, which is that of run directories.
        loss: says what the targets are.

    Raises:
        ValueError: neither two nor four arrays, arrays that an `.npz` must not hold, or a damaged
            key.
    """
    named = by_name(arrays, "dataset")
    parts(named, "dataset", loss)
    named = {name: array for name, array in named.items() if name in NAMES}
    folder = parent.absolute() / FOLDER
    durable.make_folder(folder)
    path = folder / f"{_digest(named, _key(folder / KEY))}.npz"
    if not path.exists():
        with durable.writing(path, private=True, shared=True) as file:
            np.savez(file, allow_pickle=False, **named)
    durable.sync_folder(folder)  # in case a process that died did not
    return path


def _digest(named: dict[str, np.ndarray], key: bytes) -> str:
    digest = hashlib.blake2b(key=key, digest_size=16)
    for name, array in named.items():
        digest.update(f"{name} {array.dtype.str} {array.shape};".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def _key(path: Path) -> bytes:
    """The folder's key, drawn on first use; if two processes draw one, the first wins."""
    if not path.exists():
        durable.create(path, secrets.token_bytes(KEY_BYTES), private=True)
    key = path.read_bytes()
    if len(key) != KEY_BYTES:
        must = f"it must have {KEY_BYTES}: restore or remove it"
        raise ValueError(f"{path} has {len(key)} bytes, {must}")
    return key
