"""Privacy loss distributions against exact deltas, direct convolution and dp-accounting."""

import itertools
import math

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, pld
from scipy.stats import norm

from mechanisms.accounting import loss_distribution as losses
from mechanisms.accounting import profile
from mechanisms.accounting.accountant import ORDERS, epsilon
from mechanisms.accounting.dominating import sampled
from mechanisms.accounting.events import SampledGaussian
from tests.steps import exact_delta

DELTA = 1e-5


def epsilon_of(steps: dict[tuple[float, float], int]) -> float:
    return losses.epsilon({sampled(*step): n for step, n in steps.items()}, DELTA)


STEPS = list(itertools.product((0.003, 0.1, 0.6, 1.0), (0.6, 1.0, 3.0)))


@pytest.mark.parametrize(("q", "s"), STEPS)
@pytest.mark.parametrize("adding", [False, True])
@pytest.mark.parametrize("reach", [7.0, 2.0])
def test_a_step_s_losses_dominate_it_and_touch_it_where_they_lie(q, s, adding, reach):
    """Between two losses the discretized delta is a chord of the convex exact one in exp(eps).
    Losses out of reach are raised, or infinite. Kills losses that are rounded down, and those that
    are only rounded up."""
    spacing = 0.03
    part = losses._losses(sampled(q, s), spacing, reach, adding)
    at = spacing * (part.first + np.arange(len(part.log_mass)))
    mass = np.exp(part.log_mass)
    assert 0 < mass.sum() + part.infinite - 1 < 1e-8

    def delta(eps: float) -> float:
        return float(np.maximum(mass * -np.expm1(eps - at), 0.0).sum()) + part.infinite

    for eps in np.concatenate([at[::7], at[::7] + 0.4 * spacing]):
        assert delta(eps) >= exact_delta(q, s, eps, adding) * (1 - 1e-7) - 1e-15
    for eps in at[1:-2:5] if reach > 5.0 else []:
        assert delta(eps) == pytest.approx(exact_delta(q, s, eps, adding), rel=1e-5, abs=1e-11)


@pytest.mark.parametrize(("q", "s"), STEPS)
def test_one_step_has_its_exact_epsilon(q, s):
    found = losses.epsilon({sampled(q, s): 1}, DELTA)

    def worst(eps: float) -> float:
        return max(exact_delta(q, s, eps, adding) for adding in (False, True))

    assert worst(found) <= DELTA < worst(0.999 * found)


@pytest.mark.parametrize(("s", "count"), [(0.7, 1), (5.0, 10), (20.0, 4000), (3.0, 1)])
@pytest.mark.parametrize("delta", [1e-3, 1e-5, 1e-9])
def test_gaussians_have_their_exact_epsilon(s, count, delta):
    """Balle, Wang 2018, Theorem 8; also where delta is so small that rounding to 1 would hide
    it."""
    mean = math.sqrt(count) / s
    found = losses.epsilon({sampled(1.0, s): count}, delta)

    def exact(eps: float) -> float:
        far = math.exp(eps + norm.logcdf(-mean / 2 - eps / mean))
        return float(norm.cdf(mean / 2 - eps / mean)) - far

    assert exact(found) <= delta < exact(0.9995 * found)


MIXED = [
    {(0.0171, 1.35): 2000},
    {(0.3, 2.854): 60},
    {(0.01, 1.1): 1000, (0.02, 1.3): 500},
    {(0.05, 0.6): 3, (1.0, 4.0): 2, (0.2, 1.0): 1},
    {(0.001, 0.8): 5000},
]


@pytest.mark.parametrize("steps", MIXED, ids=str)
def test_compositions_agree_with_dp_accounting(steps):
    """Both are upper bounds."""
    theirs = pld.PLDAccountant(value_discretization_interval=2e-4)
    for (q, s), count in steps.items():
        theirs.compose(PoissonSampledDpEvent(q, GaussianDpEvent(s)), count)
    found = epsilon_of(steps)
    assert found == pytest.approx(theirs.get_epsilon(DELTA), rel=1e-3)


@pytest.mark.parametrize("steps", MIXED[1:4], ids=str)
@pytest.mark.parametrize("times", [0.6, 1.2])
def test_every_tilt_gives_a_bound_and_neighbours_nearly_the_same(steps, times, monkeypatch):
    best, before = losses._best_tilt, epsilon_of(steps)
    monkeypatch.setattr(losses, "_best_tilt", lambda *given: (times * best(*given)[0], 0.0))
    assert epsilon_of(steps) == pytest.approx(before, rel=1e-4)


@pytest.mark.parametrize("steps", MIXED, ids=str)
def test_the_tilt_is_near_the_best_renyi_order(steps):
    """Also where losses are put together to choose it. Kills a tilt that is right for one step
    only, or for losses taken at the middle of those put together."""
    charges = {SampledGaussian(*step): count for step, count in steps.items()}
    renyi = epsilon(charges, DELTA, orders=ORDERS)
    parts = [(losses._losses(sampled(*step), 0.0005, 12.0, False), n) for step, n in steps.items()]
    theta, bound = losses._best_tilt(parts, 0.0005, DELTA)
    assert 0.75 < theta / (renyi.order - 1) < 1.05
    assert bound == pytest.approx(renyi.epsilon, rel=0.02)


