"""No client spends past its target: it retires."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mechanisms.accountant import epsilon
from mechanisms.dpsgd import DpsgdPlan
from mechanisms.events import SampledGaussian
from mechanisms.plain import NonPrivatePlan
from mechanisms.plan import Plan, planned
from server.budgets import Budgets
from tests.small import plan_table

DELTA = 1e-5
A, B = DpsgdPlan(1.0, 5.0, 1.0, 2), DpsgdPlan(0.1, 1.0, 1.0, 5)
DECAY = DpsgdPlan(1.0, 8.0, 1.0, 1, noise_decay=0.3)


def cost(plan: Plan, rounds: int) -> float:
    return epsilon(planned(plan, rounds), DELTA).epsilon


def budgets(*plans: Plan, target: float, spent: dict | None = None, taken: list[int] | None = None) -> Budgets:
    rounds = np.array(taken or [0] * len(plans))
    return Budgets(plan_table(*plans), target, DELTA, spent or {}, rounds)


@settings(max_examples=30)
@given(st.floats(0.3, 6.0), st.lists(st.sets(st.integers(0, 3)), max_size=12))
def test_whoever_takes_part_only_when_eligible_never_passes_the_target(target, rounds):
    """And its spending is that of its own history. Kills `<` a wrong round, another client's count, a stale history."""
    plans = [A, B, A, DECAY]
    now, taken = budgets(*plans, target=target), np.zeros(4, dtype=int)
    for asked in rounds:
        clients = np.array([c for c in sorted(asked) if now.eligible()[c]], dtype=np.int64)
        now.charge(clients)
        taken[clients] += 1
    spent = [cost(plan, n) for plan, n in zip(plans, taken, strict=True)]
    assert now.epsilons("certified").tolist() == spent and max(spent) <= target
    assert now.eligible().tolist() == [cost(p, n + 1) <= target for p, n in zip(plans, taken, strict=True)]
    assert now.taken.tolist() == taken.tolist()


@pytest.mark.parametrize("rounds", [1, 3])
def test_a_client_retires_when_its_next_round_would_pass_the_target(rounds):
    """The target is met exactly, and missed by the last digit."""
    for target, able in ((cost(A, rounds), True), (math.nextafter(cost(A, rounds), 0), False)):
        now = budgets(A, target=target)
        for _ in range(rounds - 1):
            now.charge(np.array([0]))
        assert now.eligible().tolist() == [able]


def test_what_the_ledger_says_is_spent():
    """After a crash: client 1 paid for two rounds, of which one was finished."""
    now = budgets(A, A, target=cost(A, 3), spent={1: planned(A, 2)}, taken=[0, 1])
    assert now.epsilons("certified").tolist() == [0.0, cost(A, 2)]
    now.charge(np.array([0, 1]))
    assert now.eligible().tolist() == [True, False] and now.charges_of(1) == planned(A, 3)


def test_charges_of_another_plan_count_too():
    other = {SampledGaussian(0.5, 3.0): 4}
    now = budgets(A, target=9.0, spent={0: other})
    now.charge(np.array([0]))
    assert now.charges_of(0) == {**other, **planned(A, 1)}


def test_no_target_retires_nobody():
    now = budgets(A, NonPrivatePlan(1.0, 3), target=math.inf)
    for _ in range(3):
        now.charge(np.array([0, 1]))
    assert now.eligible().all() and now.epsilons("certified").tolist() == [cost(A, 3), math.inf]


def test_the_published_column_is_not_below_the_certified_one_for_dpsgd():
    """The same curve, over fewer orders."""
    now = budgets(A, B, target=9.0)
    now.charge(np.array([0, 1]))
    assert (now.epsilons("published") >= now.epsilons("certified")).all()


def test_charging_nobody_changes_nothing():
    now = budgets(A, B, target=9.0)
    now.charge(np.array([], dtype=np.int64))
    assert now.epsilons("certified").tolist() == [0.0, 0.0] and now.taken.tolist() == [0, 0]


def test_the_given_counts_are_not_written_into():
    taken = np.zeros(1, dtype=np.int64)
    Budgets(plan_table(A), 9.0, DELTA, {}, taken).charge(np.array([0]))
    assert taken.tolist() == [0]
