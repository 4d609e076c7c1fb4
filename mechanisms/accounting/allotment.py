"""Budgets of runs whose parameters depend on their own outputs: equal shares in advance, and a
filter.

The divergences of adaptively chosen releases add up at any one order, but the smallest epsilon over
all orders, taken after the choices, is no guarantee: the order would depend on outputs. A Renyi
filter gives one (Feldman and Zrnic 2021, "Individual Privacy Accounting via a Renyi Filter"): fix
an order a and a budget rho before the start, and choose releases, each depending on all outputs
before it, so that their divergences at a never add up to more than rho. The whole run is then (a,
rho)-RDP. Here

- the run's plan names a, and rho as P equal shares for its P planned rounds (`AdaptivePlan`);
- a round is charged an `Allotment` when it starts. Its curve is infinite at every other order, so
  an accountant that knows nothing of filters takes this order, or none;
- an `Account` says what is left, and refuses a payment that it does not cover;
- what was released is recorded afterwards as `Covered` events, which are free only if allotments
  pay for them: `overdrawn` checks the filter from the ledger's files alone, as the accountant does.

Where all releases are Gaussians of all records there is no order to name: a release with noise
multiplier s is ``1 / s``-GDP, and adaptively chosen ones whose ``1 / s^2`` add up to no more than
``mu^2`` are together mu-GDP (Smith and Thakurta 2022, "Fully Adaptive Composition for Gaussian
Differential Privacy"; Koskela, Tobaben, Honkela 2023, "Individual Privacy Accounting with Gaussian
Differential Privacy"; `docs/theory/allotments.md` has a proof). So the run is dominated by one
Gaussian. Its shares are `GaussianAllotment`, which has a loss distribution; its filter is the
one above at order 2, where a Gaussian costs ``1 / s^2``.

A plan is frozen before the first output exists, and its charges are functions of the plan and of
the number of rounds. So parameters that depend on outputs can enter a ledger only as `Covered`
events.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mechanisms.accounting import curves, sampled_gaussian
from mechanisms.accounting.adaptive_events import Allotment, Covered
from mechanisms.accounting.event import Event
from mechanisms.accounting.events import (
    Gaussian,
    GaussianAllotment,
    ImportanceSampledGaussian,
    NoisyNormSum,
    PaperClaim,
    SampledGaussian,
)

Floats = NDArray[np.float64]

ROUNDING = 1e-9
"""Relative margin that plans leave, so that rounding brings no sum of divergences above its
budget."""
TOLERANCE = 1e-4
"""Relative precision, in noise or cost, of a release whose noise is solved for during training."""
NUDGE = TOLERANCE / 8.0
"""Step in log m beyond an estimated root, so that the estimate lands on the intended side."""
PASSES = 40
"""The most passes; three or four are needed, and the result meets its limit after any number."""
SEARCHED = 16.0
"""A noise multiplier is searched for down to its start divided by this."""


class AdaptivePlan(ABC):
    """A plan whose releases depend on outputs; its ``realized`` releases are `Covered` events."""

    @property
    @abstractmethod
    def allotment(self) -> Allotment | GaussianAllotment:
        """What each round is charged, and the run's order."""


@dataclass(frozen=True)
class Account:
    """What one client may spend at its run's order. Immutable: a payment gives a new account.

    Attributes:
        order: the Renyi order.
        allotted: sum of its allotments so far, that of the present round included [nats].
        spent: sum of the divergences of what was released [nats].
    """

    order: float
    allotted: float
    spent: float = 0.0

    @property
    def left(self) -> float:
        """What the releases of this round may cost together [nats]."""
        return self.allotted - self.spent

    def pay(self, charges: Mapping[Event, int]) -> "Account":
        """The account after these releases: the filter.

        Raises:
            ValueError: they cost more than is left; they must not be made.
        """
        price = sum(count * cost(event, self.order) for event, count in charges.items())
        spent = self.spent + price
        if not spent <= self.allotted:
            raise ValueError(
                f"{dict(charges)} would bring spending at order {self.order:g} to {spent:.8g}, "
                f"above the allotted {self.allotted:.8g}: more noise is needed"
            )
        return replace(self, spent=spent)


def cost(event: Event, order: float) -> float:
    """Certified divergence of one application at one order, in nats."""
    return float(curves.rdp(event, (order,), "certified")[0])


def gaussian(event: Event) -> bool:
    """Whether a release is a Gaussian of all records, by whatever name."""
    match event:
        case SampledGaussian() | NoisyNormSum():
            return event.sample_rate == 1.0
        case ImportanceSampledGaussian():
            return event.batch_size * event.clip_norm == event.norm_sum
    return isinstance(event, Gaussian)


def covered(charges: Mapping[Event, int], order: float) -> dict[Event, int]:
    """The releases as `Covered` events, paid for by allotments at ``order``."""
    return {Covered(event, order): count for event, count in charges.items()}


def payable(charges: Mapping[Event, int]) -> dict[Event, int]:
    """The charges without those that allotments have paid for."""
    return {event: count for event, count in charges.items() if not isinstance(event, Covered)}


