"""What precedes the first round: statistics of channels; FedFed's generator; the data set D^s that all clients share.

All of it are rounds of the same loop as training, numbered up to 0, so what a crash leaves of them is taken up alike:
no release is made twice that was finished, and none is charged less than once.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from safetensors.numpy import save

from client import sums
from client.messages import Upload
from mechanisms import durable
from mechanisms.layout import Layout
from mechanisms.plan import PlanTable
from server import loop
from server.federation import Exchange, Federation
from server.loop import Standing
from server.store import Store
from sim.job.job import Job, federation
from sim.phases.nodes import (
    DISTILL,
    SHARE,
    STATISTICS,
    distiller,
    generator_plans,
    present,
    release_plans,
    sharing_of,
    statistics_plans,
)
from sim.phases.statistics import STATISTICS_FILE, statistics
from sim.showing.sharing import SHARED_FILE
from strategies.fedavg import fedavg
from strategies.fedfed import SharedSet, prototypes, union
from strategies.strategy import Strategy


def prepare(job: Job, folder: Path, exchange: Exchange) -> Job:
    """Do what precedes training and is not done yet; the job with its records as training sees them.

    Raises:
        ValueError: the generator's training diverged, or no client's budget pays for a release.
    """
    if job.statistics and not (folder / STATISTICS_FILE).exists():
        _release_statistics(job, folder, exchange)
    job = present(job, folder)
    if job.sharing and not (folder / SHARED_FILE).exists():
        _share(job, folder, exchange)
    return job


def _release_statistics(job: Job, folder: Path, exchange: Exchange) -> None:
    """Mean and scale of each channel, released in the round before all others."""

    def write(uploads: Sequence[Upload]) -> None:
        found = statistics(*_mean(job, uploads))
        durable.write(folder / STATISTICS_FILE, save(found))

    first = -1 - (job.sharing.rounds if job.sharing else 0)
    _release(job, STATISTICS, statistics_plans(job), np.zeros(0, np.float32), first, write, exchange, folder)


def _share(job: Job, folder: Path, exchange: Exchange) -> None:
    """D^s, released in round 0."""
    params = np.zeros(0, np.float32) if sharing_of(job).generator is None else _train_generator(job, folder, exchange)

    def write(uploads: Sequence[Upload]) -> None:
        x, y = _join(job, uploads)
        durable.write(folder / SHARED_FILE, save({"x": np.ascontiguousarray(x), "y": np.ascontiguousarray(y)}))

    _release(job, SHARE, release_plans(job), params, 0, write, exchange, folder)


def _release(
    job: Job,
    phase: str,
    plans: PlanTable,
    params: np.ndarray,
    round_: int,
    write: Callable[[Sequence[Upload]], None],
    exchange: Exchange,
    folder: Path,
) -> None:
    """One round in which clients release and nothing is learned; ``write`` keeps what they have released.

    Raises:
        ValueError: nobody can pay.
    """
    nothing = Strategy(np.ones_like, lambda _: {}, lambda *now: now[:2])
    part = replace(_part(job, phase, nothing, plans, params), before=round_ - 1, rounds=round_, collect=write)
    if _run(part, exchange, folder).now.round < round_:
        raise ValueError(f"epsilon = {part.target:g} is spent before training: start a new run, or raise --epsilon")


def _train_generator(job: Job, folder: Path, exchange: Exchange) -> np.ndarray:
    """The generator ``[P]`` after its rounds, which end at -1."""
    module, rounds = distiller(job), sharing_of(job).rounds
    initial = Layout.of(module).initial(module).numpy().copy()
    part = _part(job, DISTILL, fedavg(job.config.strategy), generator_plans(job), initial)
    return _run(replace(part, before=-1 - rounds, rounds=-1), exchange, folder).now.params


def _join(job: Job, uploads: Sequence[Upload]) -> SharedSet:
    """D^s out of what all groups have released."""
    shape = job.dataset.x.shape[1:]
    if sharing_of(job).release.singly:
        return union([upload.shared for upload in uploads if upload.shared], shape)
    return prototypes(*_mean(job, uploads), shape)


def _mean(job: Job, uploads: Sequence[Upload]) -> tuple[np.ndarray, float]:
    """The clients' mean sums, and how many records they have on average."""
    clients = np.concatenate([upload.clients for upload in uploads])
    mean = sums.mean([upload.total for upload in uploads], len(clients))
    return mean, float(job.partition.sizes[clients].mean())


def _part(job: Job, phase: str, strategy: Strategy, plans: PlanTable, initial: np.ndarray) -> Federation:
    """All clients in each round, within the run's budget."""
    whole = federation(job)
    return replace(
        whole,
        phase=phase,
        strategy=strategy,
        plans=plans,
        initial=initial,
        evaluate=lambda params: (math.nan, math.nan),
        fraction=1.0,
    )


def _run(part: Federation, exchange: Exchange, folder: Path) -> Standing:
    store = Store(folder / part.phase, keep_checkpoints=2, ledger=folder / "ledger")
    return loop.run(part, exchange, store, loop.restore(part, store), [])
