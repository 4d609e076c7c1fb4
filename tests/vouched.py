"""Gives a run directory that a test has put together what a run vouches for its files by."""

import json
from pathlib import Path

from mechanisms.journal import start
from server import closing, labels, manifest
from server.records import Summary
from server.store import MODEL


def vouch(folder: Path) -> Path:
    """Write a manifest of the files that are there, and seal the summary, if there is one."""
    named = [name for name in manifest.FIXED if (folder / name).exists()]
    ledgers = {path.name: start(path) for path in folder.glob("ledger/*.jsonl")}
    files = {name: manifest.digest(folder / name) for name in named}
    (folder / manifest.FILE).write_bytes(labels.sealed({"files": files, "ledger": ledgers}))
    if (folder / closing.FILE).exists():
        summary = Summary.from_json(json.loads((folder / closing.FILE).read_text()))
        (folder / MODEL).touch()
        closing.write(folder, summary, [MODEL])
    return folder
