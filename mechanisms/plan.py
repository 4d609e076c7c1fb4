"""The frozen plan of a client: sampler, clip bound, noise and privacy events come out of one
object.

A plan is calibrated before training from the events it will charge, by the same curves that charge
them, so that what is drawn, what is clipped and what is accounted cannot drift apart.
"""

import bisect
import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar, runtime_checkable

import numpy as np

from mechanisms.accounting.accountant import Charges, default_orders, epsilon, guarantee, within
from mechanisms.accounting.calibration import smallest, smallest_near
from mechanisms.accounting.calibration_many import interpolated
from mechanisms.accounting.events import Event
from mechanisms.batches import passes
from mechanisms.settings import OwnSettings, Privacy, Settings


class Plan(Protocol):
    """What every mechanism's plan offers; a mechanism's file adds its own parameters."""

    @property
    def steps(self) -> int:
        """Local steps of one round (accepted ones, where a mechanism rejects)."""

    def __hash__(self) -> int:
        """Plans compare by value."""

    def round_charges(self, nth: int) -> Charges:
        """The most that the client's ``nth`` round (from 1) can cost: event -> count. It is paid
        when it starts."""


@runtime_checkable
class Claimant(Protocol):
    """A plan whose paper charges depend on the round's outputs."""

    def most_claims(self, nth: int) -> Charges:
        """The most that the paper charges for the ``nth`` round on top of
        :meth:`Plan.round_charges`; certified 0."""


@dataclass(frozen=True)
class Terms:
    """What a client's plan is made from.

    Attributes:
        privacy: the privacy settings.
        own: the mechanism's own settings, if it has any.
        steps: local steps a round.
        rounds: rounds in which the client is to take part.
        size: its public number of records.
        prior: its charges besides these rounds, as pairs of event and count.
    """

    privacy: Privacy
    own: Settings | None
    steps: int
    rounds: int
    size: int
    prior: tuple[tuple[Event, int], ...] = ()

    def own_of(self, kind: type[OwnSettings], name: str) -> OwnSettings:
        """The mechanism's own settings, which are of this kind.

        Raises:
            ValueError: they are not; the message has the mechanism's ``name``.
        """
        if not isinstance(self.own, kind):
            raise ValueError(f"own = {self.own!r} must be the settings of {name}; give its table")
        return self.own

    def run(self, plan: Plan) -> Charges:
        """All that the client can pay with this plan."""
        return merge(planned(plan, self.rounds), dict(self.prior))

    @property
    def pace(self) -> tuple[float, int]:
        """A rate and a number of releases: at equal numbers the price rises smoothly with the
        rate."""
        rate = self.privacy.sample_rate
        if self.privacy.sampling != "shuffled":
            return rate, self.steps
        begun, share = passes(rate, self.size, self.steps)
        return share, begun

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


AnyPlan = TypeVar("AnyPlan", bound=Plan)


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


_STEADY = set[type]()


def steady(plan: type[AnyPlan]) -> type[AnyPlan]:
    """Mark a class of plans whose rounds all cost the same without ``noise_decay``, so that a
    million of them are priced at once; not its subclasses, which may charge otherwise."""
    _STEADY.add(plan)
    return plan


def planned(plan: Plan, rounds: int) -> Charges:
    """What the first ``rounds`` rounds of a plan can cost together."""
    if rounds and type(plan) in _STEADY and not getattr(plan, "noise_decay", 0.0):
        return {event: rounds * count for event, count in most(plan, 1).items()}
    every = range(1, rounds + 1)
    charges = [plan.round_charges(nth) for nth in every]
    if isinstance(plan, Claimant):  # asked once, as it takes long
        charges += [plan.most_claims(nth) for nth in every]
    return merge(*charges)


def calibrate(plan_of: Callable[[Terms, float], AnyPlan], terms: Sequence[Terms]) -> list[AnyPlan]:
    """For each of the terms, the plan with the smallest noise whose rounds together cost at most
    (epsilon, delta).

    The terms differ in rate, steps and budget alone.

    Raises:
        ValueError: no noise multiplier is large enough.
    """
    noises = least_noises(lambda one, noise: one.run(plan_of(one, noise)), terms)
    return [plan_of(one, noise) for one, noise in zip(terms, noises, strict=True)]


