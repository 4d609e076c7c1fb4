"""What a mechanism is, as pure functions on the client axis, and a local round of one."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from mechanisms.accounting.accountant import Charges
from mechanisms.cohort import Cohort, LocalState
from mechanisms.placing import place
from mechanisms.plan import Plan, Terms, calibrate
from mechanisms.settings import Settings


@dataclass(frozen=True)
class Mechanism:
    """A local optimizer on the client axis, as pure functions.

    Attributes:
        plan: from the terms and a noise multiplier, a client's plan.
        step: one (tried) step of a cohort.
        active: bool ``[K]``, whether a client goes on in this round; one that is done idles. By
            default each takes its planned ``steps``, which the host counts without waiting for the
            device.
        start: the state before the first step.
        metrics: public metrics of a finished local round, for the round record: name -> a value of
            each client ``[K]``.
        calibrate: the plans that meet the budget, from ``plan`` with the noise left open and the
            terms of all clients.
        lasting: names of the memory that a client keeps from round to round, if it keeps any.
        sized: whether a plan depends on the client's number of records.
        realized: what each client's ledger records after the round beyond ``round_charges``.
        note: a sentence on why the published epsilon differs from the certified one, if it does.
        private: False for the plan that has no guarantee; it needs no noise multiplier.
        searches: whether a client's own losses choose the step size, so that no guide may steer it.
        settings: the class of its own settings, for a mechanism outside the project
            (``mechanism_settings``).
        patience: attempts at each planned step, on average over a round, after which a round has no
            end; None where its end is proved.
    """

    plan: Callable[[Terms, float], Plan]
    step: Callable[[Cohort, LocalState], LocalState]
    active: Callable[[Cohort, LocalState], torch.Tensor] | None = None
    start: Callable[[Cohort, torch.Tensor], LocalState] = LocalState.start
    metrics: Callable[[Cohort, LocalState], Mapping[str, torch.Tensor]] = lambda cohort, state: {}
    realized: Callable[[Cohort, LocalState], Sequence[Charges]] = lambda cohort, state: (
        [{}] * len(cohort.plans)
    )
    calibrate: Callable[[Callable[[Terms, float], Any], Sequence[Terms]], Sequence[Plan]] = (
        calibrate
    )
    lasting: Sequence[str] = ("clip_norm",)
    sized: bool = False
    note: str = ""
    private: bool = True
    searches: bool = False
    settings: type[Settings] | None = None
    patience: int | None = None


def local_round(
    mechanism: Mechanism,
    cohort: Cohort,
    params: torch.Tensor,
    resume: Callable[[LocalState], LocalState] = lambda fresh: fresh,
) -> LocalState:
    """A whole local round of K clients from the model ``params [P]``: the state at its end.

    ``resume`` turns the fresh state at the start into one with what clients kept from earlier
    rounds.

    Raises:
        ValueError: it has no end.
    """
    state, tried = resume(mechanism.start(cohort, params)), 0
    while (going := _going(mechanism, cohort, state, tried)).any():
        after = mechanism.step(cohort, state)
        state = after if going.all() else after.where(place(going, params.device), state)
        tried += 1
        if mechanism.patience is not None:
            _check_end(cohort, tried, mechanism.patience)
    return state


def _check_end(cohort: Cohort, tried: int, patience: int) -> None:
    steps = max(plan.steps for plan in cohort.plans)
    if tried > patience * steps:
        raise ValueError(
            f"a mechanism of your own goes on after {tried} attempts at {steps} steps of a round: "
            "have its active end, or its plan have more steps"
        )


def _going(mechanism: Mechanism, cohort: Cohort, state: LocalState, tried: int) -> torch.Tensor:
    """Bool ``[K]``: who takes another step after ``tried`` ones."""
    if mechanism.active is None:
        return torch.tensor([tried < plan.steps for plan in cohort.plans])
    return mechanism.active(cohort, state)
