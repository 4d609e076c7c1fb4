"""Many independent trainings with and without one record, all at once: the repetitions are the
client axis.

Two neighbouring data sets (zero-out adjacency), thousands of runs with each through the mechanism
that trains, a statistic of what each run releases, and the bound that follows from how well it
tells the two apart (`bounds.threshold_epsilon`). For models of a few parameters, where that costs
seconds; this is the sharpest audit here.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from mechanisms.accounting.allotment import Account, AdaptivePlan, movement_of
from mechanisms.cohort import Cohort, LocalState
from mechanisms.gradients.record_gradients import RecordGradients
from mechanisms.mechanism import Mechanism, local_round
from mechanisms.optimizers import Optimizer
from mechanisms.plan import Plan
from mechanisms.randomness import Streams
from sim.auditing.bounds import threshold_epsilon
from sim.auditing.canaries import ZeroedOut

AT_A_TIME = 20_000
"""Runs of one cohort."""

Statistic = Callable[[Tensor], Tensor]
"""From released models of some runs, ``[1 + rounds, runs, P]``, the start first, to a number for
each, ``[runs]``."""


@dataclass(frozen=True)
class World:
    """Two neighbouring data sets, and what is trained on them.

    Attributes:
        mechanism: the local optimizer.
        plan: of every run.
        gradients: of the model.
        x, y: records ``[N, ...]`` and labels ``[N]``; all of them are the first data set.
        canary: the record whose place a null record takes in the second one.
        start: the first model ``[P]``.
        optimizer: turns gradients into directions.
        rate: the learning rate.
        rounds: local rounds, each of the plan's steps; their models are released.
        holdout: records and labels that both know, where there are any.
    """

    mechanism: Mechanism
    plan: Plan
    gradients: RecordGradients
    x: Tensor
    y: Tensor
    canary: int
    start: Tensor
    optimizer: Optimizer
    rate: float = 1.0
    rounds: int = 1
    holdout: tuple[Tensor, Tensor] | None = None


def many_run_epsilon(
    world: World, statistic: Statistic, runs: int, delta: float, confidence: float, key: bytes
) -> float:
    """A lower bound on the epsilon of the world's mechanism, from that many runs with either data
    set.

    It exceeds the true one with a probability of at most ``1 - confidence``.
    """
    everything = np.arange(len(world.y))
    both = (everything, np.delete(everything, world.canary))
    samples = [
        np.concatenate(
            [
                statistic(models).double().numpy()
                for models in released(world, records, runs, key, nth * runs)
            ]
        )
        for nth, records in enumerate(both)
    ]
    return threshold_epsilon(samples[0], samples[1], delta, confidence)


def released(
    world: World, records: np.ndarray, runs: int, key: bytes, first: int
) -> Iterator[Tensor]:
    """The released models of independent runs on these records, ``[1 + rounds, some runs, P]`` at a
    time.

    ``first`` is the number of the first run: the runs' draws are named by number.
    """
    for at in range(first, first + runs, AT_A_TIME):
        numbers = range(at, min(at + AT_A_TIME, first + runs))
        models = world.start.expand(len(numbers), -1)
        seen, spent = [models], [0.0] * len(numbers)
        for nth in range(1, world.rounds + 1):
            cohort = _cohort(world, records, numbers, nth, key, spent)
            end = local_round(world.mechanism, cohort, models)
            models = end.params
            seen.append(models)
            if nth < world.rounds:
                spent = _spent(world.mechanism, cohort, end, spent)
        yield torch.stack(seen)


def _cohort(
    world: World,
    records: np.ndarray,
    numbers: Sequence[int],
    nth: int,
    key: bytes,
    spent: Sequence[float],
) -> Cohort:
    runs, plan = len(numbers), world.plan
    accounts: list[Account] = []
    if isinstance(plan, AdaptivePlan):
        allotted = nth * plan.allotment.rdp
        accounts = [Account(plan.allotment.order, allotted, one) for one in spent]
    return Cohort(
        gradients=world.gradients,
        data=ZeroedOut(world.x, world.y, [records] * runs, (len(world.y),) * runs),
        plans=[plan] * runs,
        streams=Streams(key, nth, numbers, world.x.device),
        optimizer=world.optimizer,
        learning_rate=lambda taken: torch.full_like(taken, world.rate),
        nth=[nth] * runs,
        accounts=accounts,
        holdout=world.holdout,
    )


def _spent(
    mechanism: Mechanism, cohort: Cohort, end: LocalState, before: Sequence[float]
) -> list[float]:
    """What each run has spent of its allotments after this round, in nats at its order."""
    moved = [
        sum(m.spent for event, count in charges.items() if (m := movement_of(0, event, count)))
        for charges in mechanism.realized(cohort, end)
    ]
    return [one + more for one, more in zip(before, moved, strict=True)]
