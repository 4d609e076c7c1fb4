"""Scales channels to mean 0 and variance 1, by noisy statistics that the clients release.

Tramer and Boneh (ICLR 2021) normalise scattering features like this. A record contributes the mean
and the mean square of each of its channels; this vector is clipped to norm R, and each client
releases the sum over its records with Gaussian noise. The sum over all clients gives one mean and
one variance per channel, by which all records are scaled, test records included.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from weakref import WeakKeyDictionary

import numpy as np
import torch

from client.messages import Upload
from client.sharing import SharingNode
from client.tensors import read
from mechanisms.plan import PlanTable
from mechanisms.sharing import SharingPlan, Sum
from server.federation import Federation
from sim.data.dataset import Dataset
from sim.job.job import Job
from sim.phases.phase import (
    Costs,
    Outlook,
    Phase,
    files,
    group_data,
    mean_sums,
    release,
    sharing_plan,
    write_result,
)

NAME, FILE = "statistics", "statistics.safetensors"
MIN_VARIANCE = 1e-6
"""Minimum of what is added to a channel's variance, so that a constant one has a scale above 0."""
_SCALED: WeakKeyDictionary[Dataset, tuple[bytes, Dataset]] = WeakKeyDictionary()
"""The statistics by which a data set was scaled last, and the scaled copy, one for the process."""


def plan(outlook: Outlook, earlier: Costs) -> PlanTable | None:
    """Every client's release; None if channels are not scaled."""
    data = outlook.config.data
    if data.standardize == "none":
        return None
    private = SharingPlan(data.standardize_noise, data.standardize_clip)
    return outlook.same(private if outlook.config.private else SharingPlan(0.0, math.inf))


def federation(job: Job, run_dir: Path) -> Federation:
    """One round, whose releases become a mean and a scale for each channel."""

    def write(uploads: Sequence[Upload]) -> None:
        mean, records = mean_sums(job, uploads)
        clients = sum(len(upload.clients) for upload in uploads)
        noise = sharing_plan(job, NAME).noise_std / math.sqrt(clients)
        write_result(run_dir / FILE, statistics(mean, records, noise))

    return release(job, NAME, np.zeros(0, np.float32), collect=write)


def node(job: Job, group: int, run_dir: Path) -> SharingNode:
    """The clients of a group, which release statistics of their channels."""
    plans, data = job.plans_of[NAME], group_data(job, group)
    moments = Sum(sharing_plan(job, NAME), channel_moments, 2 * job.dataset.x.shape[1])
    return SharingNode(lambda _: moments, data, plans, *files(run_dir, group, NAME), job.seed)


def channel_moments(x: torch.Tensor) -> torch.Tensor:
    """Channel means and then mean squares ``[M, 2 C]`` of records ``[M, C, ...]``."""
    rows = x.reshape(*x.shape[:2], -1)
    return torch.cat([rows.mean(dim=2), rows.square().mean(dim=2)], dim=1)


def statistics(mean: np.ndarray, records: float, noise: float) -> dict[str, np.ndarray]:
    """Mean and scale of each channel, from the clients' mean sum ``[2 C]`` and mean size.

    A scale is the root of the estimated variance plus the standard deviation of its mean square's
    noise. Half of CIFAR-10's scattering channels vary less than their noise does: divided by the
    root of the variance alone, which may come out as nearly 0, they would drown out all others.

    Args:
        mean: sums of `channel_moments`, mean over the clients.
        records: mean number of a client's records.
        noise: standard deviation of the noise in each coordinate of ``mean``.
    """
    first, second = (mean / records).reshape(2, -1)
    variance = np.maximum(second - first**2, 0) + max(noise / records, MIN_VARIANCE)
    return {"mean": first.astype(np.float32), "scale": np.sqrt(variance).astype(np.float32)}


def scaling(run_dir: Path) -> Callable[[np.ndarray], np.ndarray] | None:
    """What scales records ``[M, C, ...]`` by the released statistics; None if there are none.

    Raises:
        ValueError: the file is damaged.
    """
    path = run_dir / FILE
    if not path.exists():
        return None
    _, of_channels = read(path)

    def scaled(x: np.ndarray) -> np.ndarray:
        shape = (1, -1, *[1] * (x.ndim - 2))
        centred = x - of_channels["mean"].reshape(shape)
        centred /= of_channels["scale"].reshape(shape)  # in place: features may be gigabytes
        return centred

    return scaled


def standardized(job: Job, run_dir: Path) -> Job:
    """The job with all records scaled by the released statistics; unchanged if there are none."""
    scaled = scaling(run_dir)
    if scaled is None:
        return job
    by, kept = (run_dir / FILE).read_bytes(), _SCALED.get(job.dataset)
    if kept is None or kept[0] != by:
        x, x_test = scaled(job.dataset.x), scaled(job.dataset.x_test)
        kept = _SCALED[job.dataset] = by, replace(job.dataset, x=x, x_test=x_test)
    holdout = None if job.holdout is None else (scaled(job.holdout[0]), job.holdout[1])
    held = None if job.held is None else replace(job.held, x=scaled(job.held.x))
    return replace(job, dataset=kept[1], holdout=holdout, held=held)


PHASE = Phase(NAME, lambda config: 1, plan, federation, node, result=FILE, apply=standardized)
