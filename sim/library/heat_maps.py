"""What trained models look at: class maps of test records, with a column for each run."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch

from mechanisms import durable
from sim.comparing.comparison import by_label
from sim.data import dataset as datasets
from sim.data.dataset import Dataset
from sim.data.files import NAMES
from sim.library.caller import borrowed_process
from sim.library.result import Result
from sim.models.class_maps import class_maps
from sim.phases.statistics import scaling
from sim.showing import wording
from sim.showing.run import Run

FILE = "heat_maps.svg"
"""The picture's name, in the first run's directory."""
MAX_RECORDS = 100
"""Maximum rows of the picture."""
CHANNELS = (1, 3)
NOTE = (
    "Brighter: counts more for the record's own class (Grad-CAM), relative to the brightest pixel. "
    "Test records are shown as they are; they are not protected."
)

Column = tuple[str, np.ndarray, list[str]]
"""A run's title, its maps float32 ``[N, H, W]``, and a caption for each."""


def write_heat_maps(run_dirs: Sequence[Path], count: int, path: Path | None) -> Path:
    """Write a picture of test records with each run's class maps of their own classes; its path.

    Args:
        run_dirs: directories of finished runs on one data set of images, with convolutional models.
        count: the number of records, 1 .. ``MAX_RECORDS``: the first one of each class, then the
            second ones, and so on.
        path: of the picture; None: ``FILE`` in the first run directory. Only its owner may read it.

    Raises:
        ValueError: a directory is no run's, is damaged or is given twice; a run is not finished, or
            has a model of its own for each client; records are no images with classes, or of
            several data sets; a model has no convolution; there are not so many records.
    """
    if not 1 <= count <= MAX_RECORDS:
        raise ValueError(f"--heat-maps is {count}: give a number of records in 1 .. {MAX_RECORDS}")
    runs = by_label(run_dirs)
    _check(runs)
    with borrowed_process():
        dataset, images = _records(next(iter(runs.values())))
        if count > len(dataset.y_test):
            raise ValueError(
                f"--heat-maps is {count}, but {dataset.name} has {len(dataset.y_test)} test "
                "records: give at most as many"
            )
        chosen = first_of_classes(dataset.y_test, count)
        x, labels = dataset.x_test[chosen], dataset.y_test[chosen]
        columns = [_column(label, run, x, labels) for label, run in runs.items()]
    from sim.drawing.overlays import overlays
    from sim.drawing.plot import svg

    captions = [f"class {own}, no. {n}" for own, n in zip(labels, chosen, strict=True)]
    path = path or run_dirs[0] / FILE
    picture = svg(overlays(images[chosen], captions, columns, NOTE))
    durable.write(path, picture, private=True, shared=True)
    return path


def first_of_classes(labels: np.ndarray, count: int) -> np.ndarray:
    """The numbers int64 ``[count]`` of the first record of class 0, of class 1, ...; then of the
    second ones, and so on. Classes without so many records are passed over."""
    order = np.argsort(labels, kind="stable")
    ordered = labels[order]
    rank = np.arange(len(labels)) - np.searchsorted(ordered, ordered)  # within its class
    return order[np.lexsort((ordered, rank))][:count]


def _check(runs: Mapping[str, Run]) -> None:
    """Refuse runs that have no final model, or none on the same pixels as the others."""
    first = next(iter(runs.values())).config.data
    for run in runs.values():
        data, layers = run.config.data, run.config.local.personal_layers
        if run.summary is None:
            raise ValueError(
                f"{run.folder} is not finished, and heat maps are of a final model: resume the run "
                "first, or leave it out"
            )
        if (data.dataset, data.label_column) != (first.dataset, first.label_column):
            raise ValueError(
                f"dataset is {data.dataset} in {run.folder}, but {first.dataset} in the first run, "
                "and heat maps are of the same records: give runs on one data set"
            )
        if data.features != "pixels":
            raise ValueError(
                f"features is {data.features} in {run.folder}, and heat maps lie over pixels: give "
                "runs with --features pixels"
            )
        if layers is not None:
            raise ValueError(
                f"personal_layers is {layers} in {run.folder}, layers that the server has never "
                "trained, so its model shows nothing: give runs without --personal-layers"
            )


def _records(run: Run) -> tuple[Dataset, np.ndarray]:
    """The data set as models take it, and its test part as images ``[M, C, H, W]`` to be shown.

    Raises:
        ValueError: its records are no images, or have no classes.
    """
    data = run.config.data
    dataset = datasets.load(data.dataset, data.data_dir, settings=data)
    shape = dataset.x.shape[1:]
    if len(shape) != 3 or shape[0] not in CHANNELS:
        raise ValueError(
            f"dataset is {data.dataset}, whose records have shape {shape}, and heat maps lie over "
            "images (C, H, W) of 1 or 3 channels: give runs on images"
        )
    if dataset.labels is None:
        raise ValueError(
            f"loss is {data.loss} in {run.folder}, whose targets are no classes, and heat maps are "
            "of a record's class: give runs on classes"
        )
    if data.dataset not in NAMES:  # one's own is never normalised
        return dataset, dataset.x_test
    return dataset, datasets.load(data.dataset, data.data_dir, normalise=False).x_test


def _column(label: str, run: Run, x: np.ndarray, labels: np.ndarray) -> Column:
    """A run's maps of the records ``[N, C, H, W]``, and what its model takes them for.

    Raises:
        ValueError: as `sim.models.class_maps.class_maps`, with the run's name.
    """
    result, scaled = Result(run.folder), scaling(run.folder)
    given = torch.from_numpy(x if scaled is None else scaled(x))
    model = result.model()
    try:
        maps = class_maps(model, given, torch.from_numpy(labels))
    except ValueError as fault:
        raise ValueError(f"model is {run.config.data.model} in {run.folder}: {fault}") from None
    with torch.no_grad():
        found = model(given).argmax(dim=1).tolist()
    spent = wording.epsilon(result.epsilon, infinite="")
    title = f"{label}\n" + (f"certified epsilon {spent}" if spent else "without privacy")
    return title, maps.numpy(), [f"predicted {one}" for one in found]
