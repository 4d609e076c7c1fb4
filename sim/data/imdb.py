"""The IMDB film reviews (Maas et al., 2011) as sequences of word numbers, from Keras' `imdb.npz`.

The file holds each review as a list of its words' ranks by frequency in the training set, from 1.
As in Keras, a review begins with a marker, ranks are shifted by 3, words outside the vocabulary
become one number, and a review is truncated to its last words or padded at the front:

    0: padding    1: beginning    2: any other word    3 + rank: the word of that rank

The vocabulary counts as public, since it was published with the file. The lists are pickled; only
arrays and lists of numbers are unpickled.
"""

import hashlib
import json
import pickle
import urllib.request
import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from mechanisms import durable
from sim.data.arrays import DAMAGE

WORDS = 20_000
"""Vocabulary size, including the three markers."""
LENGTH = 80
"""Words per review."""
FILLING, BEGINNING, OTHER, FIRST = 0, 1, 2, 3

SOURCE = "https://storage.googleapis.com/tensorflow/tf-keras-datasets"
REVIEWS, INDEX = "imdb.npz", "imdb_word_index.json"
SHA256 = {
    REVIEWS: "69664113be75683a8fe16e3ed0ab59fda8886cb3cd7ada244f7d9544e4676b9f",
    INDEX: "027313fe9a320280f3bf0fac5baf58c4a683cf39a7ed9c3d3d3912bde4284cf6",
}
"""Checksums of the files at `SOURCE`: downloads are checked, files already on disk are not."""

_BUILDING = {
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
    ("numpy.core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "_reconstruct"),
    ("_codecs", "encode"),
}


def read(root: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """x int64 [N, LENGTH], y int64 [N] (1: favourable), x_test int64 [M, LENGTH], y_test int64 [M].

    Raises:
        ValueError: `imdb.npz` is neither in `root` nor in `root/imdb` and cannot be downloaded, or
            is invalid.
    """
    path, names = _found(root, REVIEWS), ("x_train", "y_train", "x_test", "y_test")
    try:
        with zipfile.ZipFile(path) as archive:
            x, y, x_test, y_test = (_array(archive, name) for name in names)
        return _sequences(x), _labels(y, len(x)), _sequences(x_test), _labels(y_test, len(x_test))
    except (*DAMAGE, KeyError, pickle.UnpicklingError) as error:
        reason = " ".join(str(error).split())
        raise ValueError(
            f"{path} is not Keras' {REVIEWS} ({reason}): remove it to download it again, or put "
            "the file there"
        ) from error


def numbers(root: Path) -> dict[str, int]:
    """The number of each word of the vocabulary.

    Raises:
        ValueError: `imdb_word_index.json` is missing and cannot be downloaded, or is invalid.
    """
    path = _found(root, INDEX)
    try:
        ranks = json.loads(path.read_text(encoding="utf-8"))
        return {word: FIRST + rank for word, rank in ranks.items() if FIRST + rank < WORDS}
    except (OSError, ValueError, AttributeError, TypeError) as error:
        raise ValueError(
            f"{path} holds no ranks of words ({error}): remove it to download it again"
        ) from error


def _found(root: Path, name: str) -> Path:
    """The path of the file, which is downloaded if missing."""
    places = root / name, root / "imdb" / name
    for path in places:
        if path.is_file():
            return path
    try:
        with urllib.request.urlopen(f"{SOURCE}/{name}") as answer:
            content = answer.read()
        if hashlib.sha256(content).hexdigest() != SHA256[name]:
            raise OSError("its SHA-256 is that of another file")
        places[1].parent.mkdir(parents=True, exist_ok=True)
        durable.write(places[1], content)
    except OSError as error:
        raise ValueError(
            f"dataset = 'imdb': {places[1]} is missing and could not be downloaded from {SOURCE} "
            f"({error}): put the file there, or use --dataset digits"
        ) from error
    return places[1]


class _Unpickler(pickle.Unpickler):
    """Builds arrays and lists of numbers; refuses a file that names any other type."""

    def find_class(self, module: str, name: str) -> object:
        if (module, name) not in _BUILDING:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}")
        return super().find_class(module, name)


def _array(archive: zipfile.ZipFile, name: str) -> np.ndarray:
    with archive.open(f"{name}.npy") as file:
        if np.lib.format.read_magic(file) != (1, 0):
            raise ValueError(f"{name} is stored in another version of NumPy's format")
        shape, by_columns, dtype = np.lib.format.read_array_header_1_0(file)
        if dtype.hasobject:
            return _Unpickler(file).load()
        return np.frombuffer(file.read(), dtype).reshape(shape, order="F" if by_columns else "C")


def _sequences(reviews: np.ndarray | Sequence[Sequence[int]]) -> np.ndarray:
    """Reviews of ranks as int64 [N, LENGTH]."""
    x = np.full((len(reviews), LENGTH), FILLING, dtype=np.int64)
    for row, ranks in zip(x, reviews, strict=True):
        last = np.asarray(ranks[-LENGTH:])
        if len(last) and (last.dtype.kind not in "iu" or last.min() < 1):
            raise ValueError("a review holds something other than ranks of words, integers from 1")
        words = last.astype(np.int64) + FIRST
        row[LENGTH - len(words) :] = np.where(words < WORDS, words, OTHER)
        if len(words) < LENGTH:
            row[-len(words) - 1] = BEGINNING
    return x


def _labels(array: np.ndarray, records: int) -> np.ndarray:
    if array.shape != (records,) or not np.isin(array, (0, 1)).all():
        raise ValueError(f"{records} reviews need as many labels, each 0 or 1")
    return array.astype(np.int64)
