"""Bounds on the epsilon of composed steps, by plain convolution in ball arithmetic.

Losses lie on a lattice. Above: the mass between two points of it is given to both, such that each
distribution keeps its own; that is a chord of the hockey-stick curve, which is convex. Below: all
outcomes within half a spacing of a point become one, which is post-processing. Between the two
lies the exact epsilon of the worst pairs (`laws`). Every number is a ball of `flint.arb`, which
holds the exact one.
"""

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from flint import acb, arb, arb_poly
from numpy.typing import NDArray

from sim.verifying.laws import Law

OUTSIDE = 1e-9
"""Share of delta outside of the window of a convolution, roughly."""
TILTS = np.geomspace(1e-7, 1.0, 71).tolist()
"""Tilts, for each lattice point, that are tried for Chernoff's bound."""
ASIDE = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
"""Spacings that are tried as the most by which a loss may fall short of its point; those that fall
further short are moved to the point below."""


class Losses(NamedTuple):
    """Masses at ``first + k spacing``, the mass at infinity, and what each loss may fall short of
    its point."""

    first: arb
    masses: list[arb]
    infinite: arb
    short: arb


def epsilon(steps: Sequence[tuple[Law, int]], delta: arb, fineness: float) -> tuple[arb, arb]:
    """A lower and an upper bound on the epsilon of positive numbers of each law's steps.

    The spacing is ``fineness`` of a step's standard deviation of the loss. Steps whose total
    variations add up to no more than delta cost nothing; their losses may be too rare for a
    lattice.
    """
    at_zero = [(law.below(arb(0)), n) for law, n in steps]
    if sum((n * (theirs - ours) for (ours, theirs), n in at_zero), arb(0)) <= delta:
        return arb(0), arb(0)
    variance = sum(n * law.variance() for law, n in steps) / sum(n for _, n in steps)
    spacing = arb(fineness * math.sqrt(variance))
    cells = [(_cells(law, spacing), n) for law, n in steps]
    low, high = arb(0), arb(0)
    for way in (cells, [(_turned(*c, spacing), n) for c, n in cells]):
        below, above = ([(side(*c, spacing), n) for c, n in way] for side in (_below, _above))
        low = low.max(_solved(below, spacing, delta, below=True))
        high = high.max(_solved(above, spacing, delta, below=False))
    return low, high


Cells = tuple[list[arb], list[arb], arb]
"""Masses, under the numerator and the denominator, of intervals between losses half a spacing
apart, from minus infinity to infinity; and the first of these losses."""


def _cells(law: Law, spacing: arb) -> Cells:
    """The cells of one step from which the record is removed."""
    h, least = float(spacing), law.least()
    first, last = (end - float(least) for end in law.ends())
    first, last = math.floor(first / h), math.ceil(last / h)
    halves = range(2 * first, 2 * last + 1)
    up_to = [law.below(least + spacing * half / 2) for half in halves]
    masses = [
        [b - a for a, b in itertools.pairwise([arb(0), *(one[side] for one in up_to), arb(1)])]
        for side in (0, 1)
    ]
    return masses[0], masses[1], least + spacing * first


