"""The smallest noise multipliers of many clients at once, whose sampling rates or steps differ.

`accounting.calibration.smallest` for Poisson-sampled Gaussian steps, one row per client. Epsilon at
any single Renyi order is an upper bound of the smallest over all orders, so each row has one order
at which the returned noise meets the budget by the exact curve. If many rates share their steps,
noise(rate) is solved on a fine grid of rates and interpolated; each interpolated value is checked,
and raised until it meets the budget. `interpolated` does the same, row by row, for any runs.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mechanisms.accounting import sampled_gaussian
from mechanisms.accounting.accountant import ORDERS, check_delta, conversion
from mechanisms.accounting.calibration import LOWER, TOLERANCE, UPPER

Floats = NDArray[np.float64]
Indices = NDArray[np.intp]

RATIO = 1.02  # between neighbouring rates of the grid
LIFT = 5e-5  # relative, added to interpolated values: the size of their error
ROUNDING = 1e-12
"""Relative margin left of each budget: curves computed one by one may differ in the last bits."""

WIDE_RATIO = 1.2  # as `RATIO`, for grids in which each point takes a search of its own
WIDE_LIFT, TRIES = 5e-4, 10  # as `LIFT`; a row that needs more raises gets a search of its own


def smallest_many(
    sample_rates: ArrayLike, steps: ArrayLike, epsilon: float, delta: float
) -> Floats:
    """The smallest noise multiplier of each client for its planned Poisson-sampled Gaussian steps.

    Args:
        sample_rates: Poisson rates in (0, 1], shape ``[n]``.
        steps: planned steps, at least 1, shape ``[n]`` or one number for all.
        epsilon: budget of each client, above 0.
        delta: budget of each client, in (0, 1).

    Returns:
        float64 ``[n]``; ``accountant.epsilon({SampledGaussian(rate, x): steps}, delta).epsilon <=
        epsilon`` for each. Interpolation may add as much noise as the bracket is wide.

    Raises:
        ValueError: an argument is out of its bounds, or even `UPPER` does not meet the budget of
            some client.
    """
    rates, counts = np.broadcast_arrays(
        np.asarray(sample_rates, np.float64), np.asarray(steps, np.float64)
    )
    check_delta(delta)
    if not ((rates > 0.0) & (rates <= 1.0)).all():
        raise ValueError(
            f"sample_rates = {rates.min()} to {rates.max()} must be in (0, 1]; they are "
            "probabilities"
        )
    if not (counts >= 1.0).all() or not 0.0 < epsilon < math.inf:
        raise ValueError(
            f"steps = {counts.min()} must be at least 1 and epsilon = {epsilon} above 0; plan a "
            "step"
        )
    budget = _Budget(epsilon * (1.0 - ROUNDING), delta)
    distinct, where = np.unique(
        np.stack([counts.reshape(-1), rates.reshape(-1)]), axis=1, return_inverse=True
    )
    found = budget.smallest(distinct[1], distinct[0]) if rates.size else np.empty(0)
    return found[where.reshape(-1)].reshape(rates.shape)


def interpolated(
    sample_rates: ArrayLike,
    steps: ArrayLike,
    solve: Callable[[int], tuple[float, float]],
    meets: Callable[[int, float, tuple[float, float]], bool],
) -> Floats:
    """The smallest noise multiplier of each row: searched for at few rates, interpolated between.

    Args:
        sample_rates: rates above 0, shape ``[n]``.
        steps: rows of equal steps share a grid of rates, shape ``[n]``.
        solve: a row's smallest noise multiplier, and the Renyi order at which it meets the budget.
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
    found = [_between(distinct[1, group], rows[group].tolist(), solve, meets) for group in groups]
    return np.concatenate(found)[where.reshape(-1)]


def _between(
    rates: Floats,
    rows: list[int],
    solve: Callable[[int], tuple[float, float]],
    meets: Callable[[int, float, tuple[float, float]], bool],
) -> Floats:
    """`interpolated` for rows of equal steps, by rising rate."""
    last = len(rates) - 1
    points = math.ceil(math.log(rates[-1] / rates[0]) / math.log(WIDE_RATIO)) + 1
    inner = np.searchsorted(rates, np.geomspace(rates[0], rates[-1], points)[1:-1])
    known = np.unique([0, *inner, last])
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
        tries = noise[k] * (1.0 + WIDE_LIFT) ** np.arange(TRIES)
        enough = (one for one in tries.tolist() if meets(rows[k], one, (low, high)))
        noise[k] = next(enough, None) or solve(rows[k])[0]
    return noise


