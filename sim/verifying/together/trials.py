"""Tested steps: what the worst test makes of a convex function of an output's densities.

``W(u, v) = u H(v / u)`` with H convex stands for what follows an output of densities u with the
record and v without it, or the other way round (``turned``). Before it, the worst test makes of it

    visible bit:        sup E W(a L u, a' v) + W((1 - A) u, (1 - A') v)
    hidden rejections:  sup E W(a L u / A, a' v / A'),

with E over proposals without the record, L their likelihood ratio, a and a' the probabilities of
acceptance and A, A' their means. Upper bounds on both at u = 1 are computed in floats, of which
each loses less than `LOST` of the number that others are subtracted from; that is added.
"""

import itertools
import math
from typing import NamedTuple

import numpy as np
from flint import arb
from numpy.typing import NDArray

from mechanisms.accounting import events
from sim.verifying.laws import Sampled, acceptance
from sim.verifying.moments import normal

Floats = NDArray[np.float64]

LOST = 1e-12
"""More than what floats lose, relatively: of a sum of some hundred terms, and of slopes, which are
known to the float at which a line begins."""
OUTCOME_REACH = 8.5
"""Standard deviations that outcomes which are told apart reach; one more has the rest."""
NEAR, FAR = 1 / 64, 0.015
"""Space between losses of outcomes: a share of a step's standard deviation, and of the loss."""
MAX_REACH = 1e100
"""What a rejection may move x by at most, of tests that hardly ever reject; floats have room."""
MAX_CELLS = 60
"""Cells of y over the largest A / A' at most."""
SLOPES, ASIDE = 4, 1.15
"""Slopes that are tried for each cell of y, and how many times the largest A / A' they reach."""
MAX_PASSES, CLOSE = 12, 1e-11
"""Passes of Newton's method at most, and the relative error at which it ends."""


class Trial(NamedTuple):
    """A proposal, the bounds and the rate of its test, and whether rejections are hidden."""

    proposal: Sampled
    lowest: arb
    highest: arb
    share: arb
    hidden: bool

    def worst(self, deviation: float, turned: bool) -> "Worst":
        """The worst tests, ``turned`` if the record is in the denominator."""
        return Worst(self, deviation, turned)


def tested(event: events.Event) -> Trial | None:
    """The trial that an event stands for, if it is a tested step of the kinds above."""
    match event:
        case events.DpsurStep(rate, noise, share) if event.accounting != "every-trial":
            hidden = event.accounting == "selective"
            return Trial(Sampled(rate, noise), *acceptance(event), arb(share), hidden)
        case events.ScreenedStep(rate, noise, share, lowest) if event.accounting == "clipped":
            if lowest > 0.0:
                return Trial(Sampled(rate, noise), arb(lowest), arb(1), arb(share), True)
    return None


class Curve:
    """H: convex, linear between points and 0 after the last one. The first point is 0. It is the
    sum of weights times ``max(0, 1 - x / point)`` of the others."""

    def __init__(self, points: Floats, values: Floats, weights: Floats) -> None:
        self.points, self.values, self.weights = points, values, weights
        self.slopes = np.append(-np.diff(values) / np.diff(points), 0.0)
        self.starts = values + self.slopes * points

    def at(self, x: Floats) -> Floats:
        return np.interp(x, self.points, self.values)


