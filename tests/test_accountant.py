"""From charges to epsilon: reference values, composition, conversion and the exact Gaussian
trade-off."""

import math
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from mechanisms.accounting import accountant, curves, dominating, loss_distribution
from mechanisms.accounting.events import (
    Allotment,
    ClassicClaim,
    DpsurStep,
    Gaussian,
    HeterogeneousGaussian,
    ImportanceSampledGaussian,
    NoisyNormSum,
    PaperClaim,
    PublicLabels,
    SampledGaussian,
    ScreenedStep,
    Unprotected,
    Unproved,
    VisibleChoice,
)
from tests.reference_values import REFERENCE

A, B = SampledGaussian(0.01, 1.1), SampledGaussian(0.2, 4.0)
COUNTS = st.integers(min_value=0, max_value=10**6)


@pytest.mark.parametrize("row", REFERENCE["epsilon"])
def test_reference_epsilons(row):
    charges = {SampledGaussian(row["q"], row["sigma"]): row["steps"]}
    found = accountant.epsilon(charges, row["delta"], "published")
    assert found.epsilon == pytest.approx(row["epsilon"], rel=1e-9)
    assert found.order == row["order"]


def test_the_grids():
    assert tuple(range(2, 65)) == accountant.PUBLISHED_ORDERS
    assert set(accountant.PUBLISHED_ORDERS) <= set(accountant.ORDERS)
    assert (accountant.ORDERS[0], accountant.ORDERS[-1]) == (1.25, 512)
    assert {1.25, 5.5, 10.75} <= set(accountant.ORDERS)
    assert sorted(set(accountant.ORDERS)) == list(accountant.ORDERS)


@given(COUNTS, COUNTS)
def test_charges_compose_by_addition_of_every_application(a, b):
    for column in curves.COLUMNS:
        one, two = (curves.rdp(event, accountant.ORDERS, column) for event in (A, B))
        assert accountant.rdp({A: a, B: b}, accountant.ORDERS, column) == pytest.approx(
            a * one + b * two, rel=1e-12
        )


@settings(max_examples=30)
@given(COUNTS, COUNTS, st.floats(min_value=1e-12, max_value=0.5))
def test_epsilon_is_the_smallest_conversion_and_never_negative(a, b, delta):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = accountant.epsilon({A: a, B: b}, delta, orders=accountant.ORDERS)
    rdp = accountant.rdp({A: a, B: b}, accountant.ORDERS, "certified")
    brute = min(
        value + math.log((order - 1) / order) - (math.log(delta) + math.log(order)) / (order - 1)
        for order, value in zip(accountant.ORDERS, rdp, strict=True)
    )
    assert found.epsilon == pytest.approx(max(0.0, brute) if a + b else 0.0, rel=1e-10, abs=1e-10)
    little = accountant.epsilon({SampledGaussian(1e-3, 50.0): 1}, 0.5, orders=accountant.ORDERS)
    assert little.epsilon == 0.0


@pytest.mark.parametrize("noise", [0.5, 1.0, 4.0])
@pytest.mark.parametrize("delta", [1e-3, 1e-6])
def test_the_guarantee_holds_against_the_exact_gaussian_tradeoff(noise, delta):
    """The exact delta of a Gaussian at our epsilon (Balle, Wang 2018, Theorem 8) is below delta,
    but not by far."""

    def exact(epsilon):
        mean = 1 / noise
        return norm.cdf(mean / 2 - epsilon / mean) - math.exp(epsilon) * norm.cdf(
            -mean / 2 - epsilon / mean
        )

    charges = {SampledGaussian(1.0, noise): 1}
    found = accountant.epsilon(charges, delta, orders=accountant.ORDERS).epsilon
    tighter = accountant.epsilon(charges, delta).epsilon
    assert exact(found) <= delta
    assert exact(0.8 * found) > delta
    assert exact(tighter) <= delta
    assert exact(0.997 * tighter) > 0.98 * delta


GAUSSIANS = {A: 300, Gaussian(9.0): 2, HeterogeneousGaussian(0.05, 2.0, 0.5): 40}
AS_SAMPLED = {A: 300, SampledGaussian(1.0, 9.0): 2, SampledGaussian(0.05, 1.0): 40}


def test_gaussians_are_certified_by_loss_distributions_and_named_orders_by_renyi():
    found = accountant.epsilon(GAUSSIANS, 1e-5)
    renyi = accountant.epsilon(GAUSSIANS, 1e-5, orders=accountant.ORDERS)
    steps = {
        dominating.sampled(event.sample_rate, event.noise_multiplier): n
        for event, n in AS_SAMPLED.items()
    }
    assert found == (loss_distribution.epsilon(steps, 0.995 * 1e-5), None)
    assert 0.8 * renyi.epsilon < found.epsilon < 0.97 * renyi.epsilon
    assert (found.method, renyi.method) == ("loss distributions", "Renyi")
    assert renyi.order in accountant.ORDERS


