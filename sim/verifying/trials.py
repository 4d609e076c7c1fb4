"""Several trials in a row whose bit is public: the law of the worst tests that follow what was
released.

The largest hockey stick of n + 1 trials at x is the supremum over tests of

    E[a L H(x a' / (a L))] + (1 - A) H(x (1 - A') / (1 - A)),  H that of n trials.

Between two points H is below its chord c - g z. With it the second term is at most
``E[c (1 - a) L - g x (1 - a')]`` for some chord, whatever the test, and then the best test takes a
corner at each outcome. These sums are too many for balls: they are floats, of which each trial
loses less than `LOST`, which is added. What comes out is a table of floats, and from there on they
are exact numbers: the law whose hockey stick is their lower convex envelope.
"""

import bisect
import functools
import itertools
import math
from collections.abc import Callable
from typing import Any, NamedTuple, TypeGuard

import numpy as np
from flint import arb
from numpy.typing import NDArray

from mechanisms.accounting import events
from sim.verifying.laws import Law, Sampled, acceptance, laws
from sim.verifying.moments import normal

Floats = NDArray[np.float64]

TOGETHER = 16
"""Trials that are one step of a composition."""
LOST = 1e-12
"""At least what floats lose in a trial: of a sum of some hundred terms whose weights make up 1, and
of slopes, which are known to the float at which a chord begins."""
FINENESS, WIDTH = 0.1, 2.0
"""Space between losses around 0, in standard deviations of a trial's; and how many of those of all
trials it takes to grow."""
FAR = 10.0
"""Standard deviations of all trials, beyond the losses of one, that are looked at."""
WIDEST, MOST = 300.0, 1e100
"""Largest loss that is looked at, and what a rejection may move x by at most, of tests that hardly
ever reject; floats have room for both."""
OUTCOMES, REACH = 400, 11.0
"""Outcomes of a proposal that are told apart, and the standard deviations that they reach."""
CLOSE = 1e-3
"""Outcomes' losses are further apart than this, in standard deviations."""


class Trial(NamedTuple):
    """A proposal, and the bounds and the rate of its test."""

    proposal: Sampled
    lowest: arb
    highest: arb
    share: arb


def follows(event: events.Event) -> TypeGuard[events.DpsurStep]:
    """Whether it is a trial whose bit is public, and nothing else of a rejected one."""
    return isinstance(event, events.DpsurStep) and event.accounting == "visible"


def bounds(
    event: events.DpsurStep, count: int
) -> tuple[list[tuple[Law, int]], list[tuple[Law, int]]]:
    """Laws that so many trials dominate together, and laws that dominate them."""
    low, high = acceptance(event)
    proposal, share = Sampled(event.sample_rate, event.noise_multiplier), arb(event.validation_rate)
    trial = Trial(proposal, low, high, share)
    spread = _spread(*(laws(event) or ()))
    whole, rest = divmod(count, TOGETHER)
    parts = [(n, k) for n, k in ((TOGETHER, whole), (rest, 1)) if n and k]
    return [(OneTest(trial), count)], [(Together(trial, spread, n), k) for n, k in parts]


class OneTest:
    """The law of a trial whose test is the same in all trials, so that no worst test costs less: a
    record in its batch makes it reject what does not speak for the record."""

    def __init__(self, trial: Trial) -> None:
        self.proposal, self.often = trial.proposal, trial.highest
        self.less = 1 - trial.share * (1 - trial.lowest / trial.highest)
        self.against = self.proposal.below(arb(0))
        self.rejected = tuple(
            1 - self.often * (1 - (1 - factor) * mass)
            for factor, mass in zip((self.less, arb(1)), self.against, strict=True)
        )

    def below(self, loss: arb) -> tuple[arb, arb]:
        speaking = self.proposal.below(loss.max(0))
        against = self.proposal.below((loss - self.less.log()).min(0))
        told = (self.rejected[0] / self.rejected[1]).log()
        counted = arb(1) if loss >= told else arb(0) if loss < told else arb(0).union(1)
        ours, theirs = (
            self.often * (one - before + factor * other) + counted * rejection
            for one, before, other, factor, rejection in zip(
                speaking, self.against, against, (self.less, arb(1)), self.rejected, strict=True
            )
        )
        return ours, theirs

    def least(self) -> arb:
        return self.proposal.least()

    def ends(self) -> tuple[float, float]:
        low, high = self.proposal.ends()
        return low + float(self.less.log()), high

    def variance(self) -> float:
        return float(self.often) * self.proposal.variance()


