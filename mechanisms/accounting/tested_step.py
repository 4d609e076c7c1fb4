"""The most that a tested step can make of a function of the loss.

W is convex and homogeneous, ``W(u, v) = u H(v / u)``: what later releases make of an output with
densities u and v. Before it a step makes of (1, x), with the names of docs/theory, section 2,

    E W(a L, x a') + W(1 - A, x (1 - A'))  if rejections are seen,
    E W(a L / A, x a' / A')                if they are hidden,

at most, over all tests. H is the profile of a pair of finitely many losses, linear between them, so
that W is the largest of a few lines ``c u - g v``.

- If rejections are seen: for each line in the second term the best test takes a corner at each
  outcome.
- If they are hidden: with y = x A / A' it is ``E W(a L, y a') / A``, at most ``b - g x`` for
  numbers b and g with which no test makes the mean of ``W(a L, y a') - b a L + g y a'`` positive.
  As W is convex, between two values of y the larger of both bounds holds, for the same g.

Every number is an upper bound (docs/theory, Theorem 28): what floats lose is added.
"""

import functools
import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from mechanisms.accounting import profile
from mechanisms.accounting.acceptance import Acceptance
from mechanisms.accounting.finite import Finite
from mechanisms.accounting.selective import MAX_UNEVEN

Floats = NDArray[np.float64]

OUTCOMES, REACH = 200, (8.0, 11.0)
"""Outcomes of a proposal, and how many standard deviations they reach below 0 and above 1."""
CLOSEST, MIN_GAP = 1 / 20, 1e-12
"""Outcomes' losses are as far apart as is asked for, or as this share of their range if that is
less; and by this at least, for floats."""
CANCELLED = 1e-13
"""Bound on what rounding takes from a mean over outcomes, relative to its terms."""
STRIDE, WINDOW = 2, 16
"""Values of g for each point, and how many points' worth of them are tried on either side."""
SETTLING = 10
"""Passes of Newton's method for the first b of a point; each next one starts where the last one
ended, and takes one."""
BLOCK = 64
"""Points that are looked at together: the numbers of more of them leave a core's cache."""
GROWTH = 0.05
"""Spaces between points far away, relative to their distance."""


class Trial(NamedTuple):
    """A proposal from SGM(rate, noise), its test, and whether its rejections are hidden."""

    rate: float
    noise: float
    test: Acceptance
    hidden: bool

    def largest_loss(self) -> float:
        """An upper bound on the loss of an outcome that counts, in either direction; infinite where
        hidden tests are too far apart for floats."""
        if self.hidden and self.test.highest >= MAX_UNEVEN * self.test.lowest:
            return math.inf
        ends = -REACH[0] * self.noise, 1.0 + REACH[1] * self.noise
        proposed = max(abs(float(profile.loss(y, self.rate, self.noise))) for y in ends)
        ratio = self.test.highest / max(self.test.lowest, profile.TINY)
        return proposed + math.log1p(self.test.rate * (ratio - 1.0)) + math.log(self.moved())

    def moved(self) -> float:
        """How far the mean probabilities of an answer, with and without the record, can be apart:
        of "rejected", or of "accepted" where the other one is hidden."""
        low, high, rate = self.test.lowest, self.test.highest, self.test.rate
        apart = self.rate * float(2.0 * ndtr(0.5 / self.noise) - 1.0) + rate
        least = max(low if self.hidden else 1.0 - high, profile.TINY)
        return 1.0 + (high - low) * min(1.0, apart) / least

    def before(self, after: Finite, adding: bool) -> "Before":
        """What a step makes of losses on a lattice."""
        return Before(self, after, adding, (after.losses[1] - after.losses[0]) / 2.0)


class Outcomes(NamedTuple):
    """Likelihood ratios of a proposal with the record to one without it, rising; their
    probabilities without it; at least what the former has beyond all of them; and a bound on the
    relative error of the probabilities."""

    ratios: Floats
    weights: Floats
    beyond: float
    error: float


