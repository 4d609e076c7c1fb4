"""What models see of a data set's images: pixels, or scattering features, which are kept on disk
once computed.

Features of a record depend on that record alone, so that clipping and noise protect them as they
would its pixels. They are computed of pixels in [0, 1], as by Tramer and Boneh (ICLR 2021), and
kept beside the data set: a file for each set of records, version of the transform and kind of
device. The file is an `.npz`, whose checksums tell a damaged one.
"""

import contextlib
import fcntl
import hashlib
import warnings
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from mechanisms import durable
from sim.config.settings import Data
from sim.data import dataset as datasets
from sim.data.dataset import Dataset
from sim.data.files import directory
from sim.data.scattering import FEATURES, scatter

VERSION = 1
"""Of the transform: raised when its numbers change."""
CHUNKS = {"cpu": 16, "cuda": 1024}
"""Images transformed together: they fit a CPU's cache, and fill a GPU."""

Parts = tuple[np.ndarray, np.ndarray]
"""Training and test records, float32 [N, ...] and [M, ...]."""


def load(data: Data, device: torch.device) -> Dataset:
    """The data set with the features that are asked for: scattering turns [N, C, H, W] into [N, 81
    C, H // 4, W // 4].

    Raises:
        ValueError: as `dataset.load`; records that are no images, or too small; groups of pixels,
            or that do not divide the channels.
    """
    if data.features == "pixels":
        if data.feature_groups:
            groups = f"feature_groups is {data.feature_groups}"
            raise ValueError(
                f"{groups}, but features is pixels: give --features scattering, or drop "
                "--feature-groups"
            )
        return datasets.load(data.dataset, data.data_dir)
    dataset = datasets.load(data.dataset, data.data_dir, normalise=False)
    scatter(torch.from_numpy(dataset.x[:1]))  # refuses other records before anything is written
    _check_groups(data.feature_groups, FEATURES * dataset.x.shape[1])
    x, x_test = _kept((dataset.x, dataset.x_test), device, directory(data.data_dir) / "features")
    return replace(
        dataset, x=grouped(x, data.feature_groups), x_test=grouped(x_test, data.feature_groups)
    )


def grouped(x: np.ndarray, groups: int) -> np.ndarray:
    """Features [N, C, h, w] with mean 0 and variance 1 in each of so many groups of channels of
    each record, in place.

    No statistic is taken over records. 0 groups change nothing; a group without variance becomes 0.
    """
    for chunk in torch.from_numpy(x).split(1024) if groups else ():
        chunk.copy_(torch.nn.functional.group_norm(chunk, groups))
    return x


def _check_groups(groups: int, channels: int) -> None:
    if groups and channels % groups:
        near = min(
            (g for g in range(1, channels + 1) if channels % g == 0), key=lambda g: abs(g - groups)
        )
        raise ValueError(
            f"feature_groups is {groups}, which does not divide the {channels} channels of these "
            f"features: set --feature-groups {near}"
        )


def _kept(parts: Parts, device: torch.device, folder: Path) -> Parts:
    """The features of both parts: read, where an undamaged file has them, or else computed and
    written."""
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        digest.update(str(part.shape).encode() + np.ascontiguousarray(part).data)
    path = folder / f"scattering-{VERSION}-{digest.hexdigest()}-{device.type}.npz"
    with _lock(folder):
        found = _read(path)
        if found is not None:
            return found
        x, x_test = (_computed(part, device) for part in parts)
        try:
            with durable.writing(path) as file:
                np.savez(file, x=x, x_test=x_test)
        except OSError as error:
            warnings.warn(
                f"features cannot be kept in {folder} ({error.strerror}): free or change it",
                stacklevel=2,
            )
        return x, x_test


@contextlib.contextmanager
def _lock(folder: Path) -> Iterator[None]:
    """Wait for a process that computes features, to read them then; without a lock where the folder
    is read-only."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            fcntl.flock(stack.enter_context(open(folder / "lock", "w")), fcntl.LOCK_EX)
        yield


def _read(path: Path) -> Parts | None:
    """The arrays of a file, or None where it is absent or damaged."""
    try:
        with np.load(path, allow_pickle=False) as file:
            return file["x"], file["x_test"]
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        return None


def _computed(images: np.ndarray, device: torch.device) -> np.ndarray:
    """The features of images [N, C, H, W], chunk by chunk."""
    chunks = torch.from_numpy(images).split(CHUNKS[device.type])
    first = scatter(chunks[0].to(device))
    features = torch.empty(len(images), *first.shape[1:])
    for chunk, into in zip(chunks, features.split(CHUNKS[device.type]), strict=True):
        into.copy_(scatter(chunk.to(device)))
    return features.numpy()