class Together:
    """Several trials, one after the other."""

    def __init__(self, trial: Trial, spread: float, trials: int) -> None:
        """``spread`` is roughly the standard deviation of one trial's losses."""
        steps = _Steps(trial, spread, trials)
        values = np.maximum(1.0 - steps.points, 0.0)
        for _ in range(trials):
            # without the envelope what rounding bends would grow, where chords are continued
            kept = _envelope(steps.points, steps.earlier(values))
            values = np.interp(steps.points, *np.array(kept).T)
        kept = _envelope(steps.points, values, arb)
        self.points = [x for x, _ in kept]
        corners = [(arb(x), arb(v)) for x, v in kept]
        # what the numerator and the denominator have beyond a loss, from each point to the next
        self.theirs = [(v - w) / (y - x) for (x, v), (y, w) in itertools.pairwise(corners)]
        self.theirs.append(arb(0))
        self.ours = [v + g * x for (x, v), g in zip(corners, self.theirs, strict=True)]

    def below(self, loss: arb) -> tuple[arb, arb]:
        ratio = loss.exp()
        first, last = (
            max(0, bisect.bisect_right(self.points, float(end)) - 1)
            for end in (ratio.lower(), ratio.upper())
        )
        ours, theirs = (
            functools.reduce(arb.union, side[first : last + 1]) for side in (self.ours, self.theirs)
        )
        return 1 - ours, 1 - theirs

    def least(self) -> arb:
        return arb(self.points[1]).log()

    def ends(self) -> tuple[float, float]:
        return math.log(self.points[1]), math.log(self.points[-1])

    def variance(self) -> float:
        return _variance(np.log(self.points[1:]), -np.diff([float(one) for one in self.ours]))


def _variance(losses: Floats, masses: Floats) -> float:
    return float(np.cov(losses, aweights=np.maximum(masses, 0.0), ddof=0))


def _spread(alone: Law) -> float:
    """Roughly the standard deviation of one trial's losses."""
    far = max(map(abs, alone.ends()))
    side = np.geomspace(1e-6 * far, far, 150)
    losses = np.append(-side[::-1], side)
    masses = np.diff([float(alone.below(arb(loss))[0]) for loss in losses])
    return math.sqrt(_variance((losses[1:] + losses[:-1]) / 2.0, masses))


def _envelope(
    points: Floats, values: Floats, number: Callable[[float], Any] = float
) -> list[tuple[float, float]]:
    """The corners of the lower convex one: a convex function below the values is below it, too."""
    kept: list[tuple[float, float]] = []
    for x, v in zip(points.tolist(), values.tolist(), strict=True):
        while len(kept) > 1:
            (a, f), (b, g) = kept[-2:]
            if (number(g) - f) * (number(x) - a) < (number(v) - f) * (number(b) - a):
                break
            kept.pop()
        kept.append((x, v))
    return kept


