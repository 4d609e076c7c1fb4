"""The audit's bounds: valid as often as they say, near the truth where they can be, 0 where nothing
is to be found."""

import math

import numpy as np
import pytest
from scipy import stats
from scipy.optimize import brentq

from sim.auditing.bounds import (
    _choices,
    one_run_epsilon,
    one_run_p_value,
    rates_epsilon,
    threshold_epsilon,
)
from sim.auditing.one_run import guess

REPETITIONS, CONFIDENCE = 120, 0.95
MOST_FAILURES = int(stats.binom.isf(1e-6, REPETITIONS, 1 - CONFIDENCE))
"""A bound of exactly this confidence fails more often than that with a probability of 1e-6."""


def gaussian_epsilon(shift: float, delta: float) -> float:
    """Of one Gaussian of unit variance whose mean moves by ``shift`` (Balle and Wang 2018, Theorem
    8)."""

    def excess(epsilon: float) -> float:
        far = stats.norm.cdf(-epsilon / shift + shift / 2)
        return far - math.exp(epsilon) * stats.norm.cdf(-epsilon / shift - shift / 2) - delta

    return brentq(excess, 0, 60)


def many_runs(rng: np.random.Generator, shift: float, delta: float, runs: int = 20_000) -> float:
    return threshold_epsilon(
        shift + rng.normal(size=runs), rng.normal(size=runs), delta, CONFIDENCE
    )


def one_run(rng: np.random.Generator, shift: float, delta: float, coins: int = 2_000) -> float:
    included = rng.random(coins) < 0.5
    return guess(shift * included + rng.normal(size=coins), included, delta, CONFIDENCE).epsilon


