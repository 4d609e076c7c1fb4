"""Channels brought to mean 0 and variance 1 by statistics of the clients' records, which are released with noise.

Tramer and Boneh (ICLR 2021) normalise scattering features so. A record gives the mean and the mean square of each of
its channels; the vector of both is clipped to norm R and summed behind one Gaussian release of each client. From the
sum over all clients follow one mean and one variance for each channel, by which every record is scaled, tests too.
"""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from safetensors.numpy import load

from mechanisms.sharing import SharingPlan
from sim.config.configuration import Config
from sim.data.dataset import Dataset
from sim.data.holdout import Public

STATISTICS_FILE = "statistics.safetensors"
LEAST_VARIANCE = 1e-6
"""Of a channel; noise may leave less than nothing."""


def plan_statistics(config: Config, private: bool) -> SharingPlan | None:
    """The release of a client; None where channels stay as they are."""
    data = config.data
    if data.standardize == "none":
        return None
    return SharingPlan(data.standardize_noise, data.standardize_clip) if private else SharingPlan(0.0, math.inf)


def channel_moments(x: torch.Tensor) -> torch.Tensor:
    """From records ``[M, C, ...]`` to ``[M, 2 C]``: of each channel the mean, then of each the mean square."""
    rows = x.reshape(*x.shape[:2], -1)
    return torch.cat([rows.mean(dim=2), rows.square().mean(dim=2)], dim=1)


def statistics(mean: np.ndarray, records: float) -> dict[str, np.ndarray]:
    """Mean and scale of each channel, from the clients' mean sums ``[2 C]`` and the mean number of their records."""
    first, second = (mean / records).reshape(2, -1)
    variance = np.maximum(second - first**2, LEAST_VARIANCE)
    return {"mean": first.astype(np.float32), "scale": np.sqrt(variance).astype(np.float32)}


def standardized(dataset: Dataset, public: Public | None, run_dir: Path) -> tuple[Dataset, Public | None]:
    """All records scaled by the statistics in the run directory; as they are where there are none (yet)."""
    path = run_dir / STATISTICS_FILE
    if not path.exists():
        return dataset, public
    of_channels = load(path.read_bytes())

    def scaled(x: np.ndarray) -> np.ndarray:
        shape = (1, -1, *[1] * (x.ndim - 2))
        return (x - of_channels["mean"].reshape(shape)) / of_channels["scale"].reshape(shape)

    dataset = replace(dataset, x=scaled(dataset.x), x_test=scaled(dataset.x_test))
    return dataset, public if public is None else (scaled(public[0]), public[1])