def _turned(numerator: list[arb], denominator: list[arb], first: arb, spacing: arb) -> Cells:
    """The cells of one step to which the record is added: its losses are the negative ones."""
    last = first + spacing * (len(numerator) // 2 - 1)
    return denominator[::-1], numerator[::-1], -last


def _above(numerator: list[arb], denominator: list[arb], first: arb, spacing: arb) -> Losses:
    """A pair that dominates the step."""
    p = [a + b for a, b in zip(numerator[1:-1:2], numerator[2:-1:2], strict=True)]
    q = [a + b for a, b in zip(denominator[1:-1:2], denominator[2:-1:2], strict=True)]
    masses = [numerator[0], *([arb(0)] * len(p))]
    ratio, factor = first.exp(), spacing.exp()
    for k, (here, there) in enumerate(zip(p, q, strict=True)):
        raised = (here - ratio * there) / (1 - 1 / factor)
        masses[k] += here - raised
        masses[k + 1] += raised
        ratio *= factor
    return Losses(first, masses, numerator[-1], arb(0))


def _below(numerator: list[arb], denominator: list[arb], first: arb, spacing: arb) -> Losses:
    """A pair that the step dominates."""
    p, q = numerator[1:], denominator[1:]  # the lowest outcomes count as a loss of minus infinity
    bins = [(p[0], q[0])]
    bins += [(a + b, c + d) for a, b, c, d in zip(p[1::2], p[2::2], q[1::2], q[2::2], strict=True)]
    short, ratio, factor = [], first.exp(), spacing.exp()
    for here, there in bins:  # spacings by which a bin's loss is below its point
        known = here > 0 and there > 0
        short.append((ratio * there / here).log() / spacing if known else arb(1))
        ratio *= factor
    most = np.array([float(one.upper()) for one in short])
    weights = np.array([float(here) for here, _ in bins])
    limit = min(ASIDE, key=lambda one: one + float(weights @ (most > one)))
    masses = [arb(0)] * len(bins)
    for k, (here, _) in enumerate(bins):
        place = k - int(most[k] > limit)
        if place >= 0:
            masses[place] += here
    kept = [one.upper() for one, far in zip(short, most, strict=True) if far <= limit]
    return Losses(first, masses, arb(0), spacing * max([arb(0), *kept]))


def _solved(parts: list[tuple[Losses, int]], spacing: arb, delta: arb, below: bool) -> arb:
    """Epsilon where delta is reached, from below or above: ``mass - exp(epsilon) other`` over all
    larger losses."""
    start, points, outside = _window(parts, delta)
    lost = sum((part.infinite * n for part, n in parts), outside)
    level = delta + outside if below else delta - lost
    if not level > 0:
        return arb(0 if below else "inf")
    loss = sum((part.first * n for part, n in parts), spacing * (start + points))
    mass, other, factor, weight = arb(0), arb(0), spacing.exp(), (-loss).exp()
    for here in reversed(_convolved(parts, start, points)):
        loss, weight = loss - spacing, weight * factor
        if not (mass - other / weight <= level and loss > 0):
            break
        mass, other = mass + here, other + here * weight
    known = other > 0
    found = ((mass - level) / other).max(arb(1)).log() if known else arb(0 if below else "inf")
    if below:
        return (found - sum((part.short * n for part, n in parts), arb(0))).max(arb(0))
    return found.min(loss + spacing).max(arb(0))


def _window(parts: list[tuple[Losses, int]], delta: arb) -> tuple[int, int, arb]:
    """First point and number of points of a convolution, and a bound on the mass outside, by
    Chernoff's bound on each side."""
    wish = -math.log(OUTSIDE * float(delta))
    most = [(np.array([float(mass.upper()) for mass in part.masses]), n) for part, n in parts]
    logs = [(np.log(np.maximum(masses, 1e-300)), n) for masses, n in most]

    def bound(tilt: float) -> float:
        return (
            wish + sum(n * _log_sum(log + tilt * np.arange(len(log))) for log, n in logs)
        ) / tilt

    high, low = (min((bound(t), t) for t in TILTS), max((bound(-t), -t) for t in TILTS))
    first, last = math.floor(low[0]), math.ceil(high[0])
    outside = arb(0)
    for end, tilt in ((last, arb(high[1])), (first, arb(low[1]))):
        moments = (arb_poly(part.masses)(tilt.exp()) ** n for part, n in parts)
        outside += math.prod(moments, start=(-tilt * end).exp())
    return first, 2 ** math.ceil(math.log2(last - first + 1)), outside


def _log_sum(logs: NDArray[np.float64]) -> float:
    top = float(logs.max())
    return top + math.log(float(np.exp(logs - top).sum()))


def _convolved(parts: list[tuple[Losses, int]], first: int, points: int) -> list[arb]:
    """Masses of the sum at ``first`` and the points after it; what is outside wraps around."""
    product = [acb(1)] * points
    for part, n in parts:
        folded = [arb(0)] * points
        for k, mass in enumerate(part.masses):
            folded[k % points] += mass
        product = [a * b**n for a, b in zip(product, acb.dft(folded), strict=True)]
    turned = [one.real for one in acb.dft(product, inverse=True)]
    return turned[first % points :] + turned[: first % points]
