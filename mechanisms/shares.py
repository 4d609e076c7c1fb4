"""Planning the equal shares of an adaptive run (`mechanisms.allotment`): the order, the share, the noise that fits."""

from collections.abc import Callable
from typing import Protocol

from mechanisms.accountant import Charges, epsilon
from mechanisms.allotment import ROUNDING, cost
from mechanisms.calibration import smallest
from mechanisms.events import Allotment
from mechanisms.plan import Plan, Terms, planned

LIFT = 1e-6
"""Relative steps in which a calibrated multiplier is raised if rounding makes its plan miss the target."""


class SharedPlan(Plan, Protocol):
    """An adaptive plan that names the round from which its allotment is made."""

    def worst_round(self) -> Charges:
        """The releases that an allotment has to pay for, with parameters that are fixed in advance."""


def equal_share(worst_round: Charges, rounds: int, delta: float) -> Allotment:
    """What a round costs at the order that is best for ``rounds`` of them.

    Raises:
        ValueError: no order gives a finite divergence.
    """
    order = epsilon({event: rounds * count for event, count in worst_round.items()}, delta).order
    if order is None:
        raise ValueError("the noise is too small for any guarantee: raise --noise-multiplier")
    rdp = sum(count * cost(event, order) for event, count in worst_round.items())
    return Allotment(order, rdp * (1.0 + ROUNDING), rounds)


def least_noise(plan_of: Callable[[float], SharedPlan], terms: Terms) -> float:
    """The smallest noise multiplier with which all planned rounds together stay within the budget.

    Raises:
        ValueError: no noise multiplier is large enough.
    """
    target, delta = terms.target, terms.privacy.delta

    def worst_run(noise: float) -> Charges:
        return {event: terms.rounds * count for event, count in plan_of(noise).worst_round().items()}

    noise = smallest(worst_run, target, delta)
    while epsilon(planned(plan_of(noise), terms.rounds), delta).epsilon > target:
        noise *= 1.0 + LIFT
    return noise
