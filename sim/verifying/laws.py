"""The privacy loss of one application of an event in the worst case, as balls.

A law says how much of the numerator and of the denominator has a loss of at most some number, with
the record in the numerator; the other direction is the same pair turned round. Whatever a test may
do, its worst case is the supremum of ``P(S) - exp(loss) Q(S)``, which is a pair's for each loss.
"""

import itertools
import math
from typing import NamedTuple, Protocol

import numpy as np
from flint import arb

from mechanisms.accounting import events
from sim.verifying.fixed_batch import Fixed
from sim.verifying.moments import Ratio, normal

REACH = 13.0
"""Standard deviations of a Gaussian that are looked at; what lies beyond them is one cell on each
side."""


class Law(Protocol):
    """The law of the loss of one application."""

    def below(self, loss: arb) -> tuple[arb, arb]:
        """Masses of the numerator and the denominator at losses up to this one."""

    def least(self) -> arb:
        """A loss that a lattice starts from."""

    def ends(self) -> tuple[float, float]:
        """Losses between which nearly all mass lies."""

    def variance(self) -> float:
        """Roughly the variance of the losses."""


class Sampled(NamedTuple):
    """SGM(rate, noise): (1 - q) N(0, s^2) + q N(1, s^2) against N(0, s^2)."""

    rate: float
    noise: float

    def below(self, loss: arb) -> tuple[arb, arb]:
        rate, noise = arb(self.rate), arb(self.noise)
        share = (loss.exp() - 1 + rate) / rate if self.rate < 1.0 else loss.exp()
        if share <= 0:
            return arb(0), arb(0)
        x = noise**2 * (share if share > 0 else share.upper()).log() + arb(0.5)
        absent, present = normal(x / noise), normal((x - 1) / noise)
        if not share > 0:  # anything from nothing to this
            absent, present = absent.union(0), present.union(0)
        return (1 - rate) * absent + rate * present, absent

    def least(self) -> arb:
        return (1 - arb(self.rate)).log() if self.rate < 1.0 else arb(0)

    def ends(self) -> tuple[float, float]:
        ratio = Ratio(arb(self.rate), arb(self.noise))
        low, high = ratio.logs(np.array([-REACH, REACH]) * self.noise + np.array([0.0, 1.0]))
        return float(low), float(high)

    def variance(self) -> float:
        x = np.linspace(-8.0 * self.noise, 1.0 + 8.0 * self.noise, 2001)
        losses = Ratio(arb(self.rate), arb(self.noise)).logs(x)
        mass = np.exp(-0.5 * (x / self.noise) ** 2 + losses)
        return float(np.cov(losses, aweights=mass, ddof=0))


Choice = tuple[arb, arb]
"""Shares of the numerator and of the denominator that a test keeps at a point."""
Case = list[tuple[Choice, arb | None]]
"""The best choices as the likelihood ratio grows, each up to so many times exp(loss)."""


class Tested:
    """A sampled Gaussian's outcomes of which a test keeps some.

    At each loss the larger of some cases is the worst, and in a case the choice for which the
    numerator less exp(loss) times the denominator is the largest, at each point.
    """

    def __init__(self, proposal: Sampled, cases: list[list[Choice]]) -> None:
        self.proposal = proposal
        self.cases = [_best(choices) for choices in cases]

    def below(self, loss: arb) -> tuple[arb, arb]:
        ratio = loss.exp()
        most, *others = (self._above(case, loss) for case in self.cases)
        for other in others:
            gain = (other[0] - most[0]) - ratio * (other[1] - most[1])
            if gain > 0:
                most = other
            elif not gain <= 0:  # as bad, but for what the balls leave open
                most = most[0] + gain.upper().union(0), most[1]
        return 1 - most[0], 1 - most[1]

    def _above(self, case: Case, loss: arb) -> Choice:
        """What the worst test of a case keeps, which has a loss above this one."""
        ours, theirs, before = arb(0), arb(0), (arb(0), arb(0))
        for (one, two), end in case:
            after = (arb(1), arb(1)) if end is None else self.proposal.below(loss + end.log())
            ours += one * (after[0] - before[0])
            theirs += two * (after[1] - before[1])
            before = after
        return ours, theirs

    def least(self) -> arb:
        return self.proposal.least()

    def ends(self) -> tuple[float, float]:
        low, high = self.proposal.ends()
        shifts = [float(end.log()) for case in self.cases for _, end in case if end is not None]
        return low - max(shifts, default=0.0), high - min(shifts, default=0.0)

    def variance(self) -> float:
        return self.proposal.variance() / 2.0


