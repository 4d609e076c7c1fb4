"""IMDB: reviews as Keras reads them, files that are not what they should be, and vectors of
words."""

import functools
import json
import os
import pickle
import socket
import stat
from pathlib import Path

import numpy as np
import pytest

from sim.config.settings import Data
from sim.data import files, imdb
from sim.data.dataset import TIMEOUT, load
from sim.data.words import read_vectors, words_of
from tests.published import publish
from tests.reviews import lists, write


@pytest.fixture
def publishes(monkeypatch: pytest.MonkeyPatch):
    """Makes the files in a folder the published ones."""
    return functools.partial(publish, monkeypatch)


@pytest.fixture
def sequence(tmp_path: Path, publishes):
    """What becomes of one review."""

    def read(ranks: list[int]) -> list[int]:
        write(tmp_path, x_train=lists([ranks, [1]]), y_train=np.array([0, 1]))
        publishes(tmp_path)
        return load("imdb", str(tmp_path)).x[0].tolist()

    return read


def test_a_short_review_is_filled_up_in_front_of_its_beginning(sequence) -> None:
    assert sequence([1, 7, 9]) == [0] * 76 + [1, 4, 10, 12]
    assert sequence([]) == [0] * 79 + [1]
    assert sequence([5] * 79) == [1] + [8] * 79


def test_of_a_long_review_the_last_words_are_kept(sequence) -> None:
    assert sequence(list(range(1, 81))) == list(range(4, 84))
    assert sequence(list(range(1, 301))) == list(range(224, 304))


def test_words_beyond_the_vocabulary_are_one(sequence) -> None:
    assert sequence([19_996, 19_997, 88_584])[-3:] == [19_999, 2, 2]


def test_lists_of_any_length_are_read(sequence) -> None:
    """They are stored in parts of 1,000 ranks."""
    for length in (1, 2, 999, 1000, 1001, 1002, 2000, 2001):
        ranks = [rank * 7 % 88_000 + 1 for rank in range(length)]
        words = [rank + 3 if rank + 3 < 20_000 else 2 for rank in ranks[-80:]]
        assert sequence(ranks)[-len(words) :] == words


@pytest.mark.parametrize("protocol", [2, 3])
def test_the_protocols_of_pickle_by_which_the_file_was_written_are_read(
    tmp_path: Path, publishes, monkeypatch: pytest.MonkeyPatch, protocol: int
) -> None:
    dump = pickle.dump
    monkeypatch.setattr(pickle, "dump", lambda *given, **_: dump(*given, protocol=protocol))
    write(tmp_path, x_train=lists([[n + 1, n] for n in range(7, 67)]))
    publishes(tmp_path)
    assert load("imdb", str(tmp_path)).x[:2, -1].tolist() == [10, 11]


def test_bytes_that_look_like_marks_are_ranks(sequence) -> None:
    """Of lists, their ends, and other numbers."""
    marks = [ord(one) for one in "]q(eKMJatb."]
    ranks = [*marks, *(mark * 257 for mark in marks), *(mark << 8 | 1 << 16 for mark in marks)]
    assert sequence(ranks)[-len(ranks) :] == [
        rank + 3 if rank + 3 < 20_000 else 2 for rank in ranks
    ]


