"""Several trials with a public bit in a row, as one pair of distributions.

A profile of one trial lets every trial have the worst test for the loss that is looked at. What
tests can really do is to follow what was released so far. With H_n the largest profile of n trials,

    H_(n+1)(x) = sup E[a L H_n(x a' / (a L))] + (1 - A) H_n(x (1 - A') / (1 - A))

over all tests (docs/theory, Theorem 28; the names are those of `visible`). H_n is replaced by
chords between the points of a grid, which lie above it as it is convex. The last term is then the
largest of the chords' lines c - g z, and for one of them the best test takes a corner at each
outcome:

    c - g x + E max over corners of (a L H_n(x a' / (a L)) - c a L + g x a').

Outcomes are put together to a few likelihood ratios such that both laws keep their masses, which no
convex function has a smaller mean for. Kept is what H_n has beyond ``max(0, 1 - x)``, which has all
its digits where it is small. Every number is an upper bound: what floats lose is added.
"""

import functools
import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from mechanisms.accounting import profile
from mechanisms.accounting.acceptance import Acceptance
from mechanisms.accounting.events import DpsurStep

Floats = NDArray[np.float64]

TRIALS = 16
"""Most trials that are taken together: 32 would gain another part in a thousand of epsilon."""
SPREAD = 2_000
"""Losses that a trial's standard deviation is estimated from."""
FINENESS, LEAST_SPACING = 1 / 6, 1e-9
"""Spacing of losses around 0, in standard deviations of a trial's; and the least one, for their
exponentials to differ."""
NEAR, GROWTH = 3.0, 0.05
"""Up to so many standard deviations of a block's losses they are spaced evenly; beyond, each space
is longer by this share of what was passed since."""
FAR = 10.0
"""Standard deviations of a block's losses that are looked at, beyond the largest of a trial."""
OUTCOMES, REACH = 200, (8.0, 11.0)
"""Outcomes of a proposal, and how many standard deviations they reach below 0 and above 1."""
CLOSEST, LEAST_GAP = 1 / 20, 1e-12
"""Least distance of two outcomes' losses, over the spacing of losses, or over the range of theirs
if that is less; and the least one for floats."""
MARGIN = 1e-9
"""Relative bound on what rounding takes from a profile's excess in one trial."""
CANCELLED = 1e-13
"""Bound on what it takes from a line and from the mean of some hundred outcomes, relative to the
line's terms."""
ROUNDING = 1e-12
"""Of the value of a profile between two points."""


class Block(NamedTuple):
    """The pair of so many trials of one kind, from 1 to `TRIALS`, as `profile.Dominating`."""

    event: DpsurStep
    single: profile.Pair
    trials: int

    @property
    def noises(self) -> set[float]:
        return self.single.noises

    def excess(self, losses: Floats, adding: bool) -> tuple[Floats, Floats]:
        found = _induction(self.event, self.single)[self.trials - 1]
        points = np.append(0.0, np.exp(_grid(self.single)))
        # in the other direction it is x H(1 / x); chords stay chords
        ratios = np.exp(-losses if adding else losses)
        value = np.interp(ratios, points, np.append(0.0, found))
        if adding:
            value = np.exp(losses) * value
        return value, ROUNDING * value

    def span(self, reach: float, adding: bool) -> tuple[float, float]:
        grid = _grid(self.single)
        return float(grid[0]), float(grid[-1])

    def variance(self, adding: bool) -> float:
        return self.trials * self.single.variance(adding)


def split(event: DpsurStep, single: profile.Pair, trials: int) -> dict[profile.Dominating, int]:
    """Blocks of so many trials together."""
    whole, rest = divmod(trials, TRIALS)
    return {Block(event, single, n): k for n, k in ((TRIALS, whole), (rest, 1)) if n and k}


@functools.lru_cache(maxsize=1_000)
def _induction(event: DpsurStep, single: profile.Pair) -> list[Floats]:
    """What the profiles of 1 to `TRIALS` trials have beyond ``max(0, 1 - x)`` at the losses of
    `_grid`, with the record in P."""
    grid = _grid(single)
    excess, error = single.excess(grid, False)
    found = [excess + error]
    trial = _Trial(event, grid)
    for _ in range(TRIALS - 1):
        found.append(trial.before(found[-1]))
    return found


@functools.lru_cache(maxsize=1_000)
def _grid(single: profile.Pair) -> Floats:
    """Losses on both sides of 0, closest around it."""
    losses = np.linspace(*single.span(REACH[0], False), SPREAD)
    # the integral of the excess is E_P log(P / Q), which is about half of the variance
    spread = math.sqrt(2.0 * float(np.trapezoid(single.excess(losses, False)[0], losses)))
    deviation, spacing = math.sqrt(TRIALS) * spread, max(FINENESS * spread, LEAST_SPACING)
    far = FAR * deviation + max(map(abs, single.span(REACH[0], False)))
    found = [0.0, spacing]
    while found[-1] < far:
        found.append(found[-1] + spacing + GROWTH * max(0.0, found[-1] - NEAR * deviation))
    return np.array([*(-loss for loss in found[:0:-1]), *found])


class _Outcomes(NamedTuple):
    """Likelihood ratios of a proposal with the record to one without it, rising; their
    probabilities without it; and at least what the former has beyond all of them."""

    ratios: Floats
    weights: Floats
    beyond: float


