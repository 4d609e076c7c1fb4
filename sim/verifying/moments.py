"""Moments of the sampled Gaussian's likelihood ratio, by integrals in ball arithmetic.

Under the normal density n of N(0, s^2) the ratio is u(x) = 1 - q + q exp((2 x - 1) / (2 s^2)),
which lies between 1 and exp((2 x - 1) / (2 s^2)).
"""

import math
from typing import NamedTuple

import numpy as np
from flint import acb, arb
from numpy.typing import NDArray

Floats = NDArray[np.float64]
TOLERANCE = 1e-26


class Ratio(NamedTuple):
    """The sampled Gaussian SGM(q, s)."""

    rate: arb
    noise: arb

    def at(self, x: arb) -> arb:
        """u(x)."""
        return 1 - self.rate + self.rate * ((x - arb(0.5)) / self.noise**2).exp()

    def logs(self, x: Floats) -> Floats:
        """Logarithms of u, roughly."""
        q, s = float(self.rate), float(self.noise)
        rest = math.log1p(-q) if q < 1.0 else -math.inf
        return np.asarray(np.logaddexp(rest, math.log(q) + (2.0 * x - 1.0) / (2.0 * s**2)))

    def range(self, power: arb) -> tuple[float, float]:
        """Outside of these points, ``u^power`` has next to no integral (`outside`)."""
        nats = 100.0 + abs(float(power)) * -math.log(float(self.rate))
        reach = math.sqrt(2.0 * nats) * float(self.noise)
        return min(0.0, float(power)) - reach, max(0.0, float(power)) + reach

    def outside(self, power: arb, low: float, high: float) -> arb:
        """At least the integral of ``n u^power`` outside of the two points: u^power is at most
        ``1 + exp(power (2 x - 1) / (2 s^2))``, and (1 - q)^power if the power is negative."""
        bounded, growing = (
            normal((low - center) / self.noise) + normal((center - high) / self.noise)
            for center in (arb(0), power)
        )
        either = bounded + (power * (power - 1) / (2 * self.noise**2)).exp() * growing
        if power < 0 and self.rate < 1:
            return either.min((1 - self.rate) ** power * bounded)
        return either

    def part(self, power: arb, low: arb, high: arb) -> arb:
        """Integral of ``n u^power`` from low to high."""
        scale, half = 2 * self.noise**2, acb(0.5)

        def integrand(x: acb, analytic: bool) -> acb:
            ratio = 1 - self.rate + self.rate * (2 * (x - half) / scale).exp()
            return (power * ratio.log(analytic=analytic) - x * x / scale).exp()

        value = acb.integral(integrand, low, high, rel_tol=TOLERANCE).real
        return value / (self.noise * (2 * arb.pi()).sqrt())

    def moment(self, power: arb) -> arb:
        """Integral of ``n u^power``."""
        low, high = self.range(power)
        beyond = self.outside(power, low, high)
        return self.part(power, arb(low), arb(high)) + beyond * arb(0).union(1)


def normal(x: arb) -> arb:
    """Standard normal distribution function."""
    return (-x / arb(2).sqrt()).erfc() / 2
