"""The best of a random number of runs: tuning whose price is part of the guarantee.

Each run is of a cell drawn at random, with a seed drawn at random, and after each one a coin says
whether it was the last (`mechanisms.accounting.choosing`). Seeds must not count the runs: a model
tells its seed by its first parameters, and a high count would tell how many runs there were.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mechanisms import durable
from mechanisms.entropy import SystemEntropy
from server.records import finite
from sim.benching.runs import Run, result
from sim.phases.prices import of_best, outlook_of, prices
from sim.showing import wording

EQUAL_SIZES = ("iid", "given")
"""Partitions whose clients have the same numbers of records for every seed."""
APART = ("dataset", "validation_records", "public_records")
"""Settings by which records are held out: what one run is judged by, no other may train on."""


@dataclass(frozen=True)
class Tries:
    """A random choice of runs.

    Attributes:
        mean: the mean number of runs.
        cells: a run of each cell, to price it.

    Raises:
        ValueError: the cells have no price as the best of several.
    """

    mean: float
    cells: Sequence[Run]

    def __post_init__(self) -> None:
        for run in self.cells:
            data = run.config.data
            if run.cell.reach is not None:
                raise ValueError(f"column {run.cell.column} has reach: with --tries leave it out")
            if run.config.privacy.budget == "published":
                raise ValueError(
                    f"{run.cell.label}: the recipe's budget is published, and --tries prices the "
                    "best by its certified epsilon: train it without --tries"
                )
            if data.clients > 1 and data.partition not in EQUAL_SIZES:
                raise ValueError(
                    f"{run.cell.label}: with partition = {data.partition} clients' sizes, and with "
                    "them the price, differ from seed to seed: with --tries use iid or given"
                )
        if len(deltas := {run.config.privacy.delta for run in self.cells}) > 1:
            raise ValueError(f"delta is {sorted(deltas)}: with --tries all cells need the same one")
        for name in APART:
            if len(values := {run.config.value(name) for run in self.cells}) > 1:
                raise ValueError(
                    f"{name} is {sorted(values)}: with --tries all cells need the same one, as no "
                    "run may train on what another is judged by"
                )

    def drawn(self, path: Path, folder: Path) -> list[tuple[str, str, int]]:
        """Row, column and seed of each run; ``folder`` has their directories.

        They are drawn by the operating system's entropy, and kept at ``path``, unless runs are
        there: a second draw would be a further look at the records.

        Raises:
            ValueError: the file is damaged, was drawn for another mean or other cells, or is
                missing though there are runs.
        """
        if not path.exists() and folder.is_dir() and any(folder.iterdir()):
            raise ValueError(
                f"{path} is missing, but {folder} has runs, of which it says how many there are: "
                "restore it from a copy, or give another --out and count both"
            )
        names = [[run.cell.row, run.cell.column] for run in self.cells]
        content = {"mean": self.mean, "cells": names, "runs": self._draw(names)}
        durable.make_folder(path.parent)
        durable.create(path, json.dumps(content).encode() + b"\n", private=True)
        try:
            kept = json.loads(durable.read(path))
            mean, cells = float(kept["mean"]), kept["cells"]
            runs = [(str(row), str(column), int(seed)) for row, column, seed in kept["runs"]]
            if not runs:
                raise ValueError("it has no runs")
        except (ValueError, LookupError, TypeError, RecursionError) as fault:
            raise ValueError(
                f"{path} is damaged ({type(fault).__name__}: {fault}): restore it from a copy, or "
                "give another --out and count both"
            ) from None
        if (mean, cells) != (self.mean, names):
            raise ValueError(
                f"{path} has runs that were drawn with --tries {mean:g} from other or the "
                "same cells: go on as it was begun, or give another --out and count both"
            )
        return runs

    def _draw(self, names: Sequence[list[str]]) -> list[list[str | int]]:
        entropy, found = SystemEntropy(), list[list[str | int]]()
        while True:
            name = names[int(entropy.integers(0, len(names), 1)[0])]
            found.append([*name, int(entropy.integers(0, 2**63, 1)[0])])
            if entropy.random(1)[0] < 1.0 / self.mean:
                return found

    def verdict(self, runs: Sequence[Run]) -> str:
        """Which of the finished runs is the best, and what it costs to release it.

        Of equal accuracies the first counts, as the order means nothing.

        Raises:
            ValueError: a run has no accuracy.
        """
        found = [one.summary.accuracy for run in runs if (one := result(run)) is not None]
        scores = [score for score in map(finite, found) if score is not None]
        if len(scores) < len(runs):
            raise ValueError("a run has no accuracy, so that none is the best: see the table")
        best = runs[scores.index(max(scores))]
        delta = best.config.privacy.delta
        priced = (prices(outlook_of(run.config, None)) for run in self.cells)
        epsilon = finite(of_best(priced, delta, self.mean))
        return (
            f"The best run is {best.cell.label}, seed {best.seed}, with {100 * max(scores):.2f} %: "
            f"{best.folder}\nReleased alone, it has certified epsilon "
            f"{wording.epsilon(epsilon, infinite='infinite')} at delta {delta:g}. Keep to yourself "
            "how many runs there were, what the others gave, and when which was trained: whoever "
            "sees them all has the sum of their epsilons."
        )
