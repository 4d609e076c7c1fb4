"""The IMDB film reviews (Maas et al., 2011) as sequences of word numbers, from Keras' `imdb.npz`.

The file holds each review as a list of its words' ranks by frequency in the training set, from 1.
As in Keras, a review begins with a marker, ranks are shifted by 3, words outside the vocabulary
become one number, and a review is truncated to its last words or padded at the front:

    0: padding    1: beginning    2: any other word    3 + rank: the word of that rank

The vocabulary counts as public, since it was published with the file. The lists are pickled, but
the file is known to the byte, so its layout alone is read here, and nothing is unpickled.
"""

import io
import json
import re
import urllib.request
import zipfile
from pathlib import Path

import numpy as np

from mechanisms import durable
from sim.data.files import check_published, published

WORDS = 20_000
"""Vocabulary size, including the three markers."""
LENGTH = 80
"""Words per review."""
FILLING, BEGINNING, OTHER, FIRST = 0, 1, 2, 3

SOURCE = "https://storage.googleapis.com/tensorflow/tf-keras-datasets"
REVIEWS, INDEX = "imdb.npz", "imdb_word_index.json"

_START = re.compile(rb"\x80[\x02\x03]c[^\]]*b\x89\](?:q.|r....)", re.DOTALL)
"""What stands before the first list: an array of objects, pickled by protocol 2 or 3."""
_ONE = rb"K.|M..|J...."
_LIST = re.compile(
    rb"(?:e?\()?\](?:q.|r....)((?:\((?:%b)*+e)*+(?:(?:%b)a)?)" % (_ONE, _ONE), re.DOTALL
)
_RANK = re.compile(_ONE, re.DOTALL)
"""A list and its ranks, of 1, 2 or 4 bytes each: 1,000 at most stand between ( and e, one alone
before an a. The lists themselves stand between ( and e likewise."""


def read(root: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """x int64 [N, LENGTH], y int64 [N] (1: favourable), x_test int64 [M, LENGTH], y_test int64 [M].

    Raises:
        ValueError: `imdb.npz` is neither in `root` nor in `root/imdb` and cannot be downloaded, or
            is another file.
    """
    with zipfile.ZipFile(io.BytesIO(_content(root, REVIEWS))) as archive:
        y, y_test = (_labels(archive.read(f"y_{part}.npy")) for part in ("train", "test"))
        x = _sequences(archive.read("x_train.npy"), len(y))
        x_test = _sequences(archive.read("x_test.npy"), len(y_test))
    return x, y, x_test, y_test


def numbers(root: Path) -> dict[str, int]:
    """The number of each word of the vocabulary.

    Raises:
        ValueError: `imdb_word_index.json` is missing and cannot be downloaded, or is another file.
    """
    ranks = json.loads(_content(root, INDEX))
    return {word: FIRST + rank for word, rank in ranks.items() if FIRST + rank < WORDS}


def _content(root: Path, name: str) -> bytes:
    """The content of a published file, which is downloaded if missing."""
    places = root / name, root / "imdb" / name
    for path in places:
        if path.is_file():
            return published(path, f"imdb/{name}")
    try:
        with urllib.request.urlopen(f"{SOURCE}/{name}") as answer:
            content = check_published(answer.read(), f"imdb/{name}", f"{SOURCE}/{name}")
        durable.make_folder(places[1].parent)
        durable.write(places[1], content, shared=True)
    except (OSError, ValueError) as error:
        raise ValueError(
            f"dataset = 'imdb': {places[1]} is missing and could not be downloaded ({error}): put "
            "the file there, or use --dataset digits"
        ) from error
    return content


def _sequences(array: bytes, count: int) -> np.ndarray:
    """So many reviews of ranks as int64 [count, LENGTH]."""
    rows, found = [], _START.search(array)
    while found is not None:
        end = found.end()
        if (found := _LIST.match(array, end)) is not None:
            rows.append(_words(_RANK.findall(found[1])))
    if len(rows) != count:
        raise ValueError(f"{REVIEWS} has another layout: review {len(rows)} of {count} is unknown")
    return np.stack(rows)


def _words(ranks: list[bytes]) -> np.ndarray:
    """The row of a review."""
    row = np.full(LENGTH, FILLING, dtype=np.int64)
    last = [int.from_bytes(rank[1:], "little") + FIRST for rank in ranks[-LENGTH:]]
    words = np.array(last, dtype=np.int64)
    row[LENGTH - len(words) :] = np.where(words < WORDS, words, OTHER)
    if len(words) < LENGTH:
        row[-len(words) - 1] = BEGINNING
    return row


def _labels(array: bytes) -> np.ndarray:
    return np.lib.format.read_array(io.BytesIO(array), allow_pickle=False).astype(np.int64)
