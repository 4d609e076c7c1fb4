"""What clients contribute to a sum that is noised outside them: bounded, exact, without noise.

With L2 bound C and contributions v_k, one for each client of a round:

- unit record: ``v_k = sum_{i in B_k} clip(g_i, C)`` over one Poisson batch of rate q. A record
  moves the sum over all clients by at most C, as it would if one client held all records.
- unit client: ``v_k = clip(w_k - w, C)``, the change of the model w by local steps without privacy
  (DP-FedAvg: McMahan, Ramage, Talwar, Zhang 2018). Clients enter a round by coins of probability p.
  A client, with all of its records, moves the sum by at most C. One with a smaller budget than
  others tosses a coin of its own besides, of probability r, and sends 0 if that fails: p is then r
  times as large.
- unit client with a moving clip norm (Andrew, Thakkar, McMahan, Ramaswamy 2021): ``v_k =
  (sqrt(1 - h) clip(w_k - w, C), sqrt(h) C b_k)`` with ``b_k`` 0 if ``|w_k - w| <= C`` and 1 if
  not, and h = `quantile.SHARE`. Its norm is at most C, so a client still moves the sum by at most
  C. The next C follows from released sums (`server/clip_norm.py`), and the charge does not depend
  on it.

So with noise of standard deviation s C on the sum, a round is SGM(q, s) for each record, or SGM(p,
s) for each client, whether it entered or not (p is 1 where the adversary sees who did).
Contributions are in whole units of ``2^-44 C`` (`mechanisms/grid.py`), so that their sum is exact
in any order. One that is not finite is 0.
"""

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mechanisms import dpsgd, none
from mechanisms.accounting.accountant import Charges, within
from mechanisms.accounting.calibration import TOLERANCE
from mechanisms.accounting.events import SampledGaussian, SummedShares
from mechanisms.clipping import CLIPPING
from mechanisms.cohort import Cohort, LocalState
from mechanisms.grid import whole_parts
from mechanisms.mechanism import Mechanism
from mechanisms.metric import IDENTITY
from mechanisms.plan import Plan, Terms, least_noises, steady
from mechanisms.quantile import SHARE
from mechanisms.sampling import threshold
from mechanisms.updates import Sent

MIN_RATE = 1e-6
"""Smallest probability with which a unit of a smaller budget enters a sum."""


@steady
@dataclass(frozen=True)
class ContributionPlan:
    """A client's plan where noise is added to a sum of clients.

    Attributes:
        sample_rate: probability that a record enters a local step's batch.
        steps: local steps a round.
        noise_multiplier: s of the first round, standard deviation of the sum's noise over C.
        clip_norm: C, bound on a record's gradient or on a client's update.
        clipping: ``flat`` or ``auto``, a name of ``CLIPPING``.
        noise_decay: decrease of the logarithm of s from a round to the next.
        unit_rate: probability that the protected unit enters the sum.
        failure: part of delta that a round uses up (`mechanisms.shares`); 0 for none.
        reach: norm of what a contribution of norm 1 moves in all (`mechanisms.bands`).
        own_rate: r, probability of the client's own coin, its part of ``unit_rate``.
        sampling: how records enter a local step's batch, a name of `batches.CHARGES`. Where the
            unit is a client it costs nothing, since whatever a client does is clipped as a whole.
        records: the client's number of records; 0 for Poisson batches.
    """

    sample_rate: float
    steps: int
    noise_multiplier: float
    clip_norm: float
    clipping: str
    noise_decay: float
    unit_rate: float
    failure: float = 0.0
    reach: float = 1.0
    own_rate: float = 1.0
    sampling: str = "poisson"
    records: int = 0

    def multiplier(self, nth: int) -> float:
        """The noise multiplier of the ``nth`` round (from 1): ``s exp(-decay (nth - 1))``."""
        return self.noise_multiplier * math.exp(-self.noise_decay * (nth - 1))

    def round_charges(self, nth: int) -> Charges:
        """One noisy sum, whether the unit enters it or not."""
        noisy: Charges = {SampledGaussian(self.unit_rate, self.multiplier(nth) / self.reach): 1}
        return {**noisy, SummedShares(self.failure): 1} if self.failure else noisy


Rarer = Callable[[ContributionPlan, float], ContributionPlan]
"""From a plan, the same whose unit enters a sum with at most this probability."""


def with_one_noise(
    rarer: Rarer, plan_of: Callable[[Terms, float], Any], terms: Sequence[Terms]
) -> Sequence[Plan]:
    """Plans with the same noise multiplier, as one noise covers all: the least that is enough for
    the largest budget at the largest sampling rate, and so for the others that have this budget
    (Lemma 2 of `docs/theory/setting.md`). Units with smaller budgets enter sums more rarely.

    Raises:
        ValueError: no noise multiplier is large enough, or no rate small enough.
    """
    dearest = {one.target: one for one in sorted(terms, key=lambda one: one.privacy.sample_rate)}
    largest = max(dearest)
    (noise,) = least_noises(lambda one, noise: one.run(plan_of(one, noise)), [dearest.pop(largest)])
    rates = {
        target: _largest_rate(rarer, plan_of(one, noise), one) for target, one in dearest.items()
    }
    return [rarer(plan_of(one, noise), rates.get(one.target, 1.0)) for one in terms]


