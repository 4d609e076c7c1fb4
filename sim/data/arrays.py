"""A user's own data set: one `.npz` file, checked array by array.

The file holds `x` [N, ...] and `y` [N], and may hold `x_test` and `y_test`; other arrays are
ignored. Records are features ([N, F]), grey images ([N, H, W], read as [N, 1, H, W]) or images with
channels first ([N, C, H, W]). `uint8` records are pixels and are divided by 255; other numbers are
used unchanged. Labels are integers 0 .. C-1. Without a test part, one record in five is held out by
`fixed_split`. Pickled objects are never loaded.
"""

import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from sim.config.names import nearest
from sim.data.files import own_file

MAX_CLASSES = 65_536
MAX_END_BYTES = 22 + 65_535
"""Of an archive's end record, with the longest comment."""
MANY = 0xFFFF
"""Stands in the end record for any number of entries above."""
_NAMES = ("x", "y", "x_test", "y_test")
_CHANNELS = (1, 3, 4)


def fixed_split(records: int, test: int) -> tuple[np.ndarray, np.ndarray]:
    """A fixed random split of indices: int64 [records - test] and [test], both ascending.

    It sorts the raw output of Philox, a stream that is the same in all NumPy versions.
    """
    order = np.argsort(np.random.Philox(key=0).random_raw(records), kind="stable")
    return np.sort(order[test:]), np.sort(order[:test])


def read_npz(path: str) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, int]:
    """Read a file: x float32 [N, ...], y int64 [N], x_test [M, ...], y_test [M], classes C.

    C is the largest training label + 1 (the largest label + 1 if the file has no test part).

    Raises:
        ValueError: no such file; not an .npz; `x` or `y` missing; arrays that are not numeric,
            finite and non-empty, or do not match; labels that are not integers in 0 .. C-1.
    """
    return parts(_read(own_file(path)), path)


def stored(archive: zipfile.ZipFile, name: str) -> np.ndarray:
    """An array, once all of its bytes are compared with the archive's checksum.

    NumPy would read as many as the array's header says, and compare those of a whole file alone.
    """
    with archive.open(f"{name}.npy") as file:
        array = np.lib.format.read_array(file, allow_pickle=False)
        if file.read(1):
            raise ValueError(f"{name} has more bytes than its shape {array.shape}")
    return array


