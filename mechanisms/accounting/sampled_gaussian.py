"""Renyi divergence of the Poisson-sampled Gaussian mechanism, SGM(q, s).

Source: Mironov, Talwar, Zhang, "Renyi Differential Privacy of the Sampled Gaussian Mechanism"
(arXiv 1908.10530), Theorems 4 and 5: ``rdp(a) = log(A(a)) / (a - 1)`` with ``A(a) = E_{x ~ N(0,
s^2)}[(1 - q + q e^t)^a]`` and ``t = (2 x - 1) / (2 s^2)``. Lengths are in units of the L2
sensitivity: one record moves the sum by at most 1.

Deviation from the paper: everything here computes ``A - 1``, a sum of non-negative terms, because
``A`` itself is so near 1 for small rates that its logarithm would lose most digits. Integer orders
use the finite binomial sum of section 3.3, in which the terms k = 0 and 1 cancel exactly.
Fractional orders integrate ``(1 + u)^a - 1 - a u`` (with mean-zero u = q (e^t - 1)) by the
trapezoidal rule, which converges geometrically here; the paper's series decays only like a power of
the index when q is near one half, and needs the signs of the binomial coefficients.
"""

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import gammaln

Floats = NDArray[np.float64]

DENSITY = 4.0  # grid points per standard deviation s, at least
BEND = 2.0  # and per s^2, the width in which the likelihood ratio bends, at least
FINEST = 16.0  # points per s at most: where s is below 1/8, the bend is too far out to count
TAIL = 9.0  # standard deviations kept on each side; what is left out is below 1e-18 relative
# (1 + u)^a - 1 - a u is taken from its Taylor series where terms near 1 would lose its digits
SERIES_BELOW = 0.03  # in |log(1 + u)|
SHORT = 0.11  # and in |a log(1 + u)|: what is left out of the series is below 2e-12 relative
BLOCK = 1 << 20  # grid points evaluated at once
MIN_SPREAD = 0.005  # smaller multipliers take chords between integer orders, not a fine grid


def log_excess(rates: ArrayLike, noise_multipliers: ArrayLike, order: float) -> Floats:
    """``log(A(order) - 1)`` for each pair of a rate and a noise multiplier.

    Args:
        rates: Poisson rates q in (0, 1], shape ``[n]``.
        noise_multipliers: noise standard deviation over L2 sensitivity, positive, shape ``[n]``.
        order: Renyi order a > 1.

    Returns:
        float64 ``[n]``; ``inf`` where the moment overflows a double, never NaN.
    """
    q, s = np.broadcast_arrays(
        np.asarray(rates, dtype=np.float64), np.asarray(noise_multipliers, dtype=np.float64)
    )
    with np.errstate(all="ignore"):
        result = (
            _binomial_sum(q, s, int(order)) if float(order).is_integer() else _integral(q, s, order)
        )
        full = q >= 1.0
        if full.any():
            exponent = order * (order - 1.0) / (2.0 * s**2)
            result = np.where(full, _log_expm1(exponent), result)
    return np.where(np.isnan(result), np.inf, result)


def rdp(rates: ArrayLike, noise_multipliers: ArrayLike, order: float) -> Floats:
    """Renyi divergence of one application at ``order`` [nats], for each rate and noise multiplier.

    Args and shapes as in :func:`log_excess`. Zero-out adjacency, the larger of both directions
    (Theorem 5).
    """
    return np.logaddexp(0.0, log_excess(rates, noise_multipliers, order)) / (order - 1.0)


def curve(rate: float, noise_multiplier: float, orders: ArrayLike) -> Floats:
    """Renyi divergence of one SGM(rate, noise_multiplier), float64 ``[len(orders)]`` [nats]."""
    grid = np.asarray(orders, dtype=np.float64)
    if rate >= 1.0:
        with np.errstate(over="ignore"):
            return grid / (2.0 * noise_multiplier) / noise_multiplier
    values = [float(rdp([rate], [noise_multiplier], float(order))[0]) for order in grid]
    return np.array(values, dtype=np.float64)


def _log_expm1(x: Floats) -> Floats:
    """``log(exp(x) - 1)`` for x >= 0 without overflow."""
    return np.asarray(x + np.log(-np.expm1(-x)), dtype=np.float64)


