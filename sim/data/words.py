"""The vocabulary of records that are sequences of word numbers, and word vectors from a file.

A file of word vectors is a text file such as GloVe's, with a line for each word: the word and its D
numbers, separated by spaces. They count as public: they must not be made from the records that the
guarantee protects.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sim.config.settings import Data, expanded
from sim.data import imdb
from sim.data.dataset import Dataset
from sim.data.files import directory


@dataclass(frozen=True, eq=False)
class Words:
    """The words of a data set.

    Attributes:
        count: size of the vocabulary: records are sequences of 0 .. count - 1, where 0 is padding.
        vectors: float32 [count, D], a vector for each; None: drawn at random.
        trained: whether the vectors are trained with the model.
    """

    count: int
    vectors: np.ndarray | None = None
    trained: bool = False


def words_of(data: Data, dataset: Dataset) -> Words | None:
    """The words of a data set as configured; None if records are numeric.

    Raises:
        ValueError: a setting for words on a data set without any, or for numeric records on words;
            an invalid file of vectors.
    """
    if not dataset.words:
        for name in ("word_vectors", "train_embedding"):
            if given := getattr(data, name):
                flag = f"--{name.replace('_', '-')}"
                raise ValueError(
                    f"{name} is {given}, but {dataset.name} has no words: drop {flag}, or give "
                    "--dataset imdb"
                )
        return None
    if data.standardize != "none":
        raise ValueError(
            f"standardize is {data.standardize}, but word numbers have no meaningful mean: drop "
            "--standardize"
        )
    vectors = None
    if data.word_vectors:
        numbers = imdb.numbers(directory(data.data_dir))
        vectors = read_vectors(expanded(data.word_vectors), numbers, dataset.words)
    return Words(dataset.words, vectors, data.train_embedding)


def read_vectors(path: Path, numbers: dict[str, int], count: int) -> np.ndarray:
    """Word vectors float32 [count, D] by word number; 0 for words that the file lacks.

    Raises:
        ValueError: no such file, no vector of any of the words, or an invalid line.
    """
    found: dict[int, np.ndarray] = {}
    try:
        with open(path, encoding="utf-8", newline="\n") as file:
            for nth, line in enumerate(file, 1):
                word, _, rest = line.rstrip().partition(" ")
                if word in numbers:
                    first = next(iter(found.values()), None)
                    found[numbers[word]] = _vector(rest, f"{path}, line {nth}", first)
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(
            f"word_vectors = {path} cannot be read ({error}): give --word-vectors a text file"
        ) from error
    if not found:
        raise ValueError(
            f"word_vectors = {path} has no vector of any of the {len(numbers)} words: give another "
            "file"
        )
    vectors = np.zeros((count, len(next(iter(found.values())))), dtype=np.float32)
    for number, vector in found.items():
        vectors[number] = vector
    return vectors


def _vector(text: str, place: str, other: np.ndarray | None) -> np.ndarray:
    try:
        vector = np.array(text.split(" "), dtype=np.float32)
    except ValueError:
        raise ValueError(
            f"{place}: not a word and numbers, separated by single spaces: fix the line"
        ) from None
    if not np.isfinite(vector).all() or (other is not None and len(other) != len(vector)):
        raise ValueError(
            f"{place}: {len(vector)} numbers, not all finite or not as many as before: fix the line"
        )
    return vector
