"""Prints the answers of ``python -m sim.account`` as tables, or as one JSON object."""

import json
from typing import Any

from mechanisms.accounting.ranges import format_ranges
from server.records import finite
from sim.showing import wording

Entries = dict[str, Any]
ROW = ("phase", "clients", "rounds", "steps", "sample_rate", "noise_multiplier")
EPSILONS = ("epsilon_certified", "epsilon_published")


def show_json(result: Entries) -> None:
    """Print one JSON object; infinite values are null."""
    print(json.dumps(finite(result), allow_nan=False))


def show_price(result: Entries) -> None:
    """Print the price, and a line for each phase if there are several."""
    from rich.console import Console
    from rich.table import Table

    table = Table("quantity", "value")
    for name, value in result.items():
        if name not in ("caveats", "phases", "events"):
            table.add_row(name.replace("_", " "), _text(name, value))
    Console().print(table)
    if len(result["phases"]) > 1:
        names = (*ROW, "budget", *EPSILONS) if "budget" in result else (*ROW, *EPSILONS)
        phases = Table(*(name.replace("_", " ") for name in names))
        for row in result["phases"]:
            phases.add_row(*(_text(name, row.get(name)) for name in names))
        Console().print(phases)
    _show_notes(result["caveats"])


def show_ledger(result: Entries) -> None:
    """Print every client's epsilons; clients with equal ones share a line."""
    from rich.console import Console
    from rich.table import Table

    names, rows = [*EPSILONS, "delta"], result["clients"]
    table = Table("clients", "epsilon (certified)", "epsilon (published)", "delta")
    if rows and "budget" in rows[0]:
        names.append("budget")
        table.add_column("budget")
    if rows and "group" in rows[0]:
        names += ["epsilon_group", "group_method"]
        table.add_column(f"epsilon of {rows[0]['group']} records")
        table.add_column("by")
    groups: dict[tuple[str, ...], list[int]] = {}
    for row in rows:
        texts = tuple(_text(name, row[name]) for name in names)
        groups.setdefault(texts, []).append(row["client"])
    for texts, clients in groups.items():
        table.add_row(format_ranges(clients), *texts)
    Console().print(table)
    for name, value in wording.protections(result["guarantees"]):
        Console().print(f"{name:<18} {value}", soft_wrap=True)
    _show_notes([*result["caveats"], result["note"]])


def show_verified(result: Entries) -> None:
    """Print the verdict on each history of charges, and on all."""
    from rich.console import Console
    from rich.table import Table

    table = Table("clients", "epsilon (printed)", "by", "lower bound", "upper bound", "verdict")
    rows = result["verified"]
    for row in rows:
        order = row["order"]
        table.add_row(
            row["clients"],
            wording.epsilon(row["epsilon_certified"], digits=6),
            "loss distributions" if order is None else f"Renyi order {order:g}",
            wording.lower_bound(row["lower"], digits=6),
            wording.epsilon(row["upper"], digits=6),
            row["verdict"],
        )
    Console().print(table)
    all_ = result["histories"]
    which = "Every epsilon" if len(rows) == all_ else f"Each of the {len(rows)} largest epsilons"
    verdict = (
        f"{which} is proved, and at most {100.0 * result['slack']:.2g} % above its lower bound."
        if result["confirmed"]
        else "Not confirmed: an epsilon is not proved to be an upper bound."
    )
    done = f"Verified: {len(rows)} of {all_} histories of charges"
    Console().print(f"{verdict} {done}, {wording.duration(result['seconds'])}.")
    without = result["not_proved"]
    left_out = f"Left out, as no finite epsilon is proved for them: clients {without}."
    _show_notes([left_out if without else "", result["note"]])


def show_whole(result: Entries) -> None:
    """Print the state of each file, and the verdict."""
    from rich.console import Console
    from rich.table import Table

    table = Table("file", "state", "why")
    for row in result["files"]:
        table.add_row(row["file"], row["state"], row["detail"])
    Console().print(table)
    verdict = "All files are whole." if result["whole"] else "Not all files are whole."
    Console().print(verdict)


def _show_notes(texts: list[str]) -> None:
    from rich.console import Console

    for text in filter(None, texts):
        Console().print(text, style="yellow", soft_wrap=True)


def _text(name: str, value: Any) -> str:
    """A value with six digits; epsilons are rounded up, so that the shown value is a guarantee."""
    if isinstance(value, list | tuple):
        return ", ".join(_text(name, one) for one in value)
    if isinstance(value, float):
        if name == "epsilon_group":
            return wording.epsilon(value, digits=6, infinite="not proved")
        return wording.epsilon(value, digits=6) if name.startswith("epsilon") else f"{value:.6g}"
    return "-" if value is None else str(value)