def test_an_end_of_the_grid_is_no_warning_where_renyi_is_for_comparison():
    charges = {SampledGaussian(0.01, 4000.0): 100}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert accountant.by_renyi(charges, 1e-5).order == accountant.ORDERS[-1]
    with pytest.warns(UserWarning, match="an end of the grid"):
        accountant.epsilon(charges, 1e-5, orders=accountant.ORDERS)


def test_events_that_one_pair_dominates_are_all_counted():
    alike = [Gaussian(9.0), SampledGaussian(1.0, 9.0), HeterogeneousGaussian(1.0, 18.0, 0.5)]
    together = accountant.epsilon({event: n for n, event in enumerate(alike, 1)}, 1e-5)
    assert together == accountant.epsilon({alike[0]: 6}, 1e-5) and together.order is None


def test_what_costs_nothing_is_no_obstacle_to_loss_distributions():
    free = {
        PaperClaim(0.1, 1.0): 5,
        ClassicClaim(0.1, 1.0): 1,
        PublicLabels(): 1,
        Unprotected(0.1): 0,
    }
    assert accountant.epsilon(GAUSSIANS | free, 1e-5) == accountant.epsilon(GAUSSIANS, 1e-5)
    assert accountant.epsilon({A: 0}, 1e-5) == accountant.epsilon(free, 1e-5) == (0.0, None)
    assert accountant.epsilon(free, 1e-5).method == ""
    assert accountant.epsilon({Unprotected(0.1): 1}, 1e-5).method == ""


def test_an_allotment_that_nobody_has_leaves_delta_as_it_is():
    """With one, an epsilon takes all of delta."""
    step = ImportanceSampledGaussian(10, 1.0, 30.0, 600.0, 1.2)
    least = accountant.guarantee({step: 5}, 1e-5, "certified", accountant.ORDERS).epsilon
    target = (least + accountant.epsilon({step: 5}, 1e-5).epsilon) / 2.0
    assert not accountant.within({step: 5, Allotment(8.0, 1.0, 3): 0}, target, 1e-5)


@pytest.mark.parametrize(
    "event",
    [
        DpsurStep(0.1, 2.0, 0.1, 0.05, -1.0, "selective"),
        ScreenedStep(0.1, 2.0, 0.1, 0.0, "clipped"),
        Unproved("nothing"),
        HeterogeneousGaussian(0.05, 2.0, 0.0),
        NoisyNormSum(0.1, 2.0),
        ImportanceSampledGaussian(10, 1.0, 20.0, 100, 2.0),
    ],
    ids=lambda event: event.kind,
)
def test_one_event_without_a_dominating_pair_leaves_all_to_renyi(event):
    """Never mixed: an epsilon by one way and an epsilon by the other do not add up at one delta."""
    charges = {A: 300, event: 1}
    renyi = accountant.epsilon(charges, 0.995 * 1e-5, orders=accountant.ORDERS)
    assert accountant.epsilon(charges, 1e-5) == renyi


def test_too_many_kinds_of_steps_are_left_to_renyi(monkeypatch):
    monkeypatch.setattr(accountant, "MAX_KINDS", 3)
    charges = {SampledGaussian(0.1, 2.0 + k): 4 for k in range(3)}
    assert accountant.epsilon(charges, 1e-5).order is None
    assert accountant.epsilon(charges | {SampledGaussian(0.1, 9.0): 4}, 1e-5).order is not None


def test_what_loss_distributions_leave_to_renyi_leaves_figures_in_progress_their_share_of_delta():
    charges = {SampledGaussian(0.5, 0.09): 2}
    renyi = accountant.epsilon(charges, 0.995 * 1e-5, orders=accountant.ORDERS)
    assert accountant.epsilon(charges, 1e-5) == renyi
    assert accountant.within(charges, renyi.epsilon, 1e-5)
    assert not accountant.within(charges, renyi.epsilon * (1 - 1e-9), 1e-5)


@pytest.mark.parametrize(
    "charges", [GAUSSIANS, {A: 50}, {A: 50, VisibleChoice(0.1, 4.0): 1}], ids=str
)
def test_what_is_within_a_budget_is_what_epsilon_says(charges):
    """Whatever was asked before. Kills answers that are remembered for other counts, budgets,
    deltas or columns."""
    for column in ("published", "certified"):
        spent = accountant.epsilon(charges, 1e-5, column).epsilon
        more = {event: count + 1 for event, count in charges.items()}
        for _ in range(2):
            assert accountant.within(charges, spent, 1e-5, column)
            assert not accountant.within(charges, spent * (1 - 1e-9), 1e-5, column)
            assert not accountant.within(charges, spent, 0.9e-5, column)
            assert not accountant.within(more, spent, 1e-5, column)
            assert accountant.within(more, math.inf, 1e-5, column)
        less = {event: count - 1 for event, count in charges.items()}
        assert accountant.within(less, spent, 1e-5, column)
        for other in curves.COLUMNS:
            enough = accountant.epsilon(charges, 1e-5, other).epsilon <= spent
            assert accountant.within(charges, spent, 1e-5, other) is enough
    assert not accountant.within({Unprotected(0.1): 1}, 9.0, 1e-5)
    assert accountant.within({Unprotected(0.1): 1}, math.inf, 1e-5)


