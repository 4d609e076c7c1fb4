"""How many Ray workers a run has, and the share of a GPU that each gets."""

import math
import os
from collections.abc import Mapping, Sequence

from sim.config.settings import Execution

UNITS = 10_000
"""Ray counts a GPU in so many parts."""


def workers_of(run: Execution, machines: Sequence[Mapping[str, float]] | None = None) -> int:
    """As many as were asked for; else one for each GPU, if clients train there; else as many as
    there are CPU cores for; at least 1.

    Each of the ``machines`` (None: this one) has so many CPU and GPU. A worker does not extend over
    two machines: cores that are left over on each do not add up.
    """
    if run.workers:
        return run.workers
    here = {"CPU": os.cpu_count() or 1, "GPU": _gpus(run)}
    machines = [here] if machines is None else machines
    gpus = sum(own.get("GPU", 0) for own in machines) if here["GPU"] else 0
    cores = (math.floor(own.get("CPU", 0) / run.cpus_per_worker) for own in machines)
    return int(gpus) or max(1, sum(cores))


def _gpus(run: Execution) -> int:
    """The GPUs of this machine on which clients may train."""
    if run.device == "cpu":
        return 0
    import torch  # late: Ray starts while the process imports PyTorch

    return torch.cuda.device_count()


def gpu_share(workers: int, gpus: Sequence[float], given: float | None = None) -> float:
    """The GPUs of each worker, such that all fit on machines with so many ``gpus`` each.

    By default a worker has a GPU of its own, or as many share one as must. No GPUs have no shares.

    Raises:
        ValueError: the ``given`` share is none that Ray takes, or there are too few GPUs for it.
    """
    total = sum(gpus)
    if given is None:
        return math.floor(UNITS / max(1, math.ceil(workers / total))) / UNITS if total else 0.0
    if given > 1 and given % 1:
        raise ValueError(
            f"gpus_per_worker is {given:g}; above 1 it must be a whole number of GPUs: give 1 or "
            "less, or leave --gpus-per-worker out"
        )
    room = sum(_room(own, given) for own in gpus) if given else math.inf
    if workers > room:
        raise ValueError(
            f"gpus_per_worker is {given:g}, so the cluster's GPUs ({total:g}) have room for "
            f"{room:g} workers, and there are {workers}: give fewer --workers or --gpus-per-worker"
        )
    return given


def _room(gpus: float, share: float) -> float:
    """How many workers with a share fit on a machine's GPUs; a part is a part of one GPU."""
    return gpus // share if share >= 1 else gpus * math.floor(1 / share)
