"""Search for the Renyi order that gives the smallest epsilon, for curves that are slow to evaluate.

Every order gives a guarantee, so an order that is skipped can only leave epsilon larger. Nothing is
lost, either: ``(a - 1) rdp(a)`` is convex in the order a (a largest logarithm of a moment) and 0 at
a = 1, so chords between known points stay below it where they are extended. An order is skipped if
this bound shows that it cannot beat the smallest epsilon found so far.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

FIRST = 16.0
"""The order nearest to this is evaluated first."""


def least(orders: Floats, others: Floats, price: Callable[[int], float]) -> dict[int, float]:
    """Evaluate orders until no other one can give less than the best of them.

    Args:
        orders: ascending, above 1, float64 ``[n]``.
        others: what is added to the price at each order to give an epsilon, float64 ``[n]``;
            ``inf`` excludes an order.
        price: the divergence at ``orders[k]`` [nats]; ``inf`` where it is not finite.

    Returns:
        k -> ``price(k)`` of each evaluated order, at least one; ``others[k] + price(k)`` is
        smallest at one of them.
    """
    found: dict[int, float] = {}
    place = int(np.argmin(np.abs(orders - FIRST)))
    while True:
        found[place] = price(place)
        known = sorted(found)
        prices = np.array([found[k] for k in known])
        open_ = np.flatnonzero(
            others + _below(orders, known, prices) < (others[known] + prices).min()
        )
        open_ = np.setdiff1d(open_, known)
        if not open_.size:
            return found
        # price / order, which is constant for a Gaussian, is interpolated
        likely = orders * np.interp(orders, orders[known], prices / orders[known])
        place = int(open_[np.argmin((others + likely)[open_])])


def _below(orders: Floats, known: list[int], prices: Floats) -> Floats:
    """Lower bounds of the price at every order that is not known, ``[n]``."""
    # an infinite price makes those of all larger orders infinite
    last = 1 + int(np.isfinite(prices).sum())
    ends = np.concatenate([[1.0], orders[known]])[: last + 1]
    heights = (ends - 1.0) * np.concatenate([[0.0], prices])[: last + 1]
    with np.errstate(invalid="ignore"):
        slopes = np.diff(heights) / np.diff(ends)
        chords = heights[:-1, None] + slopes[:, None] * (orders - ends[:-1, None])
    outside = (orders < ends[:-1, None]) | (orders > ends[1:, None])
    return np.asarray(np.where(outside, chords, 0.0).max(axis=0).clip(0.0) / (orders - 1.0))
