"""The IMDB film reviews (Maas et al., 2011) as sequences of word numbers, from Keras' `imdb.npz`.

The file holds each review as a list of its words' ranks by frequency in the training set, from 1.
As Keras reads it, a review begins with a mark, ranks are moved up by 3, words beyond the vocabulary
become one number, and a review is cut to its last words or filled up in front:

    0: filling    1: beginning    2: any other word    3 + rank: the word of that rank

The vocabulary is public, as the file's makers published it. Lists are pickled in the file; nothing
but arrays and lists of numbers is unpickled.
"""

import hashlib
import json
import pickle
import urllib.request
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from mechanisms import durable

WORDS = 20_000
"""Numbers of words, the three marks among them."""
LENGTH = 80
"""Numbers of a review."""
FILLING, BEGINNING, OTHER, FIRST = 0, 1, 2, 3

SOURCE = "https://storage.googleapis.com/tensorflow/tf-keras-datasets"
REVIEWS, INDEX = "imdb.npz", "imdb_word_index.json"
SHA256 = {
    REVIEWS: "69664113be75683a8fe16e3ed0ab59fda8886cb3cd7ada244f7d9544e4676b9f",
    INDEX: "027313fe9a320280f3bf0fac5baf58c4a683cf39a7ed9c3d3d3912bde4284cf6",
}
"""Of the files at `SOURCE`: what is downloaded is compared, what lies on the disk is not."""

_BUILDING = {
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
    ("numpy.core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "_reconstruct"),
    ("_codecs", "encode"),
}


def read(root: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """x int64 [N, LENGTH], y int64 [N], x_test int64 [M, LENGTH] and y_test int64 [M] (1: a
    favourable review).

    Raises:
        ValueError: `imdb.npz` is neither in `root` nor in `root/imdb` and cannot be downloaded, or
            is no such file.
    """
    path = _found(root, REVIEWS)
    try:
        with zipfile.ZipFile(path) as archive:
            x, y, x_test, y_test = (
                _array(archive, name) for name in ("x_train", "y_train", "x_test", "y_test")
            )
        return _sequences(x), _labels(y, len(x)), _sequences(x_test), _labels(y_test, len(x_test))
    except (
        OSError,
        ValueError,
        KeyError,
        EOFError,
        pickle.UnpicklingError,
        zipfile.BadZipFile,
        zlib.error,
    ) as error:
        reason = " ".join(str(error).split())
        raise ValueError(
            f"{path} is not Keras' {REVIEWS} ({reason}): remove it, and it is downloaded anew; or "
            "put the file there"
        ) from error


def numbers(root: Path) -> dict[str, int]:
    """The number of each word of the vocabulary.

    Raises:
        ValueError: `imdb_word_index.json` is not there and cannot be downloaded, or is no such
            file.
    """
    path = _found(root, INDEX)
    try:
        ranks = json.loads(path.read_text(encoding="utf-8"))
        return {word: FIRST + rank for word, rank in ranks.items() if FIRST + rank < WORDS}
    except (OSError, ValueError, AttributeError, TypeError) as error:
        raise ValueError(
            f"{path} holds no ranks of words ({error}): remove it, and it is downloaded anew"
        ) from error


def _found(root: Path, name: str) -> Path:
    """Where the file lies; it is downloaded where it does not."""
    places = root / name, root / "imdb" / name
    for path in places:
        if path.is_file():
            return path
    try:
        with urllib.request.urlopen(f"{SOURCE}/{name}") as answer:
            content = answer.read()
        if hashlib.sha256(content).hexdigest() != SHA256[name]:
            raise OSError("what came is another file, by its SHA-256")
        places[1].parent.mkdir(parents=True, exist_ok=True)
        durable.write(places[1], content)
    except OSError as error:
        raise ValueError(
            f"dataset = 'imdb': {places[1]} is missing and could not be downloaded from {SOURCE} "
            f"({error}): put the file there, or use --dataset digits"
        ) from error
    return places[1]


class _Unpickler(pickle.Unpickler):
    """Builds arrays and lists of numbers; a file that names anything else is refused before it is
    built."""

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
            raise ValueError("a review holds something else than ranks of words, integers from 1")
        words = last.astype(np.int64) + FIRST
        row[LENGTH - len(words) :] = np.where(words < WORDS, words, OTHER)
        if len(words) < LENGTH:
            row[-len(words) - 1] = BEGINNING
    return x


def _labels(array: np.ndarray, records: int) -> np.ndarray:
    if array.shape != (records,) or not np.isin(array, (0, 1)).all():
        raise ValueError(f"{records} reviews need as many labels, each 0 or 1")
    return array.astype(np.int64)
