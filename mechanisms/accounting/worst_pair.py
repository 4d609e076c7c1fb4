"""The one-dimensional pair of proposals that is worst for a selective mechanism, on a grid.

With and without the record a proposal is a sampled Gaussian; by joint convexity the pair N(0, s^2)
and (1 - q) N(0, s^2) + q N(1, s^2) is the worst in any dimension (lengths in units of the L2
sensitivity). Direction "add" puts the mixture in the numerator of the likelihood ratio L, "remove"
in the denominator. Selective and visible release maximize, at each point, over the corners of the
square of acceptance probabilities (a0, az).
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mechanisms.accounting.acceptance import Acceptance

Floats = NDArray[np.float64]

POINTS = 8_000
"""The fewest points: the trapezoidal rule's error at a maximum's kinks is below 1e-6 relative."""
MAX_POINTS = 40_000
FINE, COARSE = 100.0, 32.0  # points per standard deviation wished for, and needed
NEGLIGIBLE = 42.0  # in nats below the maximum
MARGIN = 1e-6  # relative, for the grid
ROUNDING = 4e-15  # of a log moment, per unit of the order


@dataclass(frozen=True)
class WorstPair:
    """A direction of the pair at one order.

    Attributes:
        basis: float64 ``[3, points]``, rows ``e^(-log_scale) p' L^a``, ``p' L`` and ``p'`` times
            the grid's spacing; the last two sum to one exactly as the densities do.
        log_scale: natural logarithm by which the first row is scaled down.
        numerator: float64 ``[4]``, acceptance with the numerator's data at each corner.
        denominator: float64 ``[4]``, acceptance with the denominator's data at each corner.
        order: Renyi order a.
    """

    basis: Floats
    log_scale: float
    numerator: Floats
    denominator: Floats
    order: float

    @property
    def log_gain(self) -> Floats:
        """``log(a^alpha a'^(1 - alpha))`` at each corner."""
        return np.asarray(
            self.order * np.log(self.numerator) + (1.0 - self.order) * np.log(self.denominator)
        )


def divergence(log_moment: float, order: float) -> float:
    """``log_moment / (order - 1)``, raised by the possible error of the grid and of rounding."""
    return (max(log_moment, 0.0) * (1.0 + MARGIN) + ROUNDING * order) / (order - 1.0)


def pairs(
    rate: float, noise: float, acceptance: Acceptance, order: float
) -> list[WorstPair] | None:
    """Both directions; None if the noise is too small for the order for any affordable grid."""
    both = [_pair(rate, noise, acceptance, order, added) for added in (True, False)]
    return [pair for pair in both if pair is not None] if all(both) else None


def _pair(
    rate: float, noise: float, acceptance: Acceptance, order: float, added: bool
) -> WorstPair | None:
    x = _grid(rate, noise, order, added)
    if x is None:
        return None
    log_density, log_ratio = _logs(x, rate, noise, added)
    weights, ratio_weights = (_normalized(log_density), _normalized(log_density + log_ratio))
    spread = float(np.max(log_density))
    log_mass = math.log(float(np.exp(log_density - spread).sum()))
    log_power = log_density + order * log_ratio - spread - log_mass
    scale = float(np.max(log_power))
    without, within = np.array([*zip(*acceptance.corners, strict=True)])
    numerator, denominator = (within, without) if added else (without, within)
    basis = np.stack([np.exp(log_power - scale), ratio_weights, weights])
    return WorstPair(basis, scale, numerator, denominator, order)


def _grid(rate: float, noise: float, order: float, added: bool) -> Floats | None:
    """Points that hold all but e^-42 of each row of the basis; None if that takes too many."""
    wide = np.linspace(-order - 10.0 * noise, order + 10.0 * noise + 1.0, 4_001)
    log_density, log_ratio = _logs(wide, rate, noise, added)
    rows = [log_density + power * log_ratio for power in (0.0, 1.0, order)]
    kept = np.flatnonzero(np.any([row > row.max() - NEGLIGIBLE for row in rows], axis=0))
    first, last = wide[max(kept[0] - 1, 0)], wide[min(kept[-1] + 1, wide.size - 1)]
    deviations = (last - first) / noise
    if deviations * COARSE > MAX_POINTS:
        return None
    return np.linspace(first, last, int(min(max(POINTS, deviations * FINE), MAX_POINTS)))


def _logs(x: Floats, rate: float, noise: float, added: bool) -> tuple[Floats, Floats]:
    """Log density of the denominator (without its constant) and log of the likelihood ratio."""
    log_mixture = math.log(rate) + (2.0 * x - 1.0) / (2.0 * noise**2)
    if rate < 1.0:  # `np.logaddexp`, several times as fast
        rest = math.log1p(-rate)
        log_mixture = np.maximum(log_mixture, rest) + np.log1p(np.exp(-np.abs(log_mixture - rest)))
    log_normal = -(x**2) / (2.0 * noise**2)
    return (log_normal, log_mixture) if added else (log_normal + log_mixture, -log_mixture)


def _normalized(logs: Floats) -> Floats:
    values = np.exp(logs - logs.max())
    return np.asarray(values / values.sum())