def _outcomes(event: DpsurStep, closest: float) -> _Outcomes:
    """Of the proposal; the mass between two of them is given to both, such that both laws keep
    it."""
    q, s = event.sample_rate, event.noise_multiplier
    y = np.append(-np.inf, np.linspace(-REACH[0] * s, 1.0 + REACH[1] * s, OUTCOMES))
    with np.errstate(divide="ignore"):
        losses, kept = np.append(np.log1p(-q), profile.loss(y[1:], q, s)), [0]
    # proposals may say much less than tests
    closest = max(min(closest, CLOSEST * float(losses[-1] - losses[1])), LEAST_GAP)
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
    lost = unit * float((ratios[1:] / gaps).max(initial=0.0))
    above = (1.0 - q) * last + q * with_record
    beyond = max(0.0, above - float(ratios[-1]) * last) + unit * above
    return _Outcomes(ratios, (1.0 + lost) * weights, beyond)


class _Trial:
    """One trial before others, on a grid of losses."""

    def __init__(self, event: DpsurStep, grid: Floats) -> None:
        test = Acceptance.of_noisy_loss(event.validation_rate, event.validation_noise, event.beta)
        low, high, share = test.lowest, test.highest, test.rate
        self.outcomes = _outcomes(event, CLOSEST * float(np.diff(grid).min()))
        self.highest, self.x = high, np.exp(grid)
        self.points = np.append(0.0, self.x)
        # what a rejection can move x by, and the chords that it can reach, by their left ends
        apart = event.sample_rate * float(2.0 * ndtr(0.5 / event.noise_multiplier) - 1.0) + share
        moved = 1.0 + (high - low) * min(1.0, apart) / (1.0 - high) if high < 1.0 else math.inf
        self.first = np.searchsorted(self.points, self.x / moved, side="right") - 1
        self.last = np.searchsorted(self.points, self.x * moved, side="right") - 1
        # a L and x a'; the corner (low, low) is worth less than (high, high), or less than nothing
        self.terms = [
            (((1.0 - share) * a + share * z) * self.outcomes.ratios, a * self.x[:, None])
            for a, z in ((low, high), (high, low), (high, high))
        ]
        self.below = [np.maximum(ours - theirs, 0.0) for ours, theirs in self.terms]
        self.above = [np.maximum(theirs - ours, 0.0) for ours, theirs in self.terms]
        self.ratios = [
            np.minimum(
                np.divide(theirs, ours, out=np.full_like(ours + theirs, np.inf), where=ours > 0.0),
                self.x[-1],
            )
            for ours, theirs in self.terms
        ]
        self.cells = [np.searchsorted(self.points, r, side="right") - 1 for r in self.ratios]

    def before(self, excess: Floats) -> Floats:
        """The excess of one trial more."""
        table = np.append(0.0, excess)
        slopes = np.append(np.diff(table) / np.diff(self.points), 0.0)
        offsets = table - slopes * self.points
        gains = [
            ours * (offsets[cell] + slopes[cell] * ratio)
            for (ours, _), cell, ratio in zip(self.terms, self.cells, self.ratios, strict=True)
        ]
        under = [gain + more for gain, more in zip(gains, self.above, strict=True)]
        over = [gain + more for gain, more in zip(gains, self.below, strict=True)]
        most = np.zeros(len(excess))
        for k in range(int((self.last - self.first).max()) + 1):
            chord = np.minimum(self.first + k, self.last)
            line = offsets[chord], -slopes[chord], self.points[chord] < 1.0
            most = np.maximum(most, self._rejected(*line, under, over))
        raised = (1.0 + MARGIN) * (most + self.highest * self.outcomes.beyond)
        one = len(raised) // 2  # where x is 1, and the profile of equal distributions has its bend
        sides = (self.x[: one + 1], raised[: one + 1]), (self.x[one:], raised[one:])
        below, above = (_envelope(*side) for side in sides)
        return np.append(below, above[1:])

    def _rejected(
        self,
        start: Floats,
        fall: Floats,
        below: NDArray[np.bool_],
        under: list[Floats],
        over: list[Floats],
    ) -> Floats:
        """The excess of the best test at each x, if a rejection counts by the line ``start - fall
        z``: of the profile itself, or of its excess over ``1 - z`` where it lies ``below`` 1."""
        best = np.zeros(under[0].shape)
        for (ours, theirs), one, other in zip(self.terms, under, over, strict=True):
            gain = np.where(below[:, None], one, other)
            np.maximum(best, gain - start[:, None] * ours + fall[:, None] * theirs, out=best)
        across = np.maximum(np.where(below, self.x - 1.0, 1.0 - self.x), 0.0)
        lost = CANCELLED * (np.abs(start) + np.abs(fall) * self.x + across)
        return np.asarray(start - fall * self.x - across + best @ self.outcomes.weights + lost)


def _envelope(x: Floats, values: Floats) -> Floats:
    """The lower convex envelope: what bounds a convex function still does. Without it what rounding
    bends would grow from trial to trial, as lines reach beyond the points that they connect."""
    kept = [(float(x[0]), float(values[0]))]
    for at, value in zip(x[1:].tolist(), values[1:].tolist(), strict=True):
        while len(kept) > 1:
            (a, f), (b, g) = kept[-2:]
            if (g - f) * (at - a) < (value - f) * (b - a):
                break
            kept.pop()
        kept.append((at, value))
    return np.interp(x, *np.array(kept).T)
