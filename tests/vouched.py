"""Gives a run directory that a test has put together what a run vouches for its files by."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from mechanisms.accounting.events import SampledGaussian
from mechanisms.accounting.ledger import Ledger, read
from mechanisms.accounting.ranges import format_ranges
from mechanisms.journal import start
from server import closing, manifest, orders, sealed_json
from server.records import Summary, read_rounds
from server.store import MODEL, ROUNDS

SUMMARY = Summary(0.5, 1.0, (), (), 1e-5, None, (), (), 0, 1, 1.0, "", False)


def vouch(folder: Path, finished: bool = False) -> Path:
    """Write a manifest of the files that are there, and seal the summary: the one that is there, or
    one that says next to nothing if the run is to be ``finished``. If there is no ledger, those
    who took part in the rounds that are written down have paid next to nothing."""
    rounds = [one for one in read_rounds(folder / ROUNDS) if one.epsilon_certified_max]
    if rounds and not list(folder.glob("ledger/*.jsonl")):
        with Ledger(folder / "ledger" / "group-0000.jsonl") as ledger:
            for one in rounds:
                event = {SampledGaussian(1.0, 1e4): 1}
                ledger.charge(f"round-{one.round}", one.round, range(one.participants or 1), event)
    if (folder / ROUNDS).exists():
        (folder / "ledger").mkdir(exist_ok=True)
    named = [name for name in manifest.FIXED if (folder / name).exists()]
    ledgers = {path.name: start(path) for path in folder.glob("ledger/*.jsonl")}
    files = {name: manifest.digest(folder / name) for name in named}
    (folder / manifest.FILE).write_bytes(sealed_json.dumps({"files": files, "ledger": ledgers}))
    if (path := folder / orders.FILE).exists():
        fix_orders(folder, sealed_json.loads(path.read_bytes())["orders"])
    elif ledgers:
        whose = format_ranges(np.array(sorted(read(folder / "ledger"))))
        fix_orders(folder, [{"orders": [8.0], "clients": whose}])
    path = folder / closing.FILE
    if finished or path.exists():
        given = json.loads(path.read_text()) if path.exists() else {}
        (folder / MODEL).touch()
        closing.write(folder, Summary.from_json(SUMMARY.to_json() | given), [MODEL])
    return folder


def fix_orders(folder: Path, lines: Sequence[Mapping[str, object]]) -> bytes:
    """Write the orders of a run's clients, in the name of the run; their file's content."""
    content = sealed_json.dumps({manifest.RUN: manifest.run_of(folder), "orders": lines})
    (folder / orders.FILE).write_bytes(content)
    return content
