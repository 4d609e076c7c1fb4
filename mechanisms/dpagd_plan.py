"""The plan of DPAGD (`mechanisms.dpagd`): what a step releases at each level of its budget, and
what a round costs."""

import functools
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mechanisms import equal_rounds
from mechanisms.accounting.accountant import Charges
from mechanisms.accounting.allotment import AdaptivePlan, cost
from mechanisms.accounting.events import Allotment, Event, PaperClaim, SampledGaussian
from mechanisms.plan import Terms, merge
from mechanisms.settings import Dpagd

MAX_RAISES = 100
"""How often the gradient's budget may grow, at most: each level has a count of its own."""
FRESH, FURTHER = 0, 1
"""A step's first measurement of its gradient, and one that is averaged with those before it."""


@dataclass(frozen=True)
class DpagdPlan(AdaptivePlan):
    """A client's plan.

    Attributes:
        sample_rate: q in (0, 1], of the batches of gradient and search.
        noise_multiplier: s of a step at the start of the run, gradient and search together.
        clip_norm: C_grad, in units of the gradient.
        steps: local steps a round, at most.
        clipping: ``flat`` or ``auto``, a name of ``CLIPPING``.
        rounds: rounds that the budget is planned for.
        delta: of the guarantee; with the planned divergences it determines the order.
        own: the mechanism's settings.
        prior: charges besides the rounds; the order is chosen for all together.
    """

    sample_rate: float
    noise_multiplier: float
    clip_norm: float
    steps: int
    clipping: str
    rounds: int
    delta: float
    own: Dpagd
    prior: tuple[tuple[Event, int], ...] = ()

    @classmethod
    def of(cls, terms: Terms, noise: float) -> "DpagdPlan":
        """The plan of some terms with this noise multiplier.

        Raises:
            ValueError: too many levels of the budget, or an option of other mechanisms that has no
                meaning here.
        """
        own, p = terms.own, terms.privacy
        if not isinstance(own, Dpagd):
            raise ValueError(f"own = {own!r} must be the settings of DPAGD; give its table")
        if own.agd_raises > MAX_RAISES:
            raise ValueError(
                f"agd_raises = {own.agd_raises} must be at most {MAX_RAISES}: lower --agd-raises"
            )
        equal_rounds.refuse_options(
            p, ("noise_decay", "clip_quantile"), "whose noise follows its searches"
        )
        return cls(
            p.sample_rate,
            noise,
            p.clip_norm,
            terms.steps,
            p.clipping,
            terms.rounds,
            p.delta,
            own,
            terms.prior,
        )

    @property
    def search_multiplier(self) -> float:
        """s_v of a search; its share of ``1 / s^2`` is ``agd_search_share``."""
        return self.noise_multiplier / math.sqrt(self.own.agd_search_share)

    def gradient_multiplier(self, level: int) -> float:
        """s_g of a gradient whose budget, in ``1 / s_g^2``, has grown ``level`` times."""
        first = self.noise_multiplier / math.sqrt(1.0 - self.own.agd_search_share)
        return first * (1.0 + self.own.agd_growth) ** (-level / 2.0)

    def further_multiplier(self, level: int) -> float:
        """s of the measurement that brings an averaged gradient from level - 1 to ``level``."""
        return self.gradient_multiplier(level - 1) / math.sqrt(self.own.agd_growth)

    @functools.cached_property
    def multipliers(self) -> NDArray[np.float64]:
        """Noise multipliers ``[2, levels]`` of `FRESH` and `FURTHER` measurements at each level; no
        further measurement leads to level 0."""
        levels = range(self.own.agd_raises + 1)
        further = [math.inf, *(self.further_multiplier(level) for level in levels[1:])]
        return np.array([[self.gradient_multiplier(level) for level in levels], further])

    def releases(self, counts: NDArray[np.int64]) -> Charges:
        """The releases of ``counts [2, levels]`` measurements, each with the search after it."""
        charges: Charges = {}
        made = self.multipliers[counts > 0].tolist(), counts[counts > 0].tolist()
        for multiplier, count in zip(*made, strict=True):
            gradient = SampledGaussian(self.sample_rate, multiplier)
            charges = merge(charges, {gradient: count}, self._searches(count))
        return charges

    @functools.cached_property
    def costs(self) -> NDArray[np.float64]:
        """``[2, levels]``: divergence of a measurement and its search at the run's order [nats]."""

        def price(multiplier: float) -> float:
            return cost(SampledGaussian(self.sample_rate, multiplier), self.allotment.order)

        result, search = np.full(self.multipliers.shape, math.inf), price(self.search_multiplier)
        for place, multiplier in np.ndenumerate(self.multipliers):
            if multiplier < math.inf:
                result[place] = price(multiplier) + search
        return result

    def worst_round(self) -> Charges:
        """The planned round: ``steps`` steps whose first search finds a step size, the budget as at
        the start."""
        gradient = SampledGaussian(self.sample_rate, self.gradient_multiplier(0))
        return merge({gradient: self.steps}, self._searches(self.steps))

    @functools.cached_property
    def allotment(self) -> Allotment:
        """What the planned round costs, at the order that is best for all planned rounds."""
        return equal_rounds.round_allotment(self)

    def round_charges(self, nth: int) -> Charges:
        """An allotment; and, as the paper's claim, the planned round."""
        claims: Charges = {}
        for event, count in self.worst_round().items():
            if isinstance(event, SampledGaussian):
                claim = PaperClaim(event.sample_rate, event.noise_multiplier)
                claims = merge(claims, {claim: count})
        return {self.allotment: 1, **claims}

    def _searches(self, count: int) -> Charges:
        return {SampledGaussian(self.sample_rate, self.search_multiplier): count}
