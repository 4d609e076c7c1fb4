"""Where a data set's files are. Imports no numpy, so that missing files are reported early."""

import os
from pathlib import Path

from sim.config.names import suggest
from sim.config.settings import is_hub, is_table

NAMES = ("digits", "mnist", "fmnist", "cifar10", "imdb")
"""The built-in data sets."""
ARRAYS = ".npz"
"""End of the name of a file of arrays."""
DATA_DIR_VARIABLE = "DP_FED_DATA"
DEFAULT_DATA_DIR = "~/.cache/dp-federated-simulator"


def check(dataset: str, data_dir: str | None) -> None:
    """Refuse an unknown data set, or a missing file or folder, without reading any.

    Raises:
        ValueError: an unknown name, or as `directory` and `own_file`.
    """
    if dataset.endswith(ARRAYS) or is_table(dataset):
        own_file(dataset)
    elif dataset not in NAMES:
        if not (is_hub(dataset) or is_function(dataset) or own_folder(dataset).is_dir()):
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
            path = Path(value).expanduser()
            if not path.is_dir():
                raise ValueError(
                    f"{origin} = {value!r} is no directory: create it or correct the path"
                )
            return path
    return Path(DEFAULT_DATA_DIR).expanduser()


def is_function(dataset: str) -> bool:
    """Whether a data set is named as ``package.module:function``."""
    module, colon, name = dataset.partition(":")
    return bool(colon) and all(word.isidentifier() for word in f"{module}.{name}".split("."))


def own_folder(name: str) -> Path:
    """The folder of a user's own data set, which may not exist."""
    return Path(name).expanduser()


def own_file(name: str) -> Path:
    """The file of a user's own data set.

    Raises:
        ValueError: no such file.
    """
    path = Path(name).expanduser()
    if not path.is_file():
        raise ValueError(
            f"data set {path}: no such file; give the path of an .npz that holds x and y, or of a "
            "table"
        )
    return path
