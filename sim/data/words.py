"""Records that are sequences of word numbers: what a model is told of the words, word vectors from
a file among it.

A file of word vectors is a text with a line for each word, as GloVe's: the word and its D numbers,
parted by spaces. Such vectors are public knowledge: they must not be made from the records that the
guarantee is to protect.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sim.config.settings import Data
from sim.data import imdb
from sim.data.dataset import Dataset
from sim.data.files import directory


@dataclass(frozen=True, eq=False)
class Words:
    """The words of a data set.

    Attributes:
        count: records are sequences of numbers 0 .. count - 1; 0 fills up.
        vectors: float32 [count, D], a vector for each; None: drawn at random.
        trained: whether the vectors are trained with the model.
    """

    count: int
    vectors: np.ndarray | None = None
    trained: bool = False


def words_of(data: Data, dataset: Dataset) -> Words | None:
    """The words of a data set as the settings want them; None where records are numbers.

    Raises:
        ValueError: a setting of words for a data set without any, or of numbers for words; a faulty
            file of vectors.
    """
    if not dataset.words:
        for name, given in (
            ("word_vectors", data.word_vectors),
            ("train_embedding", data.train_embedding),
        ):
            if given:
                flag = f"--{name.replace('_', '-')}"
                raise ValueError(
                    f"{name} is {given}, but {dataset.name} has no words: drop {flag}, or "
                    "--dataset imdb"
                )
        return None
    if data.standardize != "none":
        raise ValueError(
            f"standardize is {data.standardize}, but the numbers of words have no mean to speak "
            "of: drop --standardize"
        )
    vectors = None
    if data.word_vectors:
        numbers = imdb.numbers(directory(data.data_dir))
        vectors = read_vectors(Path(data.word_vectors).expanduser(), numbers, dataset.words)
    return Words(dataset.words, vectors, data.train_embedding)


def read_vectors(path: Path, numbers: dict[str, int], count: int) -> np.ndarray:
    """float32 [count, D]: the vector of each word at its number; 0 where the file has none.

    Raises:
        ValueError: no such file, no vector of any of the words, or a line that is none.
    """
    found: dict[int, np.ndarray] = {}
    try:
        with open(path, encoding="utf-8", newline="\n") as file:
            for nth, line in enumerate(file, 1):
                word, _, rest = line.rstrip().partition(" ")
                if word in numbers:
                    found[numbers[word]] = _vector(
                        rest, f"{path}, line {nth}", next(iter(found.values()), None)
                    )
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
            f"{place}: not a word and numbers, parted by single spaces: fix the line"
        ) from None
    if not np.isfinite(vector).all() or (other is not None and len(other) != len(vector)):
        raise ValueError(
            f"{place}: {len(vector)} numbers, not all finite or not as many as before: fix the line"
        )
    return vector
