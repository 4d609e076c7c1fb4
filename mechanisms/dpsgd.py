"""DPSGD: Abadi, Chu, Goodfellow, McMahan, Mironov, Talwar, Zhang, "Deep Learning with Differential
Privacy", CCS 2016.

Algorithm 1, for K clients at once. Per step and client, with Poisson rate q, clip norm C, noise
multiplier s and public number of records n:

    B ~ each record independently with probability q
    g = ( sum_{i in B} g_i min(1, C / |g_i|)  +  s C N(0, I) ) / (q n)          then the optimizer

The norm |g_i| is over all parameters of the model. The divisor is the expected batch size, never
the drawn one; an empty batch adds noise and counts; a record with a non-finite gradient contributes
zero.

Guarantee: one record of one client, zero-out adjacency; each step is a sampled Gaussian SGM(q, s)
(Mironov, Talwar, Zhang 2019). The published epsilon is the certified one. By ``sampling``, B may be
exactly q n records, or a batch of a shuffled pass; both cost more (`mechanisms/batches.py`).
"""

import math
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from mechanisms import quantile
from mechanisms.accounting.accountant import Charges
from mechanisms.batches import CHARGES
from mechanisms.clipping import CLIPPING
from mechanisms.cohort import Cohort, LocalState
from mechanisms.mechanism import Mechanism
from mechanisms.metric import IDENTITY, Metric
from mechanisms.placing import place
from mechanisms.plan import Terms, steady
from mechanisms.sampling import Batch, fixed, poisson, shuffled
from mechanisms.settings import whole


@steady
@dataclass(frozen=True)
class DpsgdPlan:
    """A client's plan.

    Attributes:
        sample_rate: q in (0, 1].
        noise_multiplier: s of the first round, noise standard deviation over the sensitivity C.
        clip_norm: C, in units of the gradient.
        steps: local steps a round.
        clipping: ``flat`` or ``auto``, a name of ``CLIPPING``.
        noise_decay: decrease of the logarithm of s from one of the client's rounds to the next
            (DP-SGD-Decay).
        clip_quantile: share of records that the clip bound, which starts at C, should not clip;
            None keeps C.
        sampling: how B is drawn, a name of ``CHARGES``.
        records: n, where the batch has a fixed size; else 0.
    """

    sample_rate: float
    noise_multiplier: float
    clip_norm: float
    steps: int
    clipping: str = "flat"
    noise_decay: float = 0.0
    clip_quantile: float | None = None
    sampling: str = "poisson"
    records: int = 0

    @classmethod
    def of(cls, terms: Terms, noise: float) -> "DpsgdPlan":
        """The plan of some terms with this noise multiplier."""
        p = terms.privacy
        return cls(
            p.sample_rate,
            noise,
            p.clip_norm,
            terms.steps,
            p.clipping,
            p.noise_decay,
            p.clip_quantile,
            p.sampling,
            terms.size if p.sampling != "poisson" else 0,
        )

    @classmethod
    def poisson(cls, terms: Terms, noise: float) -> dict[str, Any]:
        """DPSGD's fields in the plan of a mechanism that draws and charges Poisson batches alone,
        whatever ``sampling`` says."""
        return asdict(replace(DpsgdPlan.of(terms, noise), sampling="poisson", records=0))

    def multiplier(self, nth: int) -> float:
        """The noise multiplier of the client's ``nth`` round (from 1): ``s exp(-decay (nth -
        1))``."""
        return self.noise_multiplier * math.exp(-self.noise_decay * (nth - 1))

    def sum_multiplier(self, nth: int) -> float:
        """The sum's noise multiplier: :meth:`multiplier`, unless a count is released with it."""
        multiplier = self.multiplier(nth)
        return multiplier if self.clip_quantile is None else quantile.split(multiplier)[0]

    def round_charges(self, nth: int) -> Charges:
        """``steps`` noisy sums of batches."""
        charges = CHARGES[self.sampling]
        return charges(self.sample_rate, self.records, self.multiplier(nth), self.steps)


