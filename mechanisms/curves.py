"""The Renyi curve of ONE application of each kind of event, in two columns.

`certified` is proved; `published` is what the mechanism's paper claims (equal where the paper is right). Counts do not
appear here: `mechanisms.accountant` multiplies them. A new kind of event registers one function with `curve.register`.
"""

import functools
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from mechanisms import events, sampled_gaussian

COLUMNS = ("certified", "published")


def rdp(event: events.Event, orders: Sequence[float], column: str) -> NDArray[np.float64]:
    """Renyi divergence of one application of `event`.

    Args:
        event: the event.
        orders: Renyi orders above 1, shape ``[n]``.
        column: "certified" or "published".

    Returns:
        float64 ``[n]`` in nats, read-only and cached; ``inf`` where nothing finite holds, never NaN.

    Raises:
        ValueError: unknown column, an order not above 1, or an event without a curve.
    """
    return _cached(event, tuple(map(float, orders)), column)


@functools.lru_cache(maxsize=20_000)
def _cached(event: events.Event, orders: tuple[float, ...], column: str) -> NDArray[np.float64]:
    if column not in COLUMNS:
        raise ValueError(f"column = {column!r} must be one of {', '.join(COLUMNS)}; certified is the proved one")
    if not all(order > 1.0 for order in orders):
        raise ValueError(f"orders = {list(orders)} must all be above 1; Renyi divergence is used above 1 only")
    values = np.asarray(curve(event, np.array(orders), column), dtype=np.float64)
    values = np.where(np.isnan(values), np.inf, values)
    values.setflags(write=False)
    return values


@functools.singledispatch
def curve(event: events.Event, orders: NDArray[np.float64], column: str) -> NDArray[np.float64]:
    """Uncached divergence of one application; one registered function per kind of event."""
    raise ValueError(f"event {event!r} has no curve; register one for {type(event).__name__} in mechanisms.curves")


@curve.register
def _sampled_gaussian(event: events.SampledGaussian, orders: NDArray[np.float64], column: str) -> NDArray[np.float64]:
    return sampled_gaussian.curve(event.sample_rate, event.noise_multiplier, orders)


@curve.register
def _unprotected(event: events.Unprotected, orders: NDArray[np.float64], column: str) -> NDArray[np.float64]:
    return np.full(orders.shape, np.inf)
