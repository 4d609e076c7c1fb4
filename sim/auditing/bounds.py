"""Lower bounds on epsilon from what an attacker got right, exact for finitely many observations.

If a mechanism is (epsilon, delta)-differentially private, an attacker can be right only so often. A
count that would be too improbable under some epsilon refutes that epsilon; the bound is the largest
epsilon that is refuted. Each function returns a bound that exceeds the true epsilon with a
probability of at most ``1 - confidence``, and never one below 0.
"""

import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray
from scipy import special, stats
from scipy.optimize import brentq

Floats = NDArray[np.float64]

LARGEST = 100.0
"""No bound is above this epsilon."""
GRID = 64
"""Thresholds that are tried from each side."""


def one_run_p_value(guesses: int, right: int, coins: int, epsilon: float, delta: float) -> float:
    """Probability, at most, that an attacker on an (epsilon, delta)-DP training guesses that well.

    Steinke, Nasr, Jagielski, "Privacy Auditing with One (1) Training Run", NeurIPS 2023, Theorem
    5.2: with f(v) the probability that a binomial of ``guesses`` trials, each a success with
    probability e^epsilon / (1 + e^epsilon), is at least v, it is ``f(right) + 2 coins delta max
    over i >= 1 of (f(right - i) - f(right)) / i``.

    Args:
        guesses: r, coins that the attacker did not abstain on.
        right: v, right ones among them.
        coins: m, all independent fair coins.
        epsilon: at least 0.
        delta: in [0, 1).

    Raises:
        ValueError: not ``0 <= right <= guesses <= coins``.
    """
    if not 0 <= right <= guesses <= coins:
        raise ValueError(
            f"right = {right}, guesses = {guesses}, coins = {coins} must ascend from 0: check the "
            "counts"
        )
    log_right, log_wrong = -math.log1p(math.exp(-epsilon)), -math.log1p(math.exp(epsilon))
    fewer = np.arange(right - 1, -1, -1.0)
    ways = (
        special.gammaln(guesses + 1)
        - special.gammaln(fewer + 1)
        - special.gammaln(guesses - fewer + 1)
    )
    below = np.cumsum(
        np.exp(ways + fewer * log_right + (guesses - fewer) * log_wrong)
    )  # f(right - i) - f(right)
    steepest = float((below / np.arange(1, right + 1)).max(initial=0.0))
    tail = float(special.betainc(right, guesses - right + 1, math.exp(log_right))) if right else 1.0
    return min(1.0, tail + 2 * coins * delta * steepest)


def one_run_epsilon(guesses: int, right: int, coins: int, delta: float, confidence: float) -> float:
    """The largest epsilon at which so many right guesses have a probability of at most ``1 -
    confidence``."""
    check_confidence(confidence)

    def excess(epsilon: float) -> float:
        return one_run_p_value(guesses, right, coins, epsilon, delta) - (1 - confidence)

    if excess(0.0) >= 0:
        return 0.0
    return LARGEST if excess(LARGEST) < 0 else float(brentq(excess, 0.0, LARGEST, xtol=1e-9)) - 1e-9


def rates_epsilon(
    hits: NDArray[np.int64],
    trials: int,
    alarms: NDArray[np.int64],
    others: int,
    delta: float,
    confidence: float,
) -> Floats:
    """``log((P - delta) / P')`` from counts of one event, P bounded from below and P' from above.

    The bounds are those of Clopper and Pearson (1934), each of half the error.

    Args:
        hits: how often the event happened with the first data set, ``[...]``, out of ``trials``
            independent runs.
        alarms: the same with its neighbour, ``[...]``, out of ``others``.
    """
    check_confidence(confidence)
    error = (1 - confidence) / 2
    with np.errstate(invalid="ignore", divide="ignore"):
        low = np.where(hits > 0, stats.beta.ppf(error, hits, trials - hits + 1), 0.0)
        high = np.where(
            alarms < others, stats.beta.ppf(1 - error, alarms + 1, others - alarms), 1.0
        )
        return np.maximum(0.0, np.log(np.maximum(low - delta, 0.0)) - np.log(high))


def threshold_epsilon(one: Floats, other: Floats, delta: float, confidence: float) -> float:
    """A bound from a statistic of many runs with two neighbouring data sets, float64 ``[runs]``
    each.

    The event is "the statistic lies beyond a threshold". Which threshold, on which side, and which
    data set comes first are chosen by the even runs and judged by the odd ones.

    Raises:
        ValueError: fewer than two runs with either data set, or a confidence outside (0, 1).
    """
    if min(len(one), len(other)) < 2:
        raise ValueError(
            f"runs = {min(len(one), len(other))} must be at least 2: half of them choose the "
            "threshold"
        )
    pairs = [
        (sign * first, sign * second)
        for sign in (1, -1)
        for first, second in ((one, other), (other, one))
    ]
    choices = [
        (gain, number, t)
        for number, pair in enumerate(pairs)
        for gain, t in _choices(*pair, delta, confidence)
    ]
    _, number, threshold = max(choices)
    first, second = (values[1::2] for values in pairs[number])
    hits, alarms = (np.array((values > threshold).sum()) for values in (first, second))
    return float(rates_epsilon(hits, len(first), alarms, len(second), delta, confidence))


def check_confidence(confidence: float) -> None:
    """Refuse a confidence outside (0, 1)."""
    if not 0 < confidence < 1:
        raise ValueError(
            f"confidence = {confidence} must be in (0, 1): give --confidence 0.95, for instance"
        )


def _choices(
    first: Floats, second: Floats, delta: float, confidence: float
) -> Iterator[tuple[float, float]]:
    """Thresholds at ranks of the even runs of ``second``, dense in its upper tail, with the bounds
    they would give."""
    a, b = np.sort(first[::2]), np.sort(second[::2])
    ranks = np.unique(np.geomspace(1, len(b), GRID).astype(np.int64))
    thresholds = b[-ranks]
    hits, alarms = (
        len(values) - np.searchsorted(values, thresholds, side="right") for values in (a, b)
    )
    bounds = rates_epsilon(hits, len(a), alarms, len(b), delta, confidence)
    return zip(bounds.tolist(), thresholds.tolist(), strict=True)
