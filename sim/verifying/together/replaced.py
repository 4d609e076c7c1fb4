"""A batch of a fixed size: what any client makes of a convex function of an output's densities.

With the record an output is from a batch with it, at y, or from one with another record in its
place, at x; without it, from a batch at 0 or at x; |x|, |y| <= 1. Let D be the distance of x and y.
For k >= 1 the mean of ``max(0, P - k Q)`` is at most that of y = 1 and x = 1 - D, which grows with
D, and that of ``max(0, Q - k P)`` at most that of unit vectors at a distance of D, which falls
(Kahane's inequality). So both ends of an interval of D bound what its clients make, and a curve
that is linear between points is a sum of such hockey sticks. In floats, of which each loses less
than `LOST` of what others are subtracted from.
"""

import functools
import math
from typing import NamedTuple

import numpy as np
from scipy.special import ndtr

from mechanisms.accounting import events
from sim.verifying.fixed_batch import Fixed
from sim.verifying.together.trials import LOST, Curve, Floats

INTERVALS = 40
"""Intervals of D, at equal angles."""
HALVINGS = 60
"""Halvings of the interval that has the point from which on P exceeds k Q."""
CELLS, ENDS = 160, 9.0
"""Cells of the direction from x to y, and the standard deviations that they reach."""
REACH = 8.5
"""Standard deviations of the outcomes whose losses are looked at."""


class Replaced(NamedTuple):
    """A step with its sampling rate and its noise multiplier."""

    rate: float
    noise: float

    @property
    def hidden(self) -> bool:
        """Nothing is rejected."""
        return False

    def worst(self, deviation: float, turned: bool) -> "Worst":
        """The worst clients, ``turned`` if the record is in the denominator."""
        return Worst(self, turned)


def replaced(event: events.Event) -> Replaced | None:
    """The step that an event stands for, if its batches have a fixed size and are not all."""
    match event:
        case events.FixedBatchGaussian(batch, records, noise) if batch < records:
            return Replaced(Fixed.of(batch, records, noise).rate, noise)
    return None


class Worst:
    """The worst clients, for a curve whose points are a lattice of losses."""

    def __init__(self, step: Replaced, turned: bool) -> None:
        self.step, self.turned = step, turned
        y = 1.0 + REACH * step.noise
        densities = (-0.5 * ((y - mean) / step.noise) ** 2 for mean in (-1.0, 0.0, 1.0))
        other, absent, present = (float(one) for one in densities)
        odds = math.log((1.0 - step.rate) / step.rate)
        self.largest = float(np.logaddexp(odds + other, present))
        self.largest -= float(np.logaddexp(odds + other, absent))
        """No loss is larger, but for outcomes beyond all that are looked at."""

    def before(self, curve: Curve, losses: Floats) -> Floats:
        """An upper bound on the largest value at v = exp(loss), for rising lattice losses."""
        last = len(curve.weights) // 2
        space = math.log(curve.points[-1]) / last
        k = np.exp(space * np.arange(2 * last + 1))
        above, below = _sides(self.step, space, last)[:: -1 if self.turned else 1]
        sticks = np.hstack([below[:, :0:-1] / k[:0:-1], above])
        found = []
        for place in np.rint(losses / space).astype(int).tolist():
            moved = space * (place - np.arange(-last, last + 1))
            if place <= last:
                here = sticks[:, place + last : place + 3 * last + 1][:, ::-1]
                worth = float((here @ curve.weights).max())
                worth += float(np.maximum(0.0, -np.expm1(moved)) @ curve.weights)
            else:  # all of them are those of one direction
                far, distance = (_alike, 0.0) if self.turned else (_apart, 2.0)
                worth = float(far(self.step, distance, np.exp(moved)) @ curve.weights)
            found.append(worth * (1.0 + LOST))
        return np.array(found)