@pytest.mark.parametrize("shift", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("audit", [many_runs, one_run])
def test_the_bound_is_valid_for_a_gaussian(audit, shift):
    """In 95 % of seeded repetitions. False alarm: 1e-6 in each case, if a bound were no better than
    it says."""
    truth, rng = gaussian_epsilon(shift, 1e-5), np.random.default_rng(0)
    assert sum(audit(rng, shift, 1e-5) > truth for _ in range(REPETITIONS)) <= MOST_FAILURES


def test_the_bound_of_many_runs_reaches_most_of_the_truth():
    rng = np.random.default_rng(0)
    for shift in (0.5, 1.0):
        found = [many_runs(rng, shift, 1e-2, runs=100_000) for _ in range(20)]
        assert np.median(found) > 0.7 * gaussian_epsilon(shift, 1e-2)


def test_the_bound_of_one_run_reaches_most_of_the_truth_for_randomized_response():
    """A mechanism that tells each coin rightly with probability e^eps / (1 + e^eps): the worst of
    the theorem."""
    rng = np.random.default_rng(0)
    for epsilon in (0.5, 1.0, 3.0):
        right = rng.binomial(5_000, 1 / (1 + math.exp(-epsilon)), size=20)
        found = [one_run_epsilon(5_000, int(v), 5_000, 0.0, CONFIDENCE) for v in right]
        assert np.median(found) > 0.85 * epsilon and sum(one > epsilon for one in found) <= 9


@pytest.mark.parametrize("audit", [many_runs, one_run])
def test_nothing_gives_nothing(audit):
    """The mechanism that ignores its data; a bound above 0 would be a false one, 5 % of the time at
    most."""
    rng = np.random.default_rng(0)
    found = [audit(rng, 0.0, 1e-5) for _ in range(REPETITIONS)]
    assert np.median(found) == 0 and sum(one > 0 for one in found) <= MOST_FAILURES


@pytest.mark.parametrize("delta", [0.0, 1e-5, 1e-3])
def test_the_p_value_is_the_theorem_term_by_term(delta):
    for guesses, right, coins, epsilon in (
        (10, 9, 20, 0.5),
        (40, 35, 100, 1.0),
        (7, 0, 7, 2.0),
        (0, 0, 5, 1.0),
    ):
        law = stats.binom(guesses, math.exp(epsilon) / (1 + math.exp(epsilon)))

        def f(v: int, law=law) -> float:
            return float(law.sf(v - 1))

        slope = max((f(right - i) - f(right)) / i for i in range(1, coins + 1))
        expected = min(1.0, f(right) + 2 * coins * delta * slope)
        assert one_run_p_value(guesses, right, coins, epsilon, delta) == pytest.approx(
            expected, rel=1e-12
        )


def test_the_one_run_bound_is_where_the_p_value_is_the_error():
    found = one_run_epsilon(100, 90, 400, 1e-5, 0.95)
    assert one_run_p_value(100, 90, 400, found, 1e-5) == pytest.approx(0.05, rel=1e-6)
    assert one_run_p_value(100, 90, 400, found, 1e-5) <= 0.05


def test_the_p_value_never_falls_as_epsilon_rises():
    """So one root separates the epsilons that are refuted from those that are not, and bisecting
    for it cannot stop at a later, larger one.

    Proof. Let p = e^epsilon / (1 + e^epsilon), F the distribution function of a binomial of r
    trials and b the probabilities of one of r - 1: F(k) has the derivative -r b(k) in p. The
    p-value is 1 or the largest g = f(v) + c (f(v - i) - f(v)) over i, where c = 2 m delta / i. For
    c <= 1, g is a mean of two tails, which rise. Else, let g < 1: then c (F(v - 1) - F(v - i - 1))
    < F(v - 1), so 1 - 1 / c < F(v - i - 1) / F(v - 1). Since b(k) is r - k times a probability of
    r trials, up to a factor, and a binomial's reversed hazard falls, b(k) / F(k) falls with k: so
    that is at most b(v - i - 1) / b(v - 1), and r (c b(v - i - 1) - (c - 1) b(v - 1)), which is
    the derivative of g, is positive. Hence g rises wherever it is below 1, and the largest of
    several such functions, cut off at 1, never falls.
    """
    epsilons = np.concatenate([np.linspace(0, 3, 40), np.linspace(3.2, 14, 40)])
    for guesses in (1, 2, 3, 7, 20, 150):
        for right in {*range(max(0, guesses - 3), guesses + 1), guesses // 2, 2 * guesses // 3}:
            for delta in (0.0, 1e-6, 1e-4, 3e-4, 1e-3, 2e-3, 0.01, 0.3):
                values = [one_run_p_value(guesses, right, 500, e, delta) for e in epsilons]
                assert np.diff(values).min() > -1e-13, (guesses, right, delta)


def test_bounds_grow_with_the_evidence_and_shrink_with_what_is_asked_of_it():
    by_right = [one_run_epsilon(100, right, 200, 1e-6, 0.95) for right in range(50, 101, 5)]
    assert by_right[0] == 0 and all(np.diff([b for b in by_right if b]) > 0)
    assert one_run_epsilon(100, 90, 200, 1e-3, 0.95) < one_run_epsilon(100, 90, 200, 0.0, 0.95)
    assert one_run_epsilon(100, 90, 200, 0.0, 0.99) < one_run_epsilon(100, 90, 200, 0.0, 0.95)
    hits, alarms = np.array([900, 900, 900, 0, 1000]), np.array([0, 10, 900, 10, 1000])
    falls = rates_epsilon(hits, 1_000, alarms, 1_000, 1e-5, 0.95)
    assert falls[0] > falls[1] > 0 and falls[2:].tolist() == [0, 0, 0]


def test_rates_are_those_of_clopper_and_pearson():
    """Also at either end: one event, or all but one. Of 3 runs with the neighbour, half an error of
    0.8 leaves room below 1."""
    for hits, alarms, others in ((90, 3, 100), (1, 0, 10**6), (100, 0, 1), (99, 2, 3)):
        low = stats.binomtest(hits, 100).proportion_ci(0.2, "exact").low
        high = stats.binomtest(alarms, others).proportion_ci(0.2, "exact").high
        found = rates_epsilon(np.array(hits), 100, np.array(alarms), others, 1e-3, 0.2)
        assert found == pytest.approx(math.log((low - 1e-3) / high), rel=1e-6) and found > 0


def test_a_threshold_is_judged_by_runs_that_did_not_choose_it():
    """Even runs that show all and odd runs that show nothing give nothing."""
    rng = np.random.default_rng(0)
    one, other = rng.normal(size=1_000), rng.normal(size=1_000)
    one[::2] += 100
    assert threshold_epsilon(one, other, 1e-5, CONFIDENCE) == 0


def test_the_runs_that_judge_have_no_part_in_the_choice():
    rng = np.random.default_rng(0)
    one, other = rng.normal(size=200) + 1, rng.normal(size=300)
    choices = list(_choices(one, other, 1e-5, CONFIDENCE))
    one[1::2], other[1::2] = 100.0, -100.0
    assert list(_choices(one, other, 1e-5, CONFIDENCE)) == choices
    assert {threshold for _, threshold in choices} <= set(other[::2].tolist()) and max(choices)[
        0
    ] > 0


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("spread", [False, True])
def test_the_side_and_the_order_of_the_data_sets_do_not_matter(sign, spread):
    """The record may raise the statistic, lower it, or only narrow it."""
    rng = np.random.default_rng(0)
    one = 0.1 * rng.normal(size=4_000) if spread else 2 + rng.normal(size=4_000)
    other = rng.normal(size=4_000)
    assert threshold_epsilon(sign * one, sign * other, 1e-5, CONFIDENCE) > 1
    assert threshold_epsilon(sign * other, sign * one, 1e-5, CONFIDENCE) > 1


@pytest.mark.parametrize("sign", [1, -1])
def test_a_tail_that_one_data_set_alone_has_is_found_on_either_side(sign):
    """One run in ten lies far out; elsewhere nothing differs, so that no event on the other side
    tells anything."""
    other = np.random.default_rng(0).normal(size=4_000)
    one = np.where(np.random.default_rng(1).random(4_000) < 0.1, sign * 100.0, other)
    for pair in ((one, other), (other, one)):
        assert 2 < threshold_epsilon(*pair, 1e-5, CONFIDENCE) < math.log(0.1 * 2_000)


def test_each_data_set_has_its_own_number_of_runs():
    """Two data sets that are told apart every time, by 2,000 and by 500 runs that judge."""
    one, other = np.ones(4_000), np.zeros(1_000)
    exact = rates_epsilon(np.array(500), 500, np.array(0), 2_000, 0.0, 0.9)
    assert (
        threshold_epsilon(one, other, 0.0, 0.9)
        == threshold_epsilon(other, one, 0.0, 0.9)
        == float(exact)
    )
    assert exact > rates_epsilon(np.array(2_000), 2_000, np.array(0), 500, 0.0, 0.9)


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: one_run_p_value(3, 4, 10, 1.0, 0.0), "right = 4"),
        (lambda: one_run_p_value(11, 4, 10, 1.0, 0.0), "guesses = 11"),
        (lambda: one_run_epsilon(3, 3, 10, 0.0, 1.0), "confidence = 1.0"),
        (lambda: threshold_epsilon(np.zeros(1), np.zeros(9), 0.0, 0.9), "runs = 1"),
        (lambda: threshold_epsilon(np.zeros(9), np.zeros(1), 0.0, 0.9), "runs = 1"),
        (lambda: one_run_epsilon(3, 3, 10, 0.0, 0.0), "confidence = 0.0"),
        (lambda: threshold_epsilon(np.arange(9.0), np.zeros(9), 0.0, 1.0), "confidence = 1.0"),
        (lambda: threshold_epsilon(np.arange(9.0), np.zeros(9), 0.0, 0.0), "confidence = 0.0"),
    ],
)
def test_what_cannot_be_used_is_named(call, named):
    with pytest.raises(ValueError, match=named):
        call()
