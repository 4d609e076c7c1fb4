"""Reads the manifest of a run directory, and compares the files that it names.

It is written by `sim.job.manifest`; reading it needs no torch.
"""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mechanisms import durable
from server import sealed_json

FILE = "manifest.json"
FIXED = ("config.toml", "partition.npz", "inputs.json")
"""Files that stay as they are from the first moment of a run."""
REMEDY = "restore it from a copy, or start a new run"
RUN = "run"
"""The entry by which other files name their run."""


def digest(path: Path, size: int | None = None) -> str:
    """SHA-256 of a file's bytes, or of so many first ones."""
    return hashlib.sha256(durable.read(path)[:size]).hexdigest()


def read(run_dir: Path) -> dict[str, Any]:
    """The manifest, once all files that it names are as they were.

    Raises:
        ValueError: the manifest is missing or damaged, or a file is, or not as it was.
    """
    entries = load(run_dir)
    compare(run_dir, entries["files"])
    return entries


def load(run_dir: Path) -> dict[str, Any]:
    """The manifest, whatever the files that it names.

    Raises:
        ValueError: the manifest is missing or damaged.
    """
    path = run_dir / FILE
    if not path.exists() and (run_dir / "attack.json").exists():
        raise ValueError(
            f"{run_dir} is no run directory, but has the results of an attack in attack.json: give "
            "the directory of a run"
        )
    if not path.exists():
        raise ValueError(
            f"{path} is missing, without which no file of the run can be verified (the unreleased "
            "0.1.0 wrote none at first): restore it, or start a new run"
        )
    try:
        entries = sealed_json.loads(durable.read(path))
        if RUN in entries:
            raise ValueError("it is another file of a run")
        return entries
    except ValueError as fault:
        raise ValueError(f"{path} is damaged ({fault}): restore it from a copy") from None


def run_of(folder: Path) -> str | None:
    """The digest of the manifest, by which other files name their run; None without a whole one."""
    try:
        load(folder)
    except ValueError:
        return None
    return digest(folder / FILE)


def check_run(folder: Path, file: Path, named: str | None) -> None:
    """Compare the run that a file names with that of a folder, if that has a whole manifest.

    Raises:
        ValueError: it is of another run.
    """
    own = run_of(folder)
    if own is not None and own != named:
        raise ValueError(f"{file} is of another run: {REMEDY}")


def compare(folder: Path, digests: Mapping[str, str], remedy: str = REMEDY) -> None:
    """Compare files with their digests, by their paths in a folder.

    Raises:
        ValueError: one is missing, or not as it was.
    """
    for name, expected in digests.items():
        compare_start(folder / name, None, expected, remedy)


def compare_start(file: Path, size: int | None, expected: str, remedy: str = REMEDY) -> None:
    """Compare so many first bytes of a file, or all of them, with their digest.

    Raises:
        ValueError: it is missing, or not as it was.
    """
    if not file.is_file() or digest(file, size) != expected:
        state = "has been changed" if file.is_file() else "is missing"
        raise ValueError(f"{file} {state}: {remedy}")


def check_there(ledger: Path) -> None:
    """Refuse to go on without the folder of a run's ledger: a new one would lack what was charged.

    Raises:
        ValueError: it is gone.
    """
    if not ledger.is_dir():
        raise ValueError(
            f"{ledger.parent} was moved or removed while the run went on: resume the run where it "
            "is now, or start a new one"
        )
