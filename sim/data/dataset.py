"""Data sets as arrays: digits, MNIST, Fashion-MNIST, CIFAR-10, IMDB, or a user's own.

Pixels are normalised by published constants (below), never by statistics of the records at hand,
which would be an uncharged release. Images of torchvision's sets stay uint8 until normalised.
Features start from unnormalised pixels in [0, 1] (`features`). Published files are checked by their
digests before they are parsed, and parsed without pickle.
"""

import contextlib
import functools
import gzip
import importlib.util
import io
import re
import socket
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mechanisms.plugins import one_line
from sim.config.settings import CROSS_ENTROPY, HUB, LOSS_NAMES, Data, expanded, is_hub, is_table
from sim.data import arrays, files, imdb
from sim.data.arrays import fixed_split
from sim.data.files import published
from sim.sources import columns, functions, hub, images, leaf
from sim.sources.torchvision_compat import download

DIGITS_TEST = 360
"""Test records of `digits`, out of 1,797."""
TIMEOUT = 10.0
"""Seconds without an answer after which a download is abandoned."""


@dataclass(frozen=True, eq=False)
class Dataset:
    """A data set. N training and M test records; images are [C, H, W], features [F].

    Attributes:
        name: the requested name.
        x: float32 [N, ...] training records, y: int64 [N] their labels in 0 .. classes - 1, or
            other targets [N, ...] (`sim.sources.targets`).
        x_test: float32 [M, ...] test records, y_test: int64 [M] their labels, or other targets.
        classes: number of classes, or of a model's other outputs.
        words: size of the vocabulary if records are word numbers, int64 [N, T] and [M, T]; else 0.
        owner: int64 [N], the client of each training record, if the data set says so; else None.
        clients: the names of these clients, by their numbers.
    """

    name: str
    x: np.ndarray
    y: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray
    classes: int
    words: int = 0
    owner: np.ndarray | None = None
    clients: tuple[str, ...] = ()

    @property
    def labels(self) -> np.ndarray | None:
        """The training labels int64 [N], or None if targets are no classes."""
        return self.y if self.y.ndim == 1 else None


Parts = list[tuple[np.ndarray, np.ndarray]]
"""The training and the test part: pixels uint8 [N, C, H, W] and labels int64 [N]."""


@dataclass(frozen=True)
class _Source:
    """A data set of torchvision: class, folder in the data directory, reader of its files,
    published pixel statistics."""

    kind: str
    folder: str
    read: Callable[[Path, str], Parts]
    mean: tuple[float, ...]
    deviation: tuple[float, ...]


def _grey(root: Path, folder: str) -> Parts:
    """MNIST's format: pixels after a header of 16 bytes, labels after one of 8."""
    parts = []
    for part in ("train", "t10k"):
        images, labels = (
            f"{folder}/{part}-{what}-ubyte" for what in ("images-idx3", "labels-idx1")
        )
        pixels = np.frombuffer(published(root / images, images), np.uint8, offset=16)
        y = np.frombuffer(published(root / labels, labels), np.uint8, offset=8)
        parts.append((pixels.reshape(-1, 1, 28, 28), y.astype(np.int64)))
    return parts


_BATCH = re.compile(rb"U\x06labelsq.\]q.\((.*?)eU\x04data.*?\x89T(....)", re.DOTALL)
"""What stands before the pixels of a CIFAR-10 batch, a pickle of Python 2: labels, a byte each
after a K, in lists of 1,000 between which e and ( stand; then the number of the pixels' bytes."""


def _colour(root: Path, folder: str) -> Parts:
    """CIFAR-10's batches, five of them for training."""
    batches = [_batch(root, f"{folder}/data_batch_{n}") for n in range(1, 6)]
    pixels, labels = zip(*batches, strict=True)
    return [(np.concatenate(pixels), np.concatenate(labels)), _batch(root, f"{folder}/test_batch")]


def _batch(root: Path, name: str) -> tuple[np.ndarray, np.ndarray]:
    content = published(root / name, name)
    found = _BATCH.search(content)
    if found is None:
        raise ValueError(f"{root / name} has another layout than the published file")
    labels = np.frombuffer(found[1].replace(b"e(", b""), np.uint8)[1::2]
    size = int.from_bytes(found[2], "little")
    pixels = np.frombuffer(content, np.uint8, size, found.end())
    return pixels.reshape(-1, 3, 32, 32), labels.astype(np.int64)


# Published mean and standard deviation of each channel of the training images, pixels in [0, 1].
_SOURCES = {
    "mnist": _Source("MNIST", "MNIST/raw", _grey, (0.1307,), (0.3081,)),
    "fmnist": _Source("FashionMNIST", "FashionMNIST/raw", _grey, (0.2860,), (0.3530,)),
    "cifar10": _Source(
        "CIFAR10",
        "cifar-10-batches-py",
        _colour,
        (0.4914, 0.4822, 0.4465),
        (0.2470, 0.2435, 0.2616),
    ),
}


