"""Privacy profiles against exact values, and against every test that a tested step might make."""

import itertools
import math

import mpmath
import numpy as np
import pytest
from scipy.special import ndtr

from mechanisms.accounting import accountant, loss_distribution, profile
from mechanisms.accounting.acceptance import Acceptance
from mechanisms.accounting.dominating import pairs, sampled
from mechanisms.accounting.events import (
    DpsurStep,
    RandomizedResponse,
    SampledGaussian,
    VisibleChoice,
)
from mechanisms.accounting.profile import Pair

LOSSES = [-3.0, -0.3, -0.01, -1e-4, 0.0, 1e-4, 0.002, 0.015, 0.05, 0.4, 2.0, 6.0]


def value(pair: Pair, losses: list[float], adding: bool) -> np.ndarray:
    at = np.array(losses)
    return pair.excess(at, adding)[0] + np.maximum(-np.expm1(at), 0.0)


def exact(q: float, s: float, loss: float, adding: bool) -> mpmath.mpf:
    """``E max(0, P - x Q)`` of SGM(q, s) with 250 digits."""
    with mpmath.workdps(250):
        q, s, x = mpmath.mpf(q), mpmath.mpf(s), mpmath.exp(mpmath.mpf(loss))
        share = ((1 / x if adding else x) - 1 + q) / q
        if share <= 0:
            return mpmath.mpf(0) if adding else 1 - x
        at = s**2 * mpmath.log(share) + mpmath.mpf(1) / 2
        tail = (lambda z: mpmath.ncdf(z)) if adding else (lambda z: mpmath.ncdf(-z))
        without, record = tail(at / s), (1 - q) * tail(at / s) + q * tail((at - 1) / s)
        return without - x * record if adding else record - x * without


@pytest.mark.parametrize("q", [1.0, 0.6, 0.01, 1e-6])
@pytest.mark.parametrize("s", [0.1, 0.7, 3.0, 200.0, 1e6])
@pytest.mark.parametrize("adding", [False, True])
def test_a_sampled_gaussian_has_its_exact_profile_within_the_stated_error(q, s, adding):
    """Also where it is far below the rounding of 1. Kills tails taken as differences from 1."""
    found, error = sampled(q, s).excess(np.array(LOSSES), adding)
    for loss, one, wrong in zip(LOSSES, found, error, strict=True):
        with mpmath.workdps(250):
            true = exact(q, s, loss, adding) - max(0, 1 - mpmath.exp(mpmath.mpf(loss)))
            assert abs(one - true) <= wrong + 1e-300
        assert wrong <= 1e-10 * (one + q * math.exp(-abs(loss) * s**2))  # and hardly more


@pytest.mark.parametrize("q", [0.6, 0.1, 0.01, 1e-6])
def test_where_a_likelihood_ratio_has_no_digits_left_the_error_says_so(q):
    """At the largest losses that an added record can have. Kills an error of terms that are lost in
    rounding themselves."""
    last = -math.log1p(-q)
    losses = [last * (1.0 + n * 2.0**-52) for n in range(-40, 41)]
    found, error = sampled(q, 0.02).excess(np.array(losses), True)
    for loss, one, wrong in zip(losses, found, error, strict=True):
        with mpmath.workdps(250):
            assert abs(one - exact(q, 0.02, loss, True)) <= wrong <= 1e-13


@pytest.mark.parametrize("adding", [False, True])
def test_the_largest_of_lines_is_integrated_exactly(adding):
    """Lines that never lead, that lead alone and that meet in one point."""
    z = np.linspace(-12.0, 13.0, 200_001)
    normal = np.exp(-0.5 * z**2)
    ratio = 0.8 + 0.2 * np.exp(z - 0.5)
    other, ratio = (normal * ratio, 1 / ratio) if adding else (normal, ratio)
    other /= other.sum()
    for lines in (
        [(0.0, 0.0), (0.3, 0.4), (0.5, 0.2), (0.5, 0.3), (0.9, 1.2)],
        [(1.0, 1.0), (0.4, 0.3), (0.7, 0.65)],
        [(0.0, 0.0), (0.5, 0.5), (1.0, 1.0)],
        [(0.2, 0.1)],
        [(0.2, 0.1), (0.5, 0.1), (0.6, 0.4)],
    ):
        case = profile.largest(lines, 0.2, 1.0)
        for loss in (0.0, 0.05, 0.2, 0.21):
            x = math.exp(loss)
            true = float(other @ np.max([c * ratio - g * x for c, g in lines], axis=0))
            pair = Pair((case,), (case,))
            assert value(pair, [loss], adding)[0] == pytest.approx(max(true, 0.0), abs=1e-8)


