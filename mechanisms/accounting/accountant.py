"""From charges to epsilon: the only place where counts are multiplied.

Charges map an event to the number of its applications. Renyi divergences add under adaptive
composition (Mironov 2017, Proposition 1); the conversion to (epsilon, delta) is Balle et al. 2020
and Canonne, Kamath, Steinke 2020. Unit and adjacency: one training record, replaced by a null
record that adds to no sum and to no count.
"""

import functools
import math
import numbers
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mechanisms.accounting import (
    allotment,
    curves,
    loss_distribution,
    order_search,
    trial_cap,
)
from mechanisms.accounting.events import ClassicClaim, Event, SampledGaussian

Charges = Mapping[Event, int]

PUBLISHED_ORDERS: tuple[float, ...] = tuple(float(order) for order in range(2, 65))
_QUARTERS = tuple(n / 4.0 for n in range(5, 44) if n % 4)  # 1.25 .. 10.75 without the integers
_LARGE = (72.0, 80.0, 96.0, 112.0, 128.0, 160.0, 192.0, 256.0, 320.0, 384.0, 448.0, 512.0)
ORDERS: tuple[float, ...] = tuple(sorted(PUBLISHED_ORDERS + _QUARTERS + _LARGE))

PLD_LIMIT = 50.0
"""Renyi epsilon above which no privacy-loss distribution is built: nobody would ask for it."""


class Guarantee(NamedTuple):
    """An epsilon and the Renyi order that gave it: None for no charges or an infinite epsilon."""

    epsilon: float
    order: float | None


def default_orders(column: str) -> tuple[float, ...]:
    """The grid of a column: `published` uses exactly the integers 2..64, as the papers do."""
    return PUBLISHED_ORDERS if column == "published" else ORDERS


def rdp(charges: Charges, orders: Sequence[float], column: str) -> NDArray[np.float64]:
    """Renyi divergence of all charges together; float64 ``[len(orders)]`` in nats.

    Infinite where covered releases cost more than the allotments that should pay for them.

    Raises:
        ValueError: a count that is not a non-negative integer, or what `curves.rdp` refuses.
    """
    total = np.zeros(len(orders), dtype=np.float64)
    for event, count in sorted(charges.items(), key=repr):
        _check_count(event, count)
        if count:
            total = total + count * curves.rdp(event, orders, column)
    if column == "certified" and allotment.overdrawn(charges):
        return np.full(len(orders), np.inf)
    return total


def _check_count(event: Event, count: int) -> None:
    if not isinstance(count, numbers.Integral) or isinstance(count, bool) or count < 0:
        raise ValueError(
            f"count = {count!r} of {event} must be an integer, at least 0; charge whole "
            "applications"
        )


def conversion(orders: Sequence[float], delta: float) -> NDArray[np.float64]:
    """Epsilon less divergence at each order a: ``log((a-1)/a) - (log(delta) + log(a)) / (a-1)``."""
    grid = np.asarray(orders, dtype=np.float64)
    return np.asarray(np.log1p(-1.0 / grid) - (math.log(delta) + np.log(grid)) / (grid - 1.0))


def classic_conversion(orders: Sequence[float], delta: float) -> NDArray[np.float64]:
    """The larger `conversion` of Mironov 2017, Proposition 3: ``log(1 / delta) / (a-1)``."""
    return np.asarray(-math.log(delta) / (np.asarray(orders, dtype=np.float64) - 1.0))


def convert(
    divergences: NDArray[np.float64], orders: Sequence[float], delta: float, classic: bool = False
) -> Guarantee:
    """Epsilon ``min over a of rdp + log((a-1)/a) - (log(delta) + log(a)) / (a-1)``, floored at 0.

    Infinite, with order None, when no order gives a finite value. ``classic`` takes
    `classic_conversion`.
    """
    values = divergences + (classic_conversion if classic else conversion)(orders, delta)
    best = int(np.argmin(values))
    if not math.isfinite(values[best]):
        return Guarantee(math.inf, None)
    return Guarantee(max(0.0, float(values[best])), float(orders[best]))


def cap_delta(charges: Charges) -> float:
    """The part of delta that all charges use up because a curve may fail (`curves.failure`)."""
    return math.fsum(count * curves.failure(event) for event, count in charges.items())


