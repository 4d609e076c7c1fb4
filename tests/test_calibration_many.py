"""Calibration of many clients at once: each meets its budget, and none has more noise than it
needs."""

import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from mechanisms.accounting import accountant, calibration_many, loss_distribution
from mechanisms.accounting.calibration_many import LIFT, RATIO, TRIES, interpolated
from mechanisms.plan import Terms, planned
from mechanisms.registry import plan_table
from mechanisms.settings import Dpagd, Dpis, Dpsur, Privacy, Settings


@pytest.mark.parametrize("steps", [3, np.arange(1, 121) % 4 + 1])
def test_many_rates_meet_their_budget_and_have_hardly_more_noise(steps):
    """By privacy loss distributions, which a budget is planned by. Kills rates between others that
    are searched for at the default delta."""
    sizes, delta = np.arange(20, 140), 1e-7
    privacy = Privacy(mechanism="dpsgd", epsilon=8.0, delta=delta, batch_size=8)
    table = plan_table(privacy, None, steps, 10, sizes)
    for client in (0, 1, 7, 60, 118, 119):
        plan = table.of(client)
        assert accountant.within(planned(plan, 10), 8.0, delta)
        less = replace(plan, noise_multiplier=plan.noise_multiplier * (1 - 2e-3))
        assert accountant.epsilon(planned(less, 10), delta).epsilon > 8.0


@pytest.mark.parametrize("jump", [0.004, 0.4])
def test_what_lies_between_searches_is_never_taken_unchecked(jump):
    """The least noise bends and jumps between the grid's points, by less than the raises make up
    for and by more. Its order rises with the rate, or falls."""
    rates, steps = np.geomspace(0.01, 0.3, 200), np.repeat([5, 7], 100)
    least = np.sqrt(rates) * (1.0 + jump * (np.arange(200) % 3 == 1)) * steps
    shuffled, searched = np.random.default_rng(0).permutation(200), []
    rates, steps, least = rates[shuffled], steps[shuffled], least[shuffled]
    orders = np.where(steps == 5, rates, -rates)

    def solve(row: int, near: float | None) -> tuple[float, float]:
        assert (near is None) is (not searched)
        searched.append(row)
        return float(least[row]), float(orders[row])

    def meets(row: int, noise: float, ends: tuple[float, float]) -> bool:
        assert ends[0] <= orders[row] <= ends[1], "the orders of its neighbours"
        return noise >= least[row]

    found = interpolated(rates, steps, solve, meets)
    bend = (
        1.0 if jump < 0.01 else math.sqrt(RATIO)
    )  # what lies between two points is between their values
    assert (found >= least).all() and (
        found <= least * (1 + jump) * bend * (1 + LIFT) ** TRIES
    ).all()
    grid = 2 * (math.ceil(math.log(rates.max() / rates.min()) / math.log(RATIO)) + 3)
    assert len(searched) <= grid if jump < 0.01 else len(searched) > 60


def test_rates_on_either_side_of_a_gap_have_no_noise_to_spare():
    """The least noise bends within the gap. Kills an interpolation across it, which is far above
    and is not noticed, as it meets the budget."""
    rates = np.array([0.001, 0.00102, 0.00105, 0.4, 0.41, 0.43, 0.95])
    least = np.exp(0.1 * np.log(rates) ** 2)

    def solve(row: int, near: float | None) -> tuple[float, float]:
        return float(least[row]), math.nan

    found = interpolated(rates, np.ones(7), solve, lambda row, noise, ends: noise >= least[row])
    assert (found >= least).all() and (found <= least * (1 + LIFT) ** TRIES).all()