@dataclass(frozen=True)
class _Budget:
    """A budget. Rates, steps and noises are ``[n]``; orders are indices into the grid, ``[n]``."""

    epsilon: float
    delta: float

    def smallest(self, rates: Floats, steps: Floats) -> Floats:
        """Noise multipliers of distinct rows, sorted by steps and then by rate.

        Rows of equal steps share a grid of rates, which may be these rates themselves; all grids
        are solved together, and what lies between their points is interpolated and checked.
        """
        starts = np.flatnonzero(np.diff(steps, prepend=np.nan) != 0)
        groups = np.split(rates, starts[1:])
        grids = [_grid(one) for one in groups]
        grid, places = np.concatenate(grids), np.cumsum([0, *(len(one) for one in grids)])
        noises, orders = self.solve(grid, np.repeat(steps[starts], np.diff(places)))
        parts = list(zip(places[:-1], grids, groups, strict=True))
        right = np.concatenate([at + np.searchsorted(g, r) for at, g, r in parts])
        between = [
            np.interp(np.log(r), np.log(g), np.log(noises[at : at + len(g)])) for at, g, r in parts
        ]
        enough = noises[right]  # more sampling needs no less noise
        noise = np.minimum(np.exp(np.concatenate(between)) * (1.0 + LIFT), enough)
        noise = np.where(grid[right] == rates, enough, noise)
        return self.check(rates, steps, noise, enough, (orders[right], orders[right - 1]))

    def check(
        self,
        rates: Floats,
        steps: Floats,
        noise: Floats,
        enough: Floats,
        orders: tuple[Indices, ...],
    ) -> Floats:
        """The noises, raised until one of two orders meets the budget, at most to ``enough``."""
        open_ = np.flatnonzero(noise < enough)
        while open_.size:
            rows = rates[open_], steps[open_], noise[open_]
            met = self.cost(*rows, orders[0][open_]) <= self.epsilon
            met |= self.cost(*rows, orders[1][open_]) <= self.epsilon
            open_ = open_[~met]
            noise[open_] = np.minimum(noise[open_] * (1.0 + LIFT), enough[open_])
            open_ = open_[noise[open_] < enough[open_]]
        return noise

    def solve(self, rates: Floats, steps: Floats) -> tuple[Floats, Indices]:
        """The smallest noise multipliers by bisection, and orders at which they meet the budget."""
        added = conversion(ORDERS, self.delta)
        # where to start: the first order that leaves half of epsilon for the divergence
        affordable = np.flatnonzero(added <= self.epsilon / 2.0)
        order = np.full(rates.size, affordable[0] if affordable.size else int(np.argmin(added)))
        low, high = np.full(rates.size, LOWER), np.full(rates.size, UPPER)
        met, order = self.meets(rates, steps, high, order)
        if not met.all():
            raise ValueError(
                f"budget too small for a single step: epsilon = {self.epsilon:g} at delta = "
                f"{self.delta} is not met at sample rate {rates[~met].max():g} by noise "
                f"multiplier {UPPER:g}; raise epsilon or delta, plan fewer steps, or lower "
                "the rates"
            )
        met, at_low = self.meets(rates, steps, low, order)
        high, order = np.where(met, low, high), np.where(met, at_low, order)
        while (open_ := np.flatnonzero(high > low * (1.0 + TOLERANCE))).size:
            middle = np.sqrt(low[open_] * high[open_])
            met, tried = self.meets(rates[open_], steps[open_], middle, order[open_])
            high[open_[met]], order[open_[met]] = middle[met], tried[met]
            low[open_[~met]] = middle[~met]
        return high, order

    def meets(
        self, rates: Floats, steps: Floats, noise: Floats, order: Indices
    ) -> tuple[NDArray[np.bool_], Indices]:
        """Whether each row meets the budget at some order, and that order.

        Walks the grid up and then down from `order` while epsilon falls: ``(a - 1) rdp(a)`` is
        convex in a, so epsilon falls and then rises along the grid.
        """
        best, value = order.copy(), self.cost(rates, steps, noise, order)
        for step in (1, -1):
            walking = np.flatnonzero(value > self.epsilon)
            while walking.size:
                place = best[walking] + step
                walking = walking[(place >= 0) & (place < len(ORDERS))]
                rows = rates[walking], steps[walking], noise[walking]
                cost = self.cost(*rows, best[walking] + step)
                falls = cost < value[walking]
                walking = walking[falls]
                best[walking], value[walking] = best[walking] + step, cost[falls]
                walking = walking[value[walking] > self.epsilon]
        return value <= self.epsilon, best

    def cost(self, rates: Floats, steps: Floats, noise: Floats, order: Indices) -> Floats:
        """Epsilon of each row at its own order, ``[n]``."""
        result = conversion(ORDERS, self.delta)[order]
        for index in np.unique(order):
            part = order == index
            divergence = sampled_gaussian.rdp(rates[part], noise[part], ORDERS[index])
            result[part] += steps[part] * divergence
        return result


def _grid(rates: Floats) -> Floats:
    """Rates `RATIO` apart from the first to the last of these sorted ones; these, if fewer."""
    points = math.ceil(math.log(rates[-1] / rates[0]) / math.log(RATIO)) + 1
    if points >= len(rates):
        return rates
    grid = np.geomspace(rates[0], rates[-1], points)
    grid[[0, -1]] = rates[[0, -1]]
    return np.asarray(grid, dtype=np.float64)
