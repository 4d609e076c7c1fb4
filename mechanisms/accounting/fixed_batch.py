"""Batches of a fixed size: b of a client's n records, drawn without replacement in each step.

Lengths are in units of the bound on a record's part; N(m) has mean m and deviation s; q = b / n.

**Pairs.** The batch is T and record i with probability q, else T and j: T are b - 1 of the other
records, j is one more of them. Neighbours differ in i alone, which adds y or nothing; j adds x.
Given T and j, whose law is the same for both, the step compares

    P = (1 - q) N(x) + q N(y)    with    Q = (1 - q) N(x) + q N(0),    |x|, |y| <= 1,

and by joint convexity no hockey stick ``H_u = E max(0, P - u Q)`` of the step exceeds the largest
of these. For u = 1 + q (a - 1) >= 1 and c = u / a, advanced joint convexity (Balle, Barthe,
Gaboardi 2018, "Privacy Amplification by Subsampling", Theorem 2) gives

    H_u(P, Q) = q H_a(N(y), (1 - c) N(x) + c N(0)),
    H_u(Q, P) = q H_a(N(0), (1 - c) N(x) + c N(y)).

**Worst case.** The likelihood ratio of the mixture and the single Gaussian is, under the latter, a
sum (1 - c) X + c Y of lognormals of mean 1, and each one's law depends on the distance of its mean
alone. Of all sums with these laws, that whose terms rise together is the largest in convex order
(Meilijson and Nadas 1979), and it grows with each distance: so both means lie on one side of the
single one, as far away as they can. For all u at once,

    removing the record:  H_u(P, Q) is largest at x = -1, y = 1  (distances 2 and 1);
    adding it:            H_u(Q, P) is largest at x = y = 1, where it is q H_a(N(0), N(1)).

There are clients with these gradients, so neither can be improved. The second is what a Poisson
batch costs with the record in P. It is the smaller one, since its distances are.
"""

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import erfcx

from mechanisms.accounting import sampled_gaussian
from mechanisms.accounting.sampled_gaussian import log_power_gap

Floats = NDArray[np.float64]

POINTS = 1_000
"""Least number of an integral's points."""
FINE = 40.0
"""Points per standard deviation: the trapezoidal rule is right to 1e-8 with them, also where the
integrand begins, like a square."""
MAX_REACH = 2.5e3
"""Largest order, in standard deviations, that is integrated; above it q of the Gaussian's moment,
by joint convexity, is hardly more."""
NEGLIGIBLE = 42.0  # in nats below the maximum
MARGIN = 1e-6  # relative, for the integrals


def profile(q: float, s: float, losses: Floats) -> tuple[Floats, Floats]:
    """The largest ``H_u(P, Q)`` at ``u = exp(loss)``, loss >= 0, and the size of the terms whose
    difference it is.

    It is what q N(1) has beyond a point z, less what q u N(0) and (1 - q) (u - 1) N(-1) have there;
    at z the two make up N(1), so that ``v = exp(z / s^2)`` solves a quadratic equation.
    """
    bend = 4.0 * (1.0 - q) / q * -np.expm1(-losses) * np.exp(-losses - 1.0 / s**2)
    root = np.sqrt(1.0 + bend)
    log_v = losses + 0.5 / s**2 + np.log1p((root - 1.0) / 2.0)
    near, middle, far = ((s * log_v - k / s) / math.sqrt(2.0) for k in (1.0, 0.0, -1.0))
    scale, one, other = 0.5 * q * np.exp(-(near**2)), 2.0 / (1.0 + root), bend / (1.0 + root) ** 2
    here, there = scale * erfcx(near), scale * (one * erfcx(middle) + other * erfcx(far))
    return here - there, here + there


def log_mixed(log_weight: Floats | float, q: float) -> Floats:
    """``log(1 - q + q exp(log_weight))``."""
    rest = math.log1p(-q) if q < 1.0 else -math.inf
    return np.asarray(np.logaddexp(rest, math.log(q) + log_weight))