class Worst:
    """The worst tests of a trial, ``turned`` if the record is in the denominator."""

    def __init__(self, trial: Trial, deviation: float, turned: bool) -> None:
        """``deviation`` is roughly that of a step's loss."""
        self.hidden = trial.hidden
        ours, theirs = outcomes(trial.proposal, deviation)
        low, high, share = (float(one) for one in (trial.lowest, trial.highest, trial.share))
        corners = [((1.0 - share) * a + share * z, a) for a in (low, high) for z in (low, high)]
        if turned:
            ours, theirs, corners = theirs, ours, [(b, a) for a, b in corners]
        self.lowest, self.on, self.off = low, ours, theirs
        self.corners = np.array(corners).T[:, :, None]
        # no probability of acceptance with the record is further from the one without it
        noise = arb(trial.proposal.noise)
        apart = trial.proposal.rate * (2 * normal(1 / (2 * noise)) - 1) + trial.share
        apart = apart.min(arb(1)) * (trial.highest - trial.lowest)
        rest = trial.lowest if trial.hidden else 1 - trial.highest
        self.reach = min(float((1 + apart / rest).upper()) if rest > 0 else MAX_REACH, MAX_REACH)
        largest = _ratios(self.on, self.off).max() * _ratios(*self.corners).max()
        self.largest = math.log(max(1.0, largest * self.reach))
        """No loss is larger, but for outcomes beyond all that are told apart."""

    def before(self, curve: Curve, losses: Floats) -> Floats:
        """An upper bound on the largest value at v = exp(loss), for rising losses."""
        return (self._hidden if self.hidden else self._visible)(curve, losses)

    def _gains(self, curve: Curve, x: float) -> tuple[Floats, Floats, Floats]:
        """``W(a L, x a')``, ``a L`` and ``x a'``, of each corner and outcome."""
        on, off = self.corners[0] * self.on, self.corners[1] * self.off * x
        return on * curve.at(_ratios(off, on)), on, off

    def _visible(self, curve: Curve, losses: Floats) -> Floats:
        """A rejection is below a line of the curve that touches it where the rejection may be; with
        the line in its place the best test takes a corner at each outcome."""
        found = []
        for x in np.exp(losses).tolist():
            gains = self._gains(curve, x)[0]
            ends = (x / self.reach, x * self.reach)
            first, last = np.searchsorted(curve.points, ends, side="right") - 1
            starts, slopes = curve.starts[first : last + 1], curve.slopes[first : last + 1]
            lines = np.stack([np.ones(len(starts)), starts, -slopes * x], axis=1)
            left = (1.0 - self.corners[0]) * self.on, (1.0 - self.corners[1]) * self.off
            worth = _combined(lines, np.stack([gains, *left])).max(axis=1).sum(axis=1)
            found.append(float((worth + LOST * starts).max()))
        return np.array(found)

    def _hidden(self, curve: Curve, losses: Floats) -> Floats:
        """With y = x A / A' the value is E W(a L, y a') / A. It is at most b - g x for each test,
        if b and g are such that ``E max W(a L, y a') - b a L + g y a'`` is at most 0; and so it is
        for y between two points at which b and g are."""
        points, around = self._cells(curve, losses)
        ys, x = np.exp(points), np.exp(losses)
        slopes = self._slopes(curve, ys)
        best, before = np.zeros(len(x)), np.empty(0)
        for k in range(around, len(ys) - around):
            g = slopes[SLOPES * (k - around) : SLOPES * (k + around) + 1]
            b = self._starts(curve, float(ys[k]), g)
            if k > around:
                most = np.maximum(before[SLOPES:], b[:-SLOPES])[:, None]
                ends = (ys[k - 1] / self.reach, ys[k] * self.reach)
                first, last = np.searchsorted(x, ends)
                if first < last:
                    worth = (most - g[:-SLOPES, None] * x[first:last]).min(axis=0)
                    best[first:last] = np.maximum(best[first:last], worth)
            before = b
        return best

    def _cells(self, curve: Curve, losses: Floats) -> tuple[Floats, int]:
        """Logarithms of the points y, and how many there are on each side of those that matter, or
        of any for the slopes that are tried there."""
        wide = math.log(self.reach)
        space = max(math.log(curve.points[-1] / curve.points[-2]), wide / MAX_CELLS)
        around = math.ceil(ASIDE * wide / space) + 2
        dense = math.log(curve.points[-1]) + wide
        places, beyond = [-wide - (around + 1) * space], 0
        while beyond <= around:
            at = places[-1]
            places.append(at + (max(space, FAR * at) if at > dense else space))
            beyond += int(places[-1] >= losses[-1] + wide)
        return np.array(places), around

    def _slopes(self, curve: Curve, ys: Floats) -> Floats:
        """Slopes of what a step without a test makes of the curve; the best ones are near them."""
        ratios = _ratios(self.off, self.on)
        plain = np.array([float(self.on @ curve.at(y * ratios)) for y in ys.tolist()])
        slopes = -np.diff(plain) / np.diff(ys)
        places = np.arange(SLOPES * (len(ys) - 1) + 1) / SLOPES
        return np.maximum(np.interp(places, np.arange(len(slopes)) + 0.5, slopes), 0.0)

    def _starts(self, curve: Curve, y: float, g: Floats) -> Floats:
        """The least b for each g, by Newton's method; as a b that is too small by some number has a
        mean of at most that many times ``lowest``, the last one is raised by the rest."""
        gains, on, off = self._gains(curve, y)
        terms = np.stack([gains, on, off])
        b = gains.max(axis=0).sum() / float(self.corners.max()) + g * y
        for _ in range(MAX_PASSES):
            values = _combined(np.stack([np.ones(len(g)), -b, g], axis=1), terms)
            means = values.max(axis=1).sum(axis=1)
            enough = b + (np.maximum(means, 0.0) + LOST * b) / self.lowest
            if (np.abs(means) <= CLOSE * self.lowest * b).all():
                break
            corner = values.argmax(axis=1)
            b = b + means / np.take_along_axis(on, corner, axis=0).sum(axis=1)
        return enough


