"""What several records of one person add to a Poisson-sampled Gaussian: a mixture of Gaussians.

Each of k records is in the sum or not, on its own, so that j of them are with the probability of a
binomial distribution. In the worst case they all point the same way: the pair of ``sum_j b_j N(j,
s^2)``, ``b_j = Bin(k, q)(j)``, and ``N(0, s^2)`` dominates the sum with them and without (Ganesh
2024, "Tight Group-Level DP Guarantees for DP-SGD with Sampling via Mixture of Gaussians
Mechanisms"). Its likelihood ratio grows with the outcome x, so the best test is a
threshold, and its hockey stick is that of one Gaussian for each j, ``b_j (P_j - r_j Q)`` with the
ratios r_j at the threshold. For one record this is the sampled Gaussian of `profile`.
"""

import math

import numpy as np
from numpy.typing import NDArray
from scipy.special import comb, erfc, erfcx, ndtr, xlog1py, xlogy

Floats = NDArray[np.float64]

MAX_RECORDS = 100
"""Most records of a person; a profile takes memory for each number of them."""
MAX_PASSES = 100
"""Passes of Newton's method, which needs ten."""
HALVINGS = 20
"""Halvings of the range in which an end is searched. Every value in it is valid."""
UNIT = 1e-14
"""A threshold that misses its ratio by this, relatively, doubles the bound on what is rounded."""
TINY = 1e-300
"""No smaller likelihood ratio is told from 0."""
CANCELLED = 1e-8
"""Where a likelihood ratio is a smaller difference than this, it is taken for unknown."""


def log_weights(rate: float, records: int) -> list[tuple[int, float]]:
    """The numbers j > 0 of a person's records that a batch can hold, and log b_j."""
    j = np.arange(1, records + 1)
    logs = np.log(comb(records, j)) + xlogy(j, rate) + xlog1py(records - j, -rate)
    return [(int(n), float(log)) for n, log in zip(j, logs, strict=True) if log > -math.inf]


def any_of(rate: float, records: int) -> float:
    """The probability that a batch holds at least one of the records."""
    return -math.expm1(records * math.log1p(-rate)) if rate < 1.0 else 1.0


def farthest(rate: float, s: float, records: int, reach: float) -> float:
    """The outcome beyond which the sum with the records is as rarely as a normal variable beyond
    ``reach`` deviations, from above: batches that hold all of them may be rarer than that."""
    j = np.arange(records + 1)
    weights = comb(records, j) * rate**j * (1.0 - rate) ** (records - j)
    low, high, little = reach * s, records + reach * s, ndtr(-reach)
    for _ in range(HALVINGS):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if weights @ ndtr((j - middle) / s) > little else (low, middle)
    return high


def log_mean(x: Floats, terms: list[tuple[int, float]], s: float) -> tuple[Floats, Floats]:
    """``log sum_j b_j exp((2 j x - j^2) / (2 s^2))``, and its derivative times s^2: the mean j."""
    logs = np.array([log + j * (2.0 * x - j) / (2.0 * s**2) for j, log in terms])
    most = logs.max(axis=0)
    parts = np.exp(logs - most)
    total = parts.sum(axis=0)
    numbers = np.array([j for j, _ in terms], dtype=np.float64)
    return np.asarray(most + np.log(total)), np.asarray(numbers @ parts / total)


def threshold(goals: Floats, terms: list[tuple[int, float]], s: float) -> tuple[Floats, Floats]:
    """The outcomes x at which `log_mean` is at its goal ``[n]``, and how far it is missed.

    By Newton's method from above, where one term reaches the goal alone: `log_mean` is convex.
    """
    x = np.min([s**2 * (goals - log) / j + j / 2.0 for j, log in terms], axis=0)
    for _ in range(MAX_PASSES):
        found, mean = log_mean(x, terms, s)
        step = s**2 * (found - goals) / mean
        x = x - step
        if (np.abs(step) <= 1e-15 * (np.abs(x) + s)).all():
            break
    return x, np.abs(log_mean(x, terms, s)[0] - goals)


def sampled(
    rate: float, s: float, records: int, losses: Floats, adding: bool
) -> tuple[Floats, Floats]:
    """The hockey stick at losses of at least 0, and the size of the terms whose difference it is,
    as `profile` has them for one record."""
    some, signed = any_of(rate, records), -losses if adding else losses
    share = np.exp(signed) if some == 1.0 else 1.0 + np.expm1(signed) / some
    terms = [(j, log - math.log(some)) for j, log in log_weights(rate, records)]
    at, missed = threshold(np.log(np.maximum(share, TINY)), terms, s)
    here, there = np.zeros((2, *losses.shape))
    for j, log in terms:
        near, far = ((-at, j - at) if adding else (at - j, at)) / np.array(math.sqrt(2.0) * s)
        base = far if adding else near
        here += _scaled(near, base, log)
        there += _scaled(far, base, log)
    scale = some * (np.exp(losses) if adding else np.ones(losses.shape))
    size = (here + there) * (1.0 + missed / UNIT)
    if adding and some < 1.0:  # where the share is a small difference its digits are unknown
        here, size = np.where(share > 0.0, here, there), size + (share < CANCELLED)
    return scale * (here - there), scale * size


def _scaled(z: Floats, base: Floats, log_weight: float) -> Floats:
    """``exp(log_weight - base^2) erfcx(z) / 2``; both kinds of tail are in range for their z."""
    left = np.minimum(z, 0.0)
    tail = np.where(z < 0.0, erfc(left), erfcx(np.maximum(z, 0.0)))
    return np.asarray(0.5 * np.exp(log_weight + left**2 - base**2) * tail)