def log_ratio(x: ArrayLike, q: float, s: float) -> Floats:
    """``log(P / Q)`` at points of the worst case for a removed record."""
    at = np.asarray(x, dtype=np.float64)
    return log_mixed(2.0 * at / s**2, q) - log_mixed((at + 0.5) / s**2, q)


def variance(q: float, s: float) -> float:
    """Roughly the variance of the losses where the record is removed; it has no other use than to
    set how close they lie."""
    x = np.linspace(0.5, 1.0 + 9.0 * s, 2_001)
    above, below = log_ratio(x, q, s), -log_mixed((x - 0.5) / s**2, q)
    other, with_it, without = (np.exp(-0.5 * ((x - m) / s) ** 2) for m in (-1.0, 1.0, 0.0))
    mass = (1.0 - q) * other + q * with_it
    first, second = (float(mass @ above**k + without @ below**k) for k in (1, 2))
    width = (x[1] - x[0]) / (s * math.sqrt(2.0 * math.pi))
    return width * second - (width * first) ** 2


def curve(q: float, s: float, orders: Floats) -> Floats:
    """Renyi divergence of a step at each order a, which is that of removing the record.

    ``E_Q (P/Q)^a - 1 = E_Q f(P/Q)`` with ``f(r) = r^a - 1 - a (r - 1)``, which is a sum of hockey
    sticks: those of u > 1 from the first worst case, where P > Q, those of u < 1 from the second
    one, turned round, where P < Q. Both parts begin at the point 1/2. The first ones weigh more,
    so that adding the record costs less.
    """
    if q >= 1.0:
        return sampled_gaussian.curve(q, s, orders)
    with np.errstate(divide="ignore", over="ignore"):
        moments = np.array([_log_moment(q, s, order) for order in orders])
    return np.asarray(moments / (orders - 1.0), dtype=np.float64)


def _log_moment(q: float, s: float, order: float) -> float:
    if order / s > MAX_REACH:
        growth = order * (order - 1.0) / 2.0 / s / s
        return float(log_mixed(growth, q))
    log_excess = np.logaddexp(_above(q, s, order), _below(q, s, order))
    return float(np.logaddexp(0.0, log_excess + math.log1p(MARGIN)))


def _above(q: float, s: float, order: float) -> float:
    def log_integrand(x: Floats) -> Floats:
        log_q = log_mixed((x + 0.5) / s**2, q) - 0.5 * ((x + 1.0) / s) ** 2
        return log_q + log_power_gap(log_ratio(x, q, s), order)

    return _log_integral(log_integrand, s, order)


def _below(q: float, s: float, order: float) -> float:
    """Reflected at 1/2: Q is a sampled Gaussian then, and P is N(0)."""

    def log_integrand(x: Floats) -> Floats:
        log_q = log_mixed((x - 0.5) / s**2, q)
        return log_q - 0.5 * (x / s) ** 2 + log_power_gap(-log_q, order)

    return _log_integral(log_integrand, s, order)


def _log_integral(log_integrand: Callable[[Floats], Floats], s: float, order: float) -> float:
    """Logarithm of the integral from 1/2 on, over the deviation and the square root of 2 pi.

    P / Q grows by at most exp(2 x / s^2), so that the integrand falls from twice the order on.
    """
    ends = 0.5, 1.0 + 2.0 * order + 10.0 * s
    for points in (POINTS, 0):
        wide = np.linspace(*ends, points or max(POINTS, math.ceil(FINE * (ends[1] - ends[0]) / s)))
        logs = log_integrand(wide)
        kept = np.flatnonzero(logs > logs.max() - NEGLIGIBLE)
        ends = float(wide[max(kept[0] - 1, 0)]), float(wide[min(kept[-1] + 1, len(wide) - 1)])
    width = (wide[1] - wide[0]) / (s * math.sqrt(2.0 * math.pi))
    return float(np.logaddexp.reduce(logs)) + math.log(width)
