"""What all figures that a run can print have used of delta, together."""

import math

import numpy as np
import pytest

from mechanisms.accounting.accountant import Charges, cap_delta, conversion, epsilon, rdp
from mechanisms.accounting.events import Allotment, DpsurStep, TrialCap
from mechanisms.accounting.trial_cap import smallest_cap
from mechanisms.dpsur import DpsurPlan
from mechanisms.plan import Plan, Terms, planned
from mechanisms.settings import Dpsur, Privacy
from server.orders import orders_in_advance, running

DELTA, ROUNDS = 1e-5, 8


def hidden(cap_share: float) -> Plan:
    own = Dpsur(dpsur_accounting="selective", dpsur_cap_share=cap_share)
    return DpsurPlan.of(Terms(Privacy(sample_rate=0.1), own, 2, ROUNDS, 500), 3.0)


def used(charges: Charges, shown: float, order: float) -> float:
    """The delta at which charges cost the epsilon shown at one order, caps aside."""
    lost = cap_delta(charges)
    left = shown - lost / (1 - lost) - rdp(charges, (order,), "certified")[0]
    return math.exp((order - 1) * (conversion((order,), 1.0)[0] - left))


@pytest.mark.parametrize("cap_share", [0.1, 0.9])
@pytest.mark.parametrize("taken", [5, ROUNDS])
def test_the_shares_and_caps_of_all_figures_of_a_run_add_up_to_delta(cap_share, taken):
    """Of every figure while it goes on, at each of their orders, and of the closing one, at any
    other. Kills a share for both, and caps that pay for themselves as they are charged."""
    plan = hidden(cap_share)
    fixed = orders_in_advance(plan, ROUNDS, math.inf, DELTA, "certified")
    spent = [planned(plan, n) for n in range(1, taken + 1)]
    shown = [running(charges, DELTA, fixed, math.inf) for charges in spent]
    early = [used(one, *figure) for one, figure in zip(spent, shown, strict=True)]
    end = used(spent[-1], *epsilon(spent[-1], DELTA))
    assert len(fixed) > 2 and len({figure.order for figure in shown}) > 1
    assert len(fixed) * max(early) + end + cap_delta(spent[-1]) == pytest.approx(DELTA, rel=1e-6)
    assert 0.5 * cap_share * DELTA * taken / ROUNDS < cap_delta(spent[-1])


def test_nothing_is_proved_once_caps_have_used_up_the_share_of_the_end():
    """Neither while the run goes on nor afterwards."""
    step = DpsurStep(0.1, 3.0, 0.05, 3.0, -1.0, "selective")
    cap = TrialCap(0.5, smallest_cap(0.5, 1, 0.01 * DELTA))
    share = cap_delta({cap: 1}) / DELTA
    most = math.floor(0.995 / share)
    assert (most + 1) * share < 1.0
    for count, finite in ((most, True), (most + 1, False)):
        charges = {step: count, cap: count}
        found = running(charges, DELTA, (8.0, 20.0), math.inf), epsilon(charges, DELTA)
        assert [math.isfinite(one.epsilon) for one in found] == [finite, finite]


def test_an_order_that_an_allotment_names_has_all_of_delta_from_beginning_to_end():
    charges = {Allotment(12.0, 0.05, 4): 3}
    found = running(charges, DELTA, (12.0,), math.inf)
    assert found == epsilon(charges, DELTA) and used(charges, *found) == pytest.approx(DELTA)


def test_a_figure_in_progress_is_at_most_the_budget_that_a_run_keeps():
    plan = hidden(0.1)
    spent = planned(plan, ROUNDS)
    budget = epsilon(spent, DELTA).epsilon
    fixed = orders_in_advance(plan, ROUNDS, budget, DELTA, "certified")
    assert running(spent, DELTA, fixed, math.inf).epsilon > budget
    assert running(spent, DELTA, fixed, budget).epsilon == budget
    assert running(spent, DELTA, fixed, np.nextafter(budget, 0)).epsilon > budget