def parts(
    raw: Mapping[str, np.ndarray], path: str
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, int]:
    """The same from arrays by name, at least `x` and `y`; errors name `path`.

    Raises:
        ValueError: as `read_npz`, but for the file itself.
    """
    x, y = _part(raw, "x", "y", path)
    classes = int(y.max()) + 1
    if classes < 2:
        raise ValueError(f"{path}: y holds the label 0 only: a classifier needs at least 2 classes")
    if "x_test" not in raw:
        if len(x) < 2:
            raise ValueError(
                f"{path}: x holds 1 record, too few to hold out a test part: add x_test and y_test"
            )
        train, test = fixed_split(len(x), max(1, len(x) // 5))
        return x[train], y[train], x[test], y[test], classes
    x_test, y_test = _part(raw, "x_test", "y_test", path)
    _check_alike(raw["x"], raw["x_test"], path)
    if (largest := y_test.max()) >= classes:
        raise ValueError(
            f"{path}: y_test holds the label {largest}, those of y end at {classes - 1}: renumber "
            "them"
        )
    return x, y, x_test, y_test, classes


def _read(path: Path) -> dict[str, np.ndarray]:
    """The file's arrays of known names: x and y, and both of x_test and y_test or neither."""
    try:
        if not zipfile.is_zipfile(path):
            raise ValueError("it is no zip archive")
        with zipfile.ZipFile(path) as archive:
            _check_directory(path, archive)
            found = [name.removesuffix(".npy") for name in archive.namelist()]
            raw = {name: stored(archive, name) for name in found if name in _NAMES}
    except MemoryError as error:
        raise ValueError(f"{path} does not fit into memory ({error}): use fewer records") from error
    except Exception as error:  # of a damaged archive or header, it can be any
        reason = " ".join(f"{error}".split()) or type(error).__name__
        raise ValueError(
            f"{path} is no .npz of plain arrays ({reason}): write it with numpy.savez(path, x=x, "
            "y=y)"
        ) from error
    wanted = _NAMES if "x_test" in raw or "y_test" in raw else _NAMES[:2]
    for name in wanted:
        if name not in raw:
            raise ValueError(
                f"{path}: array {name!r} is missing, the file holds {', '.join(found) or 'none'}: "
                "add it"
            )
    for name in found:
        if name not in _NAMES and (near := nearest(name, _NAMES[2:], likeness=0.8)):
            raise ValueError(
                f"{path}: array {name!r} is unknown, did you mean {near!r}? rename it or leave it "
                "out"
            )
    return raw


def _check_directory(path: Path, archive: zipfile.ZipFile) -> None:
    """Compare an archive's directory, which has no checksum, with its end and its members' headers.

    Damage can hide an entry of it, or rename one.

    Raises:
        ValueError, zipfile.BadZipFile: they differ.
    """
    with open(path, "rb") as file:
        file.seek(max(path.stat().st_size - MAX_END_BYTES, 0))
        _, _, end = file.read().rpartition(b"PK\5\6")
    entries = int.from_bytes(end[6:8], "little")
    if entries not in (len(archive.infolist()), MANY):
        raise ValueError(f"its directory holds {len(archive.infolist())} of {entries} entries")
    for member in archive.infolist():
        archive.open(member).close()


def _part(
    raw: Mapping[str, np.ndarray], x_name: str, y_name: str, path: str
) -> tuple[np.ndarray, np.ndarray]:
    """The records and labels of the training or test part, checked to be of equal length."""
    x, y = _records(raw[x_name], x_name, path), _labels(raw[y_name], y_name, path)
    if len(x) != len(y):
        raise ValueError(
            f"{path}: {x_name} holds {len(x)} records, {y_name} {len(y)} labels: give each record "
            "one label"
        )
    return x, y


def _records(array: np.ndarray, name: str, path: str) -> np.ndarray:
    """Records as float32 [N, F] or [N, C, H, W]; uint8 is divided by 255."""
    if array.dtype.kind not in "buif":
        raise ValueError(
            f"{path}: {name} has dtype {array.dtype}, not numbers: store it as float32 or uint8"
        )
    if array.ndim not in (2, 3, 4):
        shape = f"{name} has shape {array.shape}"
        raise ValueError(
            f"{path}: {shape}: give features [N, F], grey images [N, H, W] or images [N, C, H, W]"
        )
    if array.size == 0:
        raise ValueError(
            f"{path}: {name} has shape {array.shape}, which holds no numbers: give at least one "
            "record"
        )
    if (
        array.dtype == np.uint8
        and array.ndim == 4
        and array.shape[1] not in _CHANNELS
        and array.shape[3] in _CHANNELS
    ):
        raise ValueError(
            f"{path}: {name} has shape {array.shape}, channels last: store {name}.transpose(0, 3, "
            "1, 2)"
        )
    with np.errstate(over="ignore"):
        x = array.astype(np.float32, copy=False)
    if array.dtype == np.uint8:
        x *= np.float32(1 / 255)
    if not np.isfinite((x.min(), x.max())).all():  # either is NaN where one record is
        where = tuple(int(i) for i in np.argwhere(~np.isfinite(x))[0])
        raise ValueError(
            f"{path}: {name}{list(where)} = {array[where]}, not finite as float32: fix or drop the "
            "record"
        )
    return x[:, None] if x.ndim == 3 else x


def _labels(array: np.ndarray, name: str, path: str) -> np.ndarray:
    """Labels as int64 [N], all in 0 .. MAX_CLASSES - 1."""
    if array.dtype.kind not in "iu":
        raise ValueError(
            f"{path}: {name} has dtype {array.dtype}: labels are integers 0 .. C-1, store them as "
            "int64"
        )
    if array.ndim != 1:
        raise ValueError(
            f"{path}: {name} has shape {array.shape}: give one label per record, shape [N]"
        )
    outside = np.flatnonzero((array < 0) | (array >= MAX_CLASSES))
    if outside.size:
        first = outside[0]
        raise ValueError(
            f"{path}: {name}[{first}] = {array[first]} is outside 0 .. {MAX_CLASSES - 1}: renumber "
            "the labels from 0"
        )
    return array.astype(np.int64, copy=False)


def _check_alike(x: np.ndarray, x_test: np.ndarray, path: str) -> None:
    """Training and test records have one shape and one scale."""
    if x_test.shape[1:] != x.shape[1:]:
        raise ValueError(
            f"{path}: x_test has records of shape {x_test.shape[1:]}, x of {x.shape[1:]}: make "
            "them alike"
        )
    if (x.dtype == np.uint8) != (x_test.dtype == np.uint8):
        raise ValueError(
            f"{path}: x is {x.dtype}, x_test {x_test.dtype}, and uint8 alone is divided by 255: "
            "store both alike"
        )
