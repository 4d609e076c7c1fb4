"""Loads what models see of records: pixels, scattering features, or those of a frozen network.

A record's features depend on that record alone, so clipping and noise protect them like pixels.
So that not even their last bits depend on others, as kernels for batches let them on some chips,
records are transformed one at a time. Features are cached beside the data set: an `.npz` for each
set of records, transform and kind of device, whose checksums reveal damage, and which only its
owner may read.
"""

import contextlib
import hashlib
import warnings
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F

from mechanisms import durable
from mechanisms.kernels import with_all_digits
from sim.config.settings import Data
from sim.data import dataset as datasets
from sim.data.arrays import stored
from sim.data.dataset import Dataset
from sim.data.files import directory
from sim.features.pixels import coloured, deskewed
from sim.features.scattering import MIN_PIXELS, scatter
from sim.features.whitening import dead_leaves, moments, whiten
from sim.sources.backbones import Backbone

VERSION = 2
"""Version of scattering and whitening, raised when the output of one changes."""
CHUNK = 1024
"""Records that go to a device and back together, and after which a network is looked at again."""

Pair = tuple[np.ndarray, np.ndarray]
"""Features of training and test records, float32 [N, ...] and [M, ...], or what whitens them."""


@with_all_digits()  # whatever a run is allowed: what is kept is for all runs
def load(data: Data, device: torch.device, folder: Path | None = None) -> Dataset:
    """The data set as configured; scattering maps [N, C, H, W] to [N, 81 C, H // 4, W // 4], at
    several scales to vectors [N, D].

    Features are kept in the folder, by default in the data directory.

    Raises:
        ValueError: as `dataset.load`; scattering of records that are not images or too small; a
            network that cannot make features of them; feature groups of pixels, or groups that do
            not divide the channels.
    """
    groups = data.feature_groups
    if data.features == "pixels":
        if groups:
            raise ValueError(
                f"feature_groups is {groups}, but features is pixels: give other --features, "
                "or drop --feature-groups"
            )
        return datasets.load(data.dataset, data.data_dir, settings=data)
    dataset = datasets.load(data.dataset, data.data_dir, normalise=False, settings=data)
    transforms = _transforms(data, dataset, device)  # refuses before anything is written
    _check_groups(groups, transforms[0].channels)
    folder = folder or directory(data.data_dir) / "features"
    x, x_test = zip(
        *(_features(dataset, one, data, device, folder) for one in transforms), strict=True
    )
    return replace(dataset, x=_together(x), x_test=_together(x_test))


def _together(scales: Sequence[np.ndarray]) -> np.ndarray:
    """At one scale features [N, C, h, w] as they are, at several as vectors [N, D]."""
    if len(scales) == 1:
        return scales[0]
    return np.concatenate([x.reshape(len(x), -1) for x in scales], axis=1)


class _Transform(NamedTuple):
    """From records [N, ...] to features [N, channels, ...], one at a time."""

    name: str
    of: Callable[[torch.Tensor], torch.Tensor]
    channels: int


def _transforms(data: Data, dataset: Dataset, device: torch.device) -> list[_Transform]:
    """One for each scale."""
    first = torch.from_numpy(dataset.x[:1])
    if data.features == "scattering":
        scales = [2**k for k in range(data.feature_scales)]
        _check_scales(scales[-1], dataset.x.shape[1:])
        return [_scattering(data, first, scale, device) for scale in scales]
    if dataset.words:
        raise ValueError(
            f"features = {data.features!r} takes numbers, and the records of {dataset.name} are "
            "words: leave --features out"
        )
    backbone = Backbone(data.features, data.features_settings, device)
    return [_Transform(f"backbone-{backbone.digest}", backbone, backbone(first).shape[1])]


def _check_scales(coarsest: int, shape: tuple[int, ...]) -> None:
    if coarsest > 1 and min(shape[1:], default=0) // coarsest < MIN_PIXELS:
        raise ValueError(
            f"feature_scales takes records of shape {shape} to 1/{coarsest} of their resolution, "
            f"and scattering needs {MIN_PIXELS}x{MIN_PIXELS} pixels: lower --feature-scales"
        )