def test_a_part_of_known_charges_is_within_their_budget_without_a_look(monkeypatch):
    spent = accountant.epsilon(GAUSSIANS, 1e-5).epsilon
    assert accountant.within(GAUSSIANS, spent, 1e-5)
    monkeypatch.setattr(accountant, "_epsilon", None)
    assert accountant.within(GAUSSIANS | {A: 299}, spent, 1e-5)


@pytest.mark.parametrize("event", GAUSSIANS, ids=str)
def test_more_of_one_kind_than_known_charges_have_is_looked_at(event):
    """And less of all others. Kills a budget that is kept by one kind of charges for all."""
    spent = accountant.epsilon(GAUSSIANS, 1e-5).epsilon
    assert accountant.within(GAUSSIANS, spent, 1e-5)
    less = {each: count - 1 for each, count in GAUSSIANS.items()}
    assert not accountant.within(less | {event: 50 * GAUSSIANS[event]}, spent, 1e-5)


def test_nothing_charged_costs_nothing_and_no_noise_costs_everything():
    assert accountant.epsilon({}, 1e-5) == (0.0, None)
    assert accountant.epsilon({A: 0, Unprotected(0.1): 0}, 1e-5) == (0.0, None)
    assert accountant.epsilon({A: 5, Unprotected(0.1): 1}, 1e-5) == (math.inf, None)
    assert accountant.rdp({A: 0, Unprotected(0.1): 0}, [2.0], "certified") == [0.0]


def test_an_end_of_the_grid_is_reported_unless_nothing_depends_on_it():
    with pytest.warns(UserWarning, match="order 512, an end of the grid"):
        accountant.epsilon({SampledGaussian(0.001, 50.0): 1}, 1e-5, orders=accountant.ORDERS)
    with pytest.warns(UserWarning, match="order 2, an end of the grid"):
        accountant.epsilon({SampledGaussian(1.0, 0.3): 9}, 1e-5, orders=(2, 3, 4))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert accountant.epsilon({SampledGaussian(0.001, 50.0): 1}, 0.9).epsilon < 1e-9
        accountant.epsilon({A: 1000}, 1e-5)
        accountant.epsilon({A: 1000}, 1e-5, orders=(8.0,))  # one that was named in advance
        accountant.epsilon({Unprotected(0.1): 1}, 1e-5)


def test_equal_charges_cost_one_computation(monkeypatch):
    charges = {SampledGaussian(0.0123, 1.77): 5}
    accountant.epsilon(charges, 1e-5)
    monkeypatch.setattr(loss_distribution, "epsilon", lambda *_: pytest.fail("computed again"))
    assert [accountant.epsilon(dict(charges), 1e-5) for _ in range(3)]


def test_epsilon_does_not_depend_on_the_order_of_the_charges():
    many = [(SampledGaussian(0.01 * n, 1.0 + n), 3 * n) for n in range(1, 30)]
    one = accountant.rdp(dict(many), accountant.ORDERS, "certified")
    assert np.array_equal(one, accountant.rdp(dict(reversed(many)), accountant.ORDERS, "certified"))


@pytest.mark.parametrize("count", [-1, 1.5, True, "2", None])
def test_a_count_that_is_no_number_of_applications_is_refused(count):
    with pytest.raises(ValueError, match="count = "):
        accountant.rdp({A: count}, [2.0], "certified")


@pytest.mark.parametrize("delta", [0.0, 1.0, -1e-5, math.nan])
def test_a_delta_outside_its_bounds_is_refused(delta):
    with pytest.raises(ValueError, match="delta = "):
        accountant.epsilon({A: 1}, delta)
    with pytest.raises(ValueError, match="delta = "):
        accountant.within({A: 1}, 1.0, delta)


@pytest.mark.parametrize(("rate", "noise", "count"), [(1.0, 1e6, 10**10), (1e-3, 10.0, 10**8)])
def test_very_many_weak_steps_cost_little_more_than_a_gaussian_and_less_at_a_larger_delta(
    rate, noise, count
):
    """Rounding raises each of so many losses that their distribution alone says 24.6 at any delta,
    where 0.2 is the truth. The steps are together nearly a Gaussian of this mean."""
    mean = rate * math.sqrt(count) / noise

    def exact(eps: float) -> float:
        return float(
            norm.cdf(mean / 2 - eps / mean) - math.exp(eps + norm.logcdf(-mean / 2 - eps / mean))
        )

    charges, before = {SampledGaussian(rate, noise): count}, 0.0
    for delta in (1e-9, 1e-6, 1e-3):
        found = accountant.epsilon(charges, delta).epsilon
        assert exact(found) <= delta < exact(0.8 * found)
        assert before == 0.0 or found < before
        before = found
