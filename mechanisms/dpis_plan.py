"""The plan of DPIS (`mechanisms.dpis`): what a round releases, what it may cost, and how the noise
is allocated."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mechanisms.accounting.accountant import Charges
from mechanisms.accounting.allotment import Account, cost, least_multipliers
from mechanisms.accounting.events import (
    ImportanceSampledGaussian,
    NoisyNormSum,
    PaperClaim,
    SampledGaussian,
)
from mechanisms.equal_rounds import AllottedPlan, common, refuse_options
from mechanisms.plan import Terms, merge
from mechanisms.settings import Dpis

NORM_NOISE = 0.02
"""s_K / N and s_N / N of the paper."""


@dataclass(frozen=True)
class DpisPlan(AllottedPlan):
    """A client's plan: q = b / N is the expected share of the records in a step if K = N C, and s,
    the noise's standard deviation over C, is that for the worst K.

    Attributes:
        records: N.
        own: the mechanism's settings.
    """

    records: int
    own: Dpis

    @classmethod
    def of(cls, terms: Terms, noise: float) -> "DpisPlan":
        """The plan of some terms with this noise multiplier for the worst K.

        Raises:
            ValueError: an option of other mechanisms that has no meaning here.
        """
        own = terms.own_of(Dpis, "DPIS")
        others = ("clipping", "noise_decay", "clip_quantile")
        refuse_options(terms.privacy, others, "which sets clip bound and noise by its own rules")
        return cls(*common(terms, noise), terms.size, own, prior=terms.prior)

    @property
    def importance(self) -> bool:
        """Whether records enter by their gradient norm."""
        return self.own.dpis_sampling == "importance"

    @property
    def epoch_steps(self) -> int:
        """Steps of an epoch."""
        return min(self.steps, math.ceil(round(1.0 / self.sample_rate, 9)))

    @property
    def epochs(self) -> int:
        """Epochs of a round; the last may be shorter than the others."""
        return math.ceil(self.steps / self.epoch_steps)

    def steps_of(self, epoch: int) -> int:
        """Steps of the ``epoch``-th epoch of a round (from 0)."""
        return min(self.epoch_steps, self.steps - epoch * self.epoch_steps)

    @property
    def releases_norm_sum(self) -> bool:
        """Whether there is a K to choose."""
        return self.importance and self.sample_rate < 1.0

    @property
    def norm_sums(self) -> int:
        """Norm sums released in an epoch."""
        return int(self.releases_norm_sum) + int(self.own.dpis_clip is not None)

    @property
    def _costliest_norm_noise(self) -> float:
        """s_K at which an epoch's norm sums cost ``dpis_norm_share`` of its steps, by ``rdp ~ a q^2
        / (2 s^2)``."""
        ratio = self.norm_sums / (self.own.dpis_norm_share * self.epoch_steps)
        return self.noise_multiplier / self.sample_rate * math.sqrt(ratio)

    @property
    def norm_noise(self) -> float:
        """s_K: standard deviation of the noise on a norm sum, over C."""
        return max(NORM_NOISE * self.records, self._costliest_norm_noise)

    def worst_round(self) -> Charges:
        """The releases of a round if K = N C and s_K is smallest; they do not depend on N."""
        steps: Charges = {SampledGaussian(self.sample_rate, self.noise_multiplier): self.steps}
        if not self.norm_sums:
            return steps
        release = NoisyNormSum(self.own.dpis_norm_rate, self._costliest_norm_noise)
        return merge(steps, {release: self.epochs * self.norm_sums})

    def round_charges(self, nth: int) -> Charges:
        """An allotment; and the paper's claims for the planned round, and for N in the first."""
        claims: Charges = {PaperClaim(self.sample_rate, self.noise_multiplier): self.steps}
        if self.norm_sums:
            claim = PaperClaim(self.own.dpis_norm_rate, self.norm_noise)
            claims = merge(claims, {claim: self.epochs * self.norm_sums})
        if self.importance and nth == 1:
            claims = merge(claims, {PaperClaim(1.0, NORM_NOISE * self.records): 1})
        return {self.allotment: 1, **claims}

    def first_phase(self, nth: int, epoch: int) -> bool:
        """Whether an epoch of the ``nth`` round gets the noise for the worst K (Section 4.2)."""
        if not self.importance:
            return True
        before = (nth - 1) * self.epochs + epoch
        return before < self.own.dpis_first_phase * self.rounds * self.epochs

    @property
    def norm_sum_charges(self) -> Charges:
        """The norm sums of an epoch."""
        if not self.norm_sums:
            return {}
        return {NoisyNormSum(self.own.dpis_norm_rate, self.norm_noise): self.norm_sums}

    def step_limit(self, nth: int, epoch: int, account: Account) -> float:
        """The most that a step of this epoch may cost: an equal share of what is left of the run,
        and of the round.

        The norm sums of this epoch are paid already; those of later ones are set aside.
        """
        norm_sums = sum(
            count * cost(event, account.order) for event, count in self.norm_sum_charges.items()
        )
        steps, later = self.steps - epoch * self.epoch_steps, self.epochs - epoch - 1
        of_round = account.left - later * norm_sums
        rounds = max(0, self.rounds - nth)
        of_run = of_round + rounds * (self.allotment.rdp - self.epochs * norm_sums)
        return min(of_round / steps, of_run / (steps + rounds * self.steps))

    def step_event(
        self, norm_ratio: float, clip_norm: float, noise_multiplier: float
    ) -> ImportanceSampledGaussian:
        """Lemma 3.1 for K = ``norm_ratio`` N C."""
        size = self.sample_rate * self.records
        norm_sum = max(norm_ratio * (self.records * clip_norm), size * clip_norm)
        return ImportanceSampledGaussian(size, clip_norm, norm_sum, self.records, noise_multiplier)


@dataclass(frozen=True)
class Epoch:
    """A client's epoch at its start: what is known when its noise is chosen.

    Attributes:
        plan: the client's plan.
        nth: its count of rounds, from 1.
        number: index of the epoch in its round, from 0.
        account: the account before this epoch's payments.
        norm_ratio: K / (N C), in [q, 1].
        clip_norm: C.
    """

    plan: DpisPlan
    nth: int
    number: int
    account: Account
    norm_ratio: float
    clip_norm: float


def allocate(epochs: Sequence[Epoch]) -> list[tuple[float, Account]]:
    """Section 4.2: the noise multiplier s of each epoch, and the account after paying for its norm
    sums and steps."""
    accounts = [e.account.pay(e.plan.norm_sum_charges) for e in epochs]
    multipliers = np.array([e.plan.noise_multiplier for e in epochs])
    ratios = np.array([e.norm_ratio for e in epochs])
    rates = np.array([e.plan.sample_rate for e in epochs]) / ratios
    left = [k for k, e in enumerate(epochs) if not e.plan.first_phase(e.nth, e.number)]
    for order in sorted({accounts[k].order for k in left}):
        rows = np.array([k for k in left if accounts[k].order == order])
        limits = np.array(
            [epochs[k].plan.step_limit(epochs[k].nth, epochs[k].number, accounts[k]) for k in rows]
        )
        found = least_multipliers(rates[rows], limits, order, multipliers[rows] / ratios[rows])
        multipliers[rows] = found * ratios[rows]
    allocated = []
    for e, s, account in zip(epochs, multipliers.tolist(), accounts, strict=True):
        event = e.plan.step_event(e.norm_ratio, e.clip_norm, s)
        allocated.append((s, account.pay({event: e.plan.steps_of(e.number)})))
    return allocated