def _scattering(data: Data, first: torch.Tensor, scale: int, device: torch.device) -> _Transform:
    name = f"scattering-{VERSION}" + f"-{data.feature_pixels}" * (data.feature_pixels != "unit")
    name += "-deskew" * data.feature_deskew + "-flips" * data.feature_flips
    name += f"-scale-{scale}" * (scale > 1)

    def alone(x: torch.Tensor) -> torch.Tensor:
        x = deskewed(x) if data.feature_deskew and x.ndim == 4 else x
        x = coloured(F.avg_pool2d(x, scale) if scale > 1 else x, data)
        return (scatter(x) + scatter(x.flip(3))) / 2 if data.feature_flips else scatter(x)

    def of(records: torch.Tensor) -> torch.Tensor:
        return torch.cat([alone(record) for record in records.to(device).split(1)])

    return _Transform(name, of, alone(first).shape[1])


def grouped(x: np.ndarray, groups: int) -> np.ndarray:
    """Normalise each record's groups of channels in features [N, C, h, w] to mean 0, variance 1.

    In place. No statistic is taken over records. With 0 groups nothing changes; a group without
    variance becomes 0.
    """
    for chunk in torch.from_numpy(x).split(CHUNK) if groups else ():
        chunk.copy_(F.group_norm(chunk, groups))
    return x


def _check_groups(groups: int, channels: int) -> None:
    if groups and channels % groups:
        divisors = (g for g in range(1, channels + 1) if channels % g == 0)
        near = min(divisors, key=lambda g: abs(g - groups))
        raise ValueError(
            f"feature_groups is {groups}, which does not divide the {channels} channels of these "
            f"features: set --feature-groups {near}"
        )


def _features(
    dataset: Dataset, transform: _Transform, data: Data, device: torch.device, folder: Path
) -> Pair:
    """The features of training and test records, normalised and whitened as configured."""
    digest = hashlib.blake2b(digest_size=16)
    for part in (dataset.x, dataset.x_test):
        digest.update(str(part.shape).encode() + np.ascontiguousarray(part).data)
    path = folder / f"{transform.name}-{digest.hexdigest()}-{device.type}.npz"
    x, x_test = _kept(
        path, lambda: (_computed(dataset.x, transform), _computed(dataset.x_test, transform))
    )
    grouped(x, data.feature_groups)
    grouped(x_test, data.feature_groups)
    if data.feature_whitening:
        found = _whitening(dataset.x.shape[1:], transform, data.feature_groups, device, folder)
        whiten(x, *found)
        whiten(x_test, *found)
    return x, x_test


def _whitening(
    shape: tuple[int, ...], transform: _Transform, groups: int, device: torch.device, folder: Path
) -> Pair:
    """Mean and matrix that whiten the features of synthetic images of this shape."""
    size = "x".join(map(str, shape))
    path = folder / f"{transform.name}-whitening-{size}-{groups}-{device.type}.npz"
    return _kept(path, lambda: moments(grouped(_computed(dead_leaves(shape), transform), groups)))


def _kept(path: Path, compute: Callable[[], Pair]) -> Pair:
    """Two arrays, read from an undamaged cache file, or computed and written."""
    folder = path.parent
    with _lock(folder):
        found = _read(path)
        if found is not None:
            return found
        first, second = compute()
        try:
            durable.make_folder(folder)
            with durable.writing(path, private=True) as file:
                np.savez(file, x=first, x_test=second)
        except OSError as error:
            warnings.warn(
                f"features cannot be kept in {folder} ({error.strerror}): free space or change it",
                stacklevel=2,
            )
        return first, second


@contextlib.contextmanager
def _lock(folder: Path) -> Iterator[None]:
    """Wait for another process that computes features; no lock if the folder is read-only."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):
            durable.make_folder(folder)
            stack.enter_context(durable.locked(folder / "lock"))
        yield


def _read(path: Path) -> Pair | None:
    """The arrays of a file, or None where it is absent or damaged."""
    try:
        with zipfile.ZipFile(path) as archive:
            return stored(archive, "x"), stored(archive, "x_test")
    except Exception:  # of a damaged archive, it can be any
        return None


def _computed(records: np.ndarray, transform: _Transform) -> np.ndarray:
    """The features of records [N, ...]."""
    chunks = torch.from_numpy(records).split(CHUNK)
    first = transform.of(chunks[0])
    features = torch.empty(len(records), *first.shape[1:])
    features[: len(first)] = first.cpu()
    for some, into in zip(chunks[1:], features.split(CHUNK)[1:], strict=True):
        into.copy_(transform.of(some))
    return features.numpy()
