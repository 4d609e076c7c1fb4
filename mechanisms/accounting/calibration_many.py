"""The smallest noise multipliers of many clients at once, whose sampling rates or steps differ.

Few are searched for (`accounting.calibration.smallest`); those between are interpolated, and each
is checked, and raised until it meets the budget.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]

RATIO = 1.2
"""Most between neighbouring rates that are searched for, if others lie between them."""
LIFT = 5e-4
"""Relative step by which an interpolated value is raised: the size of its error."""
NEAR = 4
"""Solved rows that tell roughly what the next one will be."""
CLOSE = 3e-3
"""Differences of their rates and steps below this share of 1 tell nothing."""
TRIES = 10
"""A row that needs more raises gets a search of its own."""


def interpolated(
    sample_rates: ArrayLike,
    steps: ArrayLike,
    solve: Callable[[int, float | None], tuple[float, float]],
    meets: Callable[[int, float, tuple[float, float]], bool],
) -> Floats:
    """The smallest noise multiplier of each row: searched for at few rates, interpolated between.

    Args:
        sample_rates: rates above 0, shape ``[n]``.
        steps: rows of equal steps share a grid of rates, shape ``[n]``.
        solve: a row's smallest noise multiplier, and the Renyi order at which it meets the budget,
            NaN for none; it is told roughly what to expect, if other rows were solved before.
        meets: whether a row meets the budget with a noise multiplier at an order between these two,
            ends included.

    Returns:
        float64 ``[n]``: each row's value comes from `solve`, or `meets` has affirmed it; rows of
        equal rate and steps have the same.

    Raises:
        ValueError: what `solve` raises.
    """
    kinds = np.stack([np.asarray(steps, np.float64), np.asarray(sample_rates, np.float64)])
    distinct, rows, where = np.unique(kinds, axis=1, return_index=True, return_inverse=True)
    starts = np.flatnonzero(np.diff(distinct[0], prepend=np.nan) != 0)
    groups = np.split(np.arange(len(rows)), starts[1:])
    solved: list[tuple[Floats, float]] = []

    def search(row: int) -> tuple[float, float]:
        here = np.log(kinds[:, row])
        noise, order = solve(row, _extrapolated(solved, here) if solved else None)
        solved.append((here, noise))
        return noise, order

    found = [_between(distinct[1, group], rows[group].tolist(), search, meets) for group in groups]
    return np.concatenate(found)[where.reshape(-1)]


def _extrapolated(solved: list[tuple[Floats, float]], here: Floats) -> float:
    """Roughly the noise at a point, from that at other points: logarithms of rate and steps."""
    near = sorted(solved, key=lambda one: float(np.abs(one[0] - here).sum()))[:NEAR]
    away = np.array([[1.0, *(at - here)] for at, _ in near])
    logs = np.log([noise / near[0][1] for _, noise in near])
    return float(near[0][1] * np.exp(np.linalg.lstsq(away, logs, rcond=CLOSE)[0][0]))


def _between(
    rates: Floats,
    rows: list[int],
    solve: Callable[[int], tuple[float, float]],
    meets: Callable[[int, float, tuple[float, float]], bool],
) -> Floats:
    """`interpolated` for rows of equal steps, by rising rate."""
    last, places = len(rates) - 1, [0]
    while places[-1] < last:
        reached = int(np.searchsorted(rates, RATIO * rates[places[-1]], side="right")) - 1
        places.append(max(places[-1] + 1, reached))
    known = np.array(places)
    solved, orders = np.array([solve(rows[k]) for k in known]).T
    noise = np.full(len(rates), solved[0])
    # PCHIP does not overshoot the solved points; `meets` confirms every value between them
    if last:
        from scipy.interpolate import PchipInterpolator

        noise = np.exp(PchipInterpolator(np.log(rates[known]), np.log(solved))(np.log(rates)))
    noise[known] = solved
    for k in np.setdiff1d(np.arange(last), known):
        right = int(np.searchsorted(known, k))
        low, high = sorted(orders[right - 1 : right + 1].tolist())
        tries = noise[k] * (1.0 + LIFT) ** np.arange(TRIES)
        enough = (one for one in tries.tolist() if meets(rows[k], one, (low, high)))
        noise[k] = next(enough, None) or solve(rows[k])[0]
    return noise