def outcomes(q: float, s: float, closest: float) -> Outcomes:
    """Outcomes that stand for all of SGM(q, s). The mass between two of them is given to both such
    that both laws keep it, which lowers no mean of a convex function."""
    y = np.append(-np.inf, np.linspace(-REACH[0] * s, 1.0 + REACH[1] * s, OUTCOMES))
    with np.errstate(divide="ignore"):
        losses, kept = np.append(np.log1p(-q), profile.loss(y[1:], q, s)), [0]
    # proposals may say much less than tests
    closest = max(min(closest, CLOSEST * float(losses[-1] - losses[1])), MIN_GAP)
    for k in range(1, len(y)):
        if losses[k] >= losses[kept[-1]] + closest:
            kept.append(k)
    y, ratios = y[kept], np.append(1.0 - q, np.exp(losses[kept[1:]]))
    below, record = (ndtr(y / s), ndtr(-y / s)), (ndtr((y - 1.0) / s), ndtr((1.0 - y) / s))
    absent, present = (
        np.where(up_to[1:] < 0.5, np.diff(up_to), -np.diff(above))
        for up_to, above in (below, record)
    )
    present = (1.0 - q) * absent + q * present
    gaps = np.diff(ratios)
    upper = np.maximum(present - ratios[:-1] * absent, 0.0) / gaps
    lower = np.maximum(ratios[1:] * absent - present, 0.0) / gaps
    last, with_record = float(below[1][-1]), float(record[1][-1])  # above the last ratio
    weights = np.append(lower, last) + np.append(0.0, upper)
    unit = 8.0 * np.finfo(np.float64).eps
    above = (1.0 - q) * last + q * with_record
    beyond = max(0.0, above - float(ratios[-1]) * last) + unit * above
    return Outcomes(ratios, weights, beyond, unit * float((ratios[1:] / gaps).max(initial=1.0)))


