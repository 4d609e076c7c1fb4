"""``python -m sim.bench RECIPES...``: the tables of papers, cell by cell and seed by seed.

    python -m sim.bench recipes/mnist.toml --seeds 0,1,2 --data-dir data

A recipe (`sim.benching.recipe`) names rows, columns and their settings. Each cell and seed is a run directory under
``--out``; what is finished is not repeated and what was interrupted goes on, so the same command continues a table. The
table and its plot are written anew after every run. Exit status 0 if every cell is there, 1 if one is missing or has
failed (the table says which), 2 for input that cannot be used.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mechanisms import durable
from sim.benching import lanes, table
from sim.benching.recipe import Recipe, read
from sim.benching.runs import Run, plan
from sim.cli import main_guard
from sim.names import suggest


def parser() -> argparse.ArgumentParser:
    """The command's arguments."""
    new = argparse.ArgumentParser(
        prog="python -m sim.bench", description="Run the cells of recipes and write their tables.", allow_abbrev=False
    )
    new.add_argument("recipes", metavar="RECIPE", type=Path, nargs="+", help="TOML files, such as recipes/mnist.toml")
    new.add_argument("--seeds", type=_seeds, default=[0], help="seeds of each cell, such as 0,1,2 (default: 0)")
    new.add_argument(
        "--budget",
        choices=("certified", "published"),
        default="certified",
        help="the figure that a cell's epsilon bounds: the proved one (default), or the paper's own claim",
    )
    new.add_argument("--rows", type=_names, help="these rows alone, such as DPSGD,DPSUR")
    new.add_argument("--columns", type=_names, help="these columns alone, such as 3,4")
    new.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="runs at a time (default: CPU cores)")
    new.add_argument("--out", type=Path, default=Path("runs/bench"), help="folder of tables and runs (%(default)s)")
    new.add_argument("--data-dir", help="folder of downloaded data sets; else the environment's, or the user's cache")
    return new


def command(argv: Sequence[str]) -> None:
    """Run what is not finished, and write the tables.

    Raises:
        ValueError: anything the user can mend.
        SystemExit: with status 1, when a cell is missing or has failed.
    """
    given = parser().parse_args(argv)
    if given.processes < 1:
        raise ValueError(f"processes = {given.processes} must be at least 1: give --processes")
    tables = [Table(path, given) for path in given.recipes]
    if len({one.stem for one in tables}) < len(tables):
        raise ValueError("two recipes have the same file name, under which their runs would be kept: rename one")
    of = {run: one for one in tables for run in one.runs}
    outstanding = list({run.folder: run for run in of if not run.finished}.values())
    for number, (run, fault) in enumerate(lanes.played(outstanding, given.processes), 1):
        one = of[run]
        if fault:
            one.faults[run] = fault
        one.write()
        state = f"failed: {fault}" if fault else "done"
        print(f"{number}/{len(outstanding)} {one.stem}: {run.cell.label}, seed {run.seed}: {state}", flush=True)
    complete = [one.write() for one in tables]
    for one in tables:
        print(f"\n{one.file('md').read_text()}\n{one.file('md')}, .csv, .svg")
    if not all(complete):
        sys.exit(1)


class Table:
    """A recipe with its runs, and the files of its table."""

    def __init__(self, recipe: Path, given: argparse.Namespace):
        self.recipe, self.stem, self._budget = _chosen(read(recipe), given), recipe.stem, given.budget
        self.path = given.out / f"{self.stem}-{given.budget}"
        settings: dict[str, Any] = {"data_dir": given.data_dir} if given.data_dir else {}
        self.runs = plan(self.recipe, self.path, given.budget, given.seeds, settings)
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
        labels = {"epsilon": "certified epsilon", "column": self.recipe.axis, "path": f"{self._budget} epsilon"}
        y = "accuracy" if self.recipe.plot in ("epsilon", "column", "path") else self.recipe.plot.replace("_", " ")
        ticks = [column.name for column in self.recipe.columns] if self.recipe.plot == "column" else []
        picture = plots.curves(table.points(self.recipe, lines), labels.get(self.recipe.plot, "round"), y, ticks)
        durable.write(self.file("svg"), plots.svg(picture))
        return all(line.complete for line in lines)


def _chosen(recipe: Recipe, given: argparse.Namespace) -> Recipe:
    """The recipe with the wanted rows and columns alone."""
    parts = {}
    for kind, wanted in (("rows", given.rows), ("columns", given.columns)):
        known = [one.name for one in getattr(recipe, kind)]
        for name in wanted or []:
            if name not in known:
                raise ValueError(f"--{kind} {name} is not in {recipe.title!r}: {suggest(name, known)}")
        parts[kind] = tuple(one for one in getattr(recipe, kind) if wanted is None or one.name in wanted)
    return recipe.model_copy(update=parts)


def _seeds(text: str) -> list[int]:
    return sorted({int(part) for part in text.split(",")})


def _names(text: str) -> list[str]:
    return [part.strip() for part in text.split(",")]


if __name__ == "__main__":
    raise SystemExit(main_guard(command))
