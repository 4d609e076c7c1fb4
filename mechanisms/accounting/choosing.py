"""What it costs to release the best of several runs (`docs/theory/choosing.md`, Theorem 27).

The number of runs is random: after each one a coin with probability 1 / m says whether it was the
last, so that there are m on average. Liu and Talwar 2019 bound this by pure differential privacy,
Papernot and Steinke 2022 by Renyi divergences. Here it is bounded by privacy profiles.
"""

import math
from collections.abc import Callable

HALVINGS = 20
"""Halvings of the range of log delta that is searched. Every value in it is valid."""
ROUNDING = 1e-12
MAX_MEAN = 1_000.0


def epsilon_of_best(epsilon_at: Callable[[float], float], delta: float, mean: float) -> float:
    """Epsilon, at ``delta``, of the best of a random number of runs, rounded upward.

    Args:
        epsilon_at: for every d in (0, 1), an epsilon at which a run is (epsilon, d)-differentially
            private; it does not increase. Of runs with several settings, the largest.
        delta: of the whole, in (0, 1).
        mean: m, the mean number of runs; 1 is a single run without a choice.

    Raises:
        ValueError: a mean below 1 or above `MAX_MEAN`.
    """
    check_mean(mean)
    alone = epsilon_at(delta / mean * (1.0 - ROUNDING))
    if mean == 1.0 or alone == math.inf:
        return alone
    return (alone + 2.0 * _log_ratio(epsilon_at, delta, mean)) * (1.0 + ROUNDING)


def check_mean(mean: float) -> None:
    """Refuse a mean number of runs that is out of bounds."""
    if not 1.0 <= mean <= MAX_MEAN:
        raise ValueError(
            f"tries = {mean:g} must be between 1 and {MAX_MEAN:g}: it is the mean number of runs "
            "of which the best is released"
        )


def _log_ratio(epsilon_at: Callable[[float], float], delta: float, mean: float) -> float:
    """Log rho, the most that the chance of a better run can change by.

    It is the larger of ``epsilon_at(d)`` and ``log(1 + (m - 1) d)``, which falls and rises in d:
    where they cross, it is the least.
    """
    low, high, least = math.log(delta / mean), 0.0, math.inf
    for _ in range(HALVINGS):
        middle = (low + high) / 2.0
        falling, rising = epsilon_at(math.exp(middle)), math.log1p((mean - 1.0) * math.exp(middle))
        least = min(least, max(falling, rising))
        low, high = (middle, high) if falling > rising else (low, middle)
    return least
