"""Planning the equal shares of an adaptive run (`mechanisms.allotment`): the order, the share, the noise that fits."""

from collections.abc import Callable, Sequence
from typing import Protocol

from mechanisms.accountant import ORDERS, Charges, epsilon, guarantee
from mechanisms.allotment import ROUNDING, cost
from mechanisms.calibration import smallest
from mechanisms.events import Allotment, Event
from mechanisms.plan import Plan, Terms, merge
from mechanisms.settings import Privacy

LIFT = 1e-6
"""Relative steps in which a calibrated multiplier is raised if rounding makes its plan miss the target."""


class SharedPlan(Plan, Protocol):
    """An adaptive plan that names the round from which its allotment is made."""

    @property
    def noise_multiplier(self) -> float:
        """The multiplier from which the noise of that round follows."""

    @property
    def rounds(self) -> int:
        """Rounds that the budget is planned for."""

    @property
    def delta(self) -> float:
        """Of the guarantee."""

    @property
    def prior(self) -> tuple[tuple[Event, int], ...]:
        """What is paid beside the rounds."""

    def worst_round(self) -> Charges:
        """The releases that an allotment has to pay for, with parameters that are fixed in advance."""


def refuse_options(privacy: Privacy, names: Sequence[str], reason: str) -> None:
    """Refuse options of other mechanisms, which have no meaning under a plan with rules of its own.

    Raises:
        ValueError: one of ``names`` is not at its default.
    """
    for name in names:
        value, plain = getattr(privacy, name), Privacy.model_fields[name].default
        if value != plain:
            raise ValueError(
                f"{name} = {value} must be {str(plain).lower()} with {privacy.mechanism}, {reason}: "
                f"drop --{name.replace('_', '-')}"
            )


def equal_share(plan: SharedPlan) -> Allotment:
    """What the worst round costs, at the order that is best for all planned rounds of that kind and what was prior.

    Raises:
        ValueError: no order gives a finite divergence.
    """
    charges = plan.worst_round()
    run = merge({event: plan.rounds * count for event, count in charges.items()}, dict(plan.prior))
    order = guarantee(run, plan.delta, "certified", ORDERS).order
    if order is None:
        raise ValueError(
            f"noise_multiplier = {plan.noise_multiplier:g} is too small for any guarantee: raise --noise-multiplier"
        )
    rdp = sum(count * cost(event, order) for event, count in charges.items())
    return Allotment(order, rdp * (1.0 + ROUNDING), plan.rounds)


def least_noise(plan_of: Callable[[float], SharedPlan], terms: Terms) -> float:
    """The smallest noise multiplier with which all planned rounds together stay within the budget.

    The paper's budget bounds the paper's claims alone; allotments then follow from the noise.

    Raises:
        ValueError: no noise multiplier is large enough.
    """
    target, delta = terms.target, terms.privacy.delta

    def worst_run(noise: float) -> Charges:
        worst = {event: terms.rounds * count for event, count in plan_of(noise).worst_round().items()}
        return merge(worst, dict(terms.prior))

    if terms.privacy.budget == "published":
        return smallest(lambda noise: terms.run(plan_of(noise)), target, delta, column="published")
    noise = smallest(worst_run, target, delta)
    while epsilon(terms.run(plan_of(noise)), delta).epsilon > target:
        noise *= 1.0 + LIFT
    return noise
