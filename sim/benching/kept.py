"""Small result files of finished runs, so that a table can be continued on another machine.

There is one for each cell and seed. It holds what a table, its plot and the leaderboard need, and a
digest of the configuration: files with other settings are ignored.
"""

import contextlib
import functools
import hashlib
import json
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from mechanisms import durable
from server.records import RoundRecord, Summary, largest, read_rounds
from server.store import ROUNDS
from sim.config.configuration import Config
from sim.config.fields import SETTINGS
from sim.config.names import FORMER
from sim.config.papers import ROOT
from sim.config.recipe import Cell
from sim.config.settings import EXECUTION_ONLY

FREE = EXECUTION_ONLY | {"out", "name", "data_dir", "groups"}
"""Settings that may differ when a run is resumed."""

NEWER = {
    **{name: SETTINGS[name].info.default for name in ("label_column", "categories", "loss")},
    **dict.fromkeys(("client_column", "columns", "metric")),
    **dict.fromkeys(("mechanism_settings", "strategy_settings", "partition_settings")),
    **dict.fromkeys(("features_settings", "init_from")),
    **{"tf32": False, "bf16": False, "sampling": "poisson", "trust": "local", "unit": "record"},
    **{"honest": 1.0, "aggregate_bits": 32, "dropout": 0.0, "evaluation": "basic"},
    **{"noise_bands": 1, "attackers": 0.0, "attack_factor": -1.0, "budgets": None},
    **{"personal_layers": None, "client_holdout": 0.0, "dropout_trace": None},
    **{"buffer": None, "stragglers": 0.0, "straggler_factor": 10.0},
    **{"score_noise": 8.0},
    **{"feature_pixels": "unit", "feature_flips": False, "feature_scales": 1},
    **{"feature_whitening": False, "feature_deskew": False},
}
"""Settings that results of earlier versions lack, and the values that those were made with."""

PER_CLIENT = ("epsilon_certified", "epsilon_published", "noise_multiplier", "events")
"""Fields of a summary with an entry per client, of which the largest is kept."""


@dataclass(frozen=True)
class Result:
    """The results of a finished run."""

    summary: Summary
    rounds: tuple[RoundRecord, ...]


def digest(config: Config) -> str:
    """A digest of all settings that affect a result, by their former names: old results count."""
    former = {now: name for name, now in FORMER.items()}
    values = {former.get(name, name): config.value(name) for name in SETTINGS if name not in FREE}
    values = dict(entry for entry in values.items() if entry not in NEWER.items())
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]


def save(path: Path, cell: Cell, config: Config, folder: Path, summary: Summary) -> None:
    """Keep the finished run in ``folder``, with its summary, as the file ``path``."""
    short = summary.to_json()
    for name in PER_CLIENT:
        short[name] = [largest(short[name])]
    short |= {"caveats": [], "guarantees": [], "run_dir": "", "note": ""}
    rounds = read_rounds(folder / ROUNDS)
    content = {
        "row": cell.row,
        "column": cell.column,
        "seed": config.run.seed,
        "settings": cell.settings,
        "papers": {claim.reference: claim.value for claim in cell.claims},
        "digest": digest(config),
        "code": code(),
        "finished": datetime.now(UTC).strftime("%Y-%m-%d %H:%M"),
        "summary": short,
        "rounds": [_short(one.to_json()) for one in rounds],
    }
    durable.make_folder(path.parent)
    lines = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in content.items()]
    durable.write(path, ("{\n" + ",\n".join(lines) + "\n}\n").encode(), shared=True)


def load(path: Path, wanted: str) -> Result | None:
    """The result in a file; None if it is missing or its settings have another digest.

    Raises:
        ValueError: it is damaged.
    """
    if not path.is_file():
        return None
    found, result = _read(path, path.stat().st_mtime_ns)
    return result if found == wanted else None


@functools.lru_cache(maxsize=10_000)
def _read(path: Path, changed: int) -> tuple[str, Result]:
    try:
        content = json.loads(path.read_text())
        rounds = tuple(RoundRecord.from_json(_long(one)) for one in content["rounds"])
        summary = Summary.from_json(content["summary"])
        _check_numbers(summary, rounds)
        return content["digest"], Result(summary, rounds)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as fault:
        raise ValueError(
            f"{path} is no result file ({type(fault).__name__}: {fault}): restore it, or remove it "
            "to train the cell again"
        ) from None


def _check_numbers(summary: Summary, rounds: Sequence[RoundRecord]) -> None:
    figures = [summary.accuracy, summary.seconds, summary.rounds]
    figures += [*summary.epsilon_certified, *summary.epsilon_published]
    for one in rounds:
        figures += [one.accuracy, one.epsilon_certified_max, one.epsilon_published_max]
        figures += one.metrics.values()
    for figure in figures:
        if not isinstance(figure, int | float | None):
            raise TypeError(f"{figure!r} is no number")


@functools.cache
def code() -> str:
    """The project's commit, with ``+`` if files differ; without git, a digest of the sources."""
    found = ""
    describe = ["describe", "--always", "--dirty=+", "--abbrev=12", "--exclude=*"]
    # without pyproject.toml the packages are installed, maybe below another project's checkout
    if (ROOT / "pyproject.toml").is_file():
        with contextlib.suppress(OSError, subprocess.CalledProcessError):
            words = ["git", "-C", str(ROOT), *describe]
            found = subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()
    if found:
        return found
    total = hashlib.sha256()
    for package in ("mechanisms", "client", "strategies", "server", "sim"):
        for path in sorted((ROOT / package).rglob("*.py")):
            total.update(path.read_bytes())
    return f"sources {total.hexdigest()[:12]}"


ROUND = ("round", "accuracy", "epsilon_certified_max", "epsilon_published_max", "metrics")
"""Fields of a round's record that are kept, in this order."""


def _short(record: dict[str, Any]) -> list[Any]:
    """Accuracy and metrics to six digits; epsilons, which are bounds, as they are."""
    number, accuracy, *epsilons, metrics = (record[name] for name in ROUND)
    figures = {name: _rounded(value) for name, value in metrics.items()}
    return [number, _rounded(accuracy), *epsilons, figures]


def _rounded(value: Any) -> Any:
    return float(f"{value:.6g}") if isinstance(value, float) else value


def _long(values: list[Any]) -> dict[str, Any]:
    named = dict(zip(ROUND, values, strict=True))
    absent = dict.fromkeys(("loss", "epsilon_certified_median", "seconds", "seconds_training"))
    return {**absent, "retired": 0, "participants": 0, **named}
