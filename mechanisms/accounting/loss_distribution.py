"""Epsilon of composed steps from the distribution of their privacy loss.

The loss of one step is discretized by connecting the dots (Doroshenko et al. 2022, "Connect the
Dots: Tighter Discrete Approximations of Privacy Loss Distributions"): its `profile` is replaced by
chords, which lie above it as it is convex. Steps are composed by the fast Fourier transform
(Koskela, Jalko, Honkela 2020) of the distribution tilted by ``exp(theta loss)``, as in saddle-point
accounting (Alghamdi et al. 2023), with theta + 1 near the best Renyi order. With the tilt, every
error of the numbers counts in units of the Renyi bound on delta, not of 1, so that it can be
bounded and added, and the result is an upper bound:

``delta(eps) = exp(K) E[g]``, ``K = log E exp(theta L)``, ``g = exp(-theta L) max(0, 1 - exp(eps -
L))``, and ``g`` is at most ``G = exp(-theta eps) theta^theta / (1 + theta)^(1 + theta)``. So an
error of total variation v in the tilted distribution changes delta by at most ``v G exp(K)``.

Unit and adjacency as in `accountant`. Both directions are composed; the larger epsilon counts.
"""

import bisect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from mechanisms.accounting.profile import Dominating

Floats = NDArray[np.float64]

FINENESS = 0.02
"""Spacing of the losses over the standard deviation of a step's loss; what the discretization adds
to the variance is less than the square of this, relatively."""
PRECISION = 8e-5
"""Roughly what the discretization may add to epsilon, relatively, where `FINENESS` adds less: the
spacing is doubled as long as it stays below this."""
ROUGH = 8.0
"""Spacing of a first look, over that of `FINENESS`: at what may be added, and at whether a
direction can be left out."""
MAX_POINTS = 2**21
"""Most losses of a step and most points of a transform; losses are spaced wider where more would
be needed."""
NOISES = (0.1, 1e6)
"""Least and largest noise multiplier; losses beyond them would be out of a float's range."""
MAX_EPSILON = 50.0
"""Largest epsilon that is worth the time."""
WIDEST = 600.0
"""Widest range of losses whose exponentials are floats."""
MIN_SPACING = 1e-9
"""Spacing where all losses are the same."""
COARSE = 2**14
"""Most losses of a step that a tilt is chosen by."""
TILTS = (math.log(1e-3), math.log(1e5))
"""Logarithms of the least and the largest tilt."""
CUT = 1e-9
"""Share of delta that may be lost to losses beyond the largest, over all steps."""
OUTSIDE = 1e-10
"""Bound on the tilted mass outside the window of a transform."""
SUMS = 1e-9
"""Bound on the relative error of a sum of `MAX_POINTS` terms and of its exponentials."""
LOSS_ERROR = 1e-13
"""Bound on the error of a step's losses."""


class _Losses(NamedTuple):
    """One step's discretized losses: logarithm of the mass ``[n]`` at ``(first + i) * spacing``,
    and the mass beyond all of them."""

    first: int
    log_mass: Floats
    infinite: float


def epsilon(steps: Mapping[Dominating, int], delta: float) -> float:
    """An upper bound on the epsilon of all steps together at ``delta``.

    Args:
        steps: number of applications of each pair, positive.
        delta: in (0, 1).

    Returns:
        Epsilon; infinite where it would be above `MAX_EPSILON`, and for noise out of `NOISES`.
    """
    for noise in (noise for pair in steps for noise in pair.noises):
        if not (NOISES[0] <= noise <= NOISES[1] or math.isinf(noise)):
            return math.inf
    found = 0.0
    for adding in (False, True):
        found = max(found, _one_way(steps, delta, adding, found))
    return found


def _one_way(steps: Mapping[Dominating, int], delta: float, adding: bool, known: float) -> float:
    """An upper bound on the epsilon of one direction, close where it is above ``known``."""
    total = sum(steps.values())
    reach = -float(ndtri(CUT * delta / total))
    spread = sum(n * pair.variance(adding) for pair, n in steps.items()) / total
    ends = [pair.span(reach, adding) for pair in steps]
    widest = max(high - low for low, high in ends)
    if widest > WIDEST:
        return math.inf
    spacing = max(FINENESS * math.sqrt(spread), widest / MAX_POINTS, MIN_SPACING)

    def discretized(spacing: float) -> list[tuple[_Losses, int]]:
        return [(_losses(pair, spacing, reach, adding), n) for pair, n in steps.items()]

    rough, theta = _bound(discretized, ROUGH * spacing, delta)
    if rough <= known or math.isinf(rough):
        return rough
    # a loss that is spread over two neighbours varies by a sixth of the spacing's square more
    most = math.sqrt(12.0 * PRECISION * rough / (total * theta))
    spacing *= 2.0 ** math.floor(math.log2(max(1.0, most / spacing)))
    return _bound(discretized, spacing, delta, theta)[0]


