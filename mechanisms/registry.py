"""The mechanisms by name: a new one is one file and one row here."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from mechanisms import dpsgd
from mechanisms.cohort import Cohort, LocalState
from mechanisms.plan import Plan, PlanTable, affordable_rounds, calibrate, tabulate
from mechanisms.settings import Privacy


@dataclass(frozen=True)
class Mechanism:
    """A local optimizer on the client axis, as pure functions.

    Attributes:
        plan: from the settings, the steps of a round and a noise multiplier, a client's plan.
        step: one (tried) step of a cohort.
        active: bool ``[K]``, who goes on in this round; a client that is done idles.
        private: False for the plan that has no guarantee; it needs no noise multiplier.
    """

    plan: Callable[[Privacy, int, float], Plan]
    step: Callable[[Cohort, LocalState], LocalState]
    active: Callable[[Cohort, LocalState], torch.Tensor]
    private: bool = True


MECHANISMS: dict[str, Mechanism] = {
    "dpsgd": Mechanism(
        plan=lambda s, steps, noise: dpsgd.DpsgdPlan(s.sample_rate, noise, s.clip_norm, steps),
        step=dpsgd.step,
        active=dpsgd.active,
    ),
    "none": Mechanism(
        plan=lambda s, steps, noise: dpsgd.NonPrivatePlan(s.sample_rate, steps),
        step=dpsgd.step,
        active=dpsgd.active,
        private=False,
    ),
}


def local_round(mechanism: Mechanism, cohort: Cohort, params: torch.Tensor) -> torch.Tensor:
    """A whole local round of K clients from the model ``params [P]``: their models ``[K, P]`` at its end."""
    state = LocalState.start(cohort, params)
    while (active := mechanism.active(cohort, state)).any():
        state = mechanism.step(cohort, state).where(active, state)
    return state.params


def plan_table(settings: Privacy, steps: int, rounds: int, sizes: Sequence[int]) -> PlanTable:
    """Every client's plan, its noise calibrated so that ``rounds`` rounds meet (epsilon, delta).

    Args:
        settings: the privacy settings; with a noise multiplier given, epsilon only bounds the number of rounds.
        steps: local steps a round.
        rounds: rounds in which a client is to take part.
        sizes: public numbers of records, length ``clients``.

    Raises:
        ValueError: the budget does not pay for one round.
    """
    mechanism = MECHANISMS[settings.mechanism]
    target = math.inf if settings.epsilon is None else settings.epsilon

    def plan_of_size(size: int) -> Plan:
        if not mechanism.private:
            return mechanism.plan(settings, steps, 0.0)
        if settings.noise_multiplier is None:
            return calibrate(lambda noise: mechanism.plan(settings, steps, noise), rounds, target, settings.delta)
        plan = mechanism.plan(settings, steps, settings.noise_multiplier)
        affordable_rounds(plan, target, settings.delta, at_most=1)
        return plan

    plan = plan_of_size(1)
    return tabulate(lambda size: plan, sizes)
