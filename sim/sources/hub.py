"""Data sets of Hugging Face's ``datasets``, and flwr-datasets' partitioners, as arrays.

Both are an extra, ``[datasets]``.
"""

from typing import Any

import numpy as np

from mechanisms.plugins import one_line
from sim.config.settings import expanded


def read(name: str, label: str, client: str | None) -> dict[str, np.ndarray]:
    """The arrays of a data set: a folder that ``save_to_disk`` has written, or a name of the Hub.

    Raises:
        ValueError: ``datasets`` is not installed, there is no such data set, or it cannot be read
            as arrays.
    """
    said = f"dataset = 'hf:{name}'"
    try:
        from datasets import load_dataset, load_from_disk
    except ImportError as error:
        raise ValueError(
            f"{said} needs Hugging Face's datasets ({error}): pip install datasets"
        ) from error
    folder = expanded(name)
    try:
        data = load_from_disk(str(folder)) if folder.is_dir() else load_dataset(name)
    except Exception as error:  # missing, damaged or unreachable data can raise anything
        raise ValueError(
            f"{said} cannot be loaded ({one_line(error)}): give the folder of save_to_disk, or a "
            "name of the Hub"
        ) from error
    return arrays(data, label, client)


def arrays(
    data: Any, label: str = "label", client: str | None = None, partitioner: Any = None
) -> dict[str, np.ndarray]:
    """``x``, ``y`` and, where known, ``x_test``, ``y_test`` and ``client`` of a data set.

    Args:
        data: a ``datasets.Dataset``, or a ``DatasetDict`` with ``train`` and perhaps ``test``.
        label: the column of labels.
        client: the column of clients, if there is one.
        partitioner: one of ``flwr_datasets.partitioner``, which says who holds which record.

    Raises:
        ValueError: a column is missing, or the others are neither an image nor numbers.
    """
    parts = data if hasattr(data, "keys") else {"train": data}
    if "train" not in parts:
        raise ValueError(f"the data set has the parts {', '.join(parts)}, not train: rename one")
    train = parts["train"]
    if client is not None:
        _check_column(train, client)
    found = dict(zip(("x", "y"), _part(train, label, client), strict=True))
    if "test" in parts:  # nobody's records: it may lack the column of clients
        test = _part(parts["test"], label, client)
        found |= dict(zip(("x_test", "y_test"), test, strict=True))
    if client is not None:
        found["client"] = np.array(train[client])
    if partitioner is not None:
        found["client"] = _owners(train, partitioner)
    return found


def _check_column(data: Any, name: str) -> None:
    """Refuse a column that is not there."""
    if name not in data.column_names:
        raise ValueError(
            f"{name!r} is no column of the data set ({', '.join(data.column_names)}): give "
            "--label-column and --client-column"
        )


def _part(data: Any, label: str, client: str | None) -> tuple[np.ndarray, np.ndarray]:
    """Records ``[N, ...]`` and labels ``[N]`` of a ``datasets.Dataset``."""
    _check_column(data, label)
    features = [name for name in data.column_names if name not in (label, client)]
    images = [name for name in features if type(data.features[name]).__name__ == "Image"]
    if images:
        x = np.stack([np.asarray(image) for image in data[images[0]]])
        x = x if x.ndim == 3 else x.transpose(0, 3, 1, 2)
    else:
        columns = [np.asarray(data[name]) for name in features]
        if not columns or any(one.dtype.kind not in "buif" for one in columns):
            raise ValueError(
                f"the columns {', '.join(features) or 'without the label'} are neither an image "
                "nor numbers: give such data by --dataset package.module:function"
            )
        one = columns[0]
        x = one if len(columns) == 1 and one.ndim > 1 else np.column_stack(columns)
    return x, np.asarray(data[label])


def _owners(train: Any, partitioner: Any) -> np.ndarray:
    """The number of each record's client, int64 ``[N]``."""
    place = "place in the data set"
    partitioner.dataset = train.add_column(place, np.arange(len(train)))
    owners = np.full(len(train), -1, dtype=np.int64)
    for number in range(partitioner.num_partitions):
        owners[np.asarray(partitioner.load_partition(number)[place])] = number
    if (owners < 0).any():
        raise ValueError(
            f"the partitioner gives {int((owners < 0).sum())} records to no client: give each "
            "record to one"
        )
    return owners