@functools.lru_cache(maxsize=2)
def _sides(step: Replaced, space: float, last: int) -> tuple[Floats, Floats]:
    """Bounds on the means of ``max(0, P - k Q)`` and ``max(0, Q - k P)`` for each interval of D, at
    the lattice's points from 1 on."""
    k = np.exp(space * np.arange(2 * last + 1))
    distances = (2.0 * np.sin(math.pi / 2.0 * np.linspace(0.0, 1.0, INTERVALS + 1))).tolist()
    apart = [_apart(step, most, k) for most in distances[1:]]
    return np.array(apart), np.array([_alike(step, least, k) for least in distances[:-1]])


def _apart(step: Replaced, distance: float, k: Floats) -> Floats:
    """On a line: P exceeds k Q from some point on, which lies between two floats."""
    q, s, x = *step, 1.0 - distance
    odds = math.log((1.0 - q) / q)
    low = np.full_like(k, 0.5)
    high = 1.0 + s**2 / min(distance, 1.0) * (np.log(2.0 * k) - math.log(q))
    for _ in range(HALVINGS):
        y = (low + high) / 2.0
        other, absent, present = (-0.5 * ((y - mean) / s) ** 2 for mean in (x, 0.0, 1.0))
        more = np.logaddexp(odds + other, present) >= np.log(k) + np.logaddexp(odds + other, absent)
        low, high = np.where(more, low, y), np.where(more, y, high)
    ours, theirs = (
        (1.0 - q) * ndtr((x - start) / s) + q * ndtr((mean - start) / s)
        for mean, start in ((1.0, low), (0.0, high))
    )
    return np.maximum(ours - k * theirs, 0.0) + LOST * ours


def _alike(step: Replaced, distance: float, k: Floats) -> Floats:
    """``Q - k P`` is q of ``N(0) - (k - 1) (1 - q) / q N(x) - k N(y)``. The last two have a factor
    in common along x + y, times Z, a mixture along x - y: in each cell Z has a law of its two ends
    with the same mean, of which a convex function makes more."""
    q, s = step
    across, along = distance / 2.0 / s, math.sqrt(1.0 - distance**2 / 4.0) / s
    shares = [((k - 1.0) * (1.0 - q) / q)[:, None], k[:, None]]
    edges = np.linspace(-ENDS, ENDS, CELLS + 1)
    tilts = [np.exp(side * across * edges - across**2 / 2.0) for side in (1.0, -1.0)]
    z = shares[0] * tilts[0] + shares[1] * tilts[1]
    high = np.maximum(z[:, 1:], z[:, :-1])
    low = np.minimum(z[:, 1:], z[:, :-1])
    # the mixture is least where both parts are equal
    turn = shares[0] * tilts[0] - shares[1] * tilts[1]
    least = 2.0 * np.sqrt(shares[0] * shares[1]) * math.exp(-(across**2) / 2.0)
    low = np.where((turn[:, :-1] < 0.0) & (turn[:, 1:] > 0.0), np.minimum(least, low), low)
    mass = _between(edges)
    means = [_between(edges - side * across) for side in (1.0, -1.0)]
    mean = shares[0] * means[0] + shares[1] * means[1]
    gap = high - low
    upper = np.divide(mean - low * mass, gap, out=np.zeros_like(gap), where=gap > LOST * high)
    upper = np.clip(upper, 0.0, mass)
    worth = (mass - upper) * _kept(low, along) + upper * _kept(high, along)
    rest = 2.0 * float(ndtr(-ENDS))
    return np.asarray(q * (worth.sum(axis=1) + rest))


def _between(edges: Floats) -> Floats:
    """Masses of a normal variable between neighbours; small ones on either side keep digits."""
    up, down = np.diff(ndtr(edges)), -np.diff(ndtr(-edges))
    return np.where(edges[:-1] < 0.0, up, down)


def _kept(z: Floats, a: float) -> Floats:
    """The mean of ``max(0, 1 - z exp(a h - a^2 / 2))`` of a normal h, at most."""
    t = a / 2.0 - np.log(z) / a
    here, there = ndtr(t), z * ndtr(t - a)
    return np.asarray(np.maximum(here - there, 0.0) + LOST * here)
