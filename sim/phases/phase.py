"""A phase is a stretch of rounds in which all groups do the same; a run is a list of phases,
training the last."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from client import sums
from client.messages import Answering, Upload
from client.node import GroupData
from client.uploads import Uploads
from mechanisms.accounting.accountant import Charges
from mechanisms.accounting.ledger import Ledger
from mechanisms.plan import Plan, PlanTable
from mechanisms.registry import MECHANISMS
from server.federation import Federation
from sim.config.caveats import tells_times
from sim.config.fields import Config
from sim.job.device import device_of
from sim.job.job import Job
from strategies.registry import strategy_of
from strategies.strategy import Strategy


@dataclass(frozen=True)
class Outlook:
    """What plans are made from: nothing of it depends on what records say.

    Attributes:
        config: of the run.
        shape: of a record.
        sizes: public numbers of the clients' records, int64 ``[clients]``.
        holdout: whether there are public records.
    """

    config: Config
    shape: tuple[int, ...]
    sizes: np.ndarray
    holdout: bool

    @property
    def private(self) -> bool:
        """Whether the run has a guarantee at all."""
        return MECHANISMS[self.config.privacy.mechanism].private

    @property
    def target(self) -> float:
        """Epsilon per client that no round may pass; infinite for none, and for training without
        privacy."""
        epsilon = self.config.privacy.epsilon
        return epsilon if self.private and epsilon is not None else math.inf

    def same(self, plan: Plan) -> PlanTable:
        """One plan for every client."""
        return PlanTable((plan,), np.zeros(len(self.sizes), dtype=np.int64))


Costs = Mapping[str, Charges]
"""What each earlier phase of a run can cost a client, by the phase's name."""


@dataclass(frozen=True)
class Phase:
    """One row of a run's course (`sim.phases.course.PHASES`).

    Attributes:
        name: what requests ask nodes for, and the folder of its files in the run directory.
        rounds: how many round numbers are its own, whether the phase takes place or not.
        plan: the clients' plans, from what earlier phases can cost; None where the phase does not
            take place. What comes before training has one plan for all clients.
        federation: the server's side, from job and run directory.
        node: the clients' side: job, group and run directory.
        result: the file that it leaves in the run directory, if any.
        apply: the job as it is once the result is there.
    """

    name: str
    rounds: Callable[[Config], int]
    plan: Callable[[Outlook, Costs], PlanTable | None]
    federation: Callable[[Job, Path], Federation]
    node: Callable[[Job, int, Path], Answering]
    result: str | None = None
    apply: Callable[[Job, Path], Job] = lambda job, run_dir: job


def federation(
    job: Job, name: str, strategy: Strategy, initial: np.ndarray, **own: Any
) -> Federation:
    """The server's inputs in a phase: all clients in each of its rounds, unless its ``own`` say
    otherwise."""
    config = job.config
    common: dict[str, Any] = {
        "group_of": job.group_of,
        "plans": job.plans_of[name],
        "rounds": config.rounds.rounds,
        "evaluate": lambda params: (math.nan, math.nan),
        "fraction": 1.0,
        "target": job.target,
        "delta": config.privacy.delta,
        "column": config.privacy.budget,
        "seed": job.seed,
        "evaluate_every": config.rounds.evaluate_every,
        "timed": tells_times(config),
    }
    return Federation(phase=name, strategy=strategy, initial=initial, **common | own)


def release(job: Job, name: str, initial: np.ndarray, **own: Any) -> Federation:
    """The server's inputs in a round in which clients release and nothing is learned."""
    nothing = Strategy(np.ones_like, lambda _: {}, lambda *now: now[:2])
    return federation(job, name, nothing, initial, **own)


def group_data(
    job: Job, group: int, shared: tuple[np.ndarray, np.ndarray] | None = None
) -> GroupData:
    """A group's clients and their records on the computing device."""
    device = device_of(job.config)

    def pair(
        records: tuple[np.ndarray, np.ndarray] | None,
    ) -> tuple[torch.Tensor, torch.Tensor] | None:
        return None if records is None else (_on(device, records[0]), _on(device, records[1]))

    return GroupData(
        x=_on(device, job.dataset.x),
        y=_on(device, job.dataset.y),
        records=job.partition.of,
        chunks=job.groups[group],
        weights=strategy_of(job.config.strategy, job.config.fedfed).weights(job.partition.sizes),
        holdout=pair(job.holdout),
        shared=pair(shared),
    )


def files(run_dir: Path, group: int, name: str = "") -> tuple[Ledger, Uploads]:
    """A group's ledger, one for all phases, and the uploads of a phase that has a folder of its
    own."""
    return Ledger(run_dir / "ledger" / f"group-{group:04d}.jsonl"), Uploads(
        run_dir / name / "uploads"
    )


def mean_sums(job: Job, uploads: Sequence[Upload]) -> tuple[np.ndarray, float]:
    """The clients' mean sums, and how many records they have on average."""
    clients = np.concatenate([upload.clients for upload in uploads])
    mean = sums.mean([upload.total for upload in uploads], len(clients))
    return mean, float(job.partition.sizes[clients].mean())


def _on(device: torch.device, array: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(array).to(device)
