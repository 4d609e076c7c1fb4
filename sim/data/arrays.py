"""A user's own data set: arrays by name, checked one by one; and one `.npz` file of them.

There are `x` [N, ...] and `y` (`sim.sources.targets`), and there may be `x_test` and `y_test`, and
`client` [N], texts or integers that say whose record each is. Records are features ([N, F]), grey
images ([N, H, W], read as [N, 1, H, W]) or images with channels first ([N, C, H, W]). `uint8`
records are pixels and are divided by 255; other numbers are used unchanged. With `words`, the size
of a vocabulary, records are word numbers, integers [N, T] below it. `classes` states how many there
are; otherwise the largest label does. Other arrays are ignored.
Without a test part, one record in five is held out by `fixed_split`; each of given clients keeps at
least one. Pickled objects are never loaded.
"""

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from sim.config.names import nearest
from sim.config.settings import CROSS_ENTROPY, NEXT_WORD
from sim.sources.targets import MAX_CLASSES, as_float32, outputs, targets, tell_absent

MAX_END_BYTES = 22 + 65_535
"""Maximum size of an archive's end record, with the longest comment."""
MANY = 0xFFFF
"""Stands in the end record for any number of entries above."""
NAMES = ("x", "y", "x_test", "y_test", "client", "words", "classes")
UNREAD = np.empty(0)
"""Stands for an array that is not read, as it could be of any kind."""
MAX_WORDS = 10_000_000
_PARTS = NAMES[:4]
_CHANNELS = (1, 3, 4)


class Arrays(NamedTuple):
    """A data set's arrays: N training and M test records.

    Attributes:
        x, x_test: records, float32 [N, ...] and [M, ...]; int64 [N, T] and [M, T] if words.
        y, y_test: their targets, int64 or float32 [N, ...] and [M, ...].
        classes: outputs of a model, such as the number of classes.
        words: size of the vocabulary if records are word numbers; else 0.
        owner: int64 [N], the client of each training record, 0 .. K - 1 in the order of the
            clients' sorted names; None if the data set does not say.
        clients: these names, in their order.
    """

    x: np.ndarray
    y: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray
    classes: int
    words: int
    owner: np.ndarray | None
    clients: tuple[str, ...]


def fixed_split(records: int, test: int) -> tuple[np.ndarray, np.ndarray]:
    """A fixed random split of indices: int64 [records - test] and [test], both ascending.

    It sorts the raw output of Philox, a stream that is the same in all NumPy versions.
    """
    order = _fixed_order(records)
    return np.sort(order[test:]), np.sort(order[:test])


def _fixed_order(records: int) -> np.ndarray:
    return np.argsort(np.random.Philox(key=0).random_raw(records), kind="stable")


def parts(raw: Mapping[str, np.ndarray], path: str, loss: str = CROSS_ENTROPY) -> Arrays:
    """The arrays of a data set, given by name; `loss` says what the targets are.

    There are as many classes as the largest training label + 1 (the largest label + 1 if there is
    no test part). Errors name `path`.

    Raises:
        ValueError: `x` or `y` missing; arrays that are not numeric, finite and non-empty, or do not
            match; targets that the loss does not take.
    """
    _check_names(raw, path)
    words = _stated(raw, "words", MAX_WORDS, path)
    if loss == NEXT_WORD and not words:
        raise ValueError(f"{path}: loss = {loss} needs words, the size of the vocabulary: add it")
    x, y = _part(raw, "x", "y", path, loss, words)
    names, owner = _owners(raw["client"], len(x), path) if "client" in raw else ((), None)
    classes = outputs(y, words, _stated(raw, "classes", MAX_CLASSES, path), path)
    if "x_test" not in raw:
        train, test = _held_out(len(x), owner, path)
        own = None if owner is None else owner[train]
        tell_absent(y[train], classes, path)
        return Arrays(x[train], y[train], x[test], y[test], classes, words, own, names)
    x_test, y_test = _part(raw, "x_test", "y_test", path, loss, words)
    _check_alike(raw["x"], raw["x_test"], path)
    if y_test.shape[1:] != y.shape[1:]:
        raise ValueError(
            f"{path}: y_test has targets of shape {y_test.shape[1:]}, y of {y.shape[1:]}: make "
            "them alike"
        )
    if y.ndim == 1 and (largest := y_test.max()) >= classes:
        raise ValueError(
            f"{path}: y_test holds the label {largest}, those of y end at {classes - 1}: renumber "
            "them"
        )
    tell_absent(y, classes, path)
    return Arrays(x, y, x_test, y_test, classes, words, owner, names)


