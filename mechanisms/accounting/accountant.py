"""From charges to epsilon: the only place where counts are multiplied.

Charges map an event to the number of its applications. Renyi divergences add under adaptive
composition (Mironov 2017, Proposition 1); the conversion to (epsilon, delta) is Balle et al. 2020
and Canonne, Kamath, Steinke 2020. Unit and adjacency: one training record, replaced by a null
record that adds to no sum and to no count.
"""

import functools
import math
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mechanisms.accounting import (
    allotment,
    curves,
    dominating,
    loss_distribution,
    order_search,
    trial_cap,
)
from mechanisms.accounting.events import (
    Allotment,
    ClassicClaim,
    Event,
    SummedShares,
    TrialCap,
)
from mechanisms.accounting.known import check_count

Charges = Mapping[Event, int]

PUBLISHED_ORDERS: tuple[float, ...] = tuple(float(order) for order in range(2, 65))
_QUARTERS = tuple(n / 4.0 for n in range(5, 44) if n % 4)  # 1.25 .. 10.75 without the integers
_LARGE = (72.0, 80.0, 96.0, 112.0, 128.0, 160.0, 192.0, 256.0, 320.0, 384.0, 448.0, 512.0)
ORDERS: tuple[float, ...] = tuple(sorted(PUBLISHED_ORDERS + _QUARTERS + _LARGE))

MAX_KINDS = 1_000
"""Most kinds of steps in charges for privacy loss distributions, which else would take seconds."""
MANY_STEPS = 100_000
"""From so many steps on, what rounding adds to each step's losses can outweigh what privacy loss
distributions gain: Renyi orders are looked at, too."""
IN_PROGRESS = 0.005
"""Share of delta that pays for epsilons of a run in progress (`server.orders.running`); the
certified one of its end has the rest, unless an `Allotment` names one order for both."""
ROUNDING = 1e-11
"""Margin for rounding of an epsilon by a Renyi order a, relative to its divergence and to 1 / (a -
1). What `conversion` and a trial cap add is at most 800 / (a - 1), and right to 1e-15. Divergences
are right to 4e-12: three `gammaln` of up to 2,700 (`sampled_gaussian`), a trapezoidal rule that
leaves out 1e-18, and sums of positive terms, taken from their largest. The worst error that was
found is 7e-13 (`tests/test_proof.py`). Searches for a worst test have a margin of their own
(`worst_pair`)."""
MAX_KNOWN = 100_000
_WITHIN: dict[tuple[frozenset[Event], float, float], Charges] = {}
"""Charges that stay within a target at a delta although their Renyi epsilon does not."""


class Guarantee(NamedTuple):
    """An epsilon and the Renyi order that gave it.

    The order is None for no charges, an infinite epsilon, or an epsilon by privacy loss
    distributions.
    """

    epsilon: float
    order: float | None

    @property
    def method(self) -> str:
        """What proves it: ``Renyi``, ``loss distributions``, or nothing for an epsilon of 0 or
        infinity."""
        if self.epsilon in (0.0, math.inf):
            return ""
        return "loss distributions" if self.order is None else "Renyi"


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
        check_count(event, count)
        if count:
            total = total + count * curves.rdp(event, orders, column)
    if column == "certified" and allotment.overdrawn(charges):
        return np.full(len(orders), np.inf)
    return total


def conversion(orders: Sequence[float], delta: float) -> NDArray[np.float64]:
    """Epsilon less divergence at each order a: ``log((a-1)/a) - (log(delta) + log(a)) / (a-1)``."""
    grid = np.asarray(orders, dtype=np.float64)
    return np.asarray(np.log1p(-1.0 / grid) - (math.log(delta) + np.log(grid)) / (grid - 1.0))


def convert(
    divergences: NDArray[np.float64], orders: Sequence[float], delta: float, classic: bool = False
) -> Guarantee:
    """Epsilon ``min over a of rdp + log((a-1)/a) - (log(delta) + log(a)) / (a-1)``, floored at 0,
    and raised by `ROUNDING`.

    Infinite, with order None, when no order gives a finite value. ``classic`` adds the larger
    ``log(1 / delta) / (a-1)`` of Mironov 2017, Proposition 3.
    """
    above = np.array(orders) - 1.0
    added = -math.log(delta) / above if classic else conversion(orders, delta)
    values = divergences + added + ROUNDING * (divergences + 1.0 / above)
    best = int(np.argmin(values))
    if not math.isfinite(values[best]):
        return Guarantee(math.inf, None)
    return Guarantee(max(0.0, float(values[best])), float(orders[best]))


def cap_delta(charges: Charges) -> float:
    """The part of delta that all charges use up because a curve may fail (`curves.failure`)."""
    return math.fsum(count * curves.failure(event) for event, count in charges.items())


def guarantee(charges: Charges, delta: float, column: str, orders: Sequence[float]) -> Guarantee:
    """The guarantee over `orders`, uncached: epsilon 0 for no charges, inf if caps use up delta.

    With a `ClassicClaim` among the charges, the published epsilon is the classic one.
    """
    for event, count in charges.items():
        check_count(event, count)
    lost = cap_delta(charges) if column == "certified" else 0.0
    if lost >= delta:
        return Guarantee(math.inf, None)
    seen, divergences = _looked_at(charges, tuple(map(float, orders)), column, delta - lost)
    claims = any(n and isinstance(event, ClassicClaim) for event, n in charges.items())
    classic = column == "published" and claims
    found = Guarantee(0.0, None)
    if divergences.any():
        found = convert(divergences, seen, delta - lost, classic)
    if not lost:
        return found
    total = trial_cap.with_cap(found.epsilon, lost)
    return Guarantee(total, found.order) if total <= reach(charges) else Guarantee(math.inf, None)


