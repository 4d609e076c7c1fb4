"""Prints the answers of ``python -m sim.account`` as tables, or as one JSON object."""

import json
import math
from collections.abc import Iterable, Sequence
from typing import Any

from mechanisms.accounting.ranges import format_ranges
from server.records import finite
from sim.showing import wording

Entries = dict[str, Any]
ROW = ("phase", "clients", "rounds", "steps", "sample_rate", "noise_multiplier")
EPSILONS = ("epsilon_certified", "epsilon_published")
MAX_CELL = 60
"""Characters in a line of a cell; a longer list of clients takes several lines."""


def show_json(result: Entries) -> None:
    """Print one JSON object; infinite values are null."""
    print(json.dumps(finite(result), allow_nan=False))


def show_price(result: Entries) -> None:
    """Print the price, and a line for each phase if there are several."""
    shown = [name for name in result if name not in ("caveats", "phases", "events")]
    quantities = [(name.replace("_", " "), _text(name, result[name])) for name in shown]
    _show_table(("quantity", "value"), quantities)
    if len(result["phases"]) > 1:
        names = (*ROW, "budget", *EPSILONS) if "budget" in result else (*ROW, *EPSILONS)
        rows = [[_text(name, row.get(name)) for name in names] for row in result["phases"]]
        _show_table([name.replace("_", "\n") for name in names], rows)
    _show_notes(result["caveats"])


def show_ledger(result: Entries) -> None:
    """Print every client's epsilons; clients with equal ones share a line."""
    names, rows = [*EPSILONS, "delta"], result["clients"]
    heads = ["clients", "epsilon (certified)", "epsilon (published)", "delta"]
    if rows and "budget" in rows[0]:
        names.append("budget")
        heads.append("budget")
    if rows and "group" in rows[0]:
        names += ["epsilon_group", "group_method"]
        heads += [f"epsilon of {rows[0]['group']} records", "by"]
    groups: dict[tuple[str, ...], list[int]] = {}
    for row in rows:
        texts = tuple(_text(name, row[name]) for name in names)
        groups.setdefault(texts, []).append(row["client"])
    named = [(_text("clients", format_ranges(group)), *texts) for texts, group in groups.items()]
    _show_table(heads, named)
    for name, value in wording.protections(result["guarantees"]):
        _show(f"{name:<18} {value}")
    _show_notes([*result["caveats"], result["note"]])


def show_verified(result: Entries) -> None:
    """Print the verdict on each history of charges, and on all."""
    rows = result["verified"]
    shown = [
        (
            _text("clients", row["clients"]),
            wording.epsilon(row["epsilon_certified"], digits=6),
            "loss distributions" if row["order"] is None else f"Renyi order {row['order']:g}",
            wording.lower_bound(row["lower"], digits=6),
            wording.epsilon(row["upper"], digits=6),
            row["verdict"],
        )
        for row in rows
    ]
    heads = ("clients", "epsilon (printed)", "by", "lower bound", "upper bound", "verdict")
    _show_table(heads, shown)
    all_ = result["histories"]
    which = "Every epsilon" if len(rows) == all_ else f"Each of the {len(rows)} largest epsilons"
    slack = result["slack"]
    near = "a lower bound is 0"
    if math.isfinite(slack):
        near = f"at most {100.0 * slack:.2g} % above its lower bound"
    verdict = (
        f"{which} is proved, and {near}."
        if result["confirmed"]
        else "Not confirmed: an epsilon is not proved to be an upper bound."
    )
    done = f"Verified: {len(rows)} of {all_} histories of charges"
    _show(f"{verdict} {done}, {wording.duration(result['seconds'])}.")
    without = result["not_proved"]
    left_out = f"Left out, as no finite epsilon is proved for them: clients {without}."
    _show_notes([left_out if without else "", *result["caveats"], result["note"]])


def show_whole(result: Entries) -> None:
    """Print the state of each file, and the verdict."""
    rows = [(row["file"], row["state"], row["detail"]) for row in result["files"]]
    _show_table(("file", "state", "why"), rows)
    _show("All files are whole." if result["whole"] else "Not all files are whole.")


def show_node(result: Entries) -> None:
    """Print a node's budget and the share of it that is used, rounded up."""
    used = result["used"]
    lines = {
        "folder": result["folder"],
        "runs": result["runs"],
        "budget": f"epsilon {result['epsilon_budget']:g}, delta {result['delta']:g}",
        "used": f"{math.ceil(1000.0 * used) / 10.0:g} %"
        if math.isfinite(used)
        else "all of it: it is too small for any release",
    }
    for name, value in lines.items():
        _show(f"{name:<18} {value}")


def _show_table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table that cuts off nothing, however narrow the terminal: an epsilon without its last
    digits is no bound."""
    from rich.console import Console
    from rich.table import Column, Table

    table = Table(*(Column(head, overflow="fold", max_width=MAX_CELL) for head in heads))
    for row in rows:
        table.add_row(*row)
    Console(width=MAX_CELL * 2 * len(heads)).print(table)


def _show_notes(texts: list[str]) -> None:
    for text in filter(None, texts):
        _show(text, style="yellow")


def _show(text: str, style: str | None = None) -> None:
    from rich.console import Console

    Console().print(text, style=style, soft_wrap=True)


def _text(name: str, value: Any) -> str:
    """A value with six digits; epsilons are rounded up, so that the shown value is a guarantee."""
    if name == "clients":
        return str(value).replace(",", ", ")  # lines end between two clients
    if isinstance(value, list | tuple):
        return ", ".join(_text(name, one) for one in value)
    if isinstance(value, float):
        if name == "epsilon_group":
            return wording.epsilon(value, digits=6, infinite="not proved")
        return wording.epsilon(value, digits=6) if name.startswith("epsilon") else f"{value:.6g}"
    return "-" if value is None else str(value)
