"""A batch of b of n records: its losses in the worst case, and their moments, as balls.

Below, q = b / n. With the record in the numerator, outcomes (1 - q) N(x) + q N(1) are compared with
(1 - q) N(x) + q N(0), where another record moves the batch to x. Above a loss of 0 the worst is x =
-1, below 0 it is x = 1. Each pair has part of its mass on its own side of 0; what is left of both
counts at a loss of 0.
"""

from typing import NamedTuple

import numpy as np
from flint import acb, arb

from sim.verifying.moments import TOLERANCE, Ratio, normal

REACH = 13.0
"""Standard deviations of a Gaussian that are looked at for the losses."""
FAR = 20
"""And for a moment."""


class Fixed(NamedTuple):
    """Of sampling rate q and a noise multiplier s."""

    rate: float
    noise: float

    def below(self, loss: arb) -> tuple[arb, arb]:
        if loss >= 0:
            return self._apart(loss)
        if loss < 0:
            return self._alike(loss)
        (one, two), (three, four) = self._apart(loss), self._alike(loss)
        return one.union(three), two.union(four)

    def _apart(self, loss: arb) -> tuple[arb, arb]:
        rate, noise, half = arb(self.rate), arb(self.noise), arb(0.5)
        middle = (loss + half / noise**2).exp() / 2
        root = (middle**2 + (1 - rate) / rate * (loss.exp() - 1)).sqrt()
        x = noise**2 * (middle + root).log()
        other, present, absent = (normal((x - mean) / noise) for mean in (-1, 1, 0))
        return (1 - rate) * other + rate * present, (1 - rate) * other + rate * absent

    def _alike(self, loss: arb) -> tuple[arb, arb]:
        rate, noise, half = arb(self.rate), arb(self.noise), arb(0.5)
        x = half - noise**2 * (((-loss).exp() - 1 + rate) / rate).log()
        present, absent = normal((x - 1) / noise), normal(x / noise)
        return present, (1 - rate) * present + rate * absent

    def least(self) -> arb:
        return arb(0)

    def ends(self) -> tuple[float, float]:
        x = 1.0 + REACH * self.noise
        same, one, other = self._ratio.logs(np.array([x, 2.0 * x + 0.5, x + 1.0]))
        return -float(same), float(one - other)

    def variance(self) -> float:
        x = np.linspace(-8.0 * self.noise, 1.0 + 8.0 * self.noise, 2001)
        losses = self._ratio.logs(x)
        mass = np.exp(-0.5 * (x / self.noise) ** 2 + losses)
        return float(np.cov(losses, aweights=mass, ddof=0))

    @property
    def _ratio(self) -> Ratio:
        return Ratio(arb(self.rate), arb(self.noise))


def divergence(rate: arb, noise: arb, order: arb) -> arb:
    """Of removing the record, the larger one of both directions."""
    if rate == 1:
        return order / (2 * noise**2)
    middle, end = arb(0.5), 1 + FAR * noise
    far = normal(-arb(1.5) / noise) + normal(-middle / noise)
    unmoved = (1 - rate) * (1 - far)
    alike = Ratio(rate, noise).part(1 - order, middle, end) + normal(-end / noise).union(0)
    moment = unmoved + alike + _apart(rate, noise, order)
    return moment.log() / (order - 1)


def _apart(rate: arb, noise: arb, order: arb) -> arb:
    """Integral of ``P^a Q^(1 - a)`` from 1/2 on; beyond its end by joint convexity."""
    scale, half, end = noise**2, acb(0.5), order + FAR * noise

    def integrand(x: acb, analytic: bool) -> acb:
        one = 1 - rate + rate * (2 * x / scale).exp()
        two = 1 - rate + rate * ((x + half) / scale).exp()
        log = order * one.log(analytic=analytic) + (1 - order) * two.log(analytic=analytic)
        return (log - (x + 1) ** 2 / (2 * scale)).exp()

    value = acb.integral(integrand, arb(0.5), end, rel_tol=TOLERANCE).real
    value /= noise * (2 * arb.pi()).sqrt()
    growing = (order * (order - 1) / (2 * scale)).exp() * normal((order - end) / noise)
    beyond = (1 - rate) * normal(-(end + 1) / noise) + rate * growing
    return value + beyond.union(0)
