"""Pairs of distributions with finitely many losses."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

ROUNDING = 1e-12
"""Bound on the relative error of a profile's excess, a sum of positive terms."""


class Finite(NamedTuple):
    """A pair as `profile.Dominating`, with the record in P.

    Attributes:
        losses: rising, with 0 among them.
        masses: of Q at each loss z; P has ``exp(z)`` times as much.
        certain: what P has at a loss of infinity, and Q at one of minus infinity.
        noise: noise multiplier of what it stands for.
    """

    losses: tuple[float, ...]
    masses: tuple[float, ...]
    certain: float
    noise: float

    @property
    def noises(self) -> set[float]:
        return {self.noise}

    def excess(self, losses: Floats, adding: bool) -> tuple[Floats, Floats]:
        points, values = self.corners()
        # in the other direction it is x H(1 / x); a chord stays one
        ratios = np.exp(-losses if adding else losses)
        value = np.interp(ratios, points, values)
        if adding:
            value = np.exp(losses) * value
        return value, ROUNDING * value

    def span(self, reach: float, adding: bool) -> tuple[float, float]:
        low, high = self.losses[0], self.losses[-1]
        return (-high, -low) if adding else (low, high)

    def variance(self, adding: bool) -> float:
        losses, masses = np.array(self.losses), np.array(self.masses)
        return float((masses if adding else masses * np.exp(losses)) @ losses**2)

    def corners(self) -> tuple[Floats, Floats]:
        """Likelihood ratios between which the excess is linear, and its values there."""
        x, masses = np.exp(self.losses), np.array(self.masses)
        gaps = np.diff(x)
        beyond = np.cumsum(masses[::-1])[::-1]
        above = np.append(np.cumsum((gaps * beyond[1:])[::-1])[::-1], 0.0)  # of x - ratio
        up_to = np.cumsum(masses)
        below = np.append(0.0, np.cumsum(gaps * up_to[:-1]))
        # from loss 0 on the profile itself, before it what it has beyond 1 - x
        values = np.where(x >= 1.0, above + self.certain, below + self.certain * x)
        return np.append(0.0, x), np.append(0.0, values)