@pytest.mark.parametrize("q", [1.0, 0.3, 1e-4, 1e-12])
@pytest.mark.parametrize("s", [1e-300, 0.09, 0.1, 1e6, 1.1e6, 1e300])
def test_noise_of_any_size_has_an_answer(q, s):
    """Without a warning. Noise that is out of range has an infinite one."""
    found = losses.epsilon({sampled(q, s): 1000}, DELTA)
    assert (found == math.inf) if s not in losses.NOISES else (found >= 0.0)
    assert losses.epsilon({sampled(q, s): 1000, sampled(0.1, 2.0): 1}, DELTA) >= found


def test_an_epsilon_that_nobody_asks_for_is_infinite():
    assert losses.epsilon({sampled(1.0, 0.05): 1}, DELTA) == math.inf
    assert losses.epsilon({sampled(1.0, 0.15): 1}, DELTA) == math.inf
    assert 40 < losses.epsilon({sampled(1.0, 0.17): 1}, DELTA) < losses.MAX_EPSILON


@pytest.mark.parametrize("adding", [False, True])
def test_what_the_transform_gets_wrong_is_bounded(adding):
    """Against direct convolution, for a window that holds the sum but for what may lie outside.
    Kills a bound that is 0, and a window that is too narrow."""
    steps, spacing, theta = {(0.2, 1.0): 5, (1.0, 3.0): 3}, 0.05, 3.0
    parts = [(losses._losses(sampled(*step), spacing, 7.0, adding), n) for step, n in steps.items()]
    first, points = losses._window(parts, theta, spacing)
    found, log_scale, error = losses._composed(parts, theta, spacing, first, points)
    exact, start, scale = np.ones(1), 0, 0.0
    for part, n in parts:
        mass = np.exp(losses._tilt(part, theta, spacing))
        for _ in range(n):
            exact, start, scale = (
                np.convolve(exact, mass / mass.sum()),
                start + part.first,
                scale + math.log(mass.sum()),
            )
    places = start + np.arange(len(exact))
    inside = (places >= first) & (places < first + points)
    assert exact[~inside].sum() <= 2 * losses.OUTSIDE
    known = np.zeros(points)
    known[places[inside] - first] = exact[inside]
    assert 0 < np.abs(found - known).sum() <= error < 1e-9
    assert log_scale == pytest.approx(scale, rel=1e-12)
    assert np.log(np.sum(found)) == pytest.approx(0.0, abs=1e-9)


def test_the_bound_on_what_the_transform_gets_wrong_grows_with_the_steps():
    part = losses._losses(sampled(0.1, 1.0), 0.05, 7.0, False)
    few, many = (losses._composed([(part, n)], 3.0, 0.05, 0, 2**12)[2] for n in (10, 10_000))
    assert many - 2 * losses.OUTSIDE > 100 * (few - 2 * losses.OUTSIDE)


def test_where_nothing_but_the_error_is_left_epsilon_is_where_delta_pays_for_it():
    error, delta, theta = 1e-3, 1e-12, 2.0
    found = losses._solve(np.zeros(10), np.arange(10) / 10, 0.0, theta, error, delta)
    assert found > 0.9
    assert error * math.exp(losses._log_most(theta) - theta * found) == pytest.approx(delta)


def test_both_sums_from_the_end_err_to_the_safe_side(monkeypatch):
    """With all mass at loss 1, delta is ``1 - e^(eps - 1)``."""
    monkeypatch.setattr(losses, "SUMS", 0.1)
    found = losses._solve(np.array([0.0, math.e]), np.array([0.0, 1.0]), 0.0, 1.0, 0.0, 0.5)
    assert found == pytest.approx(1 + math.log((1.1 - 0.5) / 0.9), rel=1e-6)


def test_errors_and_losses_beyond_all_are_paid_for(monkeypatch):
    """Each kind of error, made large, makes epsilon larger."""
    steps = {(0.2, 1.0): 20}
    before = epsilon_of(steps)
    for module, name, value in (
        (losses, "OUTSIDE", 1e-3),
        (profile, "ROUNDING", 1e-7),
        (losses, "LOSS_ERROR", 1e-3),
        (losses, "CUT", 0.3),
        (losses, "SUMS", 1e-3),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(module, name, value)
            assert epsilon_of(steps) > before * (1 + 1e-4), name


@pytest.mark.parametrize("steps", [*MIXED, {(0.5, 1.5): 30}, {(1.0, 3.0): 9}], ids=str)
def test_a_direction_is_looked_at_closely_only_where_it_may_be_the_larger_one(steps):
    """A first look at the other one is enough."""
    pairs = {sampled(*step): n for step, n in steps.items()}
    removing, adding = (losses._one_way(pairs, DELTA, way, 0.0) for way in (False, True))
    assert losses.epsilon(pairs, DELTA) == max(removing, adding)
    for known in (0.99 * adding, adding):
        assert losses._one_way(pairs, DELTA, True, known) == adding
    assert adding < losses._one_way(pairs, DELTA, True, 1.1 * adding) < 1.1 * adding


@pytest.mark.parametrize("steps", [*MIXED, {(0.016, 0.55): 60}, {(0.3, 1.6): 60}], ids=str)
def test_losses_lie_further_apart_where_that_hardly_matters(steps, monkeypatch):
    """Where tilted losses vary more than others. A quarter of the spacing gives nearly as much."""
    before = epsilon_of(steps)
    monkeypatch.setattr(losses, "FINENESS", losses.FINENESS / 4.0)
    assert before / epsilon_of(steps) == pytest.approx(1.0, rel=2e-4)


def test_where_losses_would_be_too_many_they_lie_further_apart(monkeypatch):
    steps = {(0.01, 1.1): 1000}
    before = epsilon_of(steps)
    monkeypatch.setattr(losses, "MAX_POINTS", 2**12)
    assert before < epsilon_of(steps) < 1.5 * before
