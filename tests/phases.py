"""Every phase in which clients release something, as a node of a run does it, over records that add
to no sum.

What such a node uploads is its noise alone: it is seen here in units of the sensitivity, beside
what the ledger says.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from client.messages import Answering, TrainRequest, Upload
from client.sums import SCALE
from mechanisms.accounting import ledger
from mechanisms.accounting.accountant import Charges
from mechanisms.accounting.event import Event
from mechanisms.accounting.events import Gaussian, SampledGaussian, VisibleChoice
from mechanisms.plan import PlanTable, merge, planned
from sim.config import configuration as config
from sim.data.partition import Partition
from sim.job.job import Job
from sim.phases.build import build
from sim.phases.course import BEFORE, Host
from sim.phases.generator import distiller

CLIENTS, RECORDS, WIDTH, CLASSES = 3, 24, 400, 3
SETTINGS = {
    "clients": CLIENTS,
    "partition": "iid",
    "groups": 1,
    "chunk_clients": 2,
    "rounds": 2,
    "steps": 1,
    "sample_rate": 0.5,
    "epsilon": 20.0,
    "lr_schedule": "constant",
    "engine": "inline",
    "standardize": "private",
    "standardize_noise": 7.0,
    "strategy": "fedfed",
    "share_budget": 0.6,
}
PROTOTYPES = {"shared_source": "prototypes"}
DISTILLED = {
    "shared_source": "distilled",
    "distill_latent": 1,
    "distill_rounds": 2,
    "share_views": 2,
}


def cost_before_training(job: Job) -> Charges:
    """The most that a client can pay before training."""
    own = [phase for phase in BEFORE if phase.name in job.plans_of]
    return merge(*(planned(job.plans_of[p.name].plans[0], p.rounds(job.config)) for p in own))


@dataclass(frozen=True)
class Phase:
    """A phase of a run, and how its uploads are read.

    Attributes:
        name: as the nodes know it.
        params: how many parameters a request brings.
        noise: from the job and an upload to the noise of its clients together, in units of the
            sensitivity, ``[m]``.
        multiplier: from the noisy event that a client is charged to the deviation of that noise.
        given: settings beside the common ones.
        rounds: two of its rounds; those of phases that draw for the same purpose differ.
        width: of the records.
    """

    name: str
    noise: Callable[[Job, Upload], np.ndarray]
    params: Callable[[Job], int] = lambda job: 0
    multiplier: Callable[[Event], float] = lambda event: event.noise_multiplier
    given: dict = field(default_factory=dict)
    rounds: tuple[int, int] = (1, 2)
    width: int = WIDTH

    def plans(self, job: Job) -> PlanTable:
        """Of its clients."""
        return job.plans_of[self.name]


def _sums(name: str) -> Callable[[Job, Upload], np.ndarray]:
    return lambda job, upload: upload.total / SCALE / job.plans_of[name].plans[0].clip_norm


def _singles(job: Job, upload: Upload) -> np.ndarray:
    return upload.shared["x"].ravel() / job.plans_of["share"].plans[0].clip_norm


def _step(plans: Callable[[Job], PlanTable], rate: Callable[[Job], float]) -> Callable:
    def noise(job: Job, upload: Upload) -> np.ndarray:
        plan, update = plans(job).of(0), upload.total / SCALE / upload.weight * len(upload.clients)
        return -update * plan.sample_rate * job.partition.sizes[0] / rate(job) / plan.clip_norm

    return noise


_DISTILL = _step(lambda job: job.plans_of["distill"], lambda job: job.config.fedfed.distill_lr)
_TRAIN = _step(lambda job: job.plans, lambda job: job.config.local.lr)


def _distiller(job: Job) -> int:
    return sum(parameter.numel() for parameter in distiller(job).parameters())


PHASES = {
    "statistics": Phase("statistics", _sums("statistics")),
    "generator": Phase(
        "distill", _DISTILL, _distiller, given=DISTILLED, rounds=(-2, -1), width=100
    ),
    "class sums": Phase("share", _sums("share"), given=PROTOTYPES),
    "single records": Phase(
        "share",
        _singles,
        multiplier=lambda event: event.noise_multiplier * 2**0.5,  # two views
        given=DISTILLED,
    ),
    "training": Phase("train", _TRAIN, lambda job: job.gradients.layout.size),
}
NOISY = (Gaussian, SampledGaussian, VisibleChoice)


def job(folder: Path, release: bool = False, width: int = WIDTH, **given: object) -> Job:
    """A job whose records all are null records; every client has as many."""
    folder.mkdir(parents=True, exist_ok=True)
    x = np.random.default_rng(0).normal(size=(RECORDS, width)).astype(np.float32)
    np.savez(
        folder / "records.npz",
        x=x,
        y=np.arange(RECORDS) % CLASSES,
        x_test=x[:6],
        y_test=np.arange(6) % CLASSES,
    )
    words = SETTINGS | {"dataset": str(folder / "records.npz"), "release": release} | given
    built = build(config.load(None, words, lenient=config.SETTINGS))
    return replace(built, dataset=replace(built.dataset, x=np.full_like(x, np.nan)))


def node(name: str, folder: Path, release: bool = False) -> tuple[Phase, Job, Answering]:
    """A phase, and the node that a run in this folder has in it."""
    phase = PHASES[name]
    built = job(folder, release, phase.width, **phase.given)
    return phase, built, Host(built, folder).node(0, phase.name)


def ask(phase: Phase, job: Job, round_: int, clients: list[int], nth: int = 1) -> TrainRequest:
    """What the server asks of some clients in a phase."""
    params, who = np.zeros(phase.params(job), np.float32), np.array(clients, dtype=np.int64)
    return TrainRequest(
        round_, 0, f"round-{round_}", who, np.full(len(who), nth), params, phase.name
    )


def charged(folder: Path, client: int) -> Event:
    """The noisy event of a client that stands in the ledger, once."""
    paid = ledger.read(folder / "ledger")[client]
    ((event, count),) = [
        (event, count) for event, count in paid.items() if isinstance(event, NOISY)
    ]
    if count != 1:
        raise ValueError(f"{event} is charged {count} times")
    return event


class Broken(Partition):
    """Nobody gets at a record."""

    def of(self, client: int) -> np.ndarray:
        raise RuntimeError("a record was looked at")
