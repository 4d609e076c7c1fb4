"""Adaptive runs whose rounds cost the same (`accounting.allotment`): order, cost, and noise."""

import functools
import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr, ndtr

from mechanisms.accounting.accountant import (
    IN_PROGRESS,
    ORDERS,
    Charges,
    convert,
    epsilon,
    guarantee,
    precompute,
)
from mechanisms.accounting.allotment import ROUNDING, Account, AdaptivePlan, cost, gaussian
from mechanisms.accounting.events import Allotment, Event, GaussianAllotment
from mechanisms.cohort import Cohort
from mechanisms.plan import Terms, least_noises, merge
from mechanisms.plan import calibrate as calibrate_in_advance
from mechanisms.settings import Privacy

Floats = NDArray[np.float64]

TINY = 1e-300
BISECTIONS = 40
LIFT = 1e-6
"""Relative step by which a calibrated multiplier is raised if rounding makes it miss the target."""


@dataclass(frozen=True)
class AllottedPlan(AdaptivePlan):
    """An adaptive plan whose rounds cost the same: what its worst round costs.

    Attributes:
        sample_rate: q in (0, 1], of a step's batch.
        noise_multiplier: s, from which the noise of the worst round follows.
        clip_norm: the largest clip bound, in units of the gradient.
        steps: local steps a round, at most.
        rounds: rounds that the budget is planned for.
        delta: of the guarantee; with the planned divergences it determines the order.
        prior: charges besides the rounds; the order is chosen for all together.
    """

    sample_rate: float
    noise_multiplier: float
    clip_norm: float
    steps: int
    rounds: int
    delta: float
    prior: tuple[tuple[Event, int], ...] = field(default=(), kw_only=True)

    @abstractmethod
    def round_charges(self, nth: int) -> Charges:
        """See `Plan`."""

    @abstractmethod
    def worst_round(self) -> Charges:
        """The releases that an allotment has to pay for, with parameters fixed in advance."""

    @property
    def gaussian(self) -> bool:
        """Whether all releases are Gaussians of all records."""
        return all(gaussian(event) for event in self.worst_round())

    @functools.cached_property
    def allotment(self) -> Allotment | GaussianAllotment:
        """The worst round's cost: of Gaussians of all records as one Gaussian, of others at the
        best order for all planned rounds and the prior charges.

        Raises:
            ValueError: no order gives a finite divergence.
        """
        if self.gaussian:
            squares = self._cost(GaussianAllotment.order)
            if math.isfinite(squares):
                return GaussianAllotment(1.0 / math.sqrt(squares), self.rounds)
        elif order := guarantee(_run(self), self.delta, "certified", ORDERS).order:
            return Allotment(order, self._cost(order), self.rounds)
        raise ValueError(
            f"noise_multiplier = {self.noise_multiplier:g} is too small for any guarantee: "
            "raise --noise-multiplier"
        )

    def _cost(self, order: float) -> float:
        """Divergence of the worst round [nats], with room for rounding."""
        costs = (count * cost(event, order) for event, count in self.worst_round().items())
        return sum(costs) * (1.0 + ROUNDING)


OwnPlan = TypeVar("OwnPlan", bound=AllottedPlan)


def with_accounts(cohort: Cohort, kind: type[OwnPlan]) -> list[OwnPlan]:
    """The plans of a cohort of this kind, each of which has an account to spend from.

    Raises:
        ValueError: a plan of another mechanism, or no accounts.
    """
    plans = [plan for plan in cohort.plans if isinstance(plan, kind)]
    if not len(plans) == len(cohort.plans) == len(cohort.accounts):
        raise ValueError(
            f"{len(cohort.plans)} clients have {len(plans)} plans of type {kind.__name__} and "
            f"{len(cohort.accounts)} accounts; give each client one of both"
        )
    return plans


def common(terms: Terms, noise: float) -> tuple[float, float, float, int, int, float]:
    """What every such plan of some terms begins with; `prior` goes by its name."""
    p = terms.privacy
    return p.sample_rate, noise, p.clip_norm, terms.steps, terms.rounds, p.delta


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
    plans: dict[int, AllottedPlan] = {}
    in_advance = [k for k, one in enumerate(terms) if plan_of(one, 1.0).gaussian]
    if in_advance:
        own = [terms[k] for k in in_advance]
        plans |= zip(in_advance, calibrate_in_advance(plan_of, own), strict=True)
    if others := {k: one for k, one in enumerate(terms) if k not in plans}:
        noises = least_noises(worst_run, list(others.values()), one_order=True)
        named = list(zip(others.items(), noises, strict=True))
        precompute([worst_run(one, noise) for (_, one), noise in named], "certified")
        plans |= {k: _within(plan_of, one, noise) for (k, one), noise in named}
    return [plans[k] for k in range(len(terms))]


def epsilons_spent(
    plans: Sequence[AllottedPlan], accounts: Sequence[Account], spent: Sequence[float]
) -> list[float]:
    """The epsilon of what each client has spent of its account; no guarantee, as outputs chose
    it."""
    squares = gaussian_epsilons(np.array(spent), np.array([plan.delta for plan in plans]))
    rows = zip(plans, accounts, spent, squares.tolist(), strict=True)
    return [
        of_gaussian
        if isinstance(plan.allotment, GaussianAllotment)
        else convert(np.array([one]), (account.order,), plan.delta).epsilon
        for plan, account, one, of_gaussian in rows
    ]


def gaussian_epsilons(squares: Floats, deltas: Floats) -> Floats:
    """Epsilon of a Gaussian for each mu^2 ``[n]`` at its run's delta (Balle and Wang 2018, Theorem
    8), by bisection up to Chernoff's bound."""
    share, mean = (1.0 - IN_PROGRESS) * deltas, np.sqrt(np.maximum(squares, TINY))
    low, high = np.zeros(squares.shape), squares / 2.0 + mean * np.sqrt(-2.0 * np.log(share))
    for _ in range(BISECTIONS):
        middle = (low + high) / 2.0
        far = np.exp(middle + log_ndtr(-mean / 2.0 - middle / mean))
        over = ndtr(mean / 2.0 - middle / mean) - far > share
        low, high = np.where(over, middle, low), np.where(over, high, middle)
    return np.asarray(high)


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