class Before:
    """What a step makes of W, if the record is in P or, ``adding``, in Q."""

    def __init__(self, step: Trial, after: Finite, adding: bool, closest: float) -> None:
        found = outcomes(step.rate, step.noise, closest)
        masses = found.ratios * found.weights, found.weights
        self.masses = masses[::-1] if adding else masses
        self.corners = [pair if adding else pair[::-1] for pair in step.test.corners]
        self.low, self.hidden = step.test.lowest, step.hidden
        self.beyond, self.error = found.beyond, found.error + CANCELLED
        self.moved = step.moved()
        # where H bends, and what it has there beyond max(0, 1 - x)
        self.bends, self.excess = after.corners()

    def at(self, x: Floats) -> Floats:
        """The excess over ``max(0, 1 - x)`` at rising values from 1 on, of which the first two are
        as close as any."""
        if self.hidden:
            return self._hidden(x)
        return np.concatenate([self._seen(x[rows]) for rows in _parts(len(x))])

    def _worth(self, ours: Floats, theirs: Floats) -> Floats:
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = np.nan_to_num(theirs / ours, nan=0.0)
        return ours * np.interp(ratio, self.bends, self.excess) + np.maximum(ours - theirs, 0.0)

    def _terms(self, x: Floats) -> list[tuple[Floats, Floats, Floats]]:
        """For each corner ``W(a L, x a')``, ``a L`` and ``x a'`` at each outcome, times its
        probability; ``[len(x), outcomes]``, or without ``len(x)``."""
        found = []
        for a, b in self.corners:
            ours, theirs = a * self.masses[0], b * x[:, None] * self.masses[1]
            found.append((self._worth(ours, theirs), ours, theirs))
        return found

    def _lost(self, size: Floats, gx: Floats) -> Floats:
        """Bound on what rounding, and outcomes beyond all others, take from a mean of ``W - c u + g
        v``, whose terms add up to ``size`` at most."""
        return self.error * size + self.beyond * (1.0 + gx)

    def _seen(self, x: Floats) -> Floats:
        terms = self._terms(x)
        values = self.excess + np.maximum(0.0, 1.0 - self.bends)
        falls = np.append(-np.diff(values) / np.diff(self.bends), 0.0)
        starts = values + falls * self.bends
        first, last = (
            np.searchsorted(self.bends, end, side="right") - 1
            for end in (x / self.moved, x * self.moved)
        )
        most = np.zeros(len(x))
        for k in range(int((last - first).max()) + 1):
            line = np.minimum(first + k, last)
            c, g = starts[line], falls[line]
            nets = (worth - c[:, None] * u + g[:, None] * v for worth, u, v in terms)
            best = functools.reduce(np.maximum, nets).sum(axis=1)
            found = c - g * x + best
            most = np.maximum(most, found + self._lost(found + 2.0 * (c + g * x), g * x))
        return most

    def _hidden(self, x: Floats) -> Floats:
        space, before = x[1] / x[0], [1]
        while space ** before[-1] < self.moved:
            before.append(before[-1] + max(1, int(GROWTH * before[-1])))
        below = x[0] / space ** np.array(before[::-1])
        y = np.concatenate([below, x, [x[-1] * space * self.moved]])
        bounds, falls = self._tangents(y)
        first = np.maximum(np.searchsorted(y, x / self.moved, side="right") - 1, 0)
        last = np.maximum(np.searchsorted(y, x * self.moved, side="left") - 1, first)
        most = np.zeros(len(x))
        for k in range(int((last - first).max()) + 1):
            cell = np.minimum(first + k, last)
            larger = np.maximum(bounds[cell, STRIDE:], bounds[cell + 1, :-STRIDE])
            least = (larger - falls[cell, STRIDE:] * x[:, None]).min(axis=1)
            most = np.maximum(most, least)
        return most

    def _tangents(self, y: Floats) -> tuple[Floats, Floats]:
        """Values of b and g ``[len(y), tried]``: those of a point and of the next one have the same
        g, `STRIDE` places apart."""
        # g is near the slope of what the proposal alone makes of W
        alone = self._worth(self.masses[0], y[:, None] * self.masses[1]).sum(axis=1)
        slopes = -np.diff(alone) / np.diff(y)
        tried = np.arange(-WINDOW * STRIDE, WINDOW * STRIDE + 1) / STRIDE
        places = np.arange(len(y))[:, None] + tried
        falls = np.interp(places, np.arange(len(slopes)) + 0.5, slopes)
        bounds = np.empty_like(falls)
        for rows in _parts(len(y)):
            bounds[rows] = self._bounds(y[rows], falls[rows], alone[rows])
        return bounds, falls

    def _bounds(self, y: Floats, falls: Floats, b: Floats) -> Floats:
        """Values of b for those of g; the first one of each point is sought from ``b`` on."""
        terms, bounds, before = self._terms(y), np.empty_like(falls), np.zeros(len(y))
        for k, g in enumerate(falls.T):
            paid = [(worth + g[:, None] * v, u) for worth, u, v in terms]
            b = b + (g - before) * y
            for _ in range(1 if k else SETTLING):
                over, accepted = _over(paid, b)
                b = b + over / accepted
            over = np.maximum(_over(paid, b)[0], 0.0)
            # A is at least the lowest probability
            bounds[:, k] = b + (over + self._lost(2.0 * b + g * y, g * y)) / self.low
            before = g
        return bounds


def _parts(points: int) -> Iterator[slice]:
    return (slice(start, start + BLOCK) for start in range(0, points, BLOCK))


def _over(paid: list[tuple[Floats, Floats]], b: Floats) -> tuple[Floats, Floats]:
    """The mean of the largest ``W - b u + g v``, and A of the test that attains it; each
    ``[len(b)]``."""
    (one, u), *others = paid
    best = one - b[:, None] * u
    accepted, net, more = np.tile(u, (len(b), 1)), np.empty_like(best), np.empty_like(best, bool)
    for one, u in others:
        np.subtract(one, np.multiply(b[:, None], u, out=net), out=net)
        np.copyto(accepted, u, where=np.greater(net, best, out=more))
        np.maximum(net, best, out=best)
    return best.sum(axis=1), accepted.sum(axis=1)