def start(cohort: Cohort, params: torch.Tensor) -> LocalState:
    """The state before the first step from ``params [P]``; its memory is the clip bound, which may
    move."""
    return LocalState.start(cohort, params).remember(clip_norm=cohort.plan("clip_norm"))


def draw(cohort: Cohort) -> Batch:
    """This step's Poisson batch."""
    return poisson(cohort.data, cohort.exact("sample_rate"), cohort.streams.of("batch"))


def draw_as_planned(cohort: Cohort) -> Batch:
    """This step's batch, by the plans' ``sampling``."""
    plans, data, streams = cohort.plans, cohort.data, cohort.streams.of("batch")
    if plans[0].sampling == "poisson":
        return draw(cohort)
    sizes = [whole(plan.sample_rate, plan.records) for plan in plans]
    if plans[0].sampling == "fixed":
        return fixed(data, sizes, streams)
    return shuffled(data, sizes, streams, cohort.unseen)


def clipped_sum(
    cohort: Cohort, state: LocalState, batch: Batch, metric: Metric = IDENTITY
) -> tuple[torch.Tensor, torch.Tensor]:
    """The sum of clipped gradients ``[K, P]`` and all norms ``[K, B]``, in the given metric."""
    bound, clip = state.memory["clip_norm"], CLIPPING[cohort.plans[0].clipping]
    rates = cohort.exact("sample_rate")
    return cohort.gradient_sum(
        state.params, batch, lambda norms: clip(norms, bound) * batch.mask, bound, rates, metric
    )


def noised(cohort: Cohort, state: LocalState, total: torch.Tensor) -> torch.Tensor:
    """A sum ``[K, P]`` plus this step's noise, of standard deviation s C in every coordinate."""
    present = zip(cohort.plans, cohort.nth, strict=True)
    multiplier = [plan.sum_multiplier(nth) for plan, nth in present]
    bound = state.memory["clip_norm"]
    scale = place(torch.tensor(multiplier, dtype=torch.float32), bound.device)
    std = torch.where(scale > 0, scale * bound, 0.0)  # without noise the bound may be infinite
    return cohort.noised(total, bound, std, "noise")


def expected_size(cohort: Cohort) -> torch.Tensor:
    """Expected batch sizes q n ``[K]``: the divisor, never the drawn size."""
    rate = cohort.plan("sample_rate")
    return rate * place(cohort.data.sizes(), rate.device).to(rate.dtype)


def descend(
    cohort: Cohort, state: LocalState, noisy: torch.Tensor, norms: torch.Tensor, batch: Batch
) -> LocalState:
    """The optimizer's step along a noisy sum ``[K, P]``; then an adaptive clip bound moves."""
    size = expected_size(cohort)
    after = state.descend(cohort, noisy / size[:, None])
    if cohort.plans[0].clip_quantile is None:
        return after
    present = zip(cohort.plans, cohort.nth, strict=True)
    count = [quantile.split(plan.multiplier(nth))[1] for plan, nth in present]
    bound, half = state.memory["clip_norm"], torch.full_like(size, 0.5)
    votes = cohort.arithmetic.parts(quantile.votes(norms, bound, batch), half)
    std = place(torch.tensor(count, dtype=torch.float32), half.device) * half
    noisy = cohort.noised(votes.sum(dim=1, keepdim=True), half, std, "count")[:, 0]
    configured, wanted = cohort.plan("clip_norm"), cohort.plan("clip_quantile")
    return after.remember(clip_norm=quantile.adapt(bound, configured, wanted, 0.5 + noisy / size))


def step(cohort: Cohort, state: LocalState) -> LocalState:
    """One step of every client: clip each record, sum, add noise, divide by the expected size, then
    the optimizer."""
    batch = draw_as_planned(cohort)
    total, norms = clipped_sum(cohort, state, batch)
    return descend(cohort, state, noised(cohort, state, total), norms, batch)


MECHANISM = Mechanism(DpsgdPlan.of, step, start=start)
