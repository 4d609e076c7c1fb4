"""What a model is to say of each record: classes, yes or no for each label, numbers or words.

A loss says which: `cross-entropy` takes classes 0 .. C-1, integers [N]; `binary-cross-entropy` 0 or
1 for each of L labels, [N, L]; `squared-error` numbers, [N] or [N, D]; `next-word` the number of a
word for each place of a sequence, integers [N, T]. A loss of the user's own takes integers or
numbers of any of these shapes.
"""

import warnings

import numpy as np

from sim.config.settings import BINARY_CROSS_ENTROPY, CROSS_ENTROPY, NEXT_WORD

MAX_CLASSES = 65_536


def targets(array: np.ndarray, name: str, path: str, loss: str) -> np.ndarray:
    """Targets as int64 [N] or [N, T], or as float32 [N, D]; errors name `path` and `name`.

    Raises:
        ValueError: they are not of the form that the loss takes.
    """
    integers = array.dtype.kind in "iu"
    if loss == CROSS_ENTROPY or (":" in loss and integers and array.ndim == 1):
        return _classes(array, name, path)
    said = f"{path}: {name} has dtype {array.dtype} and shape {array.shape}, and loss = {loss}"
    if loss == NEXT_WORD:
        if not integers or array.ndim != 2:
            raise ValueError(f"{said} takes numbers of words: give integers of shape [N, T]")
        return array.astype(np.int64, copy=False)
    if array.dtype.kind not in "buif" or array.ndim not in (1, 2) or array.size == 0:
        raise ValueError(f"{said} takes numbers: give them in shape [N] or [N, D]")
    if loss == BINARY_CROSS_ENTROPY and (array.ndim != 2 or not np.isin(array, (0, 1)).all()):
        raise ValueError(f"{said} takes 0 or 1 for each label: give them in shape [N, L]")
    if ":" in loss and integers:
        return array.astype(np.int64, copy=False)
    numbers = as_float32(array, name, path)
    return numbers[:, None] if numbers.ndim == 1 else numbers


def as_float32(array: np.ndarray, name: str, path: str) -> np.ndarray:
    """An array of numbers, which must be finite as float32; it is not copied if it is of them."""
    with np.errstate(over="ignore"):
        numbers = array.astype(np.float32, copy=False)
    if not np.isfinite((numbers.min(), numbers.max())).all():  # either is NaN where one number is
        where = tuple(int(i) for i in np.argwhere(~np.isfinite(numbers))[0])
        raise ValueError(
            f"{path}: {name}{list(where)} = {array[where]}, not finite as float32: fix or drop the "
            "record"
        )
    return numbers


def outputs(y: np.ndarray, words: int, stated: int, path: str) -> int:
    """A model's outputs for such training targets: classes, as many as stated if that is not 0;
    labels, numbers, or all words.

    Raises:
        ValueError: there is one class, or a label is beyond the stated ones.
    """
    if y.ndim > 1:
        return words if words and y.dtype == np.int64 else y.shape[1]
    classes = int(y.max()) + 1
    if stated and classes > stated:
        raise ValueError(
            f"{path}: y holds the label {classes - 1}, and classes = {stated} are stated: correct "
            "one of them"
        )
    if max(stated, classes) < 2:
        raise ValueError(f"{path}: y holds the label 0 only: a classifier needs at least 2 classes")
    return stated or classes


def tell_absent(y: np.ndarray, classes: int, path: str) -> None:
    """Warn of classes that no training record has; nothing if targets are no classes."""
    absent = np.setdiff1d(np.arange(classes), y) if y.ndim == 1 else np.empty(0)
    if absent.size:
        some = ", ".join(map(str, absent[:5].tolist())) + (", ..." if absent.size > 5 else "")
        warnings.warn(
            f"{path}: no training record has the label {some}, and the model has an output for "
            f"each of 0 .. {classes - 1}: renumber the labels if that is not meant",
            stacklevel=2,
        )


def _classes(array: np.ndarray, name: str, path: str) -> np.ndarray:
    """Classes as int64 [N], all in 0 .. MAX_CLASSES - 1."""
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
