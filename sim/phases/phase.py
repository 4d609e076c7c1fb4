"""A phase: consecutive rounds in which all groups do the same. The last phase is training."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np

from client import sums, tensors
from client.messages import Answering, Upload
from client.node import GroupData
from client.uploads import Uploads
from mechanisms import durable
from mechanisms.accounting.accountant import Charges
from mechanisms.accounting.ledger import Ledger
from mechanisms.plan import Plan, PlanTable
from mechanisms.sharing import SharingPlan
from server import manifest, paid
from server.federation import Federation
from server.orders import Course
from sim.config.caveats import tells_times
from sim.config.fields import Config
from sim.job.copies import pair_on
from sim.job.job import Job
from sim.job.manifest import ledger_file
from strategies.registry import strategy_of
from strategies.strategy import Strategy


@dataclass(frozen=True)
class Outlook:
    """The inputs of plans, none of which depends on the contents of records.

    Attributes:
        config: the run's configuration.
        shape: shape of a record.
        sizes: public numbers of the clients' records, int64 ``[clients]``.
        holdout: whether there are public records.
    """

    config: Config
    shape: tuple[int, ...]
    sizes: np.ndarray
    holdout: bool

    def same(self, plan: Plan) -> PlanTable:
        """One plan for every client."""
        return PlanTable((plan,), np.zeros(len(self.sizes), dtype=np.int64))


Costs = Mapping[str, Charges]
"""The most that each earlier phase can cost a client, by the phase's name."""


@dataclass(frozen=True)
class Phase:
    """One row of `sim.phases.course.PHASES`.

    Attributes:
        name: its name in requests to nodes, and the folder of its files in the run directory.
        rounds: how many round numbers it reserves, even if the phase is skipped.
        plan: the clients' plans, given the cost of earlier phases; None if the phase is skipped.
            Before training, all clients have the same plan.
        federation: the server's side, from job and run directory.
        node: the clients' side, from job, group and run directory.
        result: the file that it leaves in the run directory, if any.
        apply: returns the job changed by the result, if that exists.
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
    """The server's inputs in a phase, by default with all clients in every round."""
    config = job.config
    common: dict[str, Any] = {
        "group_of": job.group_of,
        "plans": job.plans_of[name],
        "course": Course(job.plans, config.rounds.rounds, job.prior),
        "rounds": config.rounds.rounds,
        "evaluate": lambda params: (math.nan, math.nan),
        "fraction": 1.0,
        "target": config.targets,
        "delta": config.privacy.delta,
        "column": config.privacy.budget,
        "seed": job.seed,
        "evaluate_every": config.rounds.evaluate_every,
        "timed": tells_times(config),
    }
    return Federation(phase=name, strategy=strategy, initial=initial, **common | own)


def release(job: Job, name: str, initial: np.ndarray, **own: Any) -> Federation:
    """The server's inputs in a round in which clients release and the model stays as it is."""
    nothing = Strategy(np.ones_like, lambda _: {}, lambda *now: now[:2])
    return federation(job, name, nothing, initial, **own)


def sharing_plan(job: Job, name: str) -> SharingPlan:
    """The plan by which all clients release in a phase."""
    return cast(SharingPlan, job.plans_of[name].plans[0])


def group_data(job: Job, group: int) -> GroupData:
    """A group's clients, and the records on the computing device, of which all groups of a process
    have the same copy."""
    device, strategy = job.device, strategy_of(job.config.strategy, job.config.fedfed)
    x, y = pair_on(device, (job.dataset.x, job.dataset.y))
    return GroupData(
        x=x,
        y=y,
        records=job.partition.of,
        chunks=job.groups[group],
        weights=strategy.weights(job.partition.sizes),
        holdout=job.holdout and pair_on(device, job.holdout),
        shared=job.shared and pair_on(device, job.shared),
    )


def files(run_dir: Path, group: int, name: str = "") -> tuple[Ledger, Uploads]:
    """A group's ledger, shared by all phases, and the uploads of the named phase."""
    ledger = Ledger(ledger_file(run_dir, group))
    run = manifest.run_of(run_dir) or ""
    return ledger, Uploads(run_dir / name / "uploads", run, ledger.path)


def write_result(path: Path, result: Mapping[str, np.ndarray]) -> None:
    """Write a phase's result in the run directory; it names the run, and where the ledger was."""
    labels = {
        tensors.RUN: manifest.run_of(path.parent) or "",
        tensors.LEDGER: json.dumps(paid.places(path.parent / "ledger")),
    }
    durable.write(path, tensors.sealed(result, labels))


def check_result(path: Path) -> None:
    """Refuse to go on without what a phase has left that is over.

    Raises:
        ValueError: it is lost, damaged, or of another run.
    """
    if not path.exists():
        raise ValueError(
            f"{path} is missing, the result of a phase that is over: restore it from a copy, or "
            "start a new run"
        )
    manifest.check_run(path.parent, path, tensors.read(path)[0].get(tensors.RUN))


def mean_sums(job: Job, uploads: Sequence[Upload]) -> tuple[np.ndarray, float]:
    """The mean of the clients' sums, and their mean number of records."""
    clients = np.concatenate([upload.clients for upload in uploads])
    mean = sums.mean([upload.total for upload in uploads], len(clients))
    return mean, float(job.partition.sizes[clients].mean())
