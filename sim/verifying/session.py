"""Whether the certified epsilons that a run has printed are proved: from ledger to verdict."""

import json
import math
import time
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

from mechanisms.accounting import accountant, events
from mechanisms.accounting.ranges import format_ranges
from server import closing, orders
from sim.config.caveats import SEEDED
from sim.showing import wording
from sim.showing.ledger import read_config, spent
from sim.verifying.proof import dominated, interval

Entries = dict[str, Any]
MAX_HISTORIES = 20
"""Most different histories that are verified, those of the largest epsilons."""
AT_THE_END, IN_PROGRESS = Decimal("0.995"), Decimal("0.005")
"""Shares of delta of an epsilon at a run's end and while it is in progress, without an order that
an allotment names."""

PROVED, REFUTED, UNDECIDED = "proved", "refuted", "undecided"


def verify(folder: Path) -> Entries:
    """The verdict, with a row for each history of charges that was verified, the largest printed
    epsilons first; and the clients for which no finite epsilon was printed.

    Raises:
        ValueError: the run directory cannot be used, has charged nothing so far, or has no finite
            certified epsilon.
    """
    start = time.perf_counter()
    told = spent(folder, None, flag="--verify")
    rows = told["clients"]
    if summary := closing.read(folder):
        closed = summary.epsilon_certified
        rows = [row | {"epsilon_certified": closed[row["client"]]} for row in rows]
    histories: dict[str, list[Entries]] = {}
    without = [row["client"] for row in rows if row["events"] and not _finite(row)]
    for row in rows:
        if row["events"] and _finite(row):
            key = json.dumps([row[name] for name in ("epsilon_certified", "order", "events")])
            histories.setdefault(key, []).append(row)
    if not histories:
        reason = "has no finite certified epsilon" if without else "has charged nothing so far"
        raise ValueError(f"{folder} {reason}: there is nothing to verify")
    largest = sorted(histories.values(), key=lambda same: -same[0]["epsilon_certified"])
    in_advance = orders.read(folder) if told["note"] == wording.AT_ONE_ORDER else {}
    found = [_verdict(same, in_advance) for same in largest[:MAX_HISTORIES]]
    run = read_config(folder / "config.toml").get("run")
    return {
        "confirmed": all(row["verdict"] == PROVED for row in found),
        "histories": len(histories),
        "not_proved": format_ranges(without),
        "slack": max(row["above"] for row in found),
        "verified": found,
        "caveats": [SEEDED] if isinstance(run, dict) and run.get("release") is False else [],
        "note": told["note"],
        "seconds": time.perf_counter() - start,
    }


def _finite(row: Entries) -> bool:
    """Whether a client's certified epsilon is finite; JSON has None for one that is not."""
    epsilon = row["epsilon_certified"]
    return epsilon is not None and math.isfinite(epsilon)


def _verdict(same: list[Entries], in_advance: Mapping[int, orders.Orders]) -> Entries:
    """The verdict on clients that have paid the same; while a run is in progress, with the orders
    of each client, which have equal parts of delta."""
    row = same[0]
    fields = [({n: v for n, v in e.items() if n != "count"}, e["count"]) for e in row["events"]]
    charges = {events.from_dict(event): count for event, count in fields}
    printed, order, delta = row["epsilon_certified"], row["order"], Decimal(row["delta"])
    share, beside = AT_THE_END, Decimal(0)
    if any(isinstance(event, events.Allotment) for event in charges):
        share = Decimal(1)
    elif in_advance and order is not None:
        share, beside = IN_PROGRESS / len(in_advance[row["client"]]), AT_THE_END
    if order is None and not dominated(charges):  # a budget
        order = accountant.epsilon(charges, row["delta"]).order
    low, high = interval(charges, str(share * delta), order, printed, str(beside * delta))
    return {
        "clients": format_ranges([one["client"] for one in same]),
        "epsilon_certified": printed,
        "order": order,
        "above": printed / low - 1.0 if low > 0.0 else 0.0 if printed == high else math.inf,
        "lower": low,
        "upper": high,
        "verdict": PROVED if printed >= high else REFUTED if printed < low else UNDECIDED,
    }
