"""The audit by many independent trainings with and without one record, run as clients of a cohort.

It trains thousands of runs on each of two neighbouring data sets (zero-out adjacency), computes a
statistic of what each run releases, and bounds epsilon by how well that tells the two apart
(`bounds.threshold_epsilon`). It is the tightest audit here, for models of a few parameters, where
it takes seconds.
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
"""Maximum number of runs in one cohort."""

Statistic = Callable[[Tensor], Tensor]
"""Maps released models ``[1 + rounds, runs, P]``, the initial one first, to numbers ``[runs]``."""


@dataclass(frozen=True)
class World:
    """Two neighbouring data sets and the training on them.

    Attributes:
        mechanism: the local optimizer.
        plan: the plan of every run.
        gradients: per-record gradients of the model.
        x, y: records ``[N, ...]`` and labels ``[N]`` of the first data set.
        canary: the record that is a null record in the second data set.
        start: the initial model ``[P]``.
        optimizer: turns gradients into directions.
        rate: the learning rate.
        rounds: local rounds, each of the plan's steps; their models are released.
        holdout: public records and labels, or None.
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
    """A lower bound on the mechanism's epsilon from ``runs`` runs with each data set.

    It exceeds the true one with a probability of at most ``1 - confidence``.
    """
    everything = np.arange(len(world.y))

    def sample(records: np.ndarray, first: int) -> np.ndarray:
        models = released(world, records, runs, key, first)
        return np.concatenate([statistic(some).double().numpy() for some in models])

    # run numbers differ between the data sets, so that all draws are independent
    one = sample(everything, 0)
    other = sample(np.delete(everything, world.canary), runs)
    return threshold_epsilon(one, other, delta, confidence)


def released(
    world: World, records: np.ndarray, runs: int, key: bytes, first: int
) -> Iterator[Tensor]:
    """Yield the released models ``[1 + rounds, some runs, P]`` of independent runs.

    ``first`` is the number of the first run; numbers name the runs' draws.
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
        # every round allots the same Renyi cost; what earlier rounds left over carries on
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
    """What each run has spent of its allotments so far, in nats at the allotment's Renyi order."""
    moved = [
        sum(m.spent for event, count in charges.items() if (m := movement_of(0, event, count)))
        for charges in mechanism.realized(cohort, end)
    ]
    return [one + more for one, more in zip(before, moved, strict=True)]
