"""Confidence intervals for the fraction of right guesses, given the trained models."""

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from sim.attacking.membership import Tally

Interval = tuple[float, float]


def of_counts(tally: Tally, confidence: float) -> Interval:
    """Clopper and Pearson's interval for the probability of a right guess, one guess per record."""
    # beta quantiles invert the binomial tails exactly, so the interval holds for any sample size
    error = (1 - confidence) / 2
    right, wrong = tally.right, tally.guesses - tally.right
    low = float(stats.beta.ppf(error, right, wrong + 1)) if right else 0.0
    high = float(stats.beta.ppf(1 - error, right + 1, wrong)) if wrong else 1.0
    return low, high


def of_records(shares: NDArray[np.float64], confidence: float) -> Interval:
    """Student's interval for the mean of ``shares [records]``, clipped to [0, 1].

    Guesses of many models about one record are dependent, since each is a shadow of the others. So
    each record is one observation: the fraction of right guesses about it.
    """
    mean, spread = float(shares.mean()), float(shares.std(ddof=1)) / len(shares) ** 0.5
    half = spread * float(stats.t.ppf((1 + confidence) / 2, len(shares) - 1))
    return max(0.0, mean - half), min(1.0, mean + half)