def _ratios(off: Floats, on: Floats) -> Floats:
    """Ratios of two masses; any number where the second is 0, as nothing is multiplied by it."""
    with np.errstate(over="ignore"):
        return np.minimum(np.divide(off, on, out=np.zeros_like(off), where=on > 0.0), MAX_REACH)


def _combined(factors: Floats, terms: Floats) -> Floats:
    """Sums of the terms ``[k, corners, outcomes]`` with rows of factors ``[n, k]``."""
    return (factors @ terms.reshape(len(terms), -1)).reshape(-1, *terms.shape[1:])


def outcomes(proposal: Sampled, deviation: float) -> tuple[Floats, Floats]:
    """Probabilities of some outcomes with the record and without it: the mass between two
    likelihood ratios is given to both, such that each distribution keeps its own."""
    first, last = (
        _loss(proposal, shift + side * OUTCOME_REACH * proposal.noise)
        for side, shift in ((-1.0, 0.0), (1.0, 1.0))
    )
    losses = [first + NEAR * deviation]
    while losses[-1] < last:
        losses.append(losses[-1] + NEAR * deviation + FAR * abs(losses[-1]))
    ratios = [1 - arb(proposal.rate), *(arb(loss).exp() for loss in losses)]
    up_to = [(arb(0), arb(0)), *(proposal.below(arb(loss)) for loss in losses)]
    theirs = [arb(0)] * len(ratios)
    for k, ((p, q), (r, s)) in enumerate(itertools.pairwise(up_to)):
        more, fewer, gap = r - p, s - q, ratios[k + 1] - ratios[k]
        theirs[k] += (ratios[k + 1] * fewer - more) / gap
        theirs[k + 1] += (more - ratios[k] * fewer) / gap
    rest = 1 - up_to[-1][1]
    theirs[-1] += rest
    ours = [ratio * mass for ratio, mass in zip(ratios, theirs, strict=True)]
    ours.append(1 - up_to[-1][0] - ratios[-1] * rest)
    theirs.append(arb(0))
    with_, without = (
        np.maximum(np.array([float(one.upper()) for one in side]), 0.0) for side in (ours, theirs)
    )
    return with_, without


def _loss(proposal: Sampled, y: float) -> float:
    """The loss of an outcome y."""
    q, s = proposal.rate, proposal.noise
    rest = math.log1p(-q) if q < 1.0 else -math.inf
    return float(np.logaddexp(rest, math.log(q) + (2.0 * y - 1.0) / (2.0 * s * s)))
