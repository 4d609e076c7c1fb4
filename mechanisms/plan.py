"""The frozen plan of a client: sampler, clip bound, noise and privacy events come out of one object.

A plan is calibrated before training from the events it will charge, by the same curves that charge them, so that what
is drawn, what is clipped and what is accounted cannot drift apart.
"""

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np

from mechanisms.accountant import Charges, default_orders, epsilon, guarantee
from mechanisms.calibration import smallest
from mechanisms.calibration_many import interpolated, smallest_many
from mechanisms.events import Event, SampledGaussian
from mechanisms.settings import Privacy, Settings


class Plan(Protocol):
    """What every mechanism's plan offers; a mechanism's file adds its own parameters."""

    @property
    def steps(self) -> int:
        """Local steps of one round (accepted ones, where a mechanism rejects)."""

    def round_charges(self, nth: int) -> Charges:
        """The most that the client's ``nth`` round (from 1) can cost: event -> count. It is paid when it starts."""


@runtime_checkable
class Claimant(Protocol):
    """A plan whose paper charges what is known only after a round."""

    def most_claims(self, nth: int) -> Charges:
        """The most that the paper charges for the ``nth`` round, beside :meth:`Plan.round_charges`; certified 0."""


@dataclass(frozen=True)
class Terms:
    """What a client's plan is made from.

    Attributes:
        privacy: the privacy settings.
        own: the mechanism's own settings, where it has any.
        steps: local steps a round.
        rounds: rounds in which the client is to take part.
        size: its public number of records.
        prior: what it pays beside these rounds, event by event.
    """

    privacy: Privacy
    own: Settings | None
    steps: int
    rounds: int
    size: int
    prior: tuple[tuple[Event, int], ...] = ()

    def run(self, plan: Plan) -> Charges:
        """All that the client can pay with this plan."""
        return merge(planned(plan, self.rounds), dict(self.prior))

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


def most(plan: Plan, nth: int) -> Charges:
    """The most that the ``nth`` round can cost, in both columns."""
    charges = plan.round_charges(nth)
    return merge(charges, plan.most_claims(nth)) if isinstance(plan, Claimant) else charges


def planned(plan: Plan, rounds: int) -> Charges:
    """What the first ``rounds`` rounds of a plan can cost together."""
    return merge(*(most(plan, nth) for nth in range(1, rounds + 1)))


def calibrate(plan_of: Callable[[float], Plan], terms: Terms) -> Plan:
    """The plan with the smallest noise multiplier whose rounds together cost at most (epsilon, delta).

    Raises:
        ValueError: no noise multiplier is large enough.
    """
    privacy = terms.privacy
    return plan_of(
        smallest(lambda noise: terms.run(plan_of(noise)), terms.target, privacy.delta, column=privacy.budget)
    )


def calibrate_all(plan_of: Callable[[Terms, float], Plan], terms: Sequence[Terms]) -> list[Plan]:
    """As `calibrate` for each of the terms, which differ in rate and steps alone: all at once, and so much faster.

    Runs that are Poisson-sampled Gaussian steps of one kind are searched for together; for others, few of the rates
    are, and what lies between is interpolated and checked against the client's own charges.

    Raises:
        ValueError: no noise multiplier is large enough.
    """
    first, privacy = terms[0], terms[0].privacy
    alike: Charges = {SampledGaussian(privacy.sample_rate, 1.0): first.steps * first.rounds}
    rates, steps = [t.privacy.sample_rate for t in terms], [t.steps * t.rounds for t in terms]
    if privacy.budget == "certified" and first.run(plan_of(first, 1.0)) == alike:
        noises = smallest_many(rates, steps, first.target, privacy.delta)
    else:
        noises = _between(plan_of, terms, rates, steps)
    return [plan_of(one, noise) for one, noise in zip(terms, noises.tolist(), strict=True)]


def _between(
    plan_of: Callable[[Terms, float], Plan], terms: Sequence[Terms], rates: Sequence[float], steps: Sequence[int]
) -> np.ndarray:
    """Noise multipliers ``[terms]``, each searched for or checked on the client's whole run."""
    target, delta, column = terms[0].target, terms[0].privacy.delta, terms[0].privacy.budget
    grid = default_orders(column)

    def run(row: int, noise: float) -> Charges:
        return terms[row].run(plan_of(terms[row], noise))

    def solve(row: int) -> tuple[float, float]:
        noise = smallest(functools.partial(run, row), target, delta, column=column)
        return noise, guarantee(run(row, noise), delta, column, grid).order or grid[0]

    def meets(row: int, noise: float, ends: tuple[float, float]) -> bool:
        orders = [order for order in grid if ends[0] <= order <= ends[1]]
        return guarantee(run(row, noise), delta, column, orders).epsilon <= target

    return interpolated(rates, steps, solve, meets)


def affordable_rounds(plan: Plan, terms: Terms, at_most: int) -> int:
    """How many rounds of ``plan``, up to ``at_most``, stay within the budget.

    Raises:
        ValueError: not even one.
    """
    target, delta = terms.target, terms.privacy.delta

    def spent(rounds: int) -> float:
        return epsilon(merge(planned(plan, rounds), dict(terms.prior)), delta, terms.privacy.budget).epsilon

    low, high = 0, at_most
    while low < high:
        middle = (low + high + 1) // 2
        if spent(middle) <= target:
            low = middle
        else:
            high = middle - 1
    if low == 0:
        raise ValueError(
            f"epsilon = {target:g} is too small for a single round, which costs {spent(1):.4g} at delta = {delta:g}: "
            "raise --epsilon or --noise-multiplier, or lower --steps or --sample-rate"
        )
    return low


def tabulate(plans: Sequence[Plan], which: np.ndarray) -> PlanTable:
    """A table without repetitions of plans and their numbers by client, int64 ``[clients]``."""
    distinct: dict[Plan, int] = {}
    number = [distinct.setdefault(plan, len(distinct)) for plan in plans]
    return PlanTable(tuple(distinct), np.asarray(number, dtype=np.int64)[which])