def least_noises(
    run_of: Callable[[Terms, float], Charges], terms: Sequence[Terms], one_order: bool = False
) -> list[float]:
    """The smallest noise multiplier for each of the terms with which its charges meet the budget,
    at one Renyi order if asked.

    They differ in rate, steps and budget alone. For each budget few of the rates are searched for;
    what lies between is interpolated and checked against the client's own charges.

    Raises:
        ValueError: no noise multiplier is large enough.
    """
    if len(targets := {one.target for one in terms}) > 1:
        found: dict[int, float] = {}
        for target in sorted(targets):
            rows = [row for row, one in enumerate(terms) if one.target == target]
            alike = least_noises(run_of, [terms[row] for row in rows], one_order)
            found |= zip(rows, alike, strict=True)
        return [found[row] for row in range(len(terms))]
    target, delta, column = terms[0].target, terms[0].privacy.delta, terms[0].privacy.budget
    grid, tighter = default_orders(column), column == "certified" and not one_order

    def search(one: Terms, near: float | None = None) -> float:
        run = functools.partial(run_of, one)
        found = smallest_near(near, run, target, delta) if tighter and near else None
        return found or smallest(run, target, delta, column, one_order)

    def solve(row: int, near: float | None) -> tuple[float, float]:
        noise = search(terms[row], near)
        charges = run_of(terms[row], noise)
        known = epsilon(charges, delta) if tighter else guarantee(charges, delta, column, grid)
        return noise, known.order or (math.nan if tighter else grid[0])

    def meets(row: int, noise: float, ends: tuple[float, float]) -> bool:
        orders = [order for order in grid if ends[0] <= order <= ends[1]]
        charges = run_of(terms[row], noise)
        if one_order:
            return guarantee(charges, delta, column, orders).epsilon <= target
        return within(charges, target, delta, column, orders)

    if len(terms) == 1:
        return [search(terms[0])]
    rates, counts = zip(*(one.pace for one in terms), strict=True)
    return list(interpolated(rates, counts, solve, meets).tolist())


def affordable_rounds(plan: Plan, terms: Terms, at_most: int) -> int:
    """How many rounds of ``plan``, up to ``at_most``, stay within the budget.

    Raises:
        ValueError: not even one.
    """
    target, delta, column = terms.target, terms.privacy.delta, terms.privacy.budget

    def charges(rounds: int) -> Charges:
        return merge(planned(plan, rounds), dict(terms.prior))

    def too_many(rounds: int) -> bool:
        return not within(charges(rounds), target, delta, column)

    rounds = bisect.bisect_left(range(1, at_most + 1), True, key=too_many)
    if rounds == 0:
        cost = epsilon(charges(1), delta, column).epsilon
        raise ValueError(
            f"epsilon = {target:g} is too small for a single round, which costs {cost:.4g} at "
            f"delta = {delta:g}: raise --epsilon or --noise-multiplier, or lower --steps or "
            "--sample-rate"
        )
    return rounds


def tabulate(plans: Sequence[Plan], which: np.ndarray) -> PlanTable:
    """A table of the distinct plans; ``which``, int64 ``[clients]``, is each client's index."""
    distinct: dict[Plan, int] = {}
    number = [distinct.setdefault(plan, len(distinct)) for plan in plans]
    return PlanTable(tuple(distinct), np.asarray(number, dtype=np.int64)[which])


def kinds_of(*numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The distinct columns of rows of non-negative integers, int64 ``[kinds, rows]``, and each
    column's kind."""
    keys = np.ravel_multi_index(numbers, [int(row.max()) + 1 for row in numbers])
    _, first, place = np.unique(keys, return_index=True, return_inverse=True)
    return np.stack([row[first] for row in numbers], axis=1), place


def alike(numbers: np.ndarray) -> list[np.ndarray]:
    """The positions in ``numbers [n]`` of each number that is there, in the order of numbers."""
    order = np.argsort(numbers, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(numbers[order])) + 1)
