"""Lower bounds on epsilon from an attacker's success, valid for finite samples.

(epsilon, delta)-differential privacy limits how often an attacker can be right. A count that is too
improbable under some epsilon refutes that epsilon; the bound is the largest refuted epsilon. Each
function returns a bound of at least 0 that exceeds the true epsilon with a probability of at most
``1 - confidence``.
"""

import math
from collections.abc import Iterator
from numbers import Real

import numpy as np
from numpy.typing import NDArray
from scipy import special, stats
from scipy.optimize import brentq

Floats = NDArray[np.float64]

MAX_EPSILON = 100.0
"""Largest epsilon that a bound can have."""
GRID = 64
"""Maximum number of thresholds tried for each ordered pair of samples."""


def one_run_p_value(guesses: int, right: int, coins: int, epsilon: float, delta: float) -> float:
    """Upper bound on the probability that an attacker on (epsilon, delta)-DP training does so well.

    Steinke, Nasr, Jagielski, "Privacy Auditing with One (1) Training Run", NeurIPS 2023, Theorem
    5.2: with f(v) the probability that a binomial of ``guesses`` trials, each a success with
    probability e^epsilon / (1 + e^epsilon), is at least v, it is ``f(right) + 2 coins delta max
    over i >= 1 of (f(right - i) - f(right)) / i``.

    Args:
        guesses: r, the number of coins that the attacker guessed.
        right: v, the number of right guesses.
        coins: m, the number of independent fair coins.
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
    ways = special.gammaln(guesses + 1) - special.gammaln(fewer + 1)
    ways -= special.gammaln(guesses - fewer + 1)
    # f(right - i) - f(right) is the sum of the i probabilities just below `right`
    below = np.cumsum(np.exp(ways + fewer * log_right + (guesses - fewer) * log_wrong))
    steepest = float((below / np.arange(1, right + 1)).max(initial=0.0))
    # f(v), the binomial tail, is the incomplete beta function I_p(v, r - v + 1)
    tail = float(special.betainc(right, guesses - right + 1, math.exp(log_right))) if right else 1.0
    return min(1.0, tail + 2 * coins * delta * steepest)


def one_run_epsilon(guesses: int, right: int, coins: int, delta: float, confidence: float) -> float:
    """The largest epsilon under which the p-value is at most ``1 - confidence``, or 0."""
    check_confidence(confidence)

    def excess(epsilon: float) -> float:
        return one_run_p_value(guesses, right, coins, epsilon, delta) - (1 - confidence)

    if excess(0.0) >= 0:
        return 0.0
    if excess(MAX_EPSILON) < 0:
        return MAX_EPSILON
    # the root may be off by xtol: lowered by as much it is on the safe side
    return float(brentq(excess, 0.0, MAX_EPSILON, xtol=1e-9)) - 1e-9


def rates_epsilon(
    hits: NDArray[np.int64],
    trials: int,
    alarms: NDArray[np.int64],
    others: int,
    delta: float,
    confidence: float,
) -> Floats:
    """``log((P - delta) / P')`` from counts of one event, P bounded from below and P' from above.

    The bounds are those of Clopper and Pearson (1934), each with half the error probability.

    Args:
        hits: number of events ``[...]`` in ``trials`` independent runs with the first data set.
        alarms: number of events ``[...]`` in ``others`` independent runs with its neighbour.
    """
    check_confidence(confidence)
    error = (1 - confidence) / 2
    with np.errstate(invalid="ignore", divide="ignore"):
        low = np.where(hits > 0, stats.beta.ppf(error, hits, trials - hits + 1), 0.0)
        rest = others - alarms
        high = np.where(rest > 0, stats.beta.ppf(1 - error, alarms + 1, rest), 1.0)
        # DP gives P <= e^epsilon P' + delta for every event, so epsilon >= log((P - delta) / P')
        return np.maximum(0.0, np.log(np.maximum(low - delta, 0.0)) - np.log(high))


def threshold_epsilon(one: Floats, other: Floats, delta: float, confidence: float) -> float:
    """A bound from a statistic ``[runs]`` of many runs with each of two neighbouring data sets.

    The event is "the statistic lies beyond a threshold". The threshold, its side, and which data
    set comes first are chosen on the even runs and tested on the odd ones.

    Raises:
        ValueError: fewer than two runs with either data set, or a confidence outside (0, 1).
    """
    runs = min(len(one), len(other))
    if runs < 2:
        raise ValueError(f"runs = {runs} must be at least 2: half of them choose the threshold")
    pairs = [(sign * a, sign * b) for sign in (1, -1) for a, b in ((one, other), (other, one))]
    found = enumerate(_choices(*pair, delta, confidence) for pair in pairs)
    # the choice is made on other runs than the test, so the test's confidence stays valid
    _, number, threshold = max((gain, number, t) for number, some in found for gain, t in some)
    first, second = (values[1::2] for values in pairs[number])
    hits, alarms = (np.array((values > threshold).sum()) for values in (first, second))
    return float(rates_epsilon(hits, len(first), alarms, len(second), delta, confidence))


def check_confidence(confidence: float) -> None:
    """Refuse a confidence that is no number in (0, 1)."""
    if not (isinstance(confidence, Real) and 0 < confidence < 1):
        raise ValueError(
            f"confidence = {confidence!r} must be in (0, 1): give --confidence 0.95, for instance"
        )


def _choices(
    first: Floats, second: Floats, delta: float, confidence: float
) -> Iterator[tuple[float, float]]:
    """(bound, threshold) on the even runs; thresholds are dense in the upper tail of ``second``."""
    a, b = np.sort(first[::2]), np.sort(second[::2])
    ranks = np.unique(np.geomspace(1, len(b), GRID).astype(np.int64))
    thresholds = b[-ranks]
    hits, alarms = (
        len(values) - np.searchsorted(values, thresholds, side="right") for values in (a, b)
    )
    bounds = rates_epsilon(hits, len(a), alarms, len(b), delta, confidence)
    return zip(bounds.tolist(), thresholds.tolist(), strict=True)
