"""What a run's clients have paid: its ledger files, checked against what its checkpoints know."""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mechanisms import durable
from mechanisms.accounting import ledger
from mechanisms.accounting.events import Event
from mechanisms.journal import Place, last_place
from server import manifest
from server.labels import unsealed

SUMMARY = "summary.json"
LABELS = ("checkpoints/round-*.json", "*/checkpoints/round-*.json", SUMMARY)
"""Files that know places of the ledger's files."""


def read(run_dir: Path, up_to_round: int | None = None) -> dict[int, Counter[Event]]:
    """What every client has paid, as `mechanisms.accounting.ledger.read` gives it.

    Raises:
        ValueError: a ledger file is damaged or missing, or older than a checkpoint; or a file that
            the manifest names is not as it was.
    """
    manifest.read(run_dir)
    return ledger.read(run_dir / "ledger", up_to_round, known(run_dir))


def places(folder: Path) -> dict[str, Place]:
    """Where each of the ledger's files ends now, by name."""
    return {path.name: last_place(path) for path in sorted(folder.glob("*.jsonl"))}


def known(run_dir: Path) -> list[dict[str, Place]]:
    """The places of the ledger's files when the run began, and at each of its checkpoints, in any
    phase, and when it was finished.

    Damaged labels vouch for nothing; checkpoints are kept in twos at least.
    """
    begun = (run_dir / manifest.FILE).exists()  # a store of its own has no manifest
    found = [_places(manifest.load(run_dir))] if begun else []
    for pattern in LABELS:
        for path in run_dir.glob(pattern):
            try:
                label = unsealed(durable.read(path))
            except (FileNotFoundError, ValueError):
                continue
            found.append(_places(label))
    return found


def _places(entries: Mapping[str, Any]) -> dict[str, Place]:
    return {name: Place(*place) for name, place in entries.get("ledger", {}).items()}