def check_settlement(charges: Mapping[Event, int]) -> None:
    """Refuse all charges of a finished round that are neither covered releases nor papers' claims.

    Raises:
        ValueError: nothing has paid for a release.
    """
    for event in charges:
        if not isinstance(event, Covered | PaperClaim):
            raise ValueError(
                f"{event} was not paid for when its round started: put it into the plan's "
                "round_charges, or, where it depends on outputs, give the plan an allotment that "
                "covers it"
            )


def check_covered(charges: Mapping[Event, int], plan: object, account: Account | None) -> None:
    """Refuse covered releases of a round that the client's allotments do not pay for: the round's
    charges would be finite, and the run's would not.

    Args:
        charges: of the round, beyond its planned ones.
        plan: the client's.
        account: what the client could spend in the round; None where its plan has no allotment.

    Raises:
        ValueError: there is no allotment, or one of another order or for other releases, or too
            little is left.
    """
    allotted = plan.allotment if isinstance(plan, AdaptivePlan) else None
    for event, count in charges.items():
        if not isinstance(event, Covered):
            continue
        of_its_kind = not isinstance(allotted, GaussianAllotment) or gaussian(event.event)
        if account is None or event.order != account.order or not of_its_kind:
            raise ValueError(
                f"{event} is not what {allotted or 'a plan without an allotment'} pays for: put it "
                "into the plan's round_charges, or give the plan an allotment that covers it"
            )
        account = account.pay({event.event: count})


class Movement(NamedTuple):
    """What one charge of a round adds to an account at an order: allotted and spent [nats]."""

    round: int
    order: float
    allotted: float
    spent: float


def movement_of(round_: int, event: Event, count: int) -> Movement | None:
    """The movement of ``count`` applications of ``event``; None if it belongs to no account."""
    match event:
        case Allotment() | GaussianAllotment():
            return Movement(round_, event.order, count * event.rdp, 0.0)
        case Covered():
            return Movement(round_, event.order, 0.0, count * cost(event.event, event.order))
    return None


def total(movements: Iterable[Movement], order: float) -> Account:
    """The account at ``order`` that the movements add up to; their sequence does not matter."""
    moved = [m for m in movements if m.order == order]
    return Account(order, math.fsum(m.allotted for m in moved), math.fsum(m.spent for m in moved))


def overdrawn(charges: Mapping[Event, int]) -> bool:
    """Whether covered releases cost more than their allotments, at any of their orders, or are not
    what these pay for."""
    releases = [event for event in charges if isinstance(event, Covered)]
    orders = {event.order for event in releases}
    if any(isinstance(event, GaussianAllotment) for event in charges) and not all(
        gaussian(event.event) for event in releases if event.order == GaussianAllotment.order
    ):
        return True
    moved = [movement_of(0, event, count) for event, count in charges.items()] if orders else []
    return any(total([m for m in moved if m], order).left < 0.0 for order in orders)


def least_multipliers(rates: Floats, limits: Floats, order: float, start: Floats) -> Floats:
    """The smallest multipliers m with which one SGM(rate, m) costs at most its limit.

    Args:
        rates: of sampling, in (0, 1], ``[n]``.
        limits: divergence of one release at ``order`` [nats], positive, ``[n]``.
        order: Renyi order above 1.
        start: where the search starts, positive, ``[n]``; no result is below ``start / SEARCHED``.

    Returns:
        float64 ``[n]``; each meets its limit. Found by false position and bisection in log m and
        log cost.

    Raises:
        ValueError: a limit is not positive.
    """
    if not (limits > 0.0).all():
        raise ValueError(f"limits = {limits.min()} must be above 0; nothing is left for a release")

    def excess(logs: Floats) -> Floats:
        """Logarithm of cost over limit."""
        costs = sampled_gaussian.rdp(rates, np.exp(logs), order)
        return np.log(costs) - np.log(limits) - math.log1p(-ROUNDING)

    high, least = np.log(start), np.log(start / SEARCHED)
    above = excess(high)
    # costs fall at least like 1 / m^2: half of `above` is enough
    while (over := above > 0.0).any():
        high = np.where(over, high + np.minimum(above, 2.0) / 2.0 + NUDGE, high)
        above = excess(high)
    low, below = high, above
    # invariant: `high` meets its limit, and a bracketed `low` does not; any pass may be the last
    for number in range(PASSES):
        bracketed = below > 0.0
        open_ = (above < -TOLERANCE) & (high > least) & ~(bracketed & (high - low < TOLERANCE))
        if not open_.any():
            break
        secant = above / np.where(bracketed, above - below, 1.0)
        part = np.where((below < 2.0) & (number % 3 < 2), secant, 0.5)
        inside = high + part * (low - high) + NUDGE
        tried = np.minimum(
            high, np.where(bracketed, inside, np.maximum(least, high + above / 2.0 - NUDGE))
        )
        found = excess(tried)
        met = open_ & (found <= 0.0)
        missed = open_ & (found > 0.0)
        high, above = np.where(met, tried, high), np.where(met, found, above)
        low, below = np.where(missed, tried, low), np.where(missed, found, below)
    return np.exp(high)