def _binomial_sum(q: Floats, s: Floats, order: int) -> Floats:
    """Section 3.3 for an integer order: ``A - 1 = sum_k C(a, k) q^k (1 - q)^(a - k) (e^{k (k - 1) /
    (2 s^2)} - 1)``."""
    k = np.arange(2, order + 1, dtype=np.float64)
    log_choose = gammaln(order + 1.0) - gammaln(k + 1.0) - gammaln(order - k + 1.0)
    growth = _log_expm1(k * (k - 1.0) / (2.0 * s[..., None] ** 2))
    log_rest = np.where(k == order, 0.0, (order - k) * np.log1p(-q[..., None]))
    return _log_sum(log_choose + k * np.log(q)[..., None] + log_rest + growth)


def _integral(q: Floats, s: Floats, order: float) -> Floats:
    """Fractional order: trapezoidal integral; for tiny noise the chord of ``(a - 1) rdp(a)``, which
    is convex in a."""
    result = np.empty(q.shape)
    tiny = s < MIN_SPREAD
    if tiny.any():
        below, above = math.floor(order), math.ceil(order)
        share = order - below
        low = np.zeros(int(tiny.sum()))
        if below >= 2:
            low = np.logaddexp(0.0, _binomial_sum(q[tiny], s[tiny], below))
        high = np.logaddexp(0.0, _binomial_sum(q[tiny], s[tiny], above))
        result[tiny] = _log_expm1((1.0 - share) * low + share * high)
    wide = np.flatnonzero(~tiny)
    if wide.size:
        smallest = float(s[wide].min())
        density = min(max(DENSITY, BEND / smallest), FINEST)
        points = math.ceil(density * (order / smallest + 2.0 * TAIL)) + 1
        for start in range(0, wide.size, max(1, BLOCK // points)):
            rows = wide[start : start + max(1, BLOCK // points)]
            result[rows] = _trapezoid(q[rows, None], s[rows, None], order, points)
    return result


def _trapezoid(q: Floats, s: Floats, order: float, points: int) -> Floats:
    """``log(A - 1)`` for columns q, s of shape ``[n, 1]`` on `points` points each."""
    x = np.linspace(-TAIL * s[:, 0], order + TAIL * s[:, 0], points, axis=1)
    log_ratio = np.logaddexp(np.log1p(-q), np.log(q) + (2.0 * x - 1.0) / (2.0 * s**2))
    terms = log_power_gap(log_ratio, order) - x**2 / (2.0 * s**2)
    width = np.log(
        (order + 2.0 * TAIL * s[:, 0]) / (points - 1) / (s[:, 0] * math.sqrt(2.0 * math.pi))
    )
    return np.asarray(_log_sum(terms) + width, dtype=np.float64)


def _log_sum(logs: Floats) -> Floats:
    """``log(sum(exp(logs)))`` over the last axis, without SciPy's checks, which cost more."""
    top = logs.max(axis=-1, keepdims=True)
    top = np.where(np.isfinite(top), top, 0.0)
    return np.asarray(np.log(np.exp(logs - top).sum(axis=-1)) + top[..., 0])


def log_power_gap(log_ratio: Floats, order: float) -> Floats:
    """``log((1 + u)^a - 1 - a u)`` given ``log(1 + u)``; not negative for a > 1 (Bernoulli)."""
    near = np.abs(log_ratio) < SERIES_BELOW
    above = np.where(log_ratio >= SERIES_BELOW, log_ratio, 1.0)
    decay = 1.0 - order * np.exp((1.0 - order) * above) + (order - 1.0) * np.exp(-order * above)
    below = np.where(log_ratio <= -SERIES_BELOW, log_ratio, -1.0)
    rest = (order - 1.0) - order * np.exp(below) + np.exp(order * below)
    power = order * np.where(near, log_ratio, 0.0)
    u = np.expm1(np.where(near, log_ratio, 0.0))
    series = np.zeros_like(u)
    for n in range(8, 2, -1):
        series = (order - n + 1.0) / n * u * (1.0 + series)
    series = order * (order - 1.0) / 2.0 * u**2 * (1.0 + series)
    close = np.log(np.where(np.abs(power) < SHORT, series, np.expm1(power) - order * u))
    far = np.where(log_ratio > 0.0, order * above + np.log(decay), np.log(rest))
    return np.asarray(np.where(near, close, far), dtype=np.float64)