def test_parts_labels_and_types(tmp_path: Path, publishes) -> None:
    write(tmp_path / "imdb", records=1031, y_test=np.arange(20) // 10)
    publishes(tmp_path)
    reviews = load("imdb", str(tmp_path))
    assert reviews.y_test.tolist() == [n // 10 for n in range(20)]
    assert (
        reviews.x.shape == (1031, 80) and reviews.x_test.shape == (20, 80) and reviews.classes == 2
    )
    assert {a.dtype for a in (reviews.x, reviews.y, reviews.x_test, reviews.y_test)} == {
        np.dtype(np.int64)
    }
    assert reviews.y.tolist() == [n % 2 for n in range(1031)] and reviews.words == 20_000
    for row, label in zip(reviews.x, reviews.y, strict=True):
        assert np.isin(row, (0, 1, 2, 4, *((5, 6) if label else (7, 8)))).all()


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder from which files are downloaded, as if it were Keras'."""
    folder = write(tmp_path / "source")
    monkeypatch.setattr(imdb, "SOURCE", folder.as_uri())
    publish(monkeypatch, folder)
    (tmp_path / "data").mkdir()
    return folder


def test_the_vocabulary_ends_below_the_number_of_words(tmp_path: Path, publishes) -> None:
    """A word on the border would have a number for which the model has no vector."""
    last = imdb.WORDS - imdb.FIRST - 1
    (tmp_path / imdb.INDEX).write_text(json.dumps({"the": 1, "last": last, "beyond": last + 1}))
    publishes(tmp_path)
    assert imdb.numbers(tmp_path) == {"the": 4, "last": imdb.WORDS - 1}


def test_another_vocabulary_is_refused(tmp_path: Path) -> None:
    (tmp_path / imdb.INDEX).write_text('{"the": 1}')
    with pytest.raises(ValueError, match=r"index\.json is not the published file: its SHA-256 is "):
        imdb.numbers(tmp_path)


def test_missing_files_are_downloaded_once(source: Path, tmp_path: Path) -> None:
    first = load("imdb", str(tmp_path / "data"))
    numbers = imdb.numbers(tmp_path / "data")
    for name in (imdb.REVIEWS, imdb.INDEX):
        assert (tmp_path / "data" / "imdb" / name).read_bytes() == (source / name).read_bytes()
        (source / name).unlink()
    assert np.array_equal(load("imdb", str(tmp_path / "data")).x, first.x)
    assert (
        imdb.numbers(tmp_path / "data")
        == numbers
        == {"the": 4, "good": 5, "fine": 6, "bad": 7, "poor": 8}
    )


@pytest.mark.usefixtures("source")
def test_two_runs_may_download_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One found its unfinished file renamed by the other, and said that nothing was downloaded."""
    flush, folder = os.fsync, str(tmp_path / "data")

    def interrupted(handle: int) -> None:
        if stat.S_ISREG(os.fstat(handle).st_mode):
            monkeypatch.setattr(os, "fsync", flush)
            load("imdb", folder)
        flush(handle)

    monkeypatch.setattr(os, "fsync", interrupted)
    load("imdb", folder)
    assert not list(tmp_path.rglob("*.part")) and os.fsync is flush


@pytest.mark.usefixtures("source")
@pytest.mark.parametrize("fault", ["another file", "no network"])
def test_a_failed_download_leaves_nothing(
    fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    timeouts = []
    if fault == "another file":
        monkeypatch.setattr(files, "PUBLISHED", {})
    else:

        def urlopen(url: str) -> None:
            timeouts.append(socket.getdefaulttimeout())
            raise TimeoutError("timed out")

        monkeypatch.setattr(imdb.urllib.request, "urlopen", urlopen)
    with pytest.raises(
        ValueError, match=r"imdb\.npz is missing and could not be downloaded.*--dataset digits"
    ):
        load("imdb", str(tmp_path / "data"))
    assert list((tmp_path / "data").iterdir()) == [] and timeouts in ([], [TIMEOUT])


def test_vectors_stand_at_the_numbers_of_their_words(tmp_path: Path) -> None:
    path = tmp_path / "vectors.txt"
    path.write_text("good 1 2.5 -3e-1\nunheard 9 9 9\nthe 4 5 6\n")
    vectors = read_vectors(path, {"the": 4, "good": 5, "fine": 6}, 8)
    assert vectors.dtype == np.float32 and vectors.shape == (8, 3)
    np.testing.assert_allclose(vectors[4:6], [[4, 5, 6], [1, 2.5, -0.3]])
    assert not vectors[[0, 1, 2, 3, 6, 7]].any()


@pytest.mark.parametrize("trained", [False, True])
def test_words_are_as_the_settings_want_them(trained: bool, tmp_path: Path, publishes) -> None:
    write(tmp_path)
    publishes(tmp_path)
    (tmp_path / "vectors.txt").write_text("good 1 2\npoor 3 4\n")
    own = {"dataset": "imdb", "data_dir": str(tmp_path), "train_embedding": trained}
    dataset = load("imdb", str(tmp_path))
    found = words_of(Data(**own, word_vectors=str(tmp_path / "vectors.txt")), dataset)
    assert (found.count, found.trained, found.vectors[[5, 8]].tolist()) == (
        20_000,
        trained,
        [[1, 2], [3, 4]],
    )
    drawn = words_of(Data(**own), dataset)
    assert (drawn.count, drawn.trained, drawn.vectors) == (20_000, trained, None)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("the 1 2\ngood 1\n", "line 2: 1 numbers"),
        ("the 1 two\n", "line 1: not a word and numbers"),
        ("the\n", "line 1: not a word and numbers"),
        ("the 1 nan\n", "line 1: 2 numbers, not all finite"),
        ("film 1 2\n", "no vector of any of the 2 words"),
        ("", "no vector of any of the 2 words"),
        (None, "cannot be read"),
    ],
)
def test_faulty_vectors_are_named(text: str | None, words: str, tmp_path: Path) -> None:
    path = tmp_path / "vectors.txt"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ValueError, match=r"vectors\.txt.*" + words):
        read_vectors(path, {"the": 4, "good": 5}, 8)


@pytest.mark.skipif(
    not os.environ.get("DP_FED_DATA"), reason="DP_FED_DATA names no folder with the real data sets"
)
def test_the_real_reviews_are_those_that_keras_gives() -> None:
    """The end of the first review that `keras.datasets.imdb.load_data` gives, after its
    shuffling."""
    reviews = load("imdb")
    assert (
        reviews.x.shape == reviews.x_test.shape == (25_000, 80)
        and reviews.y.sum() == reviews.y_test.sum() == 12_500
    )
    order = np.arange(25_000)
    np.random.RandomState(113).shuffle(order)
    assert reviews.x[order[0], -10:].tolist() == [4472, 113, 103, 32, 15, 16, 5345, 19, 178, 32]
    assert reviews.y[order[:3]].tolist() == [1, 0, 0] and reviews.x.max() == 19_999
