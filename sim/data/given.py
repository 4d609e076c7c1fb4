"""Arrays that a Python program gives as its data set, kept as a file to resume by.

The file's name is a digest of the arrays, so that giving them again writes nothing. The name stands
in `config.toml` and in the report, and a plain digest would decide, for whoever knows all records
but one, which record the last one is. So it is keyed (BLAKE2b). Key and arrays may be read by their
owner only, and are never for others' eyes.
"""

import hashlib
import os
import secrets
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mechanisms import durable
from sim.data.arrays import parts

FOLDER, KEY = "datasets", "datasets.key"
KEY_BYTES = 32
NAMES = ("x", "y", "x_test", "y_test")
OWNER_ONLY = 0o600


def keep(arrays: Sequence[Any], parent: Path) -> Path:
    """The absolute path of a file with these arrays, in ``datasets/`` of a folder that exists.

    Args:
        arrays: x and y, or x, y, x_test and y_test, as `sim.data.arrays` has them: of NumPy,
            PyTorch, or lists.
        parent: of the folder; the parent of run directories.

    Raises:
        ValueError: neither two arrays nor four, or such as no `.npz` may hold; a key of another
            length.
    """
    if len(arrays) not in (2, 4):
        raise ValueError(f"dataset has {len(arrays)} arrays: give (x, y) or (x, y, x_test, y_test)")
    named = {name: _array(name, one) for name, one in zip(NAMES, arrays, strict=False)}
    parts(named, "dataset")
    folder = parent.absolute() / FOLDER
    durable.make_folder(folder)
    path = folder / f"{_digest(named, _key(folder / KEY))}.npz"
    if not path.exists():
        with durable.writing(path) as file:
            os.fchmod(file.fileno(), OWNER_ONLY)
            np.savez(file, allow_pickle=False, **named)
    return path


def _array(name: str, given: Any) -> np.ndarray:
    """The array as it is, or a tensor's numbers."""
    try:
        return np.asarray(given.detach().cpu() if isinstance(given, torch.Tensor) else given)
    except (TypeError, ValueError, RuntimeError) as fault:
        reason = " ".join(str(fault).split())
        remedy = "give one of NumPy or PyTorch"
        raise ValueError(f"dataset: {name} is no array of numbers ({reason}): {remedy}") from None


def _digest(named: dict[str, np.ndarray], key: bytes) -> str:
    digest = hashlib.blake2b(key=key, digest_size=16)
    for name, array in named.items():
        digest.update(f"{name} {array.dtype.str} {array.shape};".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def _key(path: Path) -> bytes:
    """The folder's key, drawn the first time; of two processes that draw one, the first counts."""
    if not path.exists():
        drawn = path.with_name(f"{KEY}.{secrets.token_hex(8)}.part")
        with open(drawn, "wb", opener=lambda name, flags: os.open(name, flags, OWNER_ONLY)) as file:
            file.write(secrets.token_bytes(KEY_BYTES))
            file.flush()
            os.fsync(file.fileno())
        with suppress(FileExistsError):
            os.link(drawn, path)
        drawn.unlink()
        durable.sync_folder(path.parent)
    key = path.read_bytes()
    if len(key) != KEY_BYTES:
        must = f"it must have {KEY_BYTES}: restore or remove it"
        raise ValueError(f"{path} has {len(key)} bytes, {must}")
    return key
