"""The files of a recipe's table, and the leaderboard's page, as they stand."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mechanisms import durable
from sim.benching import leaderboard, table
from sim.benching.runs import Run, plan
from sim.config.names import suggest
from sim.config.recipe import Recipe, read


class Table:
    """A recipe with its runs, and the files of its table."""

    def __init__(self, recipe: Path, given: argparse.Namespace):
        self.recipe, self.stem, self._budget = (
            _chosen(read(recipe), given),
            recipe.stem,
            given.budget,
        )
        self.path = given.out / f"{self.stem}-{given.budget}"
        settings: dict[str, Any] = {"data_dir": given.data_dir} if given.data_dir else {}
        self.runs = plan(self.recipe, self.path, given.budget, given.seeds, settings, given.cells)
        self.faults: dict[Run, str] = {}

    def file(self, kind: str) -> Path:
        """The table's file of a kind: ``md``, ``csv`` or ``svg``."""
        return self.path.with_name(f"{self.path.name}.{kind}")

    def write(self) -> bool:
        """Write table and plot as they stand; whether nothing is missing."""
        from sim.showing import plots

        lines = table.lines(self.runs, self.faults)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        durable.write(self.file("md"), table.markdown(self.recipe, self._budget, lines).encode())
        durable.write(self.file("csv"), table.as_csv(self.recipe, self._budget, lines).encode())
        labels = {
            "epsilon": "certified epsilon",
            "column": self.recipe.axis,
            "path": f"{self._budget} epsilon",
        }
        y = (
            "accuracy"
            if self.recipe.plot in ("epsilon", "column", "path")
            else self.recipe.plot.replace("_", " ")
        )
        ticks = (
            [column.name for column in self.recipe.columns] if self.recipe.plot == "column" else []
        )
        picture = plots.curves(
            table.points(self.recipe, lines), labels.get(self.recipe.plot, "round"), y, ticks
        )
        durable.write(self.file("svg"), plots.svg(picture))
        return all(line.complete for line in lines)


def write_page(given: argparse.Namespace, tables: Sequence[Table]) -> None:
    if given.page is not None:
        known = [
            leaderboard.Table(one.stem, given.budget, table.lines(one.runs, {})) for one in tables
        ]
        durable.write(given.page, leaderboard.page(known).encode())


def _chosen(recipe: Recipe, given: argparse.Namespace) -> Recipe:
    """The recipe with the wanted rows and columns alone."""
    parts = {}
    for kind, wanted in (("rows", given.rows), ("columns", given.columns)):
        known = [one.name for one in getattr(recipe, kind)]
        for name in wanted or []:
            if name not in known:
                raise ValueError(
                    f"--{kind} {name} is not in {recipe.title!r}: {suggest(name, known)}"
                )
        parts[kind] = tuple(
            one for one in getattr(recipe, kind) if wanted is None or one.name in wanted
        )
    return recipe.model_copy(update=parts)