def reach(charges: Charges) -> float:
    """The largest epsilon at which what may fail is a part of delta: infinite but for sums of
    shares."""
    shares = any(n and isinstance(event, SummedShares) for event, n in charges.items())
    return SummedShares.REACH if shares else math.inf


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
    """The (epsilon, delta) guarantee of all charges.

    The certified one is by privacy loss distributions if every event has dominating pairs, else by
    Renyi differential privacy, which ``orders`` ask for by name; with hidden rejections, or very
    many steps, by what gives less. Both hold for events that are fixed in advance. Equal charges
    are computed once, however many clients carry them.

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
    asked = None if orders is None else tuple(map(float, orders))
    result = _epsilon(frozenset(charges.items()), float(delta), column, asked)
    grid = asked or default_orders(column)
    chosen = column == "certified" or orders is not None
    if chosen and result.order in (grid[0], grid[-1]) and len(grid) > 1 and result.epsilon > 0.0:
        at = f"epsilon = {result.epsilon:.4g} ({column}) is reached at order {result.order:g}"
        wider = "an end of the grid; a wider grid of orders would give a smaller epsilon"
        warnings.warn(f"{at}, {wider}", stacklevel=2)
    return result


@functools.lru_cache(maxsize=100_000)
def _epsilon(
    items: frozenset[tuple[Event, int]], delta: float, column: str, orders: tuple[float, ...] | None
) -> Guarantee:
    if orders is not None or column != "certified":
        return guarantee(dict(items), delta, column, orders or default_orders(column))
    used = [event for event, count in items if count]
    tighter = Guarantee(_by_loss_distributions(items, delta), None)
    close = sum(count for _, count in items) < MANY_STEPS
    if close and math.isfinite(tighter.epsilon) and None not in map(dominating.pairs, used):
        return tighter
    by_order = guarantee(dict(items), share_of_the_end(used) * delta, column, ORDERS)
    return min(by_order, tighter, key=lambda one: one.epsilon)


def by_renyi(charges: Charges, delta: float) -> Guarantee:
    """The certified epsilon by Renyi orders, without a warning; `epsilon` if they prove it."""
    certified = epsilon(charges, delta)
    return guarantee(charges, delta, "certified", ORDERS) if certified.order is None else certified


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


def within(
    charges: Charges,
    target: float,
    delta: float,
    column: str = "certified",
    orders: Sequence[float] | None = None,
) -> bool:
    """Whether all charges together stay within a budget.

    It is true if ``epsilon(...).epsilon <= target``, and found faster: charges that are known to
    stay within it prove it for every part of them, and privacy loss distributions are composed only
    if no Renyi order is enough.

    Args:
        charges: event -> number of applications.
        target: epsilon; infinite for none.
        delta: in (0, 1).
        column: "certified" or "published".
        orders: Renyi orders to be tried, if any; None takes the column's default.
    """
    check_delta(delta)
    kinds = frozenset(event for event, count in charges.items() if count), target, delta
    known = _WITHIN.get(kinds, {}) if column == "certified" else {}
    part = known and all(charges[event] <= known[event] for event in kinds[0])
    if part and not allotment.overdrawn(charges):
        return True
    items, grid = frozenset(charges.items()), default_orders(column) if orders is None else orders
    share = share_of_the_end(kinds[0]) if column == "certified" else 1.0
    if grid and _epsilon(items, share * float(delta), column, tuple(grid)).epsilon <= target:
        return True
    if column != "certified" or _by_loss_distributions(items, float(delta)) > target:
        return False
    if len(_WITHIN) >= MAX_KNOWN:
        _WITHIN.clear()
    _WITHIN[kinds] = dict(charges)
    return True


def share_of_the_end(events: Iterable[Event]) -> float:
    """The share of delta that pays for a certified epsilon when a run is over, and for caps."""
    return 1.0 if any(isinstance(event, Allotment) for event in events) else 1.0 - IN_PROGRESS


@functools.lru_cache(maxsize=100_000)
def _by_loss_distributions(items: frozenset[tuple[Event, int]], delta: float) -> float:
    return composed(dict(items), (1.0 - IN_PROGRESS) * delta, dominating.ways)


def composed(
    charges: Charges, delta: float, ways: Callable[[Charges], Sequence[dominating.Steps]]
) -> float:
    """The least epsilon of any of the ways in which pairs dominate all events, beside what uses up
    delta; infinite if there is none, for releases that allotments do not cover, for more than
    `MAX_KINDS` kinds of steps, and above `loss_distribution.MAX_EPSILON`."""
    found = ways(charges)
    if allotment.overdrawn(charges) or (lost := cap_delta(charges)) >= delta:
        return math.inf
    least = min((_of(steps, delta - lost) for steps in found), default=math.inf)
    capped = cap_delta({event: n for event, n in charges.items() if isinstance(event, TrialCap)})
    return trial_cap.with_cap(least, capped) if capped else least


def _of(steps: dominating.Steps, delta: float) -> float:
    if len(steps) > MAX_KINDS:
        return math.inf
    return loss_distribution.epsilon(steps, delta) if steps else 0.0
