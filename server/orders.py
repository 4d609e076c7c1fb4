"""The Renyi orders of each client's epsilon during a run, fixed and written down before it begins.

At orders fixed in advance an epsilon holds whatever makes the run end (`running`), in whichever of
its phases: they are the same in all of them.
"""

import bisect
import functools
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mechanisms import durable
from mechanisms.accounting.accountant import (
    IN_PROGRESS,
    ORDERS,
    Charges,
    Guarantee,
    cap_delta,
    guarantee,
    share_of_the_end,
    within,
)
from mechanisms.accounting.events import Event
from mechanisms.accounting.ranges import format_ranges, parse_ranges
from mechanisms.plan import Plan, PlanTable, kinds_of, merge, planned
from server import manifest, sealed_json

FILE = "orders.json"
Orders = tuple[float, ...]
Paid = tuple[tuple[Event, int], ...]
"""Charges as pairs of event and count."""


@dataclass(frozen=True)
class Course:
    """What is known before a run begins of what its clients pay.

    Attributes:
        plans: the clients' plans in training, the last phase.
        rounds: the most rounds of training in which a client can take part.
        prior: the most that a client has paid at the end of each phase before training.
    """

    plans: PlanTable
    rounds: int
    prior: tuple[Paid, ...] = ()


@functools.lru_cache(maxsize=100_000)
def orders_in_advance(
    plan: Plan, rounds: int, target: float, delta: float, column: str, prior: tuple[Paid, ...] = ()
) -> Orders:
    """The best orders for the certified epsilons of as many rounds of training as the target pays
    for, of half as many, of a quarter, down to one, and of the end of each phase before; the order
    of an allotment alone."""

    def after(number: int) -> Charges:
        return merge(dict(prior[-1] if prior else ()), planned(plan, number))

    def too_many(number: int) -> bool:
        return not within(after(number), target, delta, column)

    last = bisect.bisect_left(range(1, rounds), True, key=too_many) if too_many(rounds) else rounds
    named = share_of_the_end(planned(plan, 1)) == 1.0
    ends = [after(last)]
    if not named:
        ends = [after(last >> n) for n in range(last.bit_length())] + [dict(one) for one in prior]
    share = 1.0 if named else IN_PROGRESS / max(1, len(ends))
    best = (_beside_caps(one, share * delta, ORDERS).order for one in ends)
    return tuple(dict.fromkeys(order or 2.0 for order in best)) or (2.0,)


def running(charges: Charges, delta: float, fixed: Orders, budget: float) -> Guarantee:
    """The certified epsilon of charges so far: the least at orders fixed in advance, or the budget.

    It holds even if outputs decide the end. With L the privacy loss and D the divergence at an
    order a so far, ``exp((a - 1) (L - D))`` is a supermartingale, so no stopping rule gains
    anything. What proves the end is another bound, so the orders have equal parts of a share of
    delta to themselves (`IN_PROGRESS`): whoever stops when one of these figures is small, and goes
    on to the end otherwise, uses them all. There is one such share for all phases. Caps on hidden
    rejections are paid for by the share of the end; once they have used it up nothing is proved.
    The figure is at most a certified ``budget``, too: a run that ends early is part of one that
    spends it, and whose end charges alone decide. An allotment's order is that of the end, and has
    all of delta. `docs/theory/allotments.md` has the proofs.
    """
    share = share_of_the_end(event for event, count in charges.items() if count)
    if share == 1.0:
        return guarantee(charges, delta, "certified", fixed[:1])
    if cap_delta(charges) >= share * delta:
        return Guarantee(math.inf, None)
    spent = _beside_caps(charges, IN_PROGRESS / len(fixed) * delta, fixed)
    if spent.epsilon > budget and within(charges, budget, delta):
        return Guarantee(budget, None)
    return spent


def _beside_caps(charges: Charges, delta: float, orders: Orders) -> Guarantee:
    """The least certified epsilon at a delta from which caps take nothing."""
    return guarantee(charges, delta + cap_delta(charges), "certified", orders)


def write(folder: Path, course: Course, target: np.ndarray, delta: float, column: str) -> None:
    """Write the orders of each client, of epsilon ``target [clients]``, to a run directory; an
    existing file is kept.

    Raises:
        ValueError: an existing file is damaged.
    """
    if read(folder):
        return
    terms = delta, column, course.prior
    targets, target_of = np.unique(target, return_inverse=True)
    kinds, place = kinds_of(course.plans.which, target_of)
    found = [
        orders_in_advance(course.plans.plans[p], course.rounds, float(targets[t]), *terms)
        for p, t in kinds
    ]
    distinct = sorted(set(found))
    which = np.array([distinct.index(fixed) for fixed in found])[place]
    lines = [
        {"orders": fixed, "clients": format_ranges(np.flatnonzero(which == number))}
        for number, fixed in enumerate(distinct)
    ]
    entries = {manifest.RUN: manifest.run_of(folder), "orders": lines}
    durable.write(folder / FILE, sealed_json.dumps(entries))


def read(folder: Path) -> dict[int, Orders]:
    """Each client's orders; empty if none were written, as before a run.

    Raises:
        ValueError: the file is damaged, or of another run.
    """
    path = folder / FILE
    if not path.exists():
        return {}
    try:
        entries = sealed_json.loads(durable.read(path))
        lines = [(_orders(line), parse_ranges(line["clients"])) for line in entries["orders"]]
        if not lines:
            raise ValueError("no client")
    except (ValueError, KeyError, TypeError) as fault:
        raise ValueError(
            f"{path} is damaged ({type(fault).__name__}: {fault}): restore it"
        ) from None
    manifest.check_run(folder, path, entries.get(manifest.RUN))
    return {client: fixed for fixed, clients in lines for client in clients.tolist()}


def written(folder: Path) -> dict[int, Orders]:
    """Each client's orders, in a run that has begun to pay.

    Raises:
        ValueError: the file is missing, damaged, or of another run.
    """
    if not (found := read(folder)):
        raise ValueError(f"{folder / FILE} is missing: restore it, or resume the run")
    return found


def _orders(line: dict[str, Any]) -> Orders:
    found = tuple(map(float, line["orders"]))
    if not found:
        raise ValueError("no order")
    return found
