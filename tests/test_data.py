"""Data sets: known counts and scales, the readers' formats, and errors that name the fault."""

import dataclasses
import hashlib
import os
import random
import socket
import struct
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any, BinaryIO
from urllib.error import URLError

import numpy as np
import pytest
from sklearn.datasets import load_digits

from sim.config.settings import Data
from sim.data import dataset as data
from sim.data import files, given
from sim.data.arrays import fixed_split
from sim.data.dataset import load
from sim.data.words import words_of
from sim.sources.torchvision_compat import import_torchvision
from tests import reviews
from tests.published import publish

GREY = {"mnist": ("MNIST", 0.1307, 0.3081), "fmnist": ("FashionMNIST", 0.2860, 0.3530)}


def write_grey(
    root: Path, folder: str, train: int = 20, test: int = 10
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """A tiny set in the IDX format of MNIST; returns {file prefix: (pixels [N, 28, 28], labels
    [N])}."""
    raw = root / folder / "raw"
    raw.mkdir(parents=True)
    rng, parts = np.random.default_rng(0), {}
    for prefix, records in (("train", train), ("t10k", test)):
        pixels = rng.integers(0, 256, (records, 28, 28), dtype=np.uint8)
        labels = rng.integers(0, 10, records, dtype=np.uint8)
        (raw / f"{prefix}-images-idx3-ubyte").write_bytes(
            struct.pack(">4i", 2051, records, 28, 28) + pixels.tobytes()
        )
        (raw / f"{prefix}-labels-idx1-ubyte").write_bytes(
            struct.pack(">2i", 2049, records) + labels.tobytes()
        )
        parts[prefix] = pixels, labels
    return parts


def test_fixed_split_is_the_same_everywhere() -> None:
    train, test = fixed_split(10, 3)
    assert test.tolist() == [0, 2, 9] and train.tolist() == [1, 3, 4, 5, 6, 7, 8]
    train, test = fixed_split(1797, 360)
    assert (
        np.array_equal(np.sort(np.concatenate([train, test])), np.arange(1797)) and len(test) == 360
    )


def test_digits_need_no_files() -> None:
    digits = load("digits", "/nowhere")
    assert (
        digits.x.shape == (1437, 1, 8, 8)
        and digits.x_test.shape == (360, 1, 8, 8)
        and digits.classes == 10
    )
    assert digits.x.dtype == np.float32 and digits.y.dtype == np.int64
    assert digits.x.min() == -1 and digits.x.max() == 1
    assert np.bincount(digits.y_test).tolist() == [25, 36, 42, 29, 46, 37, 21, 50, 41, 33]


def test_a_loss_of_numbers_is_refused_for_classes() -> None:
    with pytest.raises(ValueError, match="loss is squared-error, but digits has classes: leave"):
        load("digits", settings=Data(loss="squared-error"))


def test_digits_are_scikit_learns() -> None:
    """Kills rows or columns in another order, in the file that is read without the package."""
    scans, digits = load_digits(), load("digits")
    train, test = fixed_split(1797, 360)
    for indices, x, y in ((train, digits.x, digits.y), (test, digits.x_test, digits.y_test)):
        assert np.array_equal(x[:, 0], (scans.images[indices] - 8) / 8) and np.array_equal(
            y, scans.target[indices]
        )


@pytest.mark.parametrize("name", GREY)
def test_grey_images_are_read_and_normalised(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, mean, deviation = GREY[name]
    parts = write_grey(tmp_path, folder)
    publish(monkeypatch, tmp_path)
    images = load(name, str(tmp_path))
    for (pixels, labels), x, y in zip(
        parts.values(), (images.x, images.x_test), (images.y, images.y_test), strict=True
    ):
        assert (
            x.shape == (len(pixels), 1, 28, 28) and x.dtype == np.float32 and x.flags.c_contiguous
        )
        np.testing.assert_allclose(x[:, 0], (pixels / 255 - mean) / deviation, atol=1e-5)
        assert np.array_equal(y, labels) and y.dtype == np.int64


def batch(pixels: np.ndarray, labels: list[int]) -> bytes:
    """As the makers of CIFAR-10 wrote it: a pickle of Python 2."""
    items = b"e(".join(
        b"".join(b"K%c" % label for label in labels[first : first + 1000])
        for first in range(0, len(labels), 1000)
    )
    head = b"\x80\x02}q\x01(U\x0bbatch_labelq\x02U\x06a testq\x03U\x06labelsq\x04]q\x05("
    array = b"eU\x04dataq\x06cnumpy.core.multiarray\n_reconstruct\nq\x07...K\x00tb\x89T"
    return head + items + array + struct.pack("<I", pixels.size) + pixels.tobytes() + b"tbU..eu."


def test_colour_images_have_their_channels_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Labels stand in lists of 1,000, and the batches in their order."""
    rng, folder = np.random.default_rng(1), tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    counts = [2, 1001, 1, 1, 1]
    labels = [rng.integers(0, 10, count).tolist() for count in counts]
    train = rng.integers(0, 256, (sum(counts), 3072), dtype=np.uint8)
    parts = np.split(train, np.cumsum(counts)[:-1])
    for n, (pixels, own) in enumerate(zip(parts, labels, strict=True), start=1):
        (folder / f"data_batch_{n}").write_bytes(batch(pixels, own))
    (folder / "test_batch").write_bytes(batch(train[:6], [9] * 6))
    publish(monkeypatch, tmp_path)
    images = load("cifar10", str(tmp_path))
    planes = train.reshape(-1, 3, 32, 32) / 255
    for channel, (mean, deviation) in enumerate(
        [(0.4914, 0.2470), (0.4822, 0.2435), (0.4465, 0.2616)]
    ):
        np.testing.assert_allclose(
            images.x[:, channel], (planes[:, channel] - mean) / deviation, atol=1e-5
        )
    assert (
        images.x.flags.c_contiguous
        and images.y.tolist() == [label for own in labels for label in own]
        and images.y_test.tolist() == [9] * 6
    )


@pytest.mark.skipif(
    not os.environ.get("DP_FED_DATA"), reason="DP_FED_DATA names no folder with the real data sets"
)
@pytest.mark.parametrize(
    ("name", "records"), [("mnist", 60_000), ("fmnist", 60_000), ("cifar10", 50_000)]
)
def test_real_images_have_mean_zero_and_deviation_one(name: str, records: int) -> None:
    images = load(name)
    assert (
        len(images.x) == len(images.y) == records
        and len(images.x_test) == len(images.y_test) == 10_000
    )
    sample = images.x[::20]
    assert (
        np.abs(sample.mean((0, 2, 3))).max() < 0.03
        and np.abs(sample.std((0, 2, 3)) - 1).max() < 0.03
    )
    expected = (
        [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009] if name == "mnist" else [1000] * 10
    )
    assert np.bincount(images.y_test).tolist() == expected


def test_the_data_directory_is_the_argument_then_the_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def records(count: int, *argument: str) -> bool:
        publish(monkeypatch, tmp_path / ("variable" if count == 4 else "argument"))
        return len(load("mnist", *argument).x) == count

    write_grey(tmp_path / "argument", "MNIST", train=3)
    write_grey(tmp_path / "variable", "MNIST", train=4)
    monkeypatch.setenv("DP_FED_DATA", str(tmp_path / "variable"))
    assert records(3, str(tmp_path / "argument")) and records(4)
    monkeypatch.setenv("DP_FED_DATA", str(tmp_path / "absent"))
    with pytest.raises(ValueError, match=r"DP_FED_DATA = .*absent' is no directory"):
        load("mnist")
    with pytest.raises(ValueError, match=r"data_dir = .*elsewhere' is no directory"):
        load("mnist", str(tmp_path / "elsewhere"))
    monkeypatch.delenv("DP_FED_DATA")
    monkeypatch.setattr(files, "DEFAULT_DATA_DIR", str(tmp_path / "argument"))
    assert records(3)


@pytest.mark.parametrize("name", files.NAMES)
def test_a_folder_that_is_not_there_is_missed_before_anything_is_read(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And before Ray's workers are started; digits need none."""
    for folder, variable in ((str(tmp_path / "elsewhere"), None), (None, str(tmp_path / "absent"))):
        if variable is None:
            monkeypatch.delenv("DP_FED_DATA", raising=False)
        else:
            monkeypatch.setenv("DP_FED_DATA", variable)
        if name == "digits":
            files.check(name, folder)
        else:
            with pytest.raises(ValueError, match="is no directory"):
                files.check(name, folder)


@pytest.mark.parametrize("missing", ["all", "one"])
def test_a_failed_download_says_where_files_belong(
    missing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One download is tried, with a timeout that is gone afterwards."""
    timeouts = []

    def download(self: object) -> None:
        print("downloading")
        timeouts.append(socket.getdefaulttimeout())
        raise URLError("no\nnetwork")

    monkeypatch.setattr(import_torchvision().datasets.MNIST, "download", download)
    if missing == "one":
        write_grey(tmp_path, "MNIST")
        publish(monkeypatch, tmp_path)
        (tmp_path / "MNIST" / "raw" / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(ValueError) as caught:
        load("mnist", str(tmp_path))
    message = str(caught.value)
    assert (
        str(tmp_path / "MNIST" / "raw") in message
        and "--dataset digits" in message
        and "\n" not in message
    )
    assert timeouts == [data.TIMEOUT] and socket.getdefaulttimeout() is None


def test_what_is_downloaded_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def download(self: SimpleNamespace) -> None:
        write_grey(Path(self.root), "MNIST", train=3)
        publish(monkeypatch, tmp_path)

    monkeypatch.setattr(import_torchvision().datasets.MNIST, "download", download)
    assert len(load("mnist", str(tmp_path)).x) == 3


def damaged(content: bytes, rng: random.Random) -> bytes:
    """Another content: bits flipped, bytes cut off, put in, moved, or all of another file."""
    at, end = sorted(rng.sample(range(len(content)), 2))
    return rng.choice(
        [
            content[:at] + bytes([content[at] ^ 1 << rng.randrange(8)]) + content[at + 1 :],
            content[:at],
            content[at:],
            content[:at] + rng.randbytes(9) + content[at:],
            content[:at] + rng.randbytes(end - at) + content[end:],
            content + b"\0",
            b"",
            rng.randbytes(at),
        ]
    )


COPIES = 500
"""Damaged copies of the published files, in all."""


@pytest.mark.parametrize("name", ["mnist", "fmnist", "cifar10", "imdb"])
def test_a_damaged_or_foreign_file_is_refused_before_it_is_parsed(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By one line with its name, both digests and what to do. Also one that nobody downloaded."""
    rng = random.Random(name)
    if name == "imdb":
        reviews.write(tmp_path / "imdb")
    elif name == "cifar10":
        folder = tmp_path / "cifar-10-batches-py"
        folder.mkdir()
        for n, part in enumerate([*(f"data_batch_{n}" for n in range(1, 6)), "test_batch"]):
            (folder / part).write_bytes(batch(np.full((2, 3072), n, np.uint8), [1, 2]))
    else:
        write_grey(tmp_path, GREY[name][0])
    publish(monkeypatch, tmp_path)
    load(name, str(tmp_path))
    paths = sorted(path for path in tmp_path.rglob("*") if path.is_file())
    paths = [path for path in paths if path.suffix != ".json"]
    whole = {path: path.read_bytes() for path in paths}
    for _ in range(COPIES // 4):
        path = rng.choice(paths)
        path.write_bytes(content := damaged(whole[path], rng))
        with pytest.raises(ValueError) as caught:
            load(name, str(tmp_path))
        said = str(caught.value)
        digests = [hashlib.sha256(one).hexdigest() for one in (content, whole[path])]
        assert all(word in said for word in (str(path), *digests, "remove it"))
        assert "\n" not in said
        path.write_bytes(whole[path])


@pytest.mark.parametrize(
    ("name", "near"), [("minst", "mnist"), ("MNIST", "mnist"), ("cifar", "cifar10"), ("?", "npz")]
)
def test_an_unknown_name_is_answered_by_the_nearest(name: str, near: str) -> None:
    with pytest.raises(ValueError, match=f"is unknown: .*{near}"):
        load(name)


def test_torchvision_is_imported_once_and_its_absence_explained(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert import_torchvision() is import_torchvision()
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ValueError, match="torchvision is not installed: install"):
        import_torchvision()


def saved(tmp_path: Path, **arrays: object) -> str:
    np.savez(tmp_path / "mine.npz", **arrays)
    return str(tmp_path / "mine.npz")


@pytest.mark.parametrize(("records", "held"), [(2, 1), (4, 1), (9, 1), (10, 2)])
def test_a_record_in_five_is_held_out_and_at_least_one(tmp_path, records, held) -> None:
    own = load(saved(tmp_path, x=np.eye(records), y=np.arange(records)[::-1]))
    assert (len(own.x_test), len(own.x)) == (held, records - held)


def test_npz_features_images_and_test_parts(tmp_path: Path) -> None:
    x, y = np.random.default_rng(0).normal(size=(25, 3)), np.arange(25) % 4
    own = load(saved(tmp_path, x=x, y=y, names=np.array(["kept out"])))
    train, test = fixed_split(25, 5)
    assert own.classes == 4 and own.x.dtype == np.float32 and own.y.dtype == np.int64
    np.testing.assert_allclose(own.x, x[train], rtol=1e-6)
    assert np.array_equal(own.y_test, y[test]) and len(own.x_test) == 5
    pixels = np.arange(2 * 4 * 4, dtype=np.uint8).reshape(2, 4, 4)
    own = load(
        saved(tmp_path, x=pixels, y=np.array([0, 2], np.uint8), x_test=pixels[:1], y_test=[1])
    )
    assert own.x.shape == (2, 1, 4, 4) and own.classes == 3 and own.y_test.tolist() == [1]
    np.testing.assert_allclose(own.x[:, 0], pixels / 255, rtol=1e-6)
    deep = 1_000 * pixels.astype(np.uint16)  # no bytes: taken as they are
    np.testing.assert_allclose(
        load(saved(tmp_path, x=deep, y=[0, 2], x_test=deep[:1], y_test=[1])).x[:, 0], deep
    )
    assert load(saved(tmp_path, x=np.zeros((5, 3, 4, 4)), y=y[:5])).x.shape == (4, 3, 4, 4)
    both = load(saved(tmp_path, x=x[:9], y=y[:9], x_test=x[9:], y_test=y[9:]))
    for found, expected in (
        (both.x, x[:9]),
        (both.x_test, x[9:]),
        (both.y, y[:9]),
        (both.y_test, y[9:]),
    ):
        np.testing.assert_allclose(found, expected, rtol=1e-6)


X, Y = np.ones((6, 2)), np.arange(6) % 3
NAN, HUGE = X.copy(), X.copy()
NAN[4, 1], HUGE[2, 0] = np.nan, 1e300
BAD_ARRAYS = [
    ({"y": Y}, "array 'x' is missing, found y"),
    ({"x": X}, "array 'y' is missing"),
    ({"x_train": X, "y_train": Y}, "found x_train, y_train"),
    ({"x": X, "y": Y, "x_test": X}, "array 'y_test' is missing"),
    ({"x": X, "y": Y, "X_test": X}, "'X_test' is unknown, did you mean 'x_test'"),
    ({"x": NAN, "y": Y}, "x[4, 1] = nan"),
    ({"x": HUGE, "y": Y}, "x[2, 0] = 1e+300, not finite as float32"),
    ({"x": X, "y": Y, "x_test": NAN, "y_test": Y}, "x_test[4, 1] = nan"),
    ({"x": X, "y": Y.astype(float)}, "y has dtype float64"),
    ({"x": X, "y": np.where(np.arange(6) == 4, -1, Y)}, "y[4] = -1 is outside 0 .. 65535"),
    ({"x": X, "y": Y + 2**40}, "y[0] = 1099511627776"),
    ({"x": X, "y": Y[:, None]}, "y has shape (6, 1)"),
    ({"x": X, "y": Y * 0}, "at least 2 classes"),
    ({"x": X, "y": Y[:5]}, "x holds 6 records, y 5 labels"),
    ({"x": X, "y": Y, "y_test": Y}, "array 'x_test' is missing"),
    (
        {"x": X, "y": Y, "x_test": X, "y_test": Y + 1},
        "y_test holds the label 3, those of y end at 2",
    ),
    (
        {"x": X, "y": Y, "x_test": X[:, :1], "y_test": Y},
        "x_test has records of shape (1,), x of (2,)",
    ),
    ({"x": X, "y": Y, "x_test": X.astype(np.uint8), "y_test": Y}, "x is float64, x_test uint8"),
    ({"x": X[:0], "y": Y[:0]}, "x has shape (0, 2)"),
    ({"x": X[:, 0], "y": Y}, "x has shape (6,)"),
    ({"x": X[:1], "y": Y[1:2]}, "x holds 1 record"),
    ({"x": X.astype(str), "y": Y}, "not numbers"),
    ({"x": X.astype(complex), "y": Y}, "dtype complex128"),
    ({"x": X.astype(object), "y": Y}, "Object arrays cannot be loaded"),
    ({"x": np.ones((6, 8, 8, 3), np.uint8), "y": Y}, "channels last"),
]


@pytest.mark.parametrize(("arrays", "words"), BAD_ARRAYS)
def test_faulty_arrays_are_named(arrays: dict, words: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError) as caught:
        load(saved(tmp_path, **arrays))
    message = str(caught.value)
    assert words in message and "mine.npz" in message and "\n" not in message


@pytest.mark.parametrize("damage", ["empty", "text", "cut", "flipped", "npy"])
def test_a_file_that_is_no_npz_is_refused(damage: str, tmp_path: Path) -> None:
    path = Path(saved(tmp_path, x=X, y=Y))
    whole = path.read_bytes()
    middle = len(whole) // 4
    flipped = whole[:middle] + bytes([whole[middle] ^ 255]) + whole[middle + 1 :]
    path.write_bytes(
        {"empty": b"", "text": b"hello", "cut": whole[:-30], "flipped": flipped}.get(damage, b"")
    )
    if damage == "npy":
        with path.open("wb") as file:
            np.save(file, X)
    with pytest.raises(ValueError, match=r"mine\.npz is no \.npz of plain arrays"):
        load(str(path))
    with pytest.raises(ValueError, match="no such file"):
        load(str(tmp_path / "absent.npz"))


def test_an_array_that_is_stored_in_part_of_its_bytes_is_refused(tmp_path: Path) -> None:
    """A flipped bit in a header, of which the archive's checksum tells only at the end."""
    path = Path(saved(tmp_path, x=np.ones((600, 30)), y=np.arange(600) % 3))
    whole = path.read_bytes()
    assert whole.count(b"(600, 30)") == 1
    path.write_bytes(whole.replace(b"(600, 30)", b"(600, 20)"))
    with np.load(path) as file:
        assert file["x"].shape == (600, 20)
    with pytest.raises(ValueError, match=r"mine\.npz is no \.npz of plain arrays"):
        load(str(path))


@pytest.mark.parametrize("comment", [b"", b"PK" * 99])
def test_an_archive_whose_directory_hides_or_renames_an_array_is_refused(
    tmp_path: Path, comment: bytes
) -> None:
    """The test part was lost, and another one held out."""
    path = Path(saved(tmp_path, x=X, y=Y, x_test=X[:2], y_test=Y[:2], unused=Y))
    with zipfile.ZipFile(path, "a") as archive:
        archive.comment = comment
    whole = path.read_bytes()
    assert load(str(path)).x_test.shape == (2, 2)
    entry = whole.rindex(b"x_test.npy")
    next_one = 46 + len("y_test.npy")  # becomes the comment of the entry before
    hidden = whole[: entry - 14] + bytes([next_one]) + whole[entry - 13 :]
    renamed = whole[:entry] + b"another.np" + whole[entry + 10 :]
    renamed = renamed.replace(b"y_test.npyPK", b"another.nqPK")
    for damaged_ in (hidden, renamed):
        path.write_bytes(damaged_)
        with pytest.raises(ValueError, match=r"mine\.npz is no \.npz of plain arrays"):
            load(str(path))


def test_arrays_of_another_type_or_shape_are_another_data_set(tmp_path: Path) -> None:
    """Though their bytes are the same. Kills a run that is given the records of an earlier one."""
    x, y = np.linspace(1, 2, 24, dtype=np.float32).reshape(6, 4), np.arange(6) % 2
    others = [(x, y), (x.view(np.int32), y), (x.reshape(6, 2, 2), y), (x, y.view(np.uint64))]
    paths = [given.keep(arrays, tmp_path) for arrays in others]
    assert len(set(paths)) == 4 and given.keep(others[1], tmp_path) == paths[1]
    for path, (kept, labels) in zip(paths, others, strict=True):
        with np.load(path) as file:
            assert file["x"].dtype == kept.dtype and np.array_equal(file["x"], kept)
            assert file["y"].dtype == labels.dtype and np.array_equal(file["y"], labels)


def test_two_programs_may_give_the_same_arrays_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs of several seeds, started together: the first one's file was taken from it half-written,
    and it failed."""
    arrays, save, other = (np.eye(6), np.arange(6) % 2), np.savez, []

    def interrupted(file: BinaryIO, **named: Any) -> None:
        monkeypatch.setattr(np, "savez", save)
        other.append(given.keep(arrays, tmp_path))
        save(file, **named)

    monkeypatch.setattr(np, "savez", interrupted)
    path = given.keep(arrays, tmp_path)
    assert other == [path] and np.array_equal(np.load(path)["x"], arrays[0])
    assert {one.name for one in path.parent.iterdir()} == {path.name, given.KEY}


@pytest.mark.parametrize("length", [0, 1, 31, 33])
def test_a_damaged_key_of_given_arrays_is_refused(tmp_path: Path, length: int) -> None:
    """A short one can be guessed, and with it the last record."""
    (tmp_path / given.FOLDER).mkdir()
    (tmp_path / given.FOLDER / given.KEY).write_bytes(b"k" * length)
    with pytest.raises(ValueError, match=f"has {length} bytes, it must have 32"):
        given.keep((np.eye(6), np.arange(6) % 2), tmp_path)
    assert [path.name for path in (tmp_path / given.FOLDER).iterdir()] == [given.KEY]


def test_without_scikit_learn_its_digits_are_missed_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for found, said in (
        (None, "it is missing"),
        (SimpleNamespace(origin=str(tmp_path / "sklearn" / "__init__.py")), "digits.csv.gz is mis"),
    ):
        monkeypatch.setattr(data.importlib.util, "find_spec", lambda name, found=found: found)
        with pytest.raises(
            ValueError, match=f"'digits' needs scikit-learn, .*{said}.* pip install"
        ):
            load("digits")


def test_a_torchvision_that_cannot_be_imported_says_why_and_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(name: str) -> None:
        raise RuntimeError(f"no\n{name} here")

    monkeypatch.setattr("importlib.import_module", broken)
    with pytest.raises(ValueError, match=r"cannot be imported \(RuntimeError: no torchvision here"):
        import_torchvision()


@pytest.mark.parametrize(
    ("setting", "said"),
    [({"word_vectors": "a.txt"}, "word_vectors is a.txt"), ({"train_embedding": True}, "True")],
)
def test_numeric_records_have_no_words(setting: dict, said: str) -> None:
    numeric = data.Dataset("mine", *(np.zeros(1),) * 4, classes=2)
    assert words_of(Data(), numeric) is None
    with pytest.raises(ValueError, match=f"{said}, but mine has no words: drop --.*--dataset imdb"):
        words_of(Data(**setting), numeric)
    with pytest.raises(ValueError, match="standardize is private, but word numbers have no mean"):
        words_of(Data(standardize="private"), dataclasses.replace(numeric, words=9))
