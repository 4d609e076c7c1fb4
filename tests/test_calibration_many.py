"""Calibration of many clients at once: each meets its budget, and none has more noise than it
needs."""

import math

import numpy as np
import pytest

from mechanisms.accounting import accountant, calibration_many
from mechanisms.accounting.calibration import smallest
from mechanisms.accounting.calibration_many import (
    TRIES,
    WIDE_LIFT,
    WIDE_RATIO,
    interpolated,
    smallest_many,
)
from mechanisms.accounting.events import SampledGaussian
from mechanisms.plan import Terms, planned
from mechanisms.registry import plan_table
from mechanisms.settings import Dpagd, Dpis, Dpsur, Privacy, Settings


def spent(rate, noise, steps, delta):
    return accountant.epsilon(
        {SampledGaussian(float(rate), float(noise)): int(steps)}, delta
    ).epsilon


@pytest.mark.parametrize(("budget", "delta"), [(0.3, 1e-6), (3.0, 1e-5), (30.0, 1e-5)])
def test_few_clients_get_what_each_would_get_alone(budget, delta):
    rates, steps = np.array([0.3, 0.01, 1.0, 0.01]), np.array([100, 400, 20, 400])
    found = smallest_many(rates, steps, budget, delta)
    for rate, count, noise in zip(rates, steps, found, strict=True):
        alone = smallest(
            lambda s, rate=rate, count=int(count): {SampledGaussian(rate, s): count}, budget, delta
        )
        assert noise == pytest.approx(alone, rel=2e-4)
        assert spent(rate, noise, count, delta) <= budget
    assert found[1] == found[3]


@pytest.mark.parametrize(("budget", "steps"), [(1.0, 50), (8.0, 2000)])
def test_ten_thousand_rates_meet_their_budget_and_hardly_more(budget, steps):
    rates = 10 ** np.random.default_rng(5).uniform(-3, -0.5, 10_000)
    found = smallest_many(rates, steps, budget, 1e-5)
    order = np.argsort(rates)
    assert (np.diff(found[order]) >= -2e-4 * found[order][1:]).all()
    for client in (*order[:3], *order[-3:], *order[1_000:9_000:800]):
        assert spent(rates[client], found[client], steps, 1e-5) <= budget
        assert spent(rates[client], found[client] * (1 - 5e-4), steps, 1e-5) > budget


def test_interpolated_noise_that_is_too_small_is_raised(monkeypatch):
    interp = np.interp
    monkeypatch.setattr(calibration_many.np, "interp", lambda *arguments: interp(*arguments) - 3e-3)
    monkeypatch.setattr(calibration_many, "LIFT", 1e-3)
    rates = np.geomspace(1e-3, 0.5, 510)
    found = smallest_many(rates, 100, 2.0, 1e-5)
    assert (
        max(
            spent(rate, noise, 100, 1e-5)
            for rate, noise in zip(rates[::30], found[::30], strict=True)
        )
        <= 2.0
    )


@pytest.mark.parametrize("jump", [0.004, 0.4])
def test_what_lies_between_searches_is_never_taken_unchecked(jump):
    """The least noise bends and jumps between the grid's points, by less than the raises make up
    for and by more."""
    rates, steps = np.geomspace(0.01, 0.3, 200), np.repeat([5, 7], 100)
    least = np.sqrt(rates) * (1.0 + jump * (np.arange(200) % 3 == 1)) * steps
    shuffled, searched = np.random.default_rng(0).permutation(200), []
    rates, steps, least = rates[shuffled], steps[shuffled], least[shuffled]

    def solve(row: int) -> tuple[float, float]:
        searched.append(row)
        return float(least[row]), float(rates[row])

    def meets(row: int, noise: float, ends: tuple[float, float]) -> bool:
        assert ends[0] <= rates[row] <= ends[1], "the orders of its neighbours"
        return noise >= least[row]

    found = interpolated(rates, steps, solve, meets)
    bend = (
        1.0 if jump < 0.01 else math.sqrt(WIDE_RATIO)
    )  # what lies between two points is between their values
    assert (found >= least).all() and (
        found <= least * (1 + jump) * bend * (1 + WIDE_LIFT) ** TRIES
    ).all()
    grid = 2 * (math.ceil(math.log(rates.max() / rates.min()) / math.log(WIDE_RATIO)) + 3)
    assert len(searched) <= grid if jump < 0.01 else len(searched) > 60


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
        (Privacy(mechanism="dpis", epsilon=4.0, batch_size=16), Dpis(dpis_clip=1.0), 40),
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
    ("mechanism", "own"), [("dpis", Dpis(dpis_clip=1.0)), ("dpagd", Dpagd()), ("dpsur", Dpsur())]
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


def test_the_shape_is_kept_and_nobody_is_nothing(monkeypatch):
    assert smallest_many([], 10, 1.0, 1e-5).shape == (0,)
    assert smallest_many([[0.1, 0.2]], [[5], [9]], 1.0, 1e-5).shape == (2, 2)
    monkeypatch.setattr(calibration_many, "LOWER", 3.0)
    assert smallest_many([1e-4], 1, 9.0, 1e-5) == [3.0]


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("sample_rates", {"sample_rates": [0.1, 0.0]}),
        ("sample_rates", {"sample_rates": [0.1, math.nan]}),
        ("steps", {"steps": 0}),
        ("epsilon", {"epsilon": 0.0}),
        ("delta", {"delta": 1.0}),
        ("budget too small", {"epsilon": 1e-4}),
    ],
)
def test_arguments_out_of_bounds_are_refused_by_name(name, change):
    arguments = {"sample_rates": [0.1, 0.2], "steps": 100, "epsilon": 1.0, "delta": 1e-5, **change}
    with pytest.raises(ValueError, match=name):
        smallest_many(**arguments)
