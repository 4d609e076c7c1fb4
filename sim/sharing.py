"""FedFed before its first round: the generator is trained, the clients release, and D^s is on disk for all of them.

Both parts are rounds of the same loop as training, numbered up to 0, so what a crash leaves of them is taken up alike:
no release is made twice that was finished, and none is charged less than once.
"""

import math
from collections.abc import Sequence
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
from sim.job import Job, federation
from sim.nodes import DISTILL, SHARE, SHARED_FILE, distiller, generator_plans, planned, release_plans
from strategies.fedavg import fedavg
from strategies.fedfed import SharedSet, prototypes, union
from strategies.strategy import Strategy


def prepare(job: Job, folder: Path, exchange: Exchange) -> None:
    """Write D^s to the run directory, unless it is there or nothing is released.

    Raises:
        ValueError: the generator's training diverged.
    """
    path = folder / SHARED_FILE
    if job.sharing is None or path.exists():
        return
    params = np.zeros(0, np.float32) if job.sharing.generator is None else _train_generator(job, folder, exchange)

    def write(uploads: Sequence[Upload]) -> None:
        x, y = _join(job, uploads)
        durable.write(path, save({"x": np.ascontiguousarray(x), "y": np.ascontiguousarray(y)}))

    part = _part(job, SHARE, Strategy(np.ones_like, lambda _: {}, lambda *now: now[:2]), release_plans(job), params)
    _run(replace(part, before=-1, rounds=0, collect=write), exchange, folder)


def _train_generator(job: Job, folder: Path, exchange: Exchange) -> np.ndarray:
    """The generator ``[P]`` after its rounds, which end at -1."""
    module, rounds = distiller(job), planned(job).rounds
    initial = Layout.of(module).initial(module).numpy().copy()
    part = _part(job, DISTILL, fedavg(job.config.strategy), generator_plans(job), initial)
    return _run(replace(part, before=-1 - rounds, rounds=-1), exchange, folder).now.params


def _join(job: Job, uploads: Sequence[Upload]) -> SharedSet:
    """D^s out of what all groups have released."""
    shape = job.dataset.x.shape[1:]
    if planned(job).release.singly:
        return union([upload.shared for upload in uploads if upload.shared], shape)
    clients = np.concatenate([upload.clients for upload in uploads])
    mean = sums.mean([upload.total for upload in uploads], len(clients))
    return prototypes(mean, float(job.partition.sizes[clients].mean()), shape)


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
