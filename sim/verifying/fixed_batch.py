"""A batch of b of n records: its losses in the worst case, and their moments, as balls.

Below, q = b / n. With the record in the numerator, outcomes (1 - q) N(x) + q N(1) are compared with
(1 - q) N(x) + q N(0), where another record moves the batch to x. Above a loss of 0 the worst is x =
-1, below 0 it is x = 1. Each pair has part of its mass on its own side of 0; what is left of both
counts at a loss of 0.
"""

import math
from typing import NamedTuple

import numpy as np
from flint import acb, arb

from sim.verifying.moments import TOLERANCE, Ratio, normal

REACH = 13.0
"""Standard deviations of a Gaussian that are looked at for the losses."""
FAR = 20
"""And for a moment."""


class Fixed(NamedTuple):
    """The law of a batch of a fixed size, of sampling rate q and noise multiplier s."""

    rate: float
    noise: float

    @classmethod
    def of(cls, batch: float, records: float, noise: float) -> "Fixed":
        """The rate is rounded to a larger one."""
        return cls(math.nextafter(batch / records, 1.0), noise)

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
        return self._opposite((middle + root).log())

    def _opposite(self, at: arb) -> tuple[arb, arb]:
        """Masses up to ``at * s^2``, where the other record is at -1."""
        rate, noise = arb(self.rate), arb(self.noise)
        other, present, absent = (normal(noise * at - mean / noise) for mean in (-1, 1, 0))
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
        x = np.linspace(0.5, 1.0 + REACH * self.noise, 2001)
        here = (
            np.exp(-0.5 * (x / self.noise) ** 2) * (x[1] - x[0]) / self.noise / math.sqrt(math.tau)
        )
        apart = self._ratio.logs(2.0 * x + 0.5) - self._ratio.logs(x + 1.0)
        there = here * np.exp(self._ratio.logs(2.0 * x + 0.5) - (x + 0.5) / self.noise**2)
        first, second = (
            float(there @ apart**k + here @ (-self._ratio.logs(x)) ** k) for k in (1, 2)
        )
        return second - first**2

    @property
    def _ratio(self) -> Ratio:
        return Ratio(arb(self.rate), arb(self.noise))


class Opposite(Fixed):
    """One client, in whose batches every other record is opposite."""

    def below(self, loss: arb) -> tuple[arb, arb]:
        """P / Q is 1 far below 0, falls, and rises from some point on."""
        rate, half = arb(self.rate), arb(0.5)
        middle = (loss + half / arb(self.noise) ** 2).exp() / 2
        square = middle**2 + (1 - rate) / rate * (loss.exp() - 1)
        if square <= 0:
            return arb(0), arb(0)
        root = (square if square > 0 else square.union(0).max(arb(0))).sqrt()
        ours, theirs = self._opposite((middle + root).log())
        if loss >= 0:
            return ours, theirs
        first = middle - root
        before = self._opposite(first.log()) if first > 0 else (arb(0), arb(0))
        if not (first > 0 and square > 0):  # anything from nothing to this
            return ours.union(0), theirs.union(0)
        return ours - before[0], theirs - before[1]


def divergence(rate: arb, noise: arb, order: arb) -> arb:
    """The divergence of removing the record, which is the larger one of both directions."""
    if rate == 1:
        return order / (2 * noise**2)
    middle, end = arb(0.5), 1 + FAR * noise
    far = normal(-arb(1.5) / noise) + normal(-middle / noise)
    unmoved = (1 - rate) * (1 - far)
    alike = Ratio(rate, noise).part(1 - order, middle, end) + normal(-end / noise).union(0)
    moment = unmoved + alike + _apart(rate, noise, order)
    return moment.log() / (order - 1)


def _apart(rate: arb, noise: arb, order: arb) -> arb:
    """Integral of ``P^a Q^(1 - a)`` from 1/2 on. Where it is large, it is nearly all around a;
    in any case the integrand falls from 2 a on."""
    start, reach = arb(0.5), FAR * noise
    value, beyond = _between(start.max(order - reach), order + reach, rate, noise, order)
    if not beyond < TOLERANCE * value:
        value, beyond = _between(start, 2 * order + reach, rate, noise, order)
    return value + beyond.union(0)


def _between(low: arb, high: arb, rate: arb, noise: arb, order: arb) -> tuple[arb, arb]:
    """The integral between two points, and a bound on the rest of it, by joint convexity.

    ``q N(1)^a N(0)^(1 - a)``, which is a Gaussian around a, is taken out of the integrand.
    """
    scale, half, odds = noise**2, acb(0.5), (1 - rate) / rate

    def integrand(x: acb, analytic: bool) -> acb:
        one = (1 + odds * (-2 * x / scale).exp()).log(analytic=analytic)
        two = (1 + odds * (-(x + half) / scale).exp()).log(analytic=analytic)
        return (order * one + (1 - order) * two - (x - order) ** 2 / (2 * scale)).exp()

    def outside(mean: arb) -> arb:
        before = normal((low - mean) / noise) - normal((arb(0.5) - mean) / noise)
        return before + normal((mean - high) / noise)

    factor = rate * (order * (order - 1) / (2 * scale)).exp()
    small = TOLERANCE / factor  # the moment is at least 1
    value = acb.integral(integrand, low, high, rel_tol=TOLERANCE, abs_tol=small).real
    rest = (1 - rate) * outside(arb(-1)) + factor * outside(order)
    return factor * value / (noise * (2 * arb.pi()).sqrt()), rest