def _held_out(records: int, owner: np.ndarray | None, path: str) -> tuple[np.ndarray, np.ndarray]:
    """The training and the test records; one record of each given client is for training."""
    if records < 2:
        raise ValueError(
            f"{path}: x holds 1 record, too few to hold out a test part: add records, or x_test "
            "and y_test"
        )
    wanted = max(1, records // 5)
    if owner is None:
        return fixed_split(records, wanted)
    order = _fixed_order(records)
    kept = order[np.unique(owner[order], return_index=True)[1]]
    test = order[~np.isin(order, kept)][:wanted]
    if not test.size:
        raise ValueError(
            f"{path}: each client holds 1 record and keeps it, which leaves no test part: add "
            "records, or x_test and y_test"
        )
    return np.setdiff1d(order, test), np.sort(test)


def stored(archive: zipfile.ZipFile, name: str) -> np.ndarray:
    """An array, once all of its bytes are compared with the archive's checksum.

    NumPy would read as many as the array's header says, and compare those of a whole file alone.
    """
    with archive.open(f"{name}.npy") as file:
        array = np.lib.format.read_array(file, allow_pickle=False)
        if file.read(1):
            raise ValueError(f"{name} has more bytes than its shape {array.shape}")
    return array


def read(path: Path) -> dict[str, np.ndarray]:
    """The arrays of an `.npz` file by name, `UNREAD` for those of unknown names.

    Raises:
        ValueError: the file is no archive of plain arrays.
    """
    try:
        if not zipfile.is_zipfile(path):
            raise ValueError("it is no zip archive")
        with zipfile.ZipFile(path) as archive:
            _check_directory(path, archive)
            found = [name.removesuffix(".npy") for name in archive.namelist()]
            return {name: stored(archive, name) if name in NAMES else UNREAD for name in found}
    except MemoryError as error:
        raise ValueError(f"{path} does not fit into memory ({error}): use fewer records") from error
    except Exception as error:  # of a damaged archive or header, it can be any
        reason = " ".join(f"{error}".split()) or type(error).__name__
        raise ValueError(
            f"{path} is no .npz of plain arrays ({reason}): write it with numpy.savez(path, x=x, "
            "y=y)"
        ) from error


def _check_names(raw: Mapping[str, np.ndarray], path: str) -> None:
    """Refuse a missing array, half a test part, and a name that is nearly a known one."""
    wanted = _PARTS if "x_test" in raw or "y_test" in raw else _PARTS[:2]
    for name in wanted:
        if name not in raw:
            raise ValueError(
                f"{path}: array {name!r} is missing, found {', '.join(raw) or 'none'}: add it"
            )
    for name in raw:
        if name not in NAMES and (near := nearest(name, NAMES[2:], likeness=0.8)):
            raise ValueError(
                f"{path}: array {name!r} is unknown, did you mean {near!r}? rename it or leave it "
                "out"
            )


def _stated(raw: Mapping[str, np.ndarray], name: str, most: int, path: str) -> int:
    """A number that the data set states itself; 0 if it does not."""
    if name not in raw:
        return 0
    number = raw[name]
    if number.ndim or number.dtype.kind not in "iu" or not 2 <= number <= most:
        raise ValueError(
            f"{path}: {name} = {number} must be one integer of at least 2 and at most {most}: "
            "correct it"
        )
    return int(number)


def _owners(names: np.ndarray, records: int, path: str) -> tuple[tuple[str, ...], np.ndarray]:
    """The clients' sorted names, and each record's place among them, int64 [N]."""
    if names.dtype.kind not in "iuUS" or names.shape != (records,):
        raise ValueError(
            f"{path}: client has dtype {names.dtype} and shape {names.shape}: give an integer or a "
            f"text for each of the {records} records of x"
        )
    known, owner = np.unique(names, return_inverse=True)
    return tuple(known.astype(str).tolist()), owner.astype(np.int64)


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
    raw: Mapping[str, np.ndarray], x_name: str, y_name: str, path: str, loss: str, words: int
) -> tuple[np.ndarray, np.ndarray]:
    """The records and targets of the training or test part, checked to be of equal length."""
    if words:
        x = _sequences(raw[x_name], x_name, path, words)
    else:
        x = _records(raw[x_name], x_name, path)
    y = targets(raw[y_name], y_name, path, loss)
    if words and y.ndim == 2 and y.dtype == np.int64:
        _sequences(y, y_name, path, words)
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
            "record, and one number in each"
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
    x = as_float32(array, name, path)
    if array.dtype == np.uint8:
        x *= np.float32(1 / 255)
    return x[:, None] if x.ndim == 3 else x


def _sequences(array: np.ndarray, name: str, path: str, words: int) -> np.ndarray:
    """Word numbers as int64 [N, T], all below `words`."""
    if array.dtype.kind not in "iu" or array.ndim != 2 or array.size == 0:
        raise ValueError(
            f"{path}: {name} has dtype {array.dtype} and shape {array.shape}: word numbers are "
            "integers [N, T]"
        )
    if array.min() < 0 or array.max() >= words:
        raise ValueError(
            f"{path}: {name} holds {array.min()} to {array.max()}, outside 0 .. {words - 1} of "
            "words: correct the numbers or words"
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