def _bound(
    discretized: Callable[[float], Sequence[tuple[_Losses, int]]],
    spacing: float,
    delta: float,
    theta: float | None = None,
) -> tuple[float, float]:
    """An upper bound on epsilon by losses at this spacing, or wider, and the tilt: a good one, if
    none is given."""
    while True:
        parts = discretized(spacing)
        if theta is None:
            theta, bound = _best_tilt(parts, spacing, delta)
            if bound > MAX_EPSILON:
                return math.inf, theta
        lost = sum(n * part.infinite for part, n in parts)
        if lost >= delta:
            return math.inf, theta
        first, points = _window(parts, theta, spacing)
        if points <= MAX_POINTS:
            break
        spacing *= 2.0
    tilted, log_scale, error = _composed(parts, theta, spacing, first, points)
    losses = spacing * np.arange(first, first + points, dtype=np.float64)
    found = _solve(tilted, losses, log_scale, theta, error, delta - lost)
    return max(0.0, found + sum(n for _, n in parts) * LOSS_ERROR), theta


def _losses(pair: Dominating, spacing: float, reach: float, adding: bool) -> _Losses:
    """One application's losses, discretized upward; ``reach`` standard deviations are looked at.

    The masses' profile is a chord between neighbours, and below the first loss up to x = 0.
    What lies at the last loss counts as infinite, as a few large losses would govern the tilt.
    """
    low, high = pair.span(reach, adding)
    first, last = min(-1, math.floor(low / spacing)), max(1, math.ceil(high / spacing) + 1)
    losses = spacing * np.arange(first, last + 1, dtype=np.float64)
    delta, error = pair.excess(losses, adding)
    fall = -np.diff(delta, prepend=math.exp(-spacing) * delta[0])
    mass = math.exp(spacing) * fall + 4.0 * math.exp(spacing) * error
    mass[:-1] -= fall[1:]
    mass /= math.expm1(spacing)
    mass[-first] += 1.0
    beyond = float(delta[-1] + error[-1] + mass[-1])
    with np.errstate(divide="ignore"):
        return _Losses(first, np.log(np.maximum(mass[:-1], 0.0)), beyond)


