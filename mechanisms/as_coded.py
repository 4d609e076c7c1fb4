"""DPSUR as its authors' public code runs it where that is not what the paper says, for K clients.

Named by ``--mechanism mechanisms.as_coded:DPSUR``. Each habit is a switch in
``--mechanism-settings``, and off by default; with any of them, and without, nothing is proved:

- ``stale_loss``: a trial is compared with the loss of the last accepted model on the batch of that
  model's own test, so that a lucky batch raises the bar for all trials to come.
- ``kept_momentum``: a rejected trial leaves its gradient in the optimizer's state.
- ``drawn_divisor``: a sum is divided by the size of the drawn batch, which nobody charges.

As in the code, accepted steps are counted, and charged as the paper does. The rest is DPSUR's.
"""

from dataclasses import asdict, dataclass, replace

import torch

from mechanisms import dpsgd, dpsur, trials
from mechanisms.accounting.accountant import Charges
from mechanisms.accounting.events import Unproved
from mechanisms.cohort import Cohort, LocalState
from mechanisms.dpsur import DpsurPlan
from mechanisms.mechanism import Mechanism
from mechanisms.plan import Terms, merge
from mechanisms.sampling import poisson
from mechanisms.settings import Dpsur

FIRST_LOSS = 1e5
"""What the first trial's loss is compared with, in nats: it counts as fallen by C_v or more."""


class Habits(Dpsur):
    """DPSUR's settings and the habits of its authors' code"""

    stale_loss: bool = False
    """compare with the last accepted model's loss on an old batch"""
    kept_momentum: bool = False
    """keep the optimizer's state of rejected steps"""
    drawn_divisor: bool = False
    """divide by the size of the drawn batch"""


@dataclass(frozen=True, kw_only=True)
class Plan(DpsurPlan):
    """A client's plan, as `Habits` describes it; ``steps`` are accepted ones."""

    stale_loss: bool
    kept_momentum: bool
    drawn_divisor: bool

    @classmethod
    def of(cls, terms: Terms, noise: float) -> "Plan":
        """The plan of some terms with this noise multiplier.

        Raises:
            ValueError: a setting of DPSUR is given that has no effect here.
        """
        own = terms.own_of(Habits, "DPSUR as coded")
        if unused := own.model_fields_set & {"dpsur_accounting", "dpsur_cap_share"}:
            raise ValueError(
                f"{min(unused)} has no effect on DPSUR as coded, which charges accepted steps as "
                "the paper does and has no cap on rejections: leave it out"
            )
        given = own.model_dump()
        habits = {name: given.pop(name) for name in Habits.__annotations__}
        plain = DpsurPlan.of(replace(terms, own=Dpsur(**given)), noise)
        hidden = replace(plain, accounting="selective", most_rejections=trials.MAX_REJECTIONS)
        return cls(**asdict(hidden), **habits)

    def round_charges(self, nth: int) -> Charges:
        """What the paper charges for ``steps`` accepted steps, of which nothing is proved."""
        return merge({Unproved("DPSUR as coded"): self.steps}, self.claims(self.steps, nth))


def start(cohort: Cohort, params: torch.Tensor) -> LocalState:
    """The state before the first trial, from the model ``params [P]``."""
    first = params.new_full((len(cohort.plans),), FIRST_LOSS, dtype=torch.float64)
    return trials.start(cohort, params).remember(loss=first)


def step(cohort: Cohort, state: LocalState) -> LocalState:
    """One trial of every client."""
    habits, rates = cohort.plans[0], cohort.exact("validation_rate")
    candidate = _proposed(cohort, state, habits.drawn_divisor)
    batch = poisson(cohort.data, rates, cohort.streams.of("validation"))
    if habits.stale_loss:
        found = cohort.losses(candidate.params, batch, rates).double()
        loss, old = (found * batch.mask).sum(dim=1) / batch.mask.sum(dim=1), state.memory["loss"]
        loss = torch.where(batch.mask.any(dim=1), loss, old)
        change, candidate = loss - old, candidate.remember(loss=loss)
    else:
        change = trials.loss_change(cohort, state, candidate, batch, rates)
    accept = dpsur.accepted(cohort, change)
    after = trials.settle(state, candidate, accept)
    return replace(after, optimizer=candidate.optimizer) if habits.kept_momentum else after


def _proposed(cohort: Cohort, state: LocalState, drawn_divisor: bool) -> LocalState:
    """DPSGD's step."""
    if not drawn_divisor:
        return dpsgd.step(cohort, state)
    batch = dpsgd.draw_as_planned(cohort)
    total, _ = dpsgd.clipped_sum(cohort, state, batch)
    size = batch.mask.sum(dim=1, keepdim=True).clamp(min=1)
    return state.descend(cohort, dpsgd.noised(cohort, state, total) / size)


DPSUR = Mechanism(
    Plan.of,
    step,
    trials.active,
    start=start,
    lasting=("clip_norm", "loss"),
    note=dpsur.MECHANISM.note,
    settings=Habits,
)
