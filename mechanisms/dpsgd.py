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
from mechanisms.clipping import clip_factors
from mechanisms.cohort import Cohort, LocalState
from mechanisms.events import SampledGaussian, Unprotected
from mechanisms.sampling import Batch, poisson


@dataclass(frozen=True)
class DpsgdPlan:
    """A client's plan.

    Attributes:
        sample_rate: q in (0, 1].
        noise_multiplier: s, noise standard deviation over the sensitivity C.
        clip_norm: C, in units of the gradient.
        steps: local steps a round.
    """

    sample_rate: float
    noise_multiplier: float
    clip_norm: float
    steps: int

    @property
    def noise_std(self) -> float:
        """Standard deviation of the noise on the sum of clipped gradients: s C."""
        return self.noise_multiplier * self.clip_norm

    def round_charges(self, nth: int) -> Charges:
        """``steps`` sampled Gaussians."""
        return {SampledGaussian(self.sample_rate, self.noise_multiplier): self.steps}


def active(cohort: Cohort, state: LocalState) -> torch.Tensor:
    """Bool ``[K]``: who has steps left in this round."""
    return state.taken < cohort.plan("steps")


def draw(cohort: Cohort) -> Batch:
    """This step's Poisson batch."""
    return poisson(cohort.data, cohort.plan("sample_rate").tolist(), cohort.streams.of("batch"))


def noisy_gradient(cohort: Cohort, params: torch.Tensor, batch: Batch) -> torch.Tensor:
    """Clip each record, sum, add noise, divide by the expected batch size: ``[K, P]`` from ``params [K, P]``."""
    bound = cohort.plan("clip_norm")
    total, _ = cohort.gradients.scaled_sum(
        params, batch.x, batch.y, lambda norms: clip_factors(norms, bound) * batch.mask
    )
    noisy = total + cohort.plan("noise_std")[:, None] * cohort.streams.normal("noise", params.shape[1])
    return noisy / (cohort.plan("sample_rate") * cohort.data.sizes().to(params))[:, None]


def step(cohort: Cohort, state: LocalState) -> LocalState:
    """One step of every client of the cohort."""
    return state.descend(cohort, noisy_gradient(cohort, state.params, draw(cohort)))


@dataclass(frozen=True)
class NonPrivatePlan:
    """The same step without clipping and without noise. It has no guarantee and is charged an infinite epsilon."""

    sample_rate: float
    steps: int
    clip_norm: float = math.inf
    noise_std: float = 0.0

    def round_charges(self, nth: int) -> Charges:
        """``steps`` steps without a guarantee."""
        return {Unprotected(self.sample_rate): self.steps}
