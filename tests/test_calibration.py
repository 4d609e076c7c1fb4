"""Calibration inverts the accountant, from the safe side."""

import math

import numpy as np
import pytest

from mechanisms.accounting import accountant, calibration, loss_distribution
from mechanisms.accounting.calibration import smallest, smallest_near
from mechanisms.accounting.events import DpsurStep, SampledGaussian, Unprotected
from mechanisms.plan import planned
from mechanisms.registry import plan_table
from mechanisms.settings import Dpagd, Privacy

CASES = [
    (0.01, 1000, 1.0, 1e-5),
    (0.01, 1000, 8.0, 1e-5),
    (0.1, 50, 0.2, 1e-6),
    (1.0, 30, 4.0, 1e-5),
    (1e-3, 10**5, 3, 1e-7),
    (1.0, 20, 100.0, 1e-5),  # too large for loss distributions
    (0.3, 5, 55.0, 1e-5),
]


@pytest.mark.parametrize(("delta", "budget"), [(1e-2, 8.0), (1e-3, 60.0), (0.5, 8.0)])
def test_the_search_passes_over_noise_without_any_bound(delta, budget):
    """Below some noise epsilon is infinite, and the budget is met just above it. Kills a step
    between an infinite and a finite excess, which is no number."""

    def charges(noise: float) -> dict:
        return {SampledGaussian(0.001, noise): 20, Unprotected(1.0): int(noise < 0.12)}

    noise = smallest(charges, budget, delta)
    assert math.isfinite(noise) and accountant.epsilon(charges(noise), delta).epsilon <= budget


@pytest.mark.parametrize(("rate", "steps", "budget", "delta"), CASES)
def test_the_noise_found_meets_the_budget_and_hardly_more(rate, steps, budget, delta):
    noise = smallest(lambda s: {SampledGaussian(rate, s): steps}, budget, delta)
    assert (
        budget * (1 - 1e-3)
        <= accountant.epsilon({SampledGaussian(rate, noise): steps}, delta).epsilon
        <= budget
    )
    assert accountant.within({SampledGaussian(rate, noise): steps}, budget, delta)
    assert (
        accountant.epsilon({SampledGaussian(rate, noise * (1 - 2e-4)): steps}, delta).epsilon
        > budget
    )


@pytest.mark.parametrize("least", [1.234, 0.02, 9.99])
def test_from_above_the_least_that_meets_is_found(least):
    """In strides that grow. Kills an end that misses the budget."""
    found = calibration._descend(lambda s: s >= least, 10.0)
    assert least <= found <= least * (1 + calibration.TOLERANCE)


@pytest.mark.parametrize(
    ("rate", "steps", "noise"), [(0.01, 1000, 1.5), (0.2, 60, 4.0), (1.0, 7, 9.0)]
)
@pytest.mark.parametrize(
    ("column", "room"), [("certified", 1e-7), ("certified", 0.02), ("published", 1e-7)]
)
def test_a_budget_that_the_upper_end_just_meets_is_not_refused(
    rate, steps, noise, column, room, monkeypatch
):
    """By loss distributions alone, or by an order that is not among the few looked at first. Nor
    is it given the upper end where less is enough."""

    def spent(s: float) -> float:
        return accountant.epsilon({SampledGaussian(rate, s): steps}, 1e-5, column).epsilon

    budget = spent(noise) * (1 + room)
    monkeypatch.setattr(calibration, "UPPER", noise)
    found = smallest(lambda s: {SampledGaussian(rate, s): steps}, budget, 1e-5, column)
    assert found <= noise * (1 + 1e-15) and spent(found) <= budget < spent(found * (1 - 2e-4))


@pytest.mark.parametrize("times", [0.1, 0.8, 0.985, 0.9999, 1.0, 1.00005, 1.015, 30.0, 1e5])
def test_a_search_from_near_the_answer_finds_the_same_and_is_short(times):
    """From far away, too; there is none where loss distributions have no answer."""

    def charges_of(noise: float) -> dict:
        calls.append(noise)
        return {SampledGaussian(0.1, noise): 60}

    calls: list[float] = []
    noise = smallest(charges_of, 4.0, 1e-5)
    calls.clear()
    found = smallest_near(times * noise, charges_of, 4.0, 1e-5)
    if times in (0.1, 1e5):
        assert found is None
    else:
        assert found == pytest.approx(noise, rel=calibration.TOLERANCE)
        assert accountant.epsilon(charges_of(found), 1e-5).epsilon <= 4.0
    assert len(set(calls)) <= (5 if abs(times - 1.0) < 0.02 else 12)


