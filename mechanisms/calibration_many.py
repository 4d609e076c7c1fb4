"""The smallest noise multipliers of many clients at once, whose sampling rates or steps differ.

`mechanisms.calibration.smallest` for Poisson-sampled Gaussian steps, with one row per client. Epsilon at any single
Renyi order is an upper bound, so each row carries one order: solve for the noise at that order, move to the order that
is best at this noise, and repeat until no order changes. What is returned meets the budget at the row's order by the
exact curve, hence altogether.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mechanisms import sampled_gaussian
from mechanisms.accountant import ORDERS, check_delta

Floats = NDArray[np.float64]
Indices = NDArray[np.intp]

ROUNDS = 20  # changes of order at most; about three are needed
NARROW = 0.8  # after the first round the noise hardly changes: try this part of it as the lower end


def smallest_many(
    sample_rates: ArrayLike,
    steps: ArrayLike,
    epsilon: float,
    delta: float,
    lower: float = 1e-2,
    upper: float = 1e4,
    tolerance: float = 1e-4,
) -> Floats:
    """The smallest noise multiplier of each client for its planned Poisson-sampled Gaussian steps.

    Args:
        sample_rates: Poisson rates in (0, 1], shape ``[n]``.
        steps: planned steps, at least 1, shape ``[n]`` or one number for all.
        epsilon: budget of each client, above 0.
        delta: budget of each client, in (0, 1).
        lower: smallest noise multiplier looked at; returned where it meets the budget already.
        upper: largest noise multiplier looked at.
        tolerance: relative width of the final brackets.

    Returns:
        float64 ``[n]``; ``accountant.epsilon({SampledGaussian(rate, x): steps}, delta).epsilon <= epsilon`` for each.

    Raises:
        ValueError: an argument is out of its bounds, or even `upper` does not meet the budget of some client.
    """
    check_delta(delta)
    rates, counts = np.broadcast_arrays(np.asarray(sample_rates, np.float64), np.asarray(steps, np.float64))
    if not ((rates > 0.0) & (rates <= 1.0)).all():
        raise ValueError(f"sample_rates = {rates.min()} to {rates.max()} must be in (0, 1]; they are probabilities")
    if not (counts >= 1.0).all() or not 0.0 < epsilon < math.inf:
        raise ValueError(f"steps = {counts.min()} must be at least 1 and epsilon = {epsilon} above 0; plan a step")
    if not rates.size:
        return np.empty(0)
    (distinct, where) = np.unique(np.stack([rates.reshape(-1), counts.reshape(-1)]), axis=1, return_inverse=True)
    rows = _Rows(distinct[0], distinct[1], epsilon, delta)
    return _solve_all(rows, lower, upper, tolerance)[where.reshape(-1)]


@dataclass(frozen=True)
class _Rows:
    """The distinct clients: rate and steps ``[n]``, and their common budget."""

    rates: Floats
    steps: Floats
    epsilon: float
    delta: float

    def conversion(self) -> Floats:
        """What each order of the grid adds to the divergence (Canonne, Kamath, Steinke 2020), ``[orders]``."""
        grid = np.array(ORDERS)
        return np.asarray(np.log1p(-1.0 / grid) - (math.log(self.delta) + np.log(grid)) / (grid - 1.0))

    def cost(self, which: Indices, noise: Floats, order: Indices) -> Floats:
        """Epsilon of the rows `which` at `noise` and at one order (an index into the grid) each, ``[len(which)]``."""
        result = self.conversion()[order]
        for index in np.unique(order):
            part = order == index
            rows = which[part]
            result[part] += self.steps[rows] * sampled_gaussian.rdp(self.rates[rows], noise[part], ORDERS[index])
        return result


def _solve_all(rows: _Rows, lower: float, upper: float, tolerance: float) -> Floats:
    every = np.arange(rows.rates.size)
    added = rows.conversion()
    affordable = np.flatnonzero(added <= rows.epsilon / 2.0)  # about half of epsilon goes to the conversion
    order = np.full(every.size, affordable[0] if affordable.size else int(np.argmin(added)))
    noise = np.full(every.size, upper)
    order = _best_orders(rows, every, noise, order)
    over = rows.cost(every, noise, order) > rows.epsilon
    if over.any():
        rate = rows.rates[over].max()
        raise ValueError(
            f"budget too small for a single step: epsilon = {rows.epsilon} at delta = {rows.delta} is not met at sample "
            f"rate {rate:g} by noise multiplier {upper:g}; raise epsilon or delta, plan fewer steps, or lower the rates"
        )
    order = np.full(every.size, affordable[0]) if affordable.size else order
    active = every
    for _ in range(ROUNDS):
        noise[active] = _bisect(rows, active, order[active], lower, noise[active], tolerance)
        better = _best_orders(rows, active, noise[active], order[active])
        active, moved = active[better != order[active]], better[better != order[active]]
        order[active] = moved
        if not active.size:
            break
    return noise


def _bisect(rows: _Rows, which: Indices, order: Indices, lower: float, high: Floats, tolerance: float) -> Floats:
    """The smallest noise at a fixed order each, from above: `high` is returned where this order needs more."""
    low = np.maximum(lower, NARROW * high)
    low = np.where(rows.cost(which, low, order) <= rows.epsilon, lower, low)
    met = rows.cost(which, low, order) <= rows.epsilon
    high = np.where(met, low, high)
    open_ = np.flatnonzero(high > low * (1.0 + tolerance))
    while open_.size:
        middle = np.sqrt(low[open_] * high[open_])
        met = rows.cost(which[open_], middle, order[open_]) <= rows.epsilon
        high[open_[met]], low[open_[~met]] = middle[met], middle[~met]
        open_ = open_[high[open_] > low[open_] * (1.0 + tolerance)]
    return high


def _best_orders(rows: _Rows, which: Indices, noise: Floats, order: Indices) -> Indices:
    """The order of least epsilon at `noise`, by walking the grid up and then down from `order`.

    ``(a - 1) rdp(a)`` is convex in a, so epsilon falls and then rises along the grid.
    """
    best, value = order.copy(), rows.cost(which, noise, order)
    for step in (1, -1):
        walking = np.arange(which.size)
        while walking.size:
            tried = best[walking] + step
            walking, tried = walking[(tried >= 0) & (tried < len(ORDERS))], tried[(tried >= 0) & (tried < len(ORDERS))]
            cost = rows.cost(which[walking], noise[walking], tried)
            gains = cost < value[walking]
            walking = walking[gains]
            best[walking], value[walking] = tried[gains], cost[gains]
    return best
