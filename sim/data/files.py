"""Where a data set's files are. Imports no numpy, so that missing files are reported early."""

import hashlib
import os
from pathlib import Path

from sim.config.names import suggest
from sim.config.settings import expanded, is_hub, is_table

NAMES = ("digits", "mnist", "fmnist", "cifar10", "imdb")
"""The built-in data sets."""
ARRAYS = ".npz"
"""End of the name of a file of arrays."""
DATA_DIR_VARIABLE = "DP_FED_DATA"
DEFAULT_DATA_DIR = "~/.cache/dp-federated-simulator"

_MNIST = {
    "train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    "train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    "t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    "t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
}
_FASHION = {
    "train-images-idx3-ubyte": "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
    "train-labels-idx1-ubyte": "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
    "t10k-images-idx3-ubyte": "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
    "t10k-labels-idx1-ubyte": "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
}
_CIFAR = {
    "data_batch_1": "54636561a3ce25bd3e19253c6b0d8538147b0ae398331ac4a2d86c6d987368cd",
    "data_batch_2": "766b2cef9fbc745cf056b3152224f7cf77163b330ea9a15f9392beb8b89bc5a8",
    "data_batch_3": "0f00d98ebfb30b3ec0ad19f9756dc2630b89003e10525f5e148445e82aa6a1f9",
    "data_batch_4": "3f7bb240661948b8f4d53e36ec720d8306f5668bd0071dcb4e6c947f78e9682b",
    "data_batch_5": "d91802434d8376bbaeeadf58a737e3a1b12ac839077e931237e0dcd43adcb154",
    "test_batch": "f53d8d457504f7cff4ea9e021afcf0e0ad8e24a91f3fc42091b8adef61157831",
}
PUBLISHED = {
    **{digest: f"MNIST/raw/{name}" for name, digest in _MNIST.items()},
    **{digest: f"FashionMNIST/raw/{name}" for name, digest in _FASHION.items()},
    **{digest: f"cifar-10-batches-py/{name}" for name, digest in _CIFAR.items()},
    "69664113be75683a8fe16e3ed0ab59fda8886cb3cd7ada244f7d9544e4676b9f": "imdb/imdb.npz",
    # the same reviews, written anew from their texts
    "7e772cf72995c614d119bc0f1deadf8fd27b2480f3759386392b75033f19c42e": "imdb/imdb.npz",
    "027313fe9a320280f3bf0fac5baf58c4a683cf39a7ed9c3d3d3912bde4284cf6": "imdb/imdb_word_index.json",
    "09f66e6debdee2cd2b5ae59e0d6abbb73fc2b0e0185d2e1957e9ebb51e23aa22": "digits.csv.gz",
}
"""SHA-256 of the published files, with their places in the data directory; that of scikit-learn is
in its package."""


def check(dataset: str, data_dir: str | None) -> None:
    """Refuse an unknown data set, or a missing file or folder, without reading any.

    Raises:
        ValueError: an unknown name, or as `directory` and `own_file`.
    """
    if dataset.endswith(ARRAYS) or is_table(dataset):
        own_file(dataset)
    elif dataset not in NAMES:
        own = is_hub(dataset) or is_function(dataset) or expanded(dataset).is_dir()
        if not (dataset and own):  # an empty path would be the working directory
            raise ValueError(
                f"dataset = {dataset!r} is unknown: {suggest(dataset, NAMES)}, the path of an "
                ".npz, .csv, .tsv or .parquet file or of a folder, or package.module:function"
            )
    elif dataset != "digits":
        directory(data_dir)


def directory(data_dir: str | None) -> Path:
    """The data directory; only the default one may be missing.

    Raises:
        ValueError: `data_dir` or `DP_FED_DATA` is not a directory.
    """
    given = {"data_dir": data_dir, DATA_DIR_VARIABLE: os.environ.get(DATA_DIR_VARIABLE)}
    for origin, value in given.items():
        if value:
            path = expanded(value)
            if not path.is_dir():
                raise ValueError(
                    f"{origin} = {value!r} is no directory: create it or correct the path"
                )
            return path
    return expanded(DEFAULT_DATA_DIR)


def is_function(dataset: str) -> bool:
    """Whether a data set is named as ``package.module:function``."""
    module, colon, name = dataset.partition(":")
    return bool(colon) and all(word.isidentifier() for word in f"{module}.{name}".split("."))


def own_file(name: str) -> Path:
    """The file of a user's own data set.

    Raises:
        ValueError: no such file.
    """
    path = expanded(name)
    if not path.is_file():
        fault = "it is no regular file" if path.exists() else "no such file"
        raise ValueError(
            f"data set {path}: {fault}; give the path of an .npz that holds x and y, or of a table"
        )
    return path


def published(path: Path, name: str) -> bytes:
    """The content of a file that is to be the published one of a `name` in `PUBLISHED`.

    Raises:
        ValueError: it cannot be read, or is another file.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ValueError(
            f"{path} cannot be read ({error.strerror}): put the published file there"
        ) from None
    return check_published(content, name, str(path))


def check_published(content: bytes, name: str, place: str) -> bytes:
    """The content, which nothing has parsed yet.

    Raises:
        ValueError: it is not that of the published file of this name.
    """
    found = hashlib.sha256(content).hexdigest()
    if PUBLISHED.get(found) != name:
        right = " or ".join(digest for digest, own in PUBLISHED.items() if own == name)
        raise ValueError(
            f"{place} is not the published file: its SHA-256 is {found}, it must be {right}; put "
            "the published file there, or remove it to have it downloaded or installed again"
        )
    return content