STEP = (0.05, 1.1, 0.03, 0.9, -1.0)
ACCEPTANCE = Acceptance.of_noisy_loss(*STEP[2:])


def released(a: np.ndarray, z: np.ndarray, x: float, adding: bool, seen: bool) -> float:
    """The hockey stick of a tested step: probabilities of acceptance at each point of a grid
    without the record in the test batch (``a``) and with it (``z``)."""
    grid = np.linspace(-11.0, 12.0, a.size)
    ratio = 1 - STEP[0] + STEP[0] * np.exp((2 * grid - 1) / (2 * STEP[1] ** 2))
    without = np.exp(-0.5 * (grid / STEP[1]) ** 2)
    without /= without.sum()
    record, within = without * ratio, (1 - STEP[2]) * a + STEP[2] * z
    one, other = (without * a, record * within) if adding else (record * within, without * a)
    ours, theirs = (without, record) if adding else (record, without)
    total = np.maximum(one - x * other, 0.0).sum()
    if seen:
        return float(total + np.maximum(ours - one - x * (theirs - other), 0.0).sum())
    return float(total + max(0.0, 1 - one.sum() - x * (1 - other.sum())))


@pytest.mark.parametrize("accounting", ["visible", "every-trial"])
@pytest.mark.parametrize("adding", [False, True])
def test_no_test_of_a_step_exceeds_its_profile_and_one_reaches_it(accounting, adding):
    """Random tests, constant ones and all that switch where the proposal's likelihood ratio
    crosses a level; at each loss one of the last ones is the worst."""
    pair, seen = pairs(DpsurStep(*STEP, accounting))[0], accounting == "every-trial"
    low, high = ACCEPTANCE.lowest, ACCEPTANCE.highest
    size, rng = 6_001, np.random.default_rng(0)
    grid, levels = np.arange(size), (low, high)
    tests = [(rng.uniform(low, high, size), rng.uniform(low, high, size)) for _ in range(5)]
    for at, (a, b, c, d) in itertools.product(
        range(2_000, 4_600, 100), itertools.product(levels, repeat=4)
    ):
        tests.append((np.where(grid < at, a, b), np.where(grid < at, c, d)))
    for loss in (-0.1, -0.01, 0.0, 0.004, 0.03, 0.2):
        most = value(pair, [loss], adding)[0]
        found = [released(a, z, math.exp(loss), adding, seen) for a, z in tests]
        assert most * (1 - 0.01) - 1e-9 <= max(found) <= most * (1 + 1e-6) + 1e-12


@pytest.mark.parametrize(
    ("step", "delta", "least"),
    [
        ((1e-3, 1e4, 1e-3, 0.5, 7.25), 1e-15, 7.8554),
        ((1e-3, 1e4, 1e-3, 0.5, 7.0), 2e-13, 7.1432),
        ((1e-3, 1e3, 0.5, 0.1, 0.645), 1e-5, 36.1338),
        ((1.0, 0.19718605, 0.31951853, 1.07128251, 0.38184470), 2.3e-9, 41.8296),
    ],
)
def test_extreme_tests_of_a_step_are_paid_for(step, delta, least):
    """The exact epsilon of one test, by 60 digits: whether a trial is rejected that hardly ever is,
    and a constant test of a loss of which 1 less its exponential is rounded to 1."""
    trial = {DpsurStep(*step, "visible"): 1}
    assert accountant.epsilon(trial, delta).epsilon >= least
    assert accountant.epsilon(trial, delta, orders=accountant.ORDERS).epsilon >= least


