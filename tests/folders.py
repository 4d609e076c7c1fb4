"""What a run's folder holds."""

from pathlib import Path

from mechanisms.accounting import ledger

TIMES = {"seconds", "seconds_training"}
"""Entries of rounds and summaries that differ each time."""
SEALS = {"files", "sha256"}
"""Digests in a summary, one of which is of the manifest and so of a key."""


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def model(folder: Path) -> bytes:
    return (folder / "model.safetensors").read_bytes()


def paid(folder: Path) -> dict:
    return ledger.read(folder / "ledger") if (folder / "ledger").is_dir() else {}


def result(folder: Path) -> tuple[bytes, dict]:
    return model(folder), ledger.read(folder / "ledger")


def rounds(folder: Path) -> int:
    path = folder / "rounds.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0