def _largest_rate(rarer: Rarer, plan: ContributionPlan, terms: Terms) -> float:
    """The largest probability, up to the plan's own, at which the budget pays for all rounds.

    Raises:
        ValueError: it is below `MIN_RATE`.
    """
    privacy = terms.privacy

    def pays(rate: float) -> bool:
        charges = terms.run(rarer(plan, rate))
        return within(charges, terms.target, privacy.delta, privacy.budget)

    low, high = MIN_RATE, plan.unit_rate
    if pays(high):
        return high
    if not pays(low):
        raise ValueError(
            f"epsilon = {terms.target:g} of budgets is too small for any part in sums with the "
            f"noise of the largest (noise multiplier {plan.noise_multiplier:.4g}): raise it, or "
            "lower the largest"
        )
    while high > low * (1.0 + TOLERANCE):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if pays(middle) else (low, middle)
    return low


def add_up(cohort: Cohort, state: LocalState) -> LocalState:
    """The only step of a round: the sum of clipped gradients of a batch, without noise."""
    batch, bound = dpsgd.draw(cohort), state.memory["clip_norm"]
    rates, clip = cohort.exact("sample_rate"), CLIPPING[cohort.plans[0].clipping]
    total, _ = cohort.arithmetic.gradient_sum(
        cohort.gradients,
        state.params,
        batch,
        lambda norms: clip(norms, bound) * batch.mask,
        bound,
        cohort.width(rates),
        IDENTITY,
    )
    whole = total if total.dtype == torch.int64 else whole_parts(total, bound)
    return replace(state.remember(sum=whole), taken=state.taken + 1)


def walk(cohort: Cohort, state: LocalState) -> LocalState:
    """A local step without privacy, on a batch that is drawn as planned."""
    return none.step_on(cohort, state, dpsgd.draw_as_planned(cohort))


def clipped_update(cohort: Cohort, start: Tensor, end: LocalState) -> Tensor:
    """Updates clipped to norm C as a whole, int64 ``[K, P]``."""
    moved = (end.params - start).double()
    bound = torch.tensor(cohort.exact("clip_norm"), dtype=torch.float64, device=moved.device)
    return clipped(moved, bound, cohort.plans[0].clipping) * entering(cohort).to(moved.device)


def voting_update(cohort: Cohort, told: Tensor, end: LocalState) -> Tensor:
    """Updates of a model clipped to a moving norm, ``told [P + 1]``, times ``sqrt(1 - h)``, and the
    votes on it: int64 ``[K, P + 1]``."""
    moved, bound = (end.params - told[:-1]).double(), told[-1:].double().expand(len(cohort.plans))
    beyond = ~(moved.norm(dim=1) <= bound)  # so is what is not finite
    vote = whole_parts(math.sqrt(SHARE) * torch.where(beyond, bound, 0.0)[:, None], bound)
    update = clipped(moved, bound, cohort.plans[0].clipping, math.sqrt(1.0 - SHARE))
    return torch.cat([update, vote], dim=1) * entering(cohort).to(moved.device)


def entering(cohort: Cohort) -> Tensor:
    """Int64 ``[K, 1]``: 1 for clients whose own coin lets them enter the sum, else 0."""
    coins = np.array([draws.random(1) for draws in cohort.streams.of("own coin")])
    rates = np.array(cohort.exact("own_rate"))[:, None]
    return torch.from_numpy((coins < threshold(rates)).astype(np.int64))


def clipped(moved: Tensor, bound: Tensor, clipping: str = "flat", share: float = 1.0) -> Tensor:
    """Updates ``moved [K, P]`` (float64) clipped to norms ``bound [K]`` as a whole and multiplied
    by a ``share``, int64 ``[K, P]``."""
    factors = CLIPPING[clipping](moved.norm(dim=1, keepdim=True), bound) * share
    return whole_parts(torch.where(factors > 0, moved * factors, 0.0), bound)


RECORD_SUM = Sent(lambda cohort, start, end: end.memory["sum"], whole=True)
CLIPPED_UPDATE = Sent(clipped_update, whole=True)
VOTING_UPDATE = Sent(voting_update, extra=1, whole=True)


def of_unit(
    unit: str, client_rate: float, failure: float = 0.0, reach: float = 1.0, votes: bool = False
) -> tuple[Mechanism, Sent]:
    """How clients train and what they send, if the unit is ``record`` or ``client``.

    Args:
        unit: the setting.
        client_rate: probability that a client enters a round, by coins that nobody sees.
        failure: part of delta that a round uses up.
        reach: norm of what a contribution of norm 1 moves in all.
        votes: whether clients vote on their clip norm.
    """

    def plan(terms: Terms, noise: float) -> ContributionPlan:
        p = terms.privacy
        own = noise, p.clip_norm, p.clipping, p.noise_decay
        rate = p.sample_rate if unit == "record" else client_rate
        drawn = p.sampling, terms.size if p.sampling != "poisson" else 0
        return ContributionPlan(p.sample_rate, terms.steps, *own, rate, failure, reach, 1.0, *drawn)

    def rarer(plan: ContributionPlan, rate: float) -> ContributionPlan:
        if rate >= plan.unit_rate:
            return plan
        if unit == "record":
            return replace(plan, sample_rate=rate, unit_rate=rate)
        own = math.nextafter(rate / client_rate, 0.0)  # so that their product is not above the rate
        return replace(plan, own_rate=own, unit_rate=rate)

    calibrate = functools.partial(with_one_noise, rarer)
    if unit == "record":
        start, sent = dpsgd.start, RECORD_SUM
        return Mechanism(plan, add_up, start=start, calibrate=calibrate, lasting=()), sent
    sent = VOTING_UPDATE if votes else CLIPPED_UPDATE
    return Mechanism(plan, walk, calibrate=calibrate, lasting=()), sent