@pytest.mark.parametrize(
    ("event", "count", "delta"),
    [
        (DpsurStep(0.02, 1.35, 0.004, 0.1, 1.0, "visible"), 2_000, 1e-5),
        (DpsurStep(1e-9, 44.0, 1e-3, 0.27, -27.0, "visible"), 1, 1e-15),
        (DpsurStep(1.0, 0.996, 4.2e-12, 7.7266, -58.34, "every-trial"), 1, 1e-15),
        (RandomizedResponse(0.0138), 28, 1e-15),
        (RandomizedResponse(8876.2), 40, 1e-5),
    ],
)
@pytest.mark.filterwarnings("ignore:epsilon")
def test_extreme_settings_have_an_answer(event, count, delta):
    """Infinite, or by Renyi orders, where loss distributions have none."""
    assert accountant.epsilon({event: count}, delta).epsilon > 0.0


def test_a_tested_step_that_always_accepts_is_its_proposal():
    always = DpsurStep(0.05, 1.1, 0.03, 1e-3, 10.0, "visible")
    one, other = pairs(always)[0], sampled(0.05, 1.1)
    for adding in (False, True):
        assert value(one, LOSSES, adding) == pytest.approx(value(other, LOSSES, adding), rel=1e-12)


def test_trials_of_dpsur_cost_less_than_by_renyi_orders_and_more_than_their_worst_test():
    """At the paper's settings for MNIST; by Renyi orders 2.346 and 3.208. One test that is made in
    all trials reaches 2.106 (high if the record is in the test batch, low if not, where the
    likelihood ratio of the proposal is above 1.003)."""
    step = (0.01707, 1.35, 0.00427, 0.9, -1.0)
    for accounting, least, most in (("visible", 2.106, 2.195), ("every-trial", 2.94, 2.954)):
        (pair,) = pairs(DpsurStep(*step, accounting))
        assert least < loss_distribution.epsilon({pair: 2_000}, 1e-5) < most


@pytest.mark.parametrize("adding", [False, True])
def test_a_shared_record_is_a_gaussian_in_some_of_the_releases(adding):
    (pair,) = pairs(VisibleChoice(0.3, 2.0))
    for loss, one in zip(LOSSES, value(pair, LOSSES, adding), strict=True):
        x, mean = math.exp(loss), 0.5
        gaussian = ndtr(mean / 2 - loss / mean) - x * ndtr(-mean / 2 - loss / mean)
        assert one == pytest.approx(0.3 * gaussian + 0.7 * max(0, 1 - x), rel=1e-12, abs=1e-15)


@pytest.mark.parametrize("answers", [2, 3, 10])
def test_randomized_response_of_any_number_of_answers_is_dominated(answers):
    """And two answers have the profile itself."""
    (pair,) = pairs(RandomizedResponse(1.3))
    kept = math.exp(1.3) / (math.exp(1.3) + answers - 1)
    other = kept / math.exp(1.3)
    for loss in (-1.5, -0.2, 0.0, 0.9, 1.2999, 1.5):
        x = math.exp(loss)
        true = max(kept - x * other, 0) + max(other - x * kept, 0)
        true += (answers - 2) * max(other - x * other, 0)
        found = value(pair, [loss], False)[0]
        assert found >= true - 1e-15
        if answers == 2:
            assert found == pytest.approx(true, abs=1e-15)


def test_hidden_participation_is_worth_no_more_than_a_public_coin():
    """A client of 100 records takes part with probability 0.1, at noise 3, and is not seen: where
    it does not, its other 99 records are missing, which gives it away (decision 35)."""
    x = np.linspace(-140.0, 40.0, 400_001)
    away, present, absent = (np.exp(-0.5 * ((x - at) / 3.0) ** 2) for at in (-99.0, 1.0, 0.0))
    one, two = (0.9 * away + 0.1 * other for other in (present, absent))
    width = (x[1] - x[0]) / (3.0 * math.sqrt(2.0 * math.pi))
    for loss in (0.1, 0.5, 1.0):
        found = width * np.maximum(one - math.exp(loss) * two, 0.0).sum()
        coin, alone = (
            value(pairs(event)[0], [loss], False)[0]
            for event in (VisibleChoice(0.1, 3.0), SampledGaussian(0.1, 3.0))
        )
        assert found == pytest.approx(coin, rel=1e-5) and found > 2 * alone
