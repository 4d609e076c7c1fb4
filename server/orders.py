"""The Renyi order of each client's epsilon during a run, fixed and written down before it begins.

At an order fixed in advance an epsilon holds whatever makes the run end (`running`).
"""

from __future__ import annotations

import bisect
import functools
import json
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from mechanisms import durable
from mechanisms.accounting.accountant import (
    IN_PROGRESS,
    ORDERS,
    Charges,
    Guarantee,
    epsilon,
    guarantee,
    within,
)
from mechanisms.accounting.dominating import all_dominated
from mechanisms.accounting.ranges import format_ranges, parse_ranges
from mechanisms.plan import Plan, planned

if TYPE_CHECKING:  # it loads torch, and sim.account reads orders
    from server.federation import Federation

FILE = "orders.json"


@functools.lru_cache(maxsize=100_000)
def order_in_advance(plan: Plan, rounds: int, target: float, delta: float, column: str) -> float:
    """The best order for the certified epsilon of as many rounds as the target pays for."""

    def too_many(number: int) -> bool:
        return not within(planned(plan, number), target, delta, column)

    last = bisect.bisect_left(range(1, rounds), True, key=too_many) if too_many(rounds) else rounds
    return guarantee(planned(plan, last), delta, "certified", ORDERS).order or 2.0


def running(charges: Charges, delta: float, order: float, budget: float) -> Guarantee:
    """The certified epsilon of charges so far: at the order fixed in advance, or the budget.

    It holds even if outputs decide the end. With L the privacy loss and D the divergence at the
    order so far, ``exp((order - 1) (L - D))`` is a supermartingale, so no stopping rule gains
    anything. Where the end is certified by loss distributions, which is another bound, the order
    has a share of delta to itself (`IN_PROGRESS`): whoever stops when this figure is small, and
    goes on to the end otherwise, uses both. There the figure is at most a certified ``budget``,
    too: a run that ends early is part of one that spends it, and whose end charges alone decide.

    Caps on hidden rejections are subtracted from delta as they are charged. A rule that stops early
    is therefore covered at delta plus the caps of all planned steps (`docs/theory/allotments.md`).
    """
    dominated = all_dominated(event for event, count in charges.items() if count)
    share = IN_PROGRESS if dominated else 1.0
    spent = epsilon(charges, share * delta, orders=(order,))
    if dominated and spent.epsilon > budget and within(charges, budget, delta):
        return Guarantee(budget, None)
    return spent


def write(folder: Path, federation: Federation) -> None:
    """Write each client's order to a run directory; an existing file is kept."""
    if (folder / FILE).exists():
        return
    rounds, table = federation.rounds - federation.before, federation.plans
    terms = rounds, federation.target, federation.delta, federation.column
    orders = np.array([order_in_advance(plan, *terms) for plan in table.plans])[table.which]
    lines = [
        {"order": order, "clients": format_ranges(np.flatnonzero(orders == order))}
        for order in np.unique(orders).tolist()
    ]
    durable.write(folder / FILE, json.dumps(lines, indent=1).encode())


def read(folder: Path) -> dict[int, float]:
    """Each client's order; empty if none was written, as before a run or by an earlier version.

    Raises:
        ValueError: the file is damaged.
    """
    path = folder / FILE
    if not path.exists():
        return {}
    try:
        content = json.loads(path.read_text())
        lines = [(float(line["order"]), parse_ranges(line["clients"])) for line in content]
    except (ValueError, KeyError, TypeError) as fault:
        raise ValueError(
            f"{path} is damaged ({type(fault).__name__}: {fault}): restore it"
        ) from None
    return {client: order for order, clients in lines for client in clients.tolist()}