def _outcomes(proposal: Sampled, apart: float) -> tuple[Floats, Floats, float]:
    """Likelihood ratios, probabilities of each without the record, and with it beyond them: the
    mass between two ratios is given to both, such that each distribution keeps its own."""
    low, high = (side * REACH * proposal.noise for side in (-1.0, 1.0))
    tried = _logs(proposal, np.linspace(low, 1.0 + high, OUTCOMES))
    losses, apart = tried[:1], min(apart, (tried[-1] - tried[0]) / OUTCOMES)
    for loss in tried:
        if loss > losses[-1] + apart:
            losses.append(loss)
    ratios = [1 - arb(proposal.rate), *(arb(loss).exp() for loss in losses)]
    up_to = [(arb(0), arb(0)), *(proposal.below(arb(loss)) for loss in losses)]
    weights = [arb(0)] * len(ratios)
    for k, ((p, q), (r, s)) in enumerate(itertools.pairwise(up_to)):
        ours, theirs, gap = r - p, s - q, ratios[k + 1] - ratios[k]
        weights[k] += (ratios[k + 1] * theirs - ours) / gap
        weights[k + 1] += (ours - ratios[k] * theirs) / gap
    ours, theirs = (1 - one for one in up_to[-1])
    weights[-1] += theirs
    as_floats = ([float(one.upper()) for one in each] for each in (ratios, weights))
    first, second = (np.maximum(np.array(each), 0.0) for each in as_floats)
    return first, second, float((ours - ratios[-1] * theirs).upper())


def _logs(proposal: Sampled, y: Floats) -> list[float]:
    """Losses of outcomes."""
    q, s = proposal.rate, proposal.noise
    return np.log(1.0 - q + q * np.exp((2.0 * y - 1.0) / (2.0 * s * s)) + 1e-300).tolist()


class _Steps:
    """Hockey sticks at points x, of which the first one is 0."""

    def __init__(self, trial: Trial, spread: float, trials: int) -> None:
        proposal, (low, high, share) = trial.proposal, (float(one.mid()) for one in trial[1:])
        self.ratios, self.weights, self.beyond = _outcomes(proposal, CLOSE * spread)
        # no probability of rejection with the record is further from the one without it
        apart = proposal.rate * (2 * normal(1 / (2 * arb(proposal.noise))) - 1) + trial.share
        self.reach, never = MOST, 1 - trial.highest
        if never > 0:
            moved = 1 + (trial.highest - trial.lowest) * apart.min(1) / never
            self.reach = min(float(moved.upper()), MOST)
        deviation = math.sqrt(trials) * spread
        told = math.log(self.reach * self.ratios[-1] * high / max(low, 1 / MOST))
        far = min(FAR * deviation + told, WIDEST)
        width, space = WIDTH * deviation, FINENESS * spread
        places = np.arange(math.ceil(width * math.asinh(far / width) / space) + 1)
        side = width * np.sinh(places * space / width)
        self.points = np.array([0.0, *np.exp(-side[:0:-1]), *np.exp(side)])
        corners = [((1.0 - share) * a + share * z, a) for a in (low, high) for z in (low, high)]
        x = self.points[:, None]
        self.accepted = [(a * self.ratios, b * x) for a, b in corners]
        with np.errstate(divide="ignore", invalid="ignore"):  # if all records are in each sum
            self.at = [np.nan_to_num(b / a) for a, b in self.accepted]
        self.rejected = [((1.0 - a) * self.ratios, (1.0 - b) * x) for a, b in corners]

    def earlier(self, values: Floats) -> Floats:
        """Of one trial more."""
        points = self.points
        slopes = np.append(np.diff(values) / np.diff(points), 0.0)
        starts = values - slopes * points
        gains = [
            a * np.interp(at, points, values)
            for (a, _), at in zip(self.accepted, self.at, strict=True)
        ]
        first = np.searchsorted(points, points / self.reach, side="right") - 1
        last = np.searchsorted(points, points * self.reach, side="right") - 1
        best = np.zeros(len(points))
        chords = int((last - first).max()) + 1
        for k in range(chords):
            chord = np.minimum(first + k, last)
            start, slope = starts[chord][:, None], slopes[chord][:, None]
            worth = [
                gain + start * a + slope * b
                for gain, (a, b) in zip(gains, self.rejected, strict=True)
            ]
            best = np.maximum(best, np.max(worth, axis=0) @ self.weights)
        return np.append(1.0, np.minimum(best + self.beyond + (1 + 1e-3 * chords) * LOST, 1.0)[1:])
