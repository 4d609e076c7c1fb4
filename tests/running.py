"""Epsilons of runs in progress, as `server.orders` should have them."""

from collections.abc import Iterable

from mechanisms.accounting.accountant import (
    IN_PROGRESS,
    ORDERS,
    Charges,
    Guarantee,
    cap_delta,
    epsilon,
)
from mechanisms.plan import Plan, planned


def best_orders(plan: Plan, rounds: int, delta: float) -> tuple[float, ...]:
    """The best orders for so many rounds, for half as many, a quarter, and so on, each once."""
    ends = [rounds]
    while ends[-1] > 1:
        ends.append(ends[-1] // 2)
    share = IN_PROGRESS * delta / len(ends)
    found = [_beside_caps(planned(plan, end), share, ORDERS).order for end in ends]
    return tuple(sorted(set(found)))


def in_progress(charges: Charges, delta: float, fixed: Iterable[float]) -> float:
    """The least epsilon at some orders, which have equal parts of a share of delta."""
    own = IN_PROGRESS * delta / len(set(fixed))
    return min(_beside_caps(charges, own, (order,)).epsilon for order in fixed)


def _beside_caps(charges: Charges, delta: float, orders: tuple[float, ...]) -> Guarantee:
    return epsilon(charges, delta + cap_delta(charges), orders=orders)