@pytest.mark.parametrize("steps", [np.full(60, 3), np.arange(60) // 10 + 1])
def test_planning_composes_little_more_than_once_for_each_size(steps, monkeypatch):
    """And neighbours shorten each other's searches."""
    calls = Counter()

    def count(place, name: str) -> None:
        real = getattr(place, name)
        monkeypatch.setattr(place, name, lambda *given: calls.update([name]) or real(*given))

    count(loss_distribution, "epsilon")
    count(accountant, "guarantee")
    accountant._by_loss_distributions.cache_clear()
    privacy = Privacy(mechanism="dpsgd", epsilon=7.3, batch_size=8)
    table = plan_table(privacy, None, steps, 10, np.arange(90, 30, -1))
    groups = len(set(steps.tolist()))
    assert len(table.plans) == 60 and calls["epsilon"] < 60 * 1.1 + 9 * (groups + 5)
    assert calls["guarantee"] < 60  # Renyi orders, for the first search


@pytest.mark.parametrize("points", [1, 2, 3, 4, 9])
def test_noise_that_is_a_power_of_rate_and_steps_is_foreseen(points):
    """As far as so few points can tell; values that differ for equal points tell no slope."""
    rng = np.random.default_rng(0)
    at = rng.uniform(-3.0, 0.0, (points, 2)) * [1.0 if points > 2 else 0.0, 1.0]
    solved = [(one, math.exp(1.0 + one @ [0.4, 0.5])) for one in at]
    here = at[0] + [0.3 if points > 2 else 0.0, -0.2]
    wrong = calibration_many._extrapolated(solved, here) / math.exp(1.0 + here @ [0.4, 0.5])
    assert wrong == pytest.approx(1.0, rel=1e-9 if points > 1 else 0.12)
    twice = [(at[0], 2.0), (at[0] + 1e-9, 2.001)]
    assert calibration_many._extrapolated(twice, here) == pytest.approx(2.0, rel=1e-3)


@pytest.mark.parametrize(
    ("privacy", "own", "count"),
    [
        (Privacy(mechanism="dpsgd", epsilon=4.0, batch_size=16, noise_decay=0.05), None, 9),
        (Privacy(mechanism="dpsgd", epsilon=4.0, batch_size=16, budget="published"), None, 9),
        (
            Privacy(mechanism="dpsur", epsilon=4.0, batch_size=16, budget="published"),
            Dpsur(dpsur_accounting="selective"),
            40,
        ),
        (
            Privacy(mechanism="dpis", epsilon=4.0, delta=1e-7, batch_size=16),
            Dpis(dpis_clip=1.0),
            40,
        ),
        (Privacy(mechanism="dpagd", epsilon=4.0, batch_size=16), Dpagd(), 40),
    ],
)
def test_clients_of_many_sizes_meet_their_budget_whatever_their_runs_consist_of(
    privacy, own: Settings, count
):
    """Kills plans whose noise is that of another size: each run is priced in full, on the whole
    grid of orders."""
    sizes = np.linspace(100, 150, count).astype(int)
    table, spent = plan_table(privacy, own, 2, 4, sizes), []
    for client, size in enumerate(sizes.tolist()):
        run = Terms(privacy.of_size(size), own, 2, 4, size).run(table.of(client))
        spent.append(accountant.epsilon(run, privacy.delta, privacy.budget).epsilon)
    assert len(table.plans) == count and min(spent) > 3.98 and max(spent) <= 4.0
    assert all(table.of(k).sample_rate == 16 / size for k, size in enumerate(sizes.tolist()))


@pytest.mark.parametrize(
    ("mechanism", "own"),
    [
        ("dpis", Dpis(dpis_clip=1.0)),
        ("dpagd", Dpagd()),
        pytest.param("dpsur", Dpsur(), marks=pytest.mark.slow),
    ],
)
def test_together_they_get_hardly_more_noise_than_each_alone(mechanism, own):
    """Over a wide spread of sizes, down to clients whose every record enters every step."""
    privacy = Privacy(mechanism=mechanism, epsilon=4.0, batch_size=16)
    sizes = np.unique(np.geomspace(12, 120, 40, dtype=int))
    table = plan_table(privacy, own, 3, 5, sizes)
    for client in (0, 5, 11, 12, 20, len(sizes) - 2):
        (alone,) = plan_table(privacy, own, 3, 5, sizes[[client]]).plans
        assert 1 - 2e-4 <= table.of(client).noise_multiplier / alone.noise_multiplier <= 1 + 4e-3


def test_a_claim_in_which_the_size_stands_is_met_at_every_size():
    """DPIS' paper charges a release of the number of records: sizes with equal rates need noise of
    their own."""
    privacy = Privacy(mechanism="dpis", epsilon=9.0, sample_rate=0.1, budget="published")
    sizes = np.array([150, 200, 1_000])
    plans = plan_table(privacy, Dpis(), 3, 5, sizes).plans
    spent = [
        accountant.epsilon(planned(plan, 5), privacy.delta, "published").epsilon for plan in plans
    ]
    assert min(spent) > 8.99 and max(spent) <= 9.0
    assert plans[0].noise_multiplier > 1.003 * plans[2].noise_multiplier