def test_a_guess_that_is_paid_by_an_order_is_none():
    """Few steps with hidden rejections cost less by an order: nothing says that the guess meets the
    budget."""

    def charges_of(noise: float) -> dict[DpsurStep, int]:
        return {DpsurStep(0.2, noise, 1.0, 2.0, -1.0, "selective"): 6}

    assert accountant.epsilon(charges_of(0.75), 1e-4).epsilon > 6.0
    assert smallest_near(0.75, charges_of, 6.0, 1e-4) is None


def test_parts_with_fixed_noise_are_paid_first():
    fixed = {SampledGaussian(0.05, 5.0): 40}
    noise = smallest(lambda s: {**fixed, SampledGaussian(0.01, s): 500}, 2.0, 1e-5)
    assert noise > smallest(lambda s: {SampledGaussian(0.01, s): 500}, 2.0, 1e-5)
    assert accountant.epsilon({**fixed, SampledGaussian(0.01, noise): 500}, 1e-5).epsilon <= 2.0


def test_a_budget_that_the_lower_end_meets_is_given_the_lower_end(monkeypatch):
    assert smallest(lambda s: {}, 1.0, 1e-5) == 1e-2
    monkeypatch.setattr(calibration, "LOWER", 3.0)
    assert smallest(lambda s: {SampledGaussian(0.01, s): 1}, 9.0, 1e-5) == 3.0


@pytest.mark.parametrize("charges", [{SampledGaussian(1.0, 1.0): 99}, {Unprotected(1.0): 1}])
def test_a_budget_that_no_noise_meets_is_refused_with_a_remedy(charges):
    with pytest.raises(
        ValueError, match=r"budget too small for a single step: epsilon = 0.5 .* raise epsilon"
    ):
        smallest(lambda s: charges, 0.5, 1e-5)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("epsilon", {"epsilon": 0.0}),
        ("epsilon", {"epsilon": math.inf}),
        ("delta", {"delta": 0.0}),
    ],
)
def test_arguments_out_of_bounds_are_refused_by_name(name, change):
    arguments = {"epsilon": 1.0, "delta": 1e-5, **change}
    with pytest.raises(ValueError, match=f"{name} = "):
        smallest(lambda s: {SampledGaussian(0.1, s): 1}, **arguments)


def test_a_budget_kept_at_one_order_takes_the_noise_of_renyi_orders():
    """That of an adaptive run is: loss distributions need parameters that are fixed in advance."""

    def run(noise: float) -> dict:
        return {SampledGaussian(0.1, noise): 60}

    for column, one_order in (("certified", True), ("published", False)):
        found = smallest(run, 4.0, 1e-5, column, one_order)
        grid = accountant.default_orders(column)
        assert 3.99 < accountant.epsilon(run(found), 1e-5, column, grid).epsilon <= 4.0
    tighter = smallest(run, 4.0, 1e-5)
    assert 3.99 < accountant.epsilon(run(tighter), 1e-5).epsilon <= 4.0
    assert tighter < 0.97 * smallest(run, 4.0, 1e-5, one_order=True)
    privacy = Privacy(mechanism="dpagd", epsilon=4.0, sample_rate=0.1)
    (plan,) = plan_table(privacy, Dpagd(), 2, 30, np.array([50])).plans
    spent = accountant.epsilon(planned(plan, 30), privacy.delta)
    assert spent.method == "Renyi" and 3.99 < spent.epsilon <= 4.0


def test_a_budget_is_met_by_loss_distributions_that_are_looser_than_renyi_orders(monkeypatch):
    """As with errors that would be large."""
    monkeypatch.setattr(loss_distribution, "LOSS_ERROR", 0.05)
    accountant._by_loss_distributions.cache_clear()
    accountant._epsilon.cache_clear()
    noise = smallest(lambda s: {SampledGaussian(1.0, s): 20}, 8.0, 1e-5)
    found = accountant.epsilon({SampledGaussian(1.0, noise): 20}, 1e-5)
    accountant._by_loss_distributions.cache_clear()
    accountant._epsilon.cache_clear()
    assert found.epsilon <= 8.0 and found.order is None