def load(
    name: str, data_dir: str | None = None, normalise: bool = True, settings: Data | None = None
) -> Dataset:
    """The data set `name`: one of `files.NAMES`, or a user's own.

    Args:
        name: `digits` (scikit-learn's 1,797 scans of 8x8, x in [-1, 1], nothing to download),
            `mnist`, `fmnist`, `cifar10`, `imdb` (see `sim.data.imdb`); the path of an `.npz` (see
            `sim.data.arrays`), a table or a folder; `package.module:function`, or `hf:NAME`.
        data_dir: the files' folder, to which missing ones are downloaded. Default: the environment
            variable `DP_FED_DATA`, else `~/.cache/dp-federated-simulator`.
        normalise: whether to normalise pixels; otherwise they are in [0, 1]. A user's own are
            never normalised.
        settings: how to read a user's own data set; None: by the defaults.

    Raises:
        ValueError: unknown name; `data_dir` or `DP_FED_DATA` is not a directory; files missing and
            the download fails; files that are not the published ones; an invalid data set of the
            user's own.
    """
    files.check(name, data_dir)
    own = settings or Data(dataset=name)
    if name in files.NAMES and own.loss in LOSS_NAMES and own.loss != CROSS_ENTROPY:
        raise ValueError(
            f"loss is {own.loss}, but {name} has classes: leave --loss out, or give another "
            "--dataset"
        )
    if name == "digits":
        return _digits(normalise)
    if name in _SOURCES:
        return _images(name, files.directory(data_dir), normalise)
    if name == "imdb":
        with _impatient():
            return Dataset(name, *imdb.read(files.directory(data_dir)), classes=2, words=imdb.WORDS)
    return Dataset(name, *arrays.parts(_own(own), name, own.loss))


def _own(data: Data) -> dict[str, np.ndarray]:
    """The arrays by name of a user's own data set."""
    name = data.dataset
    if name.endswith(files.ARRAYS):
        return arrays.read(files.own_file(name))
    if is_table(name):
        return columns.arrays(files.own_file(name), data)
    if is_hub(name):
        return hub.read(name.removeprefix(HUB), data.label_column, data.client_column)
    if files.is_function(name):
        return functions.call(name)
    folder = expanded(name)
    return leaf.read(folder) if leaf.files(folder, "train") else images.read(folder)


def _digits(normalise: bool) -> Dataset:
    """1,437 training and 360 test scans; the format's range 0 .. 16 becomes [-1, 1] or [0, 1].

    The file is scikit-learn's; importing that package would take longer than training.
    """
    package = importlib.util.find_spec("sklearn")
    path = Path(package.origin or "").parent / "datasets/data/digits.csv.gz" if package else None
    if path is None or not path.is_file():
        missing = f"{path or 'it'} is missing: pip install scikit-learn"
        raise ValueError(f"dataset = 'digits' needs scikit-learn, {missing}")
    scans = _scans(published(path, "digits.csv.gz"))
    pixels = (scans[:, :-1] - 8) / 8 if normalise else scans[:, :-1] / 16
    x = pixels.astype(np.float32).reshape(-1, 1, 8, 8)
    y = scans[:, -1].astype(np.int64)
    train, test = fixed_split(len(x), DIGITS_TEST)
    return Dataset("digits", x[train], y[train], x[test], y[test], 10)


@functools.lru_cache(maxsize=1)
def _scans(content: bytes) -> np.ndarray:
    """The numbers of the file of digits; parsing takes longer than a round, so that a process with
    many runs does it once."""
    return np.loadtxt(io.BytesIO(gzip.decompress(content)), delimiter=",")


def _images(name: str, root: Path, normalise: bool) -> Dataset:
    """A data set of torchvision, read from `root`; missing files are downloaded to it."""
    source = _SOURCES[name]
    names = [file for file in files.PUBLISHED.values() if file.startswith(f"{source.folder}/")]
    if not all((root / file).is_file() for file in names):
        try:
            with _impatient():
                download(source.kind, root)
        except Exception as error:  # of torchvision or the network
            raise ValueError(
                f"dataset = {name!r}: its files are missing and could not be downloaded "
                f"({one_line(error)}): put them into {root / source.folder} as torchvision "
                "expects them, or use --dataset digits"
            ) from error
    mean, deviation = (source.mean, source.deviation) if normalise else ((0.0,), (1.0,))
    parts = source.read(root, source.folder)
    (x, y), (x_test, y_test) = ((_scaled(pixels, mean, deviation), y) for pixels, y in parts)
    return Dataset(name, x, y, x_test, y_test, 10)


def _scaled(
    pixels: np.ndarray, means: tuple[float, ...], deviations: tuple[float, ...]
) -> np.ndarray:
    """(pixel / 255 - mean) / deviation by channel, as contiguous float32 [N, C, H, W]."""
    x = pixels.astype(np.float32, order="C")
    mean, deviation = (np.array(c, np.float32)[:, None, None] for c in (means, deviations))
    x *= 1 / (255 * deviation)
    x -= mean / deviation
    return x


@contextlib.contextmanager
def _impatient() -> Iterator[None]:
    """Time out connections after `TIMEOUT` seconds, and redirect torchvision's output to stderr."""
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(TIMEOUT)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        socket.setdefaulttimeout(before)
