"""The mechanisms by name: a new one is one file and one row here."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import torch

from mechanisms import (
    dpagd,
    dpagd_plan,
    dphero,
    dpis,
    dpis_plan,
    dpsgd,
    dpsur,
    equal_rounds,
    plain,
    screening,
    trials,
)
from mechanisms.accounting.accountant import Charges, epsilon
from mechanisms.cohort import Cohort, LocalState
from mechanisms.plan import Claimant, Plan, PlanTable, Terms, affordable_rounds, calibrate, tabulate
from mechanisms.settings import Privacy, Settings


@dataclass(frozen=True)
class Mechanism:
    """A local optimizer on the client axis, as pure functions.

    Attributes:
        plan: from the terms and a noise multiplier, a client's plan.
        step: one (tried) step of a cohort.
        active: bool ``[K]``, whether a client goes on in this round; one that is done idles.
        start: the state before the first step.
        report: public metrics of a finished local round, for the round record: name -> a value of
            each client ``[K]``.
        calibrate: the plans that meet the budget, from ``plan`` with the noise left open and the
            terms of all clients.
        lasting: names of the memory that a client keeps from round to round, if it keeps any.
        sized: whether a plan depends on the client's number of records.
        realized: what each client's ledger records after the round beyond ``round_charges``.
        note: a sentence on why the published epsilon differs from the certified one, if it does.
        private: False for the plan that has no guarantee; it needs no noise multiplier.
        searches: whether a client's own losses choose the step size, so that no guide may steer it.
    """

    plan: Callable[[Terms, float], Plan]
    step: Callable[[Cohort, LocalState], LocalState]
    active: Callable[[Cohort, LocalState], torch.Tensor]
    start: Callable[[Cohort, torch.Tensor], LocalState] = dpsgd.start
    report: Callable[[Cohort, LocalState], Mapping[str, torch.Tensor]] = lambda cohort, state: {}
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


MECHANISMS: dict[str, Mechanism] = {
    "dpsgd": Mechanism(dpsgd.DpsgdPlan.of, dpsgd.step, dpsgd.active),
    "dpsur": Mechanism(
        dpsur.DpsurPlan.of,
        dpsur.step,
        trials.active,
        start=trials.start,
        report=trials.report,
        realized=trials.realized,
        note="DPSUR's paper charges accepted steps only and takes the test for post-processing; "
        "but what is released is the proposal weighted by its probability of acceptance, which "
        "depends on the data again.",
    ),
    "screening": Mechanism(
        screening.ScreeningPlan.of,
        screening.step,
        trials.active,
        start=trials.start,
        report=trials.report,
        realized=trials.realized,
        note="Noise screening's paper charges accepted steps only, as if neither the choice "
        "among proposals nor the loss that it looks at told anything about the data.",
    ),
    "dpis": Mechanism(
        dpis_plan.DpisPlan.of,
        dpis.step,
        dpsgd.active,
        start=dpis.start,
        report=dpis.report,
        realized=dpis.realized,
        calibrate=equal_rounds.calibrate,
        lasting=(),
        sized=True,
        note="DPIS's paper charges norm sums as if their noise, too, were divided by the "
        "sampling rate, and counts the number of records as a release; the certified figure is "
        "the budget to which a filter holds the run.",
    ),
    "dphero": Mechanism(
        dphero.HeroPlan.of, dphero.step, dpsgd.active, start=dphero.start, report=dphero.report
    ),
    "dpagd": Mechanism(
        dpagd_plan.DpagdPlan.of,
        dpagd.step,
        dpagd.active,
        start=dpagd.start,
        report=dpagd.report,
        realized=dpagd.realized,
        calibrate=equal_rounds.calibrate,
        lasting=dpagd.LASTING,
        searches=True,
        note="DPAGD's paper adds the planned budget up at all orders at once and takes the best; "
        "the certified figure is the budget at one order, named in advance, to which a filter "
        "holds the run.",
    ),
    "none": Mechanism(
        plain.NonPrivatePlan.of,
        plain.step,
        dpsgd.active,
        start=LocalState.start,
        lasting=(),
        private=False,
    ),
}

NOTHING: Charges = MappingProxyType({})


def local_round(
    mechanism: Mechanism,
    cohort: Cohort,
    params: torch.Tensor,
    resume: Callable[[LocalState], LocalState] = lambda fresh: fresh,
) -> LocalState:
    """A whole local round of K clients from the model ``params [P]``: the state at its end.

    ``resume`` turns the fresh state at the start into one with what clients kept from earlier
    rounds.
    """
    state = resume(mechanism.start(cohort, params))
    while (active := mechanism.active(cohort, state)).any():
        after = mechanism.step(cohort, state)
        state = after if active.all() else after.where(active, state)
    return state


def plan_table(
    privacy: Privacy,
    own: Settings | None,
    steps: int | np.ndarray,
    rounds: int,
    sizes: np.ndarray,
    prior: Charges = NOTHING,
) -> PlanTable:
    """Every client's plan, its noise calibrated so that ``rounds`` rounds meet (epsilon, delta).

    Args:
        privacy: the privacy settings; with a noise multiplier given, epsilon only bounds the number
            of rounds.
        own: the mechanism's own settings, if it has any.
        steps: local steps a round, of all clients or of each, ``[clients]``.
        rounds: rounds in which a client is to take part.
        sizes: public numbers of records, int64 ``[clients]``.
        prior: what every client pays besides these rounds out of the same budget.

    Raises:
        ValueError: the budget does not pay for one round, or the run's length would depend on
            outputs.
    """
    mechanism = MECHANISMS[privacy.mechanism]
    seen = sizes if mechanism.sized or privacy.batch_size is not None else np.ones_like(sizes)
    kinds = np.stack([seen, np.broadcast_to(steps, sizes.shape)])
    distinct, which = np.unique(kinds, axis=1, return_inverse=True)
    terms = [
        Terms(privacy.of_size(size), own, count, rounds, size, tuple(prior.items()))
        for size, count in distinct.T.tolist()
    ]
    return tabulate(_plans(mechanism, terms), which.reshape(-1))


def _plans(mechanism: Mechanism, terms: Sequence[Terms]) -> Sequence[Plan]:
    """A plan for each of the terms, which differ in rate, steps and size alone."""
    noise = terms[0].privacy.noise_multiplier
    if not mechanism.private:
        return [mechanism.plan(one, 0.0) for one in terms]
    _check_length(mechanism.plan(terms[0], noise or 1.0), terms[0])
    if noise is not None:
        plans = [mechanism.plan(one, noise) for one in terms]
        for plan, one in zip(plans, terms, strict=True):
            affordable_rounds(plan, one, at_most=1)
        return plans
    return mechanism.calibrate(mechanism.plan, terms)


def _check_length(plan: Plan, terms: Terms) -> None:
    """Refuse a published budget if outputs would decide the number of rounds of a run with a finite
    certified epsilon.

    That epsilon would be taken at a time that outputs choose, which no theorem covers.
    """
    charges = plan.most_claims(1) if isinstance(plan, Claimant) else {}
    if (
        terms.privacy.budget == "published"
        and charges
        and epsilon(plan.round_charges(1), 0.5).epsilon < math.inf
    ):
        raise ValueError(
            f"budget is published, but what {terms.privacy.mechanism} accepts is public here, so "
            "that the run's length would depend on it and no epsilon would be proved: use a test "
            "with hidden rejections (--dpsur-accounting selective; --screening-data own with "
            "--screening-clip), or --budget certified"
        )
