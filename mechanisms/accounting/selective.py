"""Selective release: the cost of an accepted proposal if the test depends on the data and
rejections stay hidden.

The released model has density ``p(w) a(w) / A`` with a(w) the acceptance probability and A its
mean; A depends on the data, so an accepted step costs more than its proposal and its test (against
Theorems 5.1 to 5.6 of DPSUR). For any m > 0 and J > 0, if

    E_{p'}[ max over corners (a, a') of
            a^alpha a'^(1-alpha) L^alpha - J (alpha m^(alpha-1) a L - (alpha-1) m^alpha a') ]

is not positive, then ``rdp(alpha) <= log(J) / (alpha - 1)``: the subtracted part is the tangent of
t^alpha at m = A / A', the integrand is convex in the acceptance probabilities, and as a function of
L it is an f-divergence of the proposals, so the one-dimensional sampled-Gaussian pair is the worst.
The smallest J over m is attained by some test.

Unit: one record, zero-out adjacency, larger of both directions; nats. The bound assumes that nobody
learns how often the mechanism rejected.
"""

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mechanisms.accounting import sampled_gaussian
from mechanisms.accounting.acceptance import Acceptance
from mechanisms.accounting.worst_pair import WorstPair, divergence, pairs

Floats = NDArray[np.float64]

MAX_UNEVEN = 1e6  # hi / lo from which the closed form is used: small sets could matter beyond it
SEARCH = 60  # values of m at most; about six are used
PASSES = 60  # iterations for J at most; about three are used
CLOSE = 3e-4  # width of the search in log m, in sqrt(rdp / order): its effect is of second order


def selective(rate: float, noise: float, acceptance: Acceptance, orders: ArrayLike) -> Floats:
    """Renyi divergence of one accepted step; float64 ``[len(orders)]`` in nats.

    Args:
        rate: Poisson rate q of the proposal, in (0, 1].
        noise: its noise multiplier s, positive.
        acceptance: bounds on the probability of acceptance; infinite cost when its lowest is 0.
        orders: Renyi orders above 1.
    """
    grid = np.asarray(orders, dtype=np.float64)
    return np.array([_one(rate, noise, acceptance, float(order)) for order in grid])


def simple_bound(rate: float, noise: float, acceptance: Acceptance, order: float) -> float:
    """A closed-form upper bound: the proposal's cost plus the most that acceptance ratios add."""
    if acceptance.lowest <= 0.0:
        return math.inf
    ratio = acceptance.highest / acceptance.lowest
    # with r = hi / lo: a / A and A' / A are at most r, and a / a' is at most 1 + q_v (r - 1)
    extra = math.log(ratio) + math.log1p(acceptance.rate * (ratio - 1.0))
    return float(sampled_gaussian.rdp([rate], [noise], order)[0]) + order / (order - 1.0) * extra


def _one(rate: float, noise: float, acceptance: Acceptance, order: float) -> float:
    simple = simple_bound(rate, noise, acceptance, order)
    if acceptance.highest >= MAX_UNEVEN * acceptance.lowest:
        return simple
    both = pairs(rate, noise, acceptance, order)
    if both is None:
        return simple
    ratio = math.log(acceptance.highest / acceptance.lowest)
    return min(simple, divergence(max(_Bound(pair).search(ratio) for pair in both), order))


class _Bound:
    """J as a function of log m, for one direction, without the factor m^alpha e^-(all scales)."""

    def __init__(self, pair: WorstPair) -> None:
        self.pair = pair
        self.log_scale = pair.log_scale + float(pair.log_gain.max())
        self.gain = np.exp(pair.log_gain - pair.log_gain.max())

    def search(self, reach: float) -> float:
        """The smallest log J over log m in [-reach, reach]; every m is valid, so stopping early is
        safe.

        For the extremal test at m, log J falls in m where A / A' > m and rises elsewhere: a root is
        sought.
        """
        order = self.pair.order
        low, high, at, start, best = -reach, reach, 0.0, 0.0, math.inf
        before: tuple[float, float] | None = None
        for _ in range(SEARCH):
            scaled, slope = self.solve(at, start)
            best = min(best, math.log(scaled) + self.log_scale - order * at)
            low, high = (at, high) if slope > 0.0 else (low, at)
            step = at + slope
            if before is not None and before[1] != slope:
                step = at - slope * (at - before[0]) / (slope - before[1])
            if not (math.isfinite(scaled) and low < step < high):
                step = (low + high) / 2.0
            close = CLOSE * math.sqrt(max(best, 0.0)) / order if math.isfinite(best) else 0.0
            if abs(step - at) <= close or high - low < 1e-12:
                break
            start = (
                scaled * math.exp(min(order * (step - at), 100.0)) if math.isfinite(scaled) else 0.0
            )
            before, at = (at, slope), step
        return best

    def solve(self, log_m: float, start: float) -> tuple[float, float]:
        """J at m (infinite when none is finite or found), and ``log(A / A') - log m`` of the
        extremal test.

        Iterates J <- U / (alpha A / m - (alpha - 1) A') over the best corners at the last J
        (Dinkelbach 1967); after one step from any start J rises monotonically to the solution.
        """
        pair, order, value = self.pair, self.pair.order, start
        for number in range(PASSES):
            linear = order * math.exp(-log_m) * pair.numerator
            constant = (order - 1.0) * pair.denominator
            terms = np.stack([self.gain, -value * linear, value * constant], axis=1) @ pair.basis
            moment, numerator, denominator = self._sums(_first_largest(terms))
            slope = math.log(numerator / denominator) - log_m
            tangent = order * math.exp(-log_m) * numerator - (order - 1.0) * denominator
            if tangent <= 0.0:
                return math.inf, slope
            previous, value = value, moment / tangent
            if number and value <= previous * (1.0 + 1e-12):
                return max(value, previous), slope
        return math.inf, slope

    def _sums(self, corner: NDArray[np.int8]) -> tuple[float, float, float]:
        """U, A and A' of the test that takes `corner` at each point, summed over constant runs."""
        starts = np.concatenate([[0], np.flatnonzero(corner[1:] != corner[:-1]) + 1])
        parts = np.add.reduceat(self.pair.basis, starts, axis=1)
        chosen = corner[starts]
        factors = (self.gain, self.pair.numerator, self.pair.denominator)
        moment, numerator, denominator = (
            float(factor[chosen] @ part) for factor, part in zip(factors, parts, strict=True)
        )
        return moment, numerator, denominator


def _first_largest(terms: Floats) -> NDArray[np.int8]:
    """``terms.argmax(axis=0)`` of four rows, several times as fast."""
    left, right = terms[1] > terms[0], terms[3] > terms[2]
    upper = np.maximum(terms[2], terms[3]) > np.maximum(terms[0], terms[1])
    return np.where(upper, right + np.int8(2), left)
