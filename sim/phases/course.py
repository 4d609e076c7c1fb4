"""The phases of a run in order: planning them, and running those before training."""

import functools
import itertools
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from client.messages import Answering
from mechanisms.accounting.accountant import Charges
from mechanisms.mechanism import Mechanism
from mechanisms.plan import PlanTable, merge, planned
from server import loop, manifest, paid
from server.federation import Exchange
from server.orders import Paid
from server.store import Store
from sim.config.fields import Config
from sim.job.job import TRAIN, Job
from sim.phases import evaluation, generator, sharing, statistics, training
from sim.phases.phase import Outlook, Phase, check_result

BEFORE = (evaluation.PHASE, statistics.PHASE, generator.PHASE, sharing.PHASE)
PHASES = (*BEFORE, training.PHASE)


def plan(outlook: Outlook) -> dict[str, PlanTable]:
    """The clients' plans by phase, each within the budget that the phases before it leave.

    Raises:
        ValueError: the budget does not pay for them.
    """
    config, plans = outlook.config, dict[str, PlanTable]()
    for phase in BEFORE:
        if (table := phase.plan(outlook, costs(config, plans))) is not None:
            plans[phase.name] = table
    return plans | {TRAIN: training.plan(outlook, costs(config, plans))}


def costs(config: Config, plans: Mapping[str, PlanTable]) -> dict[str, Charges]:
    """The most that each phase before training can cost a client, by name and in order."""
    return {
        phase.name: planned(plans[phase.name].plans[0], phase.rounds(config))
        for phase in BEFORE
        if phase.name in plans
    }


def paid_before(config: Config, plans: Mapping[str, PlanTable]) -> tuple[Paid, ...]:
    """The most that a client has paid at the end of each phase before training."""
    ends = itertools.accumulate(costs(config, plans).values(), merge)
    return tuple(tuple(charges.items()) for charges in ends)


def before_training(job: Job, run_dir: Path, exchange: Exchange) -> Job:
    """Run the phases before training that are not done yet; returns the job as training sees it.

    Their rounds run in the same loop as training, numbered up to 0, and resume alike after a crash:
    no finished release is repeated, and each is charged at least once.

    Raises:
        ValueError: training a generator diverged, no client's budget pays for a release, or a
            result is lost or damaged.
    """
    for result in results(job.config, run_dir):  # else a phase would begin anew
        check_result(result)
    for phase, last in _ahead(job, run_dir):
        federation = phase.federation(present(job, run_dir), run_dir)
        first = last - phase.rounds(job.config)
        federation = replace(federation, before=first, rounds=last)
        store = Store(run_dir / phase.name, keep_checkpoints=2, ledger=run_dir / "ledger")
        end = loop.run(federation, exchange, store, loop.restore(federation, store), [])
        if end.now.round < last:
            raise ValueError(
                f"epsilon = {job.config.target:g} is spent before training: start a new run, or "
                "raise --epsilon"
            )
        if phase.result:
            check_result(run_dir / phase.result)
    return present(job, run_dir)


def results(config: Config, run_dir: Path) -> list[Path]:
    """The results of the phases before training that exist, or should: a phase is over if somebody
    has paid for one of its rounds and for a later phase.

    Raises:
        ValueError: a ledger file is damaged.
    """
    rounds, first, found = paid.payers(run_dir), 0, []
    for phase in reversed(BEFORE):
        last, first = first, first - phase.rounds(config)
        over = max(rounds, default=last) > last and any(first < one <= last for one in rounds)
        if phase.result and (over or (run_dir / phase.result).exists()):
            found.append(run_dir / phase.result)
    return found


def _ahead(job: Job, run_dir: Path) -> list[tuple[Phase, int]]:
    """The unfinished phases before training, with the numbers of their last rounds; one is finished
    if its result, or that of a later phase, exists."""
    ahead: list[tuple[Phase, int]] = []
    last = 0
    for phase in reversed(BEFORE):
        if phase.result and (run_dir / phase.result).exists():
            break
        ahead += [(phase, last)] if phase.name in job.plans_of else []
        last -= phase.rounds(job.config)
    return ahead[::-1]


def present(job: Job, run_dir: Path) -> Job:
    """The job with the results of the phases finished so far."""
    for phase in PHASES:
        job = phase.apply(job, run_dir)
    return job


class Host:
    """The nodes of one process, created on first use and dropped when the next phase begins.

    Clients train by ``mechanism``, or by the configuration's. A run directory has a ledger from the
    beginning; a node's own folder gets one with its first charge.
    """

    def __init__(self, job: Job, run_dir: Path, mechanism: Mechanism | None = None):
        self._job, self._run_dir, self._phase, self._now = job, run_dir, "", job
        self._has_begun = (run_dir / "ledger").is_dir()
        self._nodes: dict[int, Answering] = {}
        builders = {phase.name: phase.node for phase in PHASES}
        self._builders = builders | {TRAIN: functools.partial(training.node, mechanism=mechanism)}

    def node(self, group: int, phase: str) -> Answering:
        """The node of a group.

        Raises:
            ValueError: the run has begun, and its directory is gone.
        """
        if phase != self._phase:
            self._nodes, self._phase = {}, phase
            self._now = present(self._job, self._run_dir)
        if group not in self._nodes:
            if self._has_begun:
                manifest.check_there(self._run_dir / "ledger")
            self._nodes[group] = self._builders[phase](self._now, group, self._run_dir)
        return self._nodes[group]

    def forget(self, group: int) -> None:
        """Drop a group's node: another process may have written its files since."""
        self._nodes.pop(group, None)
