"""No client spends past its target: it retires."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.signal import fftconvolve

from mechanisms.accounting.accountant import epsilon
from mechanisms.accounting.events import Covered, PaperClaim, SampledGaussian
from mechanisms.dpsgd import DpsgdPlan
from mechanisms.dpsur import DpsurPlan
from mechanisms.none import NonPrivatePlan
from mechanisms.plan import Plan, planned
from server.budgets import Budgets
from server.orders import Course, orders_in_advance
from tests.running import best_orders, in_progress
from tests.small import plan_table

DELTA, ROUNDS, COLUMNS = 1e-5, 20, ("certified", "published")
A, B = DpsgdPlan(1.0, 5.0, 1.0, 2), DpsgdPlan(0.1, 1.0, 1.0, 5)
DECAY = DpsgdPlan(1.0, 8.0, 1.0, 1, noise_decay=0.3)


def cost(plan: Plan, rounds: int) -> float:
    return epsilon(planned(plan, rounds), DELTA).epsilon


def budgets(
    *plans: Plan, target: float, spent: dict | None = None, taken: list[int] | None = None
) -> Budgets:
    rounds, table = np.array(taken or [0] * len(plans)), plan_table(*plans)
    return Budgets(table, Course(table, ROUNDS), target, DELTA, spent or {}, rounds)


@settings(max_examples=30)
@given(st.floats(0.3, 6.0), st.lists(st.sets(st.integers(0, 3)), max_size=12))
def test_whoever_takes_part_only_when_eligible_never_passes_the_target(target, rounds):
    """And its spending is that of its own history. Kills `<` a wrong round, another client's count,
    a stale history."""
    plans = [A, B, A, DECAY]
    now, taken = budgets(*plans, target=target), np.zeros(4, dtype=int)
    for asked in rounds:
        clients = np.array([c for c in sorted(asked) if now.eligible()[c]], dtype=np.int64)
        now.charge(clients)
        taken[clients] += 1
    spent = [cost(plan, n) for plan, n in zip(plans, taken, strict=True)]
    assert now.epsilons("certified").tolist() == spent and max(spent) <= target
    assert now.eligible().tolist() == [
        cost(p, n + 1) <= target for p, n in zip(plans, taken, strict=True)
    ]
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


def test_histories_are_those_that_somebody_has_now():
    """Not those of before, and each once."""
    now = budgets(A, B, A, A, target=9.0)
    assert now.histories() == [{}]
    now.charge(np.array([0, 1, 3]))
    found = now.histories()
    assert len(found) == 3 and all(one in found for one in ({}, planned(A, 1), planned(B, 1)))
    now.charge(np.array([2]))
    found = now.histories()
    assert len(found) == 2 and all(one in found for one in (planned(A, 1), planned(B, 1)))


def test_charging_nobody_changes_nothing():
    now = budgets(A, B, target=9.0)
    now.charge(np.array([], dtype=np.int64))
    assert now.epsilons("certified").tolist() == [0.0, 0.0] and now.taken.tolist() == [0, 0]


def test_the_given_counts_are_not_written_into():
    taken, table = np.zeros(1, dtype=np.int64), plan_table(A)
    Budgets(table, Course(table, ROUNDS), 9.0, DELTA, {}, taken).charge(np.array([0]))
    assert taken.tolist() == [0]


def true_delta(noise: float | list[float], figures: list[float]) -> float:
    """The least delta at which ``figures[t]``, stated when a run of Gaussian steps of this noise
    (each step's, or that of all) is stopped after t + 1, all hold.

    Whoever stops it sees everything. By backward induction over the sum z of the steps' standard
    normal draws over their noise, exact up to the grid; the loss is z, and half of the variance.
    """
    deviations = 1.0 / np.broadcast_to(np.array(noise, dtype=float), len(figures))
    variances, width = np.cumsum(deviations**2), deviations.min() / 100.0

    def around(deviation: float, reach: float) -> np.ndarray:
        points = math.ceil(reach * deviation / width)
        return width * np.arange(-points, points + 1)

    z = around(math.sqrt(variances[-1]), 10.0)
    value = np.zeros_like(z)
    for own, variance, figure in reversed([*zip(deviations, variances, figures, strict=True)]):
        value = np.maximum(-np.expm1(np.minimum(0.0, figure - z - variance / 2)), value)
        step = np.exp(-np.square(around(own, 9.0) / own) / 2)
        value = fftconvolve(value, step / step.sum(), "same")
    return float(value[len(z) // 2])


@pytest.mark.parametrize("target", [8.0, 30.0])
def test_what_is_shown_during_a_run_holds_for_whoever_stops_it_by_what_he_sees(target):
    """And shows the closing figure if it comes to its end. The smallest figure does not. Kills a
    budget that limits figures at orders which have all of delta, or a share of it each."""
    noise = 2.6878  # twenty rounds cost 7.99
    now = budgets(DpsgdPlan(1.0, noise, 1.0, 1), target=target)
    shown, smallest = [], []
    for _ in range(ROUNDS):
        assert now.eligible().all()
        now.charge(np.array([0]))
        shown.append(now.so_far()[0])
        smallest.append(now.epsilons("certified")[0])
    assert 7.98 < smallest[-1] < 8.0 and shown[0] < 2.1 and shown[9] < 7.3 and max(shown) <= target
    assert all(a >= b for a, b in zip(shown, smallest, strict=True))
    shown[-1] = smallest[-1]
    assert 0.9 * DELTA < true_delta(noise, shown) <= DELTA < 1.5 * DELTA
    assert true_delta(noise, smallest) > 1.5 * DELTA


@pytest.mark.parametrize("paid", [3, 7])
def test_the_orders_are_those_of_the_rounds_that_the_target_pays_for(paid):
    """And do not move with what has been spent. Kills the planned rounds, and the order of the
    moment."""
    now, fixed = budgets(A, target=cost(A, paid)), best_orders(A, paid, DELTA)
    for n in range(1, paid + 1):
        now.charge(np.array([0]))
        assert now.so_far()[0] == min(in_progress(planned(A, n), DELTA, fixed), cost(A, paid))
    assert now.so_far()[0] == cost(A, paid) > 1.28 * in_progress(planned(A, 1), DELTA, fixed)


def test_a_client_that_has_spent_more_than_the_budget_is_not_shown_at_it():
    """As after rounds charged twice. And a budget of what papers claim bounds no proof."""
    now = budgets(A, target=cost(A, 3))
    for _ in range(4):
        now.charge(np.array([0]))
    assert now.so_far()[0] > cost(A, 4)
    target = epsilon(planned(A, 3), DELTA, "published").epsilon
    table = plan_table(A)
    terms = Course(table, ROUNDS), target, DELTA, {}, np.array([0])
    claimed = Budgets(table, *terms, "published")
    for _ in range(3):
        claimed.charge(np.array([0]))
    assert claimed.so_far()[0] > target > cost(A, 3)


def test_every_client_is_shown_at_the_order_of_its_own_plan():
    """Kills the order of the first plan, for all."""
    plans = (A, B, DpsgdPlan(0.3, 3.0, 1.0, 1))
    now = budgets(*plans, target=math.inf)
    now.charge(np.arange(3))
    orders = [best_orders(plan, ROUNDS, DELTA) for plan in plans]
    expected = [
        in_progress(planned(p, 1), DELTA, own) for p, own in zip(plans, orders, strict=True)
    ]
    assert len(set(orders)) == 3 and now.so_far().tolist() == expected


def test_the_order_in_advance_is_of_the_rounds_that_the_target_pays_for_in_its_column():
    """Claims and proof differ by rounds. Kills a target that is held against another column."""
    plan = DpsurPlan(
        1.0,
        2.0,
        1.0,
        2,
        most_rejections=0,
        validation_rate=1.0,
        validation_noise=2.0,
        loss_clip=1.0,
        beta=0.0,
        accounting="every-trial",
    )
    target = epsilon(planned(plan, 4), DELTA, "published").epsilon
    paid = {
        c: sum(epsilon(planned(plan, n), DELTA, c).epsilon <= target for n in range(1, ROUNDS))
        for c in COLUMNS
    }
    assert paid["published"] == 4 != paid["certified"]
    for column, rounds in paid.items():
        expected = best_orders(plan, rounds, DELTA)
        found = orders_in_advance(plan, ROUNDS, target, DELTA, column)
        assert tuple(sorted(found)) == expected


def test_each_order_in_advance_has_its_share_once():
    """With much noise the largest order is the best one of any number of rounds."""
    quiet = DpsgdPlan(1.0, 1000.0, 1.0, 2)
    assert orders_in_advance(quiet, 16, math.inf, DELTA, "certified") == (512.0,)


def test_what_allotments_have_paid_for_costs_nothing_more():
    covered = Covered(SampledGaussian(1.0, 1.0), 4.0)
    now = budgets(A, target=9.0, spent={0: planned(A, 1) | {covered: 5}}, taken=[1])
    assert now.charges_of(0) == planned(A, 1) and now.epsilons("certified").tolist() == [cost(A, 1)]


def test_what_is_noted_beside_a_round_is_added_to_what_was_paid():
    """For these clients alone. Kills a history that is replaced, and one that others share."""
    now, claim = budgets(A, A, A, target=9.0), {PaperClaim(0.5, 1.0): 3}
    now.charge(np.array([0, 1]))
    now.add(np.array([1, 2]), claim)
    now.add(np.array([1]), claim)
    twice = {PaperClaim(0.5, 1.0): 6}
    assert [now.charges_of(c) for c in range(3)] == [planned(A, 1), planned(A, 1) | twice, claim]
    published = [epsilon(now.charges_of(c), DELTA, "published").epsilon for c in range(3)]
    assert now.epsilons("published").tolist() == published and len(set(published)) == 3
    assert now.epsilons("certified").tolist() == [cost(A, 1), cost(A, 1), 0.0]


def test_a_ledger_that_says_something_else_of_any_client_is_noticed():
    """More, less or nothing at all, first client or last."""
    plans, spent = (A, B), {0: planned(A, 1), 1: planned(B, 2)}
    now = budgets(*plans, target=9.0, spent=spent)
    now.check(spent)
    for client, plan in enumerate(plans):
        rest = {other: charges for other, charges in spent.items() if other != client}
        for told in (rest, rest | {client: {}}, rest | {client: planned(plan, 3)}):
            with pytest.raises(ValueError, match=f"something else of client {client} "):
                now.check(told)


def test_who_may_go_on_is_known_until_something_is_noted():
    """And whoever asks may change the answer."""
    now = budgets(A, DECAY, target=cost(A, 1))
    now.eligible()[:] = False
    assert now.eligible().all()
    now.add(np.array([0]), planned(A, 1))
    assert now.eligible().tolist() == [False, True]
    now = budgets(DECAY, target=cost(DECAY, 2))  # its second round costs more than its first one
    assert now.eligible().all()
    for _ in range(3):
        now.count(np.array([0]))
    assert not now.eligible().any()
