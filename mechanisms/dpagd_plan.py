"""The plan of DPAGD (`mechanisms.dpagd`): what a step releases at each level of its budget, and
what a round costs."""

import functools
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mechanisms.accounting.accountant import Charges
from mechanisms.accounting.allotment import cost
from mechanisms.accounting.events import PaperClaim, SampledGaussian
from mechanisms.equal_rounds import AllottedPlan, common, refuse_options
from mechanisms.plan import Terms, merge, steady
from mechanisms.settings import Dpagd

MAX_RAISES = 100
"""How often the gradient's budget may grow, at most: each level has a count of its own."""
FRESH, FURTHER = 0, 1
"""A step's first measurement of its gradient, and one that is averaged with those before it."""


@steady
@dataclass(frozen=True)
class DpagdPlan(AllottedPlan):
    """A client's plan: q is the rate of the batches of gradient and search, s the noise multiplier
    of a step at the start of the run, gradient and search together, and the clip norm is C_grad.

    Attributes:
        clipping: ``flat`` or ``auto``, a name of ``CLIPPING``.
        own: the mechanism's settings.
    """

    clipping: str
    own: Dpagd

    @classmethod
    def of(cls, terms: Terms, noise: float) -> "DpagdPlan":
        """The plan of some terms with this noise multiplier.

        Raises:
            ValueError: too many levels of the budget, or an option of other mechanisms that has no
                meaning here.
        """
        own, p = terms.own_of(Dpagd, "DPAGD"), terms.privacy
        if own.agd_raises > MAX_RAISES:
            raise ValueError(
                f"agd_raises = {own.agd_raises} must be at most {MAX_RAISES}: lower --agd-raises"
            )
        refuse_options(p, ("noise_decay", "clip_quantile"), "whose noise follows its searches")
        return cls(*common(terms, noise), p.clipping, own, prior=terms.prior)

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