def _best_tilt(
    parts: Sequence[tuple[_Losses, int]], spacing: float, delta: float
) -> tuple[float, float]:
    """A tilt a little below the one with the least Chernoff bound on epsilon, and roughly that
    bound.

    Any positive tilt gives a valid epsilon, so losses are put together into `COARSE` ones. Above
    the best one a few large losses carry the tilted mass, and windows are wide.
    """
    coarse: list[tuple[Floats, Floats, int]] = []
    for part, n in parts:
        mass, at = np.exp(part.log_mass), np.arange(len(part.log_mass))
        starts = at[:: -(-len(at) // COARSE)]
        sums = np.maximum(np.add.reduceat(mass, starts), 1e-300)
        middle = np.clip(np.add.reduceat(mass * at, starts) / sums, starts, None)
        coarse.append((sums, spacing * (part.first + middle), n))

    def bound(log_theta: float) -> float:
        theta = math.exp(log_theta)
        moment = 0.0
        for mass, losses, n in coarse:
            top = theta * float(losses[-1])
            moment += n * (top + math.log(float(mass @ np.exp(theta * losses - top))))
        return (moment + _log_most(theta) - math.log(delta)) / theta

    best = _least(bound, *TILTS, width=0.05)
    return 0.9 * math.exp(best), bound(best)


def _least(function: Callable[[float], float], low: float, high: float, width: float) -> float:
    """Where a function that falls and then rises is least, by golden-section search."""
    share = (math.sqrt(5.0) - 1.0) / 2.0
    left, right = high - share * (high - low), low + share * (high - low)
    at_left, at_right = function(left), function(right)
    while high - low > width:
        if at_left < at_right:
            high, right, at_right = right, left, at_left
            left = high - share * (high - low)
            at_left = function(left)
        else:
            low, left, at_left = left, right, at_right
            right = low + share * (high - low)
            at_right = function(right)
    return 0.5 * (low + high)


def _log_most(theta: float) -> float:
    """Logarithm of ``theta^theta / (1 + theta)^(1 + theta)``."""
    return theta * math.log(theta) - (1.0 + theta) * math.log1p(theta)


def _log_moment(parts: Sequence[tuple[_Losses, int]], theta: float, spacing: float) -> float:
    """``log E exp(theta L)`` of all finite losses together."""
    return math.fsum(n * _log_sum(_tilt(part, theta, spacing)) for part, n in parts)


def _tilt(part: _Losses, theta: float, spacing: float) -> Floats:
    """Logarithm of each mass times ``exp(theta loss)``."""
    return part.log_mass + theta * spacing * (part.first + np.arange(len(part.log_mass)))


def _log_sum(values: Floats) -> float:
    most = float(values.max())
    return most + math.log(float(np.exp(values - most).sum()))


def _window(parts: Sequence[tuple[_Losses, int]], theta: float, spacing: float) -> tuple[int, int]:
    """First point and number of points, a power of two, of a window that holds the tilted sum but
    for `OUTSIDE` on each side, by Chernoff's bound."""
    at = _log_moment(parts, theta, spacing)
    little = 1e-3 * theta
    around = [_log_moment(parts, theta + sign * little, spacing) for sign in (-1, 1)]
    deviation = math.sqrt(max(sum(around) - 2.0 * at, 0.0)) / little + spacing
    tail = -math.log(OUTSIDE)
    # a few turns of the tilt; the small ones are for sampled steps, whose few large losses are rare
    high = min(
        (_log_moment(parts, theta + k / deviation, spacing) - at + tail) * deviation / k
        for k in (0.1, 0.3, 1.0, 3.0, 6.0)
    )
    low = max(
        (at - _log_moment(parts, theta - k / deviation, spacing) - tail) * deviation / k
        for k in (1.0, 3.0, 6.0)
    )
    first, last = math.floor(low / spacing), math.ceil(high / spacing)
    return first, 2 ** math.ceil(math.log2(last - first + 2))


def _composed(
    parts: Sequence[tuple[_Losses, int]], theta: float, spacing: float, first: int, points: int
) -> tuple[Floats, float, float]:
    """Tilted masses of the sum at the window's points, the logarithm of their scale, and a bound on
    their error in total variation."""
    product, log_scale, error = np.ones(points // 2 + 1, dtype=np.complex128), 0.0, 0.0
    unit = np.finfo(np.float64).eps
    for part, n in parts:
        logs = _tilt(part, theta, spacing)
        scale = _log_sum(logs)
        mass = np.exp(logs - scale)
        places = (part.first + np.arange(len(mass))) % points
        folded = np.bincount(places, weights=mass, minlength=points)
        product *= _power(np.fft.rfft(folded), n)
        # Higham 2002, Theorem 24.2, for a coefficient of the transform; powers multiply it by n
        transform = 7.0 * math.log2(points) * math.sqrt(points) * float(np.linalg.norm(folded))
        error += n * unit * (transform + 8.0)
        log_scale += n * scale
    turned = np.roll(np.fft.irfft(product, points), -(first % points))
    spread = math.sqrt(points) * (error + 7.0 * math.log2(points) * unit)
    return np.maximum(turned, 0.0), log_scale, 2.0 * spread + 2.0 * OUTSIDE


def _power(base: NDArray[np.complex128], n: int) -> NDArray[np.complex128]:
    """``base ** n`` by squaring, whose error grows as n; ``base`` is overwritten."""
    result = np.ones_like(base)
    while n:
        if n & 1:
            result *= base
        base *= base
        n >>= 1
    return result


def _solve(
    tilted: Floats, losses: Floats, log_scale: float, theta: float, error: float, delta: float
) -> float:
    """The least epsilon, from above, whose delta is at most the given one."""
    log_most = _log_most(theta)
    # Chernoff's bound on epsilon: what follows is relative to it, so that nothing is out of range
    top = max(0.0, (log_scale + log_most - math.log(delta)) / theta)
    level = math.exp(math.log(delta) - log_scale + theta * top)
    start = max(0, int(np.searchsorted(losses, 0.0, side="right")) - 1)
    tilted, losses = tilted[start:], losses[start:]
    # exponents are cut off where the error alone exceeds the level, or nothing is above
    first = tilted * np.exp(np.minimum(-theta * (losses - top), 700.0))
    second = first * np.exp(top - losses)
    above = np.append(np.cumsum(first[::-1])[::-1] * (1.0 + SUMS), 0.0)
    below = np.append(np.cumsum(second[::-1])[::-1] * (1.0 - SUMS), 0.0)

    def over(eps: float, place: int) -> float:
        """Delta at ``eps``, which falls, from the losses of ``place`` and above."""
        wrong = error * math.exp(min(log_most - theta * (eps - top), 700.0))
        return float(above[place] - math.exp(min(eps - top, 700.0)) * below[place]) + wrong

    places = range(len(losses))
    place = bisect.bisect_left(places, True, key=lambda k: over(float(losses[k]), k) <= level)
    if place == len(losses):  # nothing but the error is left
        return max(float(losses[-1]), top + (math.log(error / level) + log_most) / theta)
    low, high = max(0.0, float(losses[max(0, place - 1)])), max(0.0, float(losses[place]))
    while high - low > 1e-7 * high:
        middle = 0.5 * (low + high)
        low, high = (middle, high) if over(middle, place) > level else (low, middle)
    return high
