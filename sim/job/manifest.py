"""The manifest of a run directory: what a run began with, and the digests of files that stay.

What changes from round to round is in the labels of checkpoints (`server.checkpoints`).
"""

import hashlib
import inspect
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mechanisms import durable
from mechanisms.accounting.accountant import IN_PROGRESS
from mechanisms.journal import start
from mechanisms.plugins import source
from server import sealed_json
from server.curator import LEDGER
from server.manifest import FILE, FIXED, digest, read
from sim.commands.version import version
from sim.job.job import Job


def ledger_file(folder: Path, group: int) -> Path:
    """The ledger's file of a group."""
    return folder / "ledger" / f"group-{group:04d}.jsonl"


def ledger_files(folder: Path, job: Job) -> list[Path]:
    """The ledger's file of each group, or that of a trusted server, which pays for all."""
    if job.config.privacy.trust == "server":
        return [folder / "ledger" / LEDGER]
    return [ledger_file(folder, group) for group in range(len(job.groups))]


def write(folder: Path, job: Job) -> None:
    """Write the manifest of a new run directory, in which all other files are."""
    entries = {
        **_began(job),
        "files": {name: digest(folder / name) for name in FIXED},
        "ledger": {path.name: start(path) for path in ledger_files(folder, job)},
    }
    durable.write(folder / FILE, sealed_json.dumps(entries))


def check(folder: Path, job: Job) -> None:
    """Refuse to resume what another version, model or directory began.

    Raises:
        ValueError: there is no manifest, a file is not as it was, or the job differs.
    """
    entries = read(folder)
    if entries.get("canaries") and not job.canaries:
        raise ValueError(
            f"{folder} is of an audit, which would go on without its canaries: start a new run"
        )
    for name, now in _began(job).items():
        if entries.get(name) != now:
            raise ValueError(
                f"{name} = {now} is not what {folder} began with, {entries.get(name)}: a resumed "
                "run goes on with the same; restore it, or start a new run"
            )


def _began(job: Job) -> dict[str, Any]:
    initial = job.gradients.layout.initial(job.model).numpy()
    code = "\n".join(dict.fromkeys(_sources(job.model)))
    return {
        "version": version(),
        "share of delta in progress": IN_PROGRESS,
        "python": ".".join(map(str, sys.version_info[:2])),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "model code": hashlib.sha256(code.encode()).hexdigest(),
        **{
            f"{setting} code": hashlib.sha256(source(name).encode()).hexdigest()
            for setting, name in job.config.own.items()
            if setting != "model"
        },
        "initial parameters": hashlib.sha256(initial.tobytes()).hexdigest(),
        "canaries": job.canaries,
    }


def _sources(model: torch.nn.Module) -> Iterator[str]:
    """For each class that is not of PyTorch its name, and the source of its whole module; of the
    class alone in a script or notebook, which changes around it; none where there is none."""
    for kind in map(type, model.modules()):
        if not kind.__module__.startswith("torch."):
            yield kind.__qualname__
            whole = kind if kind.__module__ == "__main__" else sys.modules.get(kind.__module__)
            with suppress(OSError, TypeError):
                yield inspect.getsource(whole)  # type: ignore[arg-type]
