"""DPSGD: Abadi, Chu, Goodfellow, McMahan, Mironov, Talwar, Zhang, "Deep Learning with Differential Privacy", CCS 2016.

Algorithm 1, for K clients at once. Per step and client, with Poisson rate q, clip norm C, noise multiplier s and public
number of records n:

    B ~ each record on its own with probability q
    g = ( sum_{i in B} g_i min(1, C / |g_i|)  +  s C N(0, I) ) / (q n)          then the optimizer

The norm |g_i| is over all parameters of the model. The divisor is the expected batch size, never the drawn one; an
empty batch adds noise and counts; a record with a non-finite gradient contributes zero.

Guarantee: one record of one client, zero-out adjacency; each step is a sampled Gaussian SGM(q, s) (Mironov, Talwar,
Zhang 2019). The published figure is the certified one.
"""

import math
from dataclasses import dataclass

import torch

from mechanisms.accountant import Charges
from mechanisms.clipping import CLIPPING
from mechanisms.cohort import Cohort, LocalState
from mechanisms.events import SampledGaussian, Unprotected
from mechanisms.metric import IDENTITY, Metric
from mechanisms.plan import Terms
from mechanisms.sampling import Batch, poisson


@dataclass(frozen=True)
class DpsgdPlan:
    """A client's plan.

    Attributes:
        sample_rate: q in (0, 1].
        noise_multiplier: s of the first round, noise standard deviation over the sensitivity C.
        clip_norm: C, in units of the gradient.
        steps: local steps a round.
        clipping: ``flat`` or ``auto``, a name of ``CLIPPING``.
        noise_decay: by how much the logarithm of s falls from one of the client's rounds to the next (DP-SGD-Decay).
    """

    sample_rate: float
    noise_multiplier: float
    clip_norm: float
    steps: int
    clipping: str = "flat"
    noise_decay: float = 0.0

    @classmethod
    def of(cls, terms: Terms, noise: float) -> "DpsgdPlan":
        """The plan of some terms with this noise multiplier."""
        p = terms.privacy
        return cls(p.sample_rate, noise, p.clip_norm, terms.steps, p.clipping, p.noise_decay)

    def multiplier(self, nth: int) -> float:
        """The noise multiplier of the client's ``nth`` round (from 1): ``s exp(-decay (nth - 1))``."""
        return self.noise_multiplier * math.exp(-self.noise_decay * (nth - 1))

    def noise_std(self, nth: int) -> float:
        """Standard deviation of the noise on the sum of clipped gradients in the ``nth`` round."""
        return self.multiplier(nth) * self.clip_norm

    def round_charges(self, nth: int) -> Charges:
        """``steps`` sampled Gaussians."""
        return {SampledGaussian(self.sample_rate, self.multiplier(nth)): self.steps}


def active(cohort: Cohort, state: LocalState) -> torch.Tensor:
    """Bool ``[K]``: who has steps left in this round."""
    return state.taken < cohort.plan("steps")


def draw(cohort: Cohort) -> Batch:
    """This step's Poisson batch."""
    return poisson(cohort.data, cohort.plan("sample_rate").tolist(), cohort.streams.of("batch"))


def clipped_sum(cohort: Cohort, params: torch.Tensor, batch: Batch, metric: Metric = IDENTITY) -> torch.Tensor:
    """The sum of clipped gradients ``[K, P]`` at ``params [K, P]``, clipped and summed in the given metric."""
    bound, clip = cohort.plan("clip_norm"), CLIPPING[cohort.plans[0].clipping]
    total, _ = cohort.gradients.scaled_sum(
        params, batch.x, batch.y, lambda norms: clip(norms, bound) * batch.mask, metric
    )
    return total


def noise(cohort: Cohort, size: int) -> torch.Tensor:
    """This step's noise ``[K, size]``, of standard deviation s C in every coordinate."""
    std = [plan.noise_std(nth) for plan, nth in zip(cohort.plans, cohort.nth, strict=True)]
    draws = cohort.streams.normal("noise", size)
    return torch.tensor(std, device=draws.device)[:, None] * draws


def average(cohort: Cohort, noisy: torch.Tensor) -> torch.Tensor:
    """A noisy sum ``[K, P]`` over the expected batch size q n."""
    return noisy / (cohort.plan("sample_rate") * cohort.data.sizes().to(noisy))[:, None]


def step(cohort: Cohort, state: LocalState) -> LocalState:
    """One step of every client: clip each record, sum, add noise, divide by the expected size, then the optimizer."""
    total = clipped_sum(cohort, state.params, draw(cohort))
    return state.descend(cohort, average(cohort, total + noise(cohort, total.shape[1])))


@dataclass(frozen=True)
class NonPrivatePlan:
    """The same step without clipping and without noise. It has no guarantee and is charged an infinite epsilon."""

    sample_rate: float
    steps: int
    clip_norm: float = math.inf
    clipping: str = "flat"

    @classmethod
    def of(cls, terms: Terms, noise: float) -> "NonPrivatePlan":
        """The plan of some terms; there is no noise."""
        return cls(terms.privacy.sample_rate, terms.steps)

    def noise_std(self, nth: int) -> float:
        """No noise."""
        return 0.0

    def round_charges(self, nth: int) -> Charges:
        """``steps`` steps without a guarantee."""
        return {Unprotected(self.sample_rate): self.steps}
