"""The summary of a finished run: written last, and it vouches for what was written before it."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mechanisms import durable
from server import manifest, paid, sealed_json
from server.records import Evaluation, Summary
from server.store import MODEL, ROUNDS, newest_kept

FILE = paid.SUMMARY
EVALUATION = "evaluation.json"
REMEDY = "restore it from a copy, or resume the run, which writes it again"


def write(run_dir: Path, summary: Summary, names: Sequence[str]) -> None:
    """Write the summary, which vouches for these files, for the rounds' records and what clients
    keep, for the places of the ledger's files, and for the manifest: it is of this run."""
    kept = [str(path.relative_to(run_dir)) for path in newest_kept(run_dir)]
    vouched = [manifest.FILE, *names, *kept, *(path.name for path in run_dir.glob(ROUNDS))]
    files = {name: manifest.digest(run_dir / name) for name in vouched}
    beside = {"ledger": paid.places(run_dir / "ledger"), "files": files}
    durable.write(run_dir / FILE, sealed_json.dumps({**summary.to_json(), **beside}))


def load(run_dir: Path) -> dict[str, Any] | None:
    """What the file holds, whatever the files that it names; None if the run is not finished.

    Raises:
        ValueError: it is damaged, or of another run, or the manifest is missing or damaged.
    """
    path = run_dir / FILE
    if not path.exists():
        return None
    manifest.load(run_dir)
    try:
        entries = sealed_json.loads(durable.read(path))
        Summary.from_json(entries)
        if entries["files"][manifest.FILE] != manifest.digest(run_dir / manifest.FILE):
            raise ValueError("it is of another run")
    except (ValueError, KeyError, TypeError) as fault:
        raise ValueError(f"{path} is damaged ({fault}): {REMEDY}") from None
    return entries


def read(run_dir: Path) -> Summary | None:
    """The summary of a run whose model and rounds are those that it is of; None if it is not
    finished.

    Raises:
        ValueError: the summary, the model or the rounds' records are damaged, missing, or of
            another run.
    """
    if (entries := load(run_dir)) is None:
        return None
    files = {name: entries["files"][name] for name in (MODEL, ROUNDS) if name in entries["files"]}
    manifest.compare(run_dir, files, REMEDY)
    return Summary.from_json(entries)


def check_kept(run_dir: Path) -> None:
    """Compare what clients keep with what it was when the run was finished.

    Raises:
        ValueError: a file is damaged, missing, or of another run.
    """
    files = (load(run_dir) or {"files": {}})["files"]
    kept = {name: digest for name, digest in files.items() if "/" in name}
    manifest.compare(run_dir, kept)


def evaluation(run_dir: Path) -> Evaluation | None:
    """The further scores of a finished run's model; None if there are none.

    Raises:
        ValueError: the file is damaged, missing, or of another run.
    """
    files = (load(run_dir) or {"files": {}})["files"]
    if EVALUATION not in files:
        return None
    manifest.compare(run_dir, {EVALUATION: files[EVALUATION]}, REMEDY)
    return Evaluation.from_json(json.loads(durable.read(run_dir / EVALUATION)))
