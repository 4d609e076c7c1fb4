"""Epsilons of runs in progress, as `server.orders` should have them."""

from collections.abc import Iterable, Sequence

from mechanisms.accounting.accountant import (
    IN_PROGRESS,
    ORDERS,
    Charges,
    Guarantee,
    cap_delta,
    epsilon,
)
from mechanisms.plan import Plan, merge, planned


def best_orders(
    plan: Plan, rounds: int, delta: float, prior: Sequence[Charges] = ()
) -> tuple[float, ...]:
    """The best orders for so many rounds, for half as many, a quarter, and so on, all after what
    was paid ``prior`` to them, and for each of that; each order once."""
    halves = [rounds]
    while halves[-1] > 1:
        halves.append(halves[-1] // 2)
    before: Charges = prior[-1] if prior else {}
    ends = [*prior, *(merge(before, planned(plan, number)) for number in halves)]
    share = IN_PROGRESS * delta / len(ends)
    return tuple(sorted({_beside_caps(end, share, ORDERS).order for end in ends}))


def in_progress(charges: Charges, delta: float, fixed: Iterable[float]) -> float:
    """The least epsilon at some orders, which have equal parts of a share of delta."""
    own = IN_PROGRESS * delta / len(set(fixed))
    return min(_beside_caps(charges, own, (order,)).epsilon for order in fixed)


def _beside_caps(charges: Charges, delta: float, orders: tuple[float, ...]) -> Guarantee:
    return epsilon(charges, delta + cap_delta(charges), orders=orders)
