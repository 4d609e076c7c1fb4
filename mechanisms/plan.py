"""The frozen plan of a client: sampler, clip bound, noise and privacy events come out of one object.

A plan is calibrated before training from the events it will charge, by the same curves that charge them, so that what
is drawn, what is clipped and what is accounted cannot drift apart.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from mechanisms.accountant import Charges, epsilon
from mechanisms.calibration import smallest
from mechanisms.events import Event
from mechanisms.settings import Privacy, Settings


class Plan(Protocol):
    """What every mechanism's plan offers; a mechanism's file adds its own parameters."""

    @property
    def steps(self) -> int:
        """Local steps of one round (accepted ones, where a mechanism rejects)."""

    def round_charges(self, nth: int) -> Charges:
        """The most that the client's ``nth`` round (from 1) can cost: event -> count. It is paid when it starts."""


@dataclass(frozen=True)
class Terms:
    """What a client's plan is made from.

    Attributes:
        privacy: the privacy settings.
        own: the mechanism's own settings, where it has any.
        steps: local steps a round.
        rounds: rounds in which the client is to take part.
        size: its public number of records.
    """

    privacy: Privacy
    own: Settings | None
    steps: int
    rounds: int
    size: int

    @property
    def target(self) -> float:
        """Epsilon over the whole run; infinite for none."""
        return math.inf if self.privacy.epsilon is None else self.privacy.epsilon


@dataclass(frozen=True)
class PlanTable:
    """The plans of all clients; clients with equal parameters share one.

    Attributes:
        plans: the distinct plans.
        which: int64 ``[clients]``, the number of each client's plan.
    """

    plans: tuple[Plan, ...]
    which: np.ndarray

    def of(self, client: int) -> Plan:
        """Client ``client``'s plan."""
        return self.plans[self.which[client]]


def merge(*charges: Charges) -> Charges:
    """The sum of several charges, event by event."""
    total: dict[Event, int] = {}
    for one in charges:
        for event, count in one.items():
            total[event] = total.get(event, 0) + count
    return total


def planned(plan: Plan, rounds: int) -> Charges:
    """What the first ``rounds`` rounds of a plan can cost together."""
    return merge(*(plan.round_charges(nth) for nth in range(1, rounds + 1)))


def calibrate(plan_of: Callable[[float], Plan], terms: Terms) -> Plan:
    """The plan with the smallest noise multiplier whose rounds together cost at most (epsilon, delta).

    Raises:
        ValueError: no noise multiplier is large enough.
    """
    return plan_of(smallest(lambda noise: planned(plan_of(noise), terms.rounds), terms.target, terms.privacy.delta))


def affordable_rounds(plan: Plan, target: float, delta: float, at_most: int) -> int:
    """How many rounds of ``plan``, up to ``at_most``, stay within (target, delta).

    Raises:
        ValueError: not even one.
    """
    low, high = 0, at_most
    while low < high:
        middle = (low + high + 1) // 2
        if epsilon(planned(plan, middle), delta).epsilon <= target:
            low = middle
        else:
            high = middle - 1
    if low == 0:
        cost = epsilon(planned(plan, 1), delta).epsilon
        raise ValueError(
            f"epsilon = {target:g} is too small for a single round, which costs {cost:.4g} at delta = {delta:g}: "
            "raise --epsilon or --noise-multiplier, or lower --steps or --sample-rate"
        )
    return low


def tabulate(plan_of_size: Callable[[int], Plan], sizes: np.ndarray) -> PlanTable:
    """A table of plans by client size ``n_k`` ``[clients]``; ``plan_of_size`` is asked once per distinct size."""
    distinct, inverse = np.unique(sizes, return_inverse=True)
    plans: dict[Plan, int] = {}
    number = [plans.setdefault(plan_of_size(int(n)), len(plans)) for n in distinct]
    return PlanTable(tuple(plans), np.asarray(number, dtype=np.int64)[inverse])
