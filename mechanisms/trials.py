"""Trials, which DPSUR and noise screening share: DPSGD proposes a step, which is tested and then
kept or undone.

Nothing depends on rejected trials: a rejection restores the model, the optimizer's state and the
count of steps taken. Only two counters go on, of trials and of rejections in a row.

- Rejections are public: the trials of a round are fixed (``steps``) and paid for in advance, one by
  one. What the paper charges, the accepted steps, is recorded after the round, and so is the rate
  of acceptance.
- Rejections are hidden: the accepted steps of a round are fixed (``steps``), and a client stops for
  the round after M rejections in a row (`accounting.trial_cap`). Nothing that tells the number of
  rejections leaves a client. Its computing time would tell it, too: the guarantee assumes that
  nobody measures that.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

import torch

from mechanisms import dpsgd
from mechanisms.accounting.accountant import Charges
from mechanisms.accounting.trial_cap import smallest_cap
from mechanisms.cohort import Cohort, LocalState
from mechanisms.dpsgd import DpsgdPlan
from mechanisms.sampling import Batch

MAX_REJECTIONS = 100_000
"""A cap above this is useless: a client could be busy with one step for as many trials."""


@dataclass(frozen=True, kw_only=True)
class TrialPlan(DpsgdPlan, ABC):
    """A client's plan: DPSGD's for the proposals; ``steps`` are trials, or accepted with a cap.

    Attributes:
        most_rejections: M, rejections in a row after which the client stops for the round; 0:
            rejections are public.
    """

    most_rejections: int

    @abstractmethod
    def claims(self, accepted: int, nth: int) -> Charges:
        """The paper's charges for ``accepted`` steps of the ``nth`` round; certified 0."""

    def most_claims(self, nth: int) -> Charges:
        """The claims if all trials are accepted; none if rejections are hidden, since the planned
        steps are charged already."""
        return {} if self.most_rejections else self.claims(self.steps, nth)


def most_rejections(lowest_acceptance: float, steps: int, delta_cap: float) -> int | None:
    """M for ``steps`` accepted steps in the whole run; None if it is above `MAX_REJECTIONS`."""
    cap = smallest_cap(lowest_acceptance, steps, delta_cap) if lowest_acceptance > 0 else math.inf
    return int(cap) if cap <= MAX_REJECTIONS else None


def refuse(lowest_acceptance: float) -> NoReturn:
    """Refuse a test for which no cap up to `MAX_REJECTIONS` is enough."""
    raise ValueError(
        f"a step's probability of acceptance may be as low as {lowest_acceptance:.2g}, so more "
        f"than {MAX_REJECTIONS} rejections in a row would have to be allowed: test more gently "
        "(dpsur: more noise or a higher threshold; screening: a lower gain or clip)"
    )


def start(cohort: Cohort, params: torch.Tensor) -> LocalState:
    """The state before the first trial, from the model ``params [P]``."""
    none = torch.zeros(len(cohort.plans), dtype=torch.int64, device=params.device)
    return dpsgd.start(cohort, params).remember(tried=none, refused=none)


def active(cohort: Cohort, state: LocalState) -> torch.Tensor:
    """Bool ``[K]``: whether a client goes on with trials in this round."""
    steps, most = cohort.plan("steps"), cohort.plan("most_rejections")
    hidden = (state.taken < steps) & (state.memory["refused"] < most)
    return torch.where(most > 0, hidden, state.memory["tried"] < steps)


def settle(before: LocalState, candidate: LocalState, accept: torch.Tensor) -> LocalState:
    """The candidate for clients with ``accept [K]`` true, the state before for the rest; either way
    one more trial."""
    tried = before.memory["tried"] + 1
    refused = torch.where(accept, 0, before.memory["refused"] + 1)
    return candidate.where(accept, before).remember(tried=tried, refused=refused)


def loss_change(
    cohort: Cohort, before: LocalState, candidate: LocalState, batch: Batch, rates: Sequence[float]
) -> torch.Tensor:
    """Mean loss of the candidate less that of the model before it, on ``batch``: float64 ``[K]``.

    Not finite where a loss is not; 0 for an empty batch. The batch was drawn with these ``rates
    [K]``.
    """
    new, old = (cohort.losses(state.params, batch, rates) for state in (candidate, before))
    total = cohort.arithmetic.total(torch.where(batch.mask, new.double() - old.double(), 0.0))
    return total / batch.mask.sum(dim=1).clamp(min=1)


def clipped(change: torch.Tensor, bound: torch.Tensor) -> torch.Tensor:
    """``change [K]`` clipped to ``[-bound, bound]``, and ``bound [K]`` where it is not finite.

    A change that is not finite must not be rejected for certain: every bound rests on a least
    probability of acceptance.
    """
    return torch.where(change.isfinite(), change.clamp(-bound, bound), bound)


def metrics(cohort: Cohort, state: LocalState) -> Mapping[str, torch.Tensor]:
    """The share of accepted trials ``[K]`` where that is public."""
    if cohort.plan("most_rejections").any():
        return {}
    return {"acceptance_rate": state.taken / state.memory["tried"].clamp(min=1)}


def realized(cohort: Cohort, state: LocalState) -> Sequence[Charges]:
    """The paper's charges for the accepted steps, where their number is public."""
    return [
        plan.claims(int(taken), nth) if taken and not plan.most_rejections else {}
        for plan, nth, taken in zip(cohort.plans, cohort.nth, state.taken.tolist(), strict=True)
    ]
