"""The law of one test that is used in all steps: tests that adapt cost at least as much."""

import math

import numpy as np
from flint import arb

from sim.verifying.together.trials import Trial, outcomes

ORDER = 4.0
"""The Renyi order at which a threshold costs the most."""
NEVER = 1e-4
"""Probabilities that are too small to tell how far losses spread."""


class FixedTest:
    """Proposals with a loss above a threshold are accepted with the highest probability. If the
    bit is public, others are so, too, unless the record is in the test's batch; if rejections are
    hidden, others are accepted with the lowest probability."""

    def __init__(self, trial: Trial) -> None:
        self.proposal = trial.proposal
        self.threshold = arb(_threshold(trial) if trial.hidden else 0)
        self.often, self.seldom = trial.highest, trial.lowest if trial.hidden else trial.highest
        told = arb(1) if trial.hidden else 1 - trial.share * (1 - trial.lowest / trial.highest)
        self.told = (told, arb(1))
        self.against = self.proposal.below(self.threshold)
        accepted = [
            self.often * (1 - mass) + self.seldom * factor * mass
            for factor, mass in zip(self.told, self.against, strict=True)
        ]
        self.accepted, self.rejected = accepted, [1 - one for one in accepted]
        if trial.hidden:
            self.rejected = [arb(0), arb(0)]
        else:
            self.accepted = [arb(1), arb(1)]
        self.shift = (self.accepted[1] / self.accepted[0]).log()

    def below(self, loss: arb) -> tuple[arb, arb]:
        loss = loss - self.shift
        speaking = self.proposal.below(loss.max(self.threshold))
        against = self.proposal.below((loss - self.told[0].log()).min(self.threshold))
        counted = self._rejection(loss)
        ours, theirs = (
            (self.often * (one - before) + self.seldom * factor * other) / accepted
            + counted * rejected
            for one, before, factor, other, accepted, rejected in zip(
                speaking,
                self.against,
                self.told,
                against,
                self.accepted,
                self.rejected,
                strict=True,
            )
        )
        return ours, theirs

    def _rejection(self, loss: arb) -> arb:
        """Whether one has at most this loss; where it cannot be told, anything from 0 to 1."""
        known = self.rejected[1] > 0 and self.rejected[0] > 0
        told = (self.rejected[0] / self.rejected[1]).log() if known else loss
        return arb(1) if loss > told else arb(0) if loss < told else arb(0).union(1)

    def least(self) -> arb:
        return self.proposal.least()

    def ends(self) -> tuple[float, float]:
        low, high = self.proposal.ends()
        shift = float(self.shift)
        return low + float(self.told[0].log()) + shift, high + shift

    def variance(self) -> float:
        accepted, told = float(self.seldom / self.accepted[1]), float(self.told[0].log())
        found = max(accepted, NEVER) * self.proposal.variance()
        found += accepted * float(self.against[1]) * told * told
        if self.rejected[1] > NEVER:
            told = float((self.rejected[0] / self.rejected[1]).log())
            found += float(self.rejected[1]) * told * told
        return found


def _threshold(trial: Trial) -> float:
    """The one that costs the most, roughly."""
    ours, theirs = outcomes(trial.proposal, math.sqrt(trial.proposal.variance()))
    known = theirs > 0.0
    ours, theirs = ours[known], theirs[known]
    low, high = float(trial.lowest), float(trial.highest)
    moment, accepted, otherwise = (
        high * masses.sum() - (high - low) * np.cumsum(masses)
        for masses in (ours**ORDER * theirs ** (1.0 - ORDER), ours, theirs)
    )
    worst = int(np.argmax(moment * accepted**-ORDER * otherwise ** (ORDER - 1.0)))
    return math.log(max(ours[worst], 1e-300) / theirs[worst])
