"""How many workers a run has, and the share of a GPU that each gets."""

import math
import os

import torch

from sim.config.settings import Execution

UNITS = 10_000
"""Ray counts a GPU in so many parts."""


def workers_of(run: Execution) -> int:
    """The number of workers; by default one per GPU if clients train there, else one per CPU
    core."""
    gpus = 0 if run.device == "cpu" else torch.cuda.device_count()
    return run.workers or gpus or os.cpu_count() or 1


def gpu_share(workers: int, gpus: int, given: float | None = None) -> float:
    """The GPUs of each worker, such that all workers fit, wherever the GPUs are.

    By default a worker has a GPU of its own, or as many share one as must. No GPUs have no shares.

    Raises:
        ValueError: the ``given`` share is none that Ray takes, or there are too few GPUs for it.
    """
    if given is None:
        return math.floor(UNITS / max(1, math.ceil(workers / gpus))) / UNITS if gpus else 0.0
    if given > 1 and given % 1:
        raise ValueError(
            f"gpus_per_worker is {given:g}; above 1 it must be a whole number of GPUs: give 1 or "
            "less, or leave --gpus-per-worker out"
        )
    room = gpus // given if given >= 1 else gpus * math.floor(1 / given) if given else math.inf
    if workers > room:
        raise ValueError(
            f"gpus_per_worker is {given:g}, so the cluster's GPUs ({gpus}) have room for "
            f"{room:g} workers, and there are {workers}: give fewer --workers or --gpus-per-worker"
        )
    return given
