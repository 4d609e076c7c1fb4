"""Adaptive runs whose rounds cost the same (`accounting.allotment`): order, cost, and noise."""

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from mechanisms.accounting.accountant import (
    ORDERS,
    Charges,
    convert,
    epsilon,
    guarantee,
    precompute,
)
from mechanisms.accounting.allotment import ROUNDING, Account, cost
from mechanisms.accounting.events import Allotment, Event
from mechanisms.plan import Plan, Terms, least_noises, merge
from mechanisms.settings import Privacy

LIFT = 1e-6
"""Relative step by which a calibrated multiplier is raised if rounding makes it miss the target."""


class AllottedPlan(Plan, Protocol):
    """An adaptive plan that names the round from which its allotment is made."""

    @property
    def noise_multiplier(self) -> float:
        """The multiplier from which the noise of that round follows."""

    @property
    def rounds(self) -> int:
        """Rounds that the budget is planned for."""

    @property
    def delta(self) -> float:
        """Delta of the guarantee."""

    @property
    def prior(self) -> tuple[tuple[Event, int], ...]:
        """Charges besides the rounds."""

    def worst_round(self) -> Charges:
        """The releases that an allotment has to pay for, with parameters fixed in advance."""


def refuse_options(privacy: Privacy, names: Sequence[str], reason: str) -> None:
    """Refuse options of other mechanisms, which have no meaning under a plan with rules of its own.

    Raises:
        ValueError: one of ``names`` is not at its default.
    """
    for name in names:
        value, plain = getattr(privacy, name), Privacy.model_fields[name].default
        if value != plain:
            raise ValueError(
                f"{name} = {value} must be {str(plain).lower()} with {privacy.mechanism}, "
                f"{reason}: drop --{name.replace('_', '-')}"
            )


def round_allotment(plan: AllottedPlan) -> Allotment:
    """The cost of the worst round, at the best order for all planned ones and the prior charges.

    Raises:
        ValueError: no order gives a finite divergence.
    """
    order = guarantee(_run(plan), plan.delta, "certified", ORDERS).order
    if order is None:
        raise ValueError(
            f"noise_multiplier = {plan.noise_multiplier:g} is too small for any guarantee: raise "
            "--noise-multiplier"
        )
    rdp = sum(count * cost(event, order) for event, count in plan.worst_round().items())
    return Allotment(order, rdp * (1.0 + ROUNDING), plan.rounds)


def calibrate(
    plan_of: Callable[[Terms, float], AllottedPlan], terms: Sequence[Terms]
) -> list[AllottedPlan]:
    """For each of the terms, the plan with the smallest noise whose planned rounds together stay
    within the budget.

    A published budget bounds the paper's claims alone, which may depend on the client's size;
    allotments then follow from the noise. What is proved depends on rate and steps only.

    Raises:
        ValueError: no noise multiplier is large enough.
    """

    def worst_run(one: Terms, noise: float) -> Charges:
        return _run(plan_of(one, noise))

    if terms[0].privacy.budget == "published":
        claimed = [
            least_noises(lambda one, noise: one.run(plan_of(one, noise)), [one])[0] for one in terms
        ]
        return [plan_of(one, noise) for one, noise in zip(terms, claimed, strict=True)]
    noises = least_noises(worst_run, terms)
    precompute(
        [worst_run(one, noise) for one, noise in zip(terms, noises, strict=True)], "certified"
    )
    return [_within(plan_of, one, noise) for one, noise in zip(terms, noises, strict=True)]


def epsilons_spent(
    plans: Sequence[AllottedPlan], accounts: Sequence[Account], spent: Sequence[float]
) -> list[float]:
    """The epsilon of each client's divergence at its order; no guarantee, as outputs chose it."""
    rows = zip(plans, accounts, spent, strict=True)
    return [convert(np.array([one]), (a.order,), plan.delta).epsilon for plan, a, one in rows]


def _run(plan: AllottedPlan) -> Charges:
    """The planned number of worst rounds, and the prior charges."""
    rounds = {event: plan.rounds * count for event, count in plan.worst_round().items()}
    return merge(rounds, dict(plan.prior))


def _within(
    plan_of: Callable[[Terms, float], AllottedPlan], terms: Terms, noise: float
) -> AllottedPlan:
    """The plan with this noise multiplier, or the least above it, with which the allotments meet
    the target."""
    plan = plan_of(terms, noise)
    while epsilon(terms.run(plan), terms.privacy.delta).epsilon > terms.target:
        plan = plan_of(terms, plan.noise_multiplier * (1.0 + LIFT))
    return plan