def guarantee(charges: Charges, delta: float, column: str, orders: Sequence[float]) -> Guarantee:
    """The guarantee over `orders`, uncached: epsilon 0 for no charges, inf if caps use up delta.

    With a `ClassicClaim` among the charges, the published epsilon is by `classic_conversion`.
    """
    for event, count in charges.items():
        _check_count(event, count)
    lost = cap_delta(charges) if column == "certified" else 0.0
    if lost >= delta:
        return Guarantee(math.inf, None)
    seen, divergences = _looked_at(charges, tuple(map(float, orders)), column, delta - lost)
    classic = column == "published" and any(
        n and isinstance(event, ClassicClaim) for event, n in charges.items()
    )
    found = Guarantee(0.0, None)
    if divergences.any():
        found = convert(divergences, seen, delta - lost, classic)
    if not lost:
        return found
    return Guarantee(trial_cap.guarantee(found.epsilon, delta - lost, lost)[0], found.order)


def _looked_at(
    charges: Charges, orders: tuple[float, ...], column: str, delta: float
) -> tuple[Sequence[float], NDArray[np.float64]]:
    """Orders that include the best one, and the divergence of all charges at each of them."""
    ordered = sorted(charges.items(), key=repr)
    slow = {event: count for event, count in ordered if curves.slow(event, column)}
    others = rdp({event: n for event, n in ordered if event not in slow}, orders, column)
    used = {event: count for event, count in slow.items() if count}
    if not used:
        return orders, others

    def price(place: int) -> float:
        return math.fsum(n * curves.at(event, orders[place], column) for event, n in used.items())

    found = order_search.least(np.array(orders), others + conversion(orders, delta), price)
    places = sorted(found)
    return [orders[k] for k in places], others[places] + np.array([found[k] for k in places])


def epsilon(
    charges: Charges, delta: float, column: str = "certified", orders: Sequence[float] | None = None
) -> Guarantee:
    """The (epsilon, delta) guarantee of all charges by Renyi differential privacy.

    Equal charges are computed once, however many clients carry them.

    Args:
        charges: event -> number of applications.
        delta: in (0, 1); should be below one over the number of records.
        column: "certified" (proved) or "published" (the papers' claims).
        orders: the grid; None takes the column's default.

    Returns:
        Epsilon and its order; epsilon 0 for no charges, ``inf`` when no order is finite.

    Raises:
        ValueError: delta outside (0, 1), an unknown column, a bad count or order.

    Warns:
        UserWarning: the minimum is at an end of the grid, so a wider grid would give less; not for
            the published column on its own grid, which is the papers'.
    """
    check_delta(delta)
    grid = default_orders(column) if orders is None else tuple(map(float, orders))
    result = _epsilon(frozenset(charges.items()), float(delta), column, grid)
    chosen = column == "certified" or orders is not None
    if chosen and result.order in (grid[0], grid[-1]) and len(grid) > 1 and result.epsilon > 0.0:
        at = f"epsilon = {result.epsilon:.4g} ({column}) is reached at order {result.order:g}"
        message = f"{at}, an end of the grid"
        warnings.warn(
            f"{message}; a wider grid of orders would give a smaller epsilon", stacklevel=2
        )
    return result


@functools.lru_cache(maxsize=100_000)
def _epsilon(
    items: frozenset[tuple[Event, int]], delta: float, column: str, orders: tuple[float, ...]
) -> Guarantee:
    return guarantee(dict(items), delta, column, orders)


def precompute(histories: Iterable[Charges], column: str) -> None:
    """Speed up :func:`epsilon` of many different charges: their curves are computed together."""
    curves.precompute(
        (event for charges in histories for event in charges), default_orders(column), column
    )


def check_delta(delta: float) -> None:
    """Refuse a delta outside (0, 1)."""
    if not 0.0 < delta < 1.0:
        raise ValueError(
            f"delta = {delta} must be in (0, 1); take it below one over the number of records"
        )


def pld_epsilon(charges: Charges, delta: float) -> float | None:
    """Tighter epsilon of (sampled) Gaussians fixed in advance, by privacy-loss distributions.

    It is an upper bound, too (pessimistic rounding), shown beside the Renyi epsilon, which stays
    the guarantee.

    Returns:
        Epsilon; None when an event is not a `SampledGaussian` or the Renyi epsilon is above
        `PLD_LIMIT`.

    Raises:
        ValueError: delta outside (0, 1), or a bad count.
    """
    check_delta(delta)
    used = {event: count for event, count in charges.items() if count}
    if not all(isinstance(event, SampledGaussian) for event in used):
        return None
    items = frozenset(used.items())
    renyi = _epsilon(items, float(delta), "certified", default_orders("certified"))
    if renyi.epsilon > PLD_LIMIT:
        return None
    return 0.0 if renyi.order is None else _pld_epsilon(items, float(delta), renyi.order - 1.0)


@functools.lru_cache(maxsize=1_000)
def _pld_epsilon(
    items: frozenset[tuple[SampledGaussian, int]], delta: float, theta: float
) -> float:
    steps = {(event.sample_rate, event.noise_multiplier): count for event, count in items}
    return loss_distribution.epsilon(steps, delta, theta)
