"""IMDB: reviews as Keras reads them, files that are not what they should be, and vectors of
words."""

import hashlib
import io
import json
import os
import pickle
import socket
import zipfile
from pathlib import Path

import numpy as np
import pytest

from sim.config.settings import Data
from sim.data import imdb
from sim.data.dataset import TIMEOUT, load
from sim.data.words import read_vectors, words_of
from tests.reviews import lists, write


def sequence(tmp_path: Path, ranks: list[int]) -> list[int]:
    """What becomes of one review."""
    write(tmp_path, x_train=lists([ranks, [1]]), y_train=np.array([0, 1]))
    return load("imdb", str(tmp_path)).x[0].tolist()


def test_a_short_review_is_filled_up_in_front_of_its_beginning(tmp_path: Path) -> None:
    assert sequence(tmp_path, [1, 7, 9]) == [0] * 76 + [1, 4, 10, 12]
    assert sequence(tmp_path, []) == [0] * 79 + [1]
    assert sequence(tmp_path, [5] * 79) == [1] + [8] * 79


def test_of_a_long_review_the_last_words_are_kept(tmp_path: Path) -> None:
    assert sequence(tmp_path, list(range(1, 81))) == list(range(4, 84))
    assert sequence(tmp_path, list(range(1, 301))) == list(range(224, 304))


def test_words_beyond_the_vocabulary_are_one(tmp_path: Path) -> None:
    assert sequence(tmp_path, [19_996, 19_997, 88_584])[-3:] == [19_999, 2, 2]


def test_parts_labels_and_types(tmp_path: Path) -> None:
    write(tmp_path / "imdb", records=31, y_test=np.arange(20) // 10)
    reviews = load("imdb", str(tmp_path))
    assert reviews.y_test.tolist() == [n // 10 for n in range(20)]
    assert reviews.x.shape == (31, 80) and reviews.x_test.shape == (20, 80) and reviews.classes == 2
    assert {a.dtype for a in (reviews.x, reviews.y, reviews.x_test, reviews.y_test)} == {
        np.dtype(np.int64)
    }
    assert reviews.y.tolist() == [n % 2 for n in range(31)] and reviews.words == 20_000
    for row, label in zip(reviews.x, reviews.y, strict=True):
        assert np.isin(row, (0, 1, 2, 4, *((5, 6) if label else (7, 8)))).all()


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_every_protocol_of_pickle_is_read(protocol: int, tmp_path: Path) -> None:
    """Keras' own file is of an early one."""
    write(tmp_path)
    rewrite(tmp_path / "imdb.npz", pickle.dumps(lists([[7], [8]] * 30), protocol))
    assert load("imdb", str(tmp_path)).x[:2, -1].tolist() == [10, 11]


def rewrite(path: Path, pickled: bytes) -> None:
    """The file with another pickle for ``x_train``, of as many reviews."""
    with zipfile.ZipFile(path) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    head = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        head, {"descr": "|O", "fortran_order": False, "shape": (60,)}
    )
    parts["x_train.npy"] = head.getvalue() + pickled
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in parts.items():
            archive.writestr(name, content)


class Trap:
    """Makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple:
        return Path.touch, (self.path,)


def test_a_file_that_would_run_something_runs_nothing(tmp_path: Path) -> None:
    write(tmp_path)
    trap = pickle.dumps(Trap(tmp_path / "sprung"))
    pickle.loads(trap)
    (tmp_path / "sprung").unlink()
    rewrite(tmp_path / "imdb.npz", trap)
    with pytest.raises(ValueError, match=r"imdb\.npz is not Keras' imdb\.npz \(it asks for "):
        load("imdb", str(tmp_path))
    assert not (tmp_path / "sprung").exists()


FAULTS = [
    ({"y_train": np.arange(60) % 3}, "as many labels, each 0 or 1"),
    ({"y_test": np.zeros(19, int)}, "20 reviews need as many labels"),
    ({"x_test": lists([[0]] * 20)}, "integers from 1"),
    ({"x_test": lists([[1.5]] * 20)}, "integers from 1"),
    ({"x_test": lists([["film"]] * 20)}, "integers from 1"),
]


@pytest.mark.parametrize(("arrays", "words"), FAULTS)
def test_faulty_reviews_are_named(arrays: dict, words: str, tmp_path: Path) -> None:
    write(tmp_path, **arrays)
    with pytest.raises(ValueError) as caught:
        load("imdb", str(tmp_path))
    assert (
        words in str(caught.value)
        and "imdb.npz" in str(caught.value)
        and "\n" not in str(caught.value)
    )


@pytest.mark.parametrize("damage", ["empty", "cut", "other", "flipped"])
def test_a_damaged_file_is_refused(damage: str, tmp_path: Path) -> None:
    path = write(tmp_path) / "imdb.npz"
    whole = path.read_bytes()
    flipped = whole[:2000] + bytes([whole[2000] ^ 255]) + whole[2001:]
    path.write_bytes({"empty": b"", "cut": whole[:-30], "flipped": flipped}.get(damage, b""))
    if damage == "other":
        np.savez(path, x=np.ones((3, 2)), y=np.arange(3))
    with pytest.raises(ValueError, match=r"is not Keras' imdb\.npz"):
        load("imdb", str(tmp_path))


def test_arrays_of_a_later_format_are_refused_by_their_name(tmp_path: Path) -> None:
    """They would be read from the wrong place."""
    path = write(tmp_path) / imdb.REVIEWS
    with zipfile.ZipFile(path) as whole:
        content = {name: whole.read(name) for name in whole.namelist()}
    later = io.BytesIO()
    np.lib.format.write_array(later, np.array([0, 1]), version=(2, 0))
    content["y_test.npy"] = later.getvalue()
    with zipfile.ZipFile(path, "w") as changed:
        for name, one in content.items():
            changed.writestr(name, one)
    with pytest.raises(ValueError, match="y_test is stored in another version of NumPy's format"):
        load("imdb", str(tmp_path))


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder from which files are downloaded, as if it were Keras'."""
    folder = write(tmp_path / "source")
    monkeypatch.setattr(imdb, "SOURCE", folder.as_uri())
    monkeypatch.setattr(
        imdb,
        "SHA256",
        {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in folder.iterdir()},
    )
    (tmp_path / "data").mkdir()
    return folder


def test_the_vocabulary_ends_below_the_number_of_words(tmp_path: Path) -> None:
    """A word on the border would have a number for which the model has no vector."""
    last = imdb.WORDS - imdb.FIRST - 1
    (tmp_path / imdb.INDEX).write_text(json.dumps({"the": 1, "last": last, "beyond": last + 1}))
    assert imdb.numbers(tmp_path) == {"the": 4, "last": imdb.WORDS - 1}


@pytest.mark.parametrize("text", ["", "{", "[]", "3", '{"the": "first"}', '{"the": null}'])
def test_a_faulty_vocabulary_is_named(text: str, tmp_path: Path) -> None:
    (tmp_path / imdb.INDEX).write_text(text)
    with pytest.raises(ValueError, match=r"index\.json holds no ranks of words .*download it"):
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
@pytest.mark.parametrize("fault", ["another file", "no network"])
def test_a_failed_download_leaves_nothing(
    fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    timeouts = []
    if fault == "another file":
        monkeypatch.setitem(imdb.SHA256, imdb.REVIEWS, "0" * 64)
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
def test_words_are_as_the_settings_want_them(trained: bool, tmp_path: Path) -> None:
    write(tmp_path)
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
