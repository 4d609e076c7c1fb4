"""What a run's clients have paid: its ledger files, checked against what its checkpoints know."""

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from client import tensors
from mechanisms import durable
from mechanisms.accounting import ledger
from mechanisms.accounting.events import Event
from mechanisms.journal import Place, last_place
from server import manifest, sealed_json
from server.records import read_rounds

SUMMARY = "summary.json"
LABELS = ("checkpoints/round-*.json", "*/checkpoints/round-*.json", SUMMARY)
"""Files that know places of the ledger's files."""
TENSORS = ("uploads/*.safetensors", "*/uploads/*.safetensors", "*.safetensors")
"""Files of tensors that may: uploads, and results of phases."""
ROUNDS = "rounds.jsonl", "*/rounds.jsonl"
"""Files of the records of rounds."""


def read(run_dir: Path, up_to_round: int | None = None) -> dict[int, Counter[Event]]:
    """What every client has paid, as `mechanisms.accounting.ledger.read` gives it.

    Raises:
        ValueError: a ledger file is damaged or missing, or older than a checkpoint or the records
            of rounds; or a file that the manifest names is not as it was.
    """
    manifest.read(run_dir)
    paid = ledger.read(run_dir / "ledger", up_to_round, known(run_dir))
    check_rounds(run_dir)
    return paid


def check_rounds(run_dir: Path) -> None:
    """Refuse a ledger in which not all have paid who took part in a round that is written down, of
    any phase. Who takes part in a trusted server's rounds stays hidden; somebody pays for each.

    Raises:
        ValueError: a ledger file or the records of rounds are damaged; `Older`, if that is it.
    """
    written = [
        (path, one)
        for pattern in ROUNDS
        for path in run_dir.glob(pattern)
        if path.parent == run_dir or not (path.parent / manifest.FILE).exists()  # of another run
        for one in read_rounds(path)
    ]
    paid = payers(run_dir)  # read later than what it has paid for, as the run may go on
    for path, one in written:
        took_part = 1 if one.participants is None else one.participants
        have_paid = paid.get(one.round, 0)
        costs = one.epsilon_certified_max or one.epsilon_published_max  # the first may be infinite
        if costs and have_paid < took_part:
            raise ledger.Older(
                f"{run_dir / 'ledger'} has charges of {have_paid} clients in round {one.round}, "
                f"but {path} tells of {took_part}: {manifest.REMEDY}"
            )


def payers(run_dir: Path) -> dict[int, int]:
    """How many clients have paid in each round, of any phase.

    Raises:
        ValueError: a ledger file is damaged.
    """
    clients: dict[int, list[np.ndarray]] = {}
    for path in (run_dir / "ledger").glob("*.jsonl"):
        for one in ledger.entries(path, {}):
            clients.setdefault(one.round, []).append(one.clients)
    return {round_: len(np.unique(np.concatenate(one))) for round_, one in clients.items()}


def places(folder: Path) -> dict[str, Place]:
    """Where each of the ledger's files ends now, by name."""
    return {path.name: last_place(path) for path in sorted(folder.glob("*.jsonl"))}


def known(run_dir: Path) -> list[dict[str, Place]]:
    """The places of the ledger's files when the run began, at each of its checkpoints, in any
    phase, when uploads left that are kept, at the ends of phases, and when it was finished.

    Damaged files vouch for nothing; checkpoints are kept in twos at least.
    """
    begun = (run_dir / manifest.FILE).exists()  # a store of its own has no manifest
    run = manifest.run_of(run_dir)
    found = [_places(manifest.load(run_dir))] if begun else []
    for pattern in LABELS:
        for path in run_dir.glob(pattern):
            try:
                label = sealed_json.loads(durable.read(path))
            except (FileNotFoundError, ValueError):
                continue
            if label.get(manifest.RUN) in (None, run):
                found.append(_places(label))
    for pattern in TENSORS:
        found += [_places(_entries(path, run or "")) for path in run_dir.glob(pattern)]
    return found


def _entries(path: Path, run: str) -> dict[str, Any]:
    """What a file of tensors says of the ledger; nothing if it is damaged, or of another run."""
    try:
        labels, _ = tensors.read(path, **{tensors.RUN: run})
        return {"ledger": json.loads(labels[tensors.LEDGER])}
    except (ValueError, KeyError, FileNotFoundError):
        return {}


def _places(entries: Mapping[str, Any]) -> dict[str, Place]:
    return {name: Place(*place) for name, place in entries.get("ledger", {}).items()}