def _best(choices: list[Choice]) -> Case:
    """Choices (a, b) with the largest ``a u - b``, up to the next u at which two are worth the
    same."""
    crossings = [
        (one[1] - two[1]) / (one[0] - two[0])
        for one, two in itertools.combinations(choices, 2)
        if not (one[0] - two[0]).contains(0)
    ]
    ends = sorted((u for u in crossings if u > 0), key=float)
    points = [float(u) for u in ends]
    between = zip([0.0, *points], [*points, 2.0 * max(points, default=1.0)], strict=True)
    middles = [(low + high) / 2.0 for low, high in between]
    best = [max(choices, key=lambda one: float(one[0] * u - one[1])) for u in middles]
    found = list(zip(best, [*ends, None], strict=True))
    return [
        one
        for one, after in itertools.zip_longest(found, found[1:])
        if not after or after[0] is not one[0]
    ]


class Mixed(NamedTuple):
    """A law that counts with some probability, and no difference otherwise."""

    share: float
    own: Sampled

    def below(self, loss: arb) -> tuple[arb, arb]:
        rest = (1 - arb(self.share)) * int(loss >= 0)
        one, two = self.own.below(loss)
        return self.share * one + rest, self.share * two + rest

    def least(self) -> arb:
        return arb(0)

    def ends(self) -> tuple[float, float]:
        return self.own.ends()

    def variance(self) -> float:
        return self.share * self.own.variance()


class Answers(NamedTuple):
    """Two answers, of which the likelier one is the right one: randomized response."""

    epsilon: float

    def below(self, loss: arb) -> tuple[arb, arb]:
        likely = 1 / (1 + (-arb(self.epsilon)).exp())
        if loss < -self.epsilon:
            return arb(0), arb(0)
        if loss < self.epsilon:
            return 1 - likely, likely
        return arb(1), arb(1)

    def least(self) -> arb:
        return arb(0)

    def ends(self) -> tuple[float, float]:
        return -self.epsilon, self.epsilon

    def variance(self) -> float:
        return self.epsilon**2


def laws(event: events.Event) -> list[Law] | None:
    """Laws that dominate one application together; None if none is known."""
    match event:
        case events.SampledGaussian(rate, noise):
            return [Sampled(rate, noise)]
        case events.FixedBatchGaussian(batch, records, noise):
            return [Fixed.of(batch, records, noise)]
        case events.Gaussian(noise):
            return [Sampled(1.0, noise)]
        case events.HeterogeneousGaussian(rate, noise, scale) if scale > 0.0:
            return [Sampled(rate, math.nextafter(noise * scale, 0.0))]  # rounded to less noise
        case events.VisibleChoice(rate, noise):
            return [Mixed(rate, Sampled(1.0, noise))]
        case events.RandomizedResponse(epsilon):
            return [Answers(epsilon)]
        case events.ScreenedStep(rate, noise) if event.accounting == "public-test":
            return [Sampled(rate, noise)]
        case events.DpsurStep(rate, noise) if event.accounting != "selective":
            return [Tested(Sampled(rate, noise), _cases(event))]
        case events.PaperClaim() | events.PublicLabels() | events.Covered():
            return []
        case events.SummedShares():  # a part of delta
            return []
    return None


def _cases(event: events.DpsurStep) -> list[list[Choice]]:
    """Acceptance without the record and with it, if it is in the test batch or not, is the least or
    the largest that there is."""
    share, bounds = arb(event.validation_rate), acceptance(event)
    accepted = [((1 - share) * a + share * z, a) for a in bounds for z in bounds]
    rejected = [(1 - one, 1 - two) for one, two in accepted]
    nothing, everything = (arb(0), arb(0)), (arb(1), arb(1))
    if event.accounting == "every-trial":
        return [[nothing, everything, *accepted, *rejected]]
    return [[nothing, *accepted], [everything, *rejected]]


def acceptance(event: events.DpsurStep) -> tuple[arb, arb]:
    """The least and the largest probability of acceptance."""
    deviation = 2 * arb(event.validation_noise)
    low, high = (normal((arb(event.beta) + side) / deviation) for side in (-1, 1))
    return low, high
