"""``python -m sim.bench RECIPES...``: the tables of papers, cell by cell and seed by seed.

    python -m sim.bench recipes/mnist.toml --seeds 0,1,2 --data-dir data

A recipe (`sim.benching.recipe`) names rows, columns and their settings. Each cell and seed is a run
directory under ``--out``; what is finished is not repeated and what was interrupted goes on, so the
same command continues a table. The table and its plot are written anew after every run. Exit status
0 if every cell is there, 1 if one is missing or has failed (the table says which), 2 for input that
cannot be used.

    python -m sim.bench recipes/*.toml --hours 2 --processes 2 --data-dir data

With an end it fills a leaderboard: cells with the fewest seeds come first, of these the cheapest.
What is finished is kept in small files (``--cells``), which are all that another machine needs to
go on, and ``--page`` is written of them; the exit status is then 1 only if something has failed.
"""

import argparse
import os
import sys
import time
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from mechanisms import durable
from sim.benching import lanes, leaderboard, queue, table
from sim.benching.papers import INSTALLED, PACKAGES, RECIPES
from sim.benching.recipe import Recipe, read
from sim.benching.runs import Run, plan
from sim.config.flags import main_guard
from sim.config.names import suggest


def parser(program: str = "python -m sim.bench") -> argparse.ArgumentParser:
    """The command's arguments."""
    new = argparse.ArgumentParser(
        prog=program,
        description="Run the cells of recipes and write their tables.",
        allow_abbrev=False,
    )
    new.add_argument(
        "recipes",
        metavar="RECIPE",
        type=Path,
        nargs="+",
        help="TOML files, such as recipes/mnist.toml",
    )
    new.add_argument(
        "--seeds",
        type=_seeds,
        help="seeds of each cell, such as 0,1,2 (default: 0; with an end 0 to 4)",
    )
    new.add_argument(
        "--budget",
        choices=("certified", "published"),
        default="certified",
        help="the figure that a cell's epsilon bounds: the proved one (default), or the paper's "
        "own claim",
    )
    new.add_argument("--rows", type=_names, help="these rows alone, such as DPSGD,DPSUR")
    new.add_argument("--columns", type=_names, help="these columns alone, such as 3,4")
    new.add_argument(
        "--processes",
        type=int,
        default=os.cpu_count() or 1,
        help="runs at a time (default: CPU cores)",
    )
    new.add_argument(
        "--out",
        type=Path,
        default=Path("runs/bench"),
        help="folder of tables and runs (%(default)s)",
    )
    end = new.add_mutually_exclusive_group()
    end.add_argument("--hours", type=float, help="fill the leaderboard for that long [hours]")
    end.add_argument(
        "--until", type=_moment, help="fill the leaderboard up to this time of day, such as 09:30"
    )
    new.add_argument(
        "--cells", type=Path, help="folder of result files (with an end: benchmarks/results/cells)"
    )
    new.add_argument(
        "--page", type=Path, help="the leaderboard's file (with an end: docs/leaderboard.md)"
    )
    new.add_argument(
        "--data-dir",
        help="folder of downloaded data sets; else the environment's, or the user's cache",
    )
    return new


def command(argv: Sequence[str], program: str = "python -m sim.bench") -> None:
    """Run what is not finished, and write the tables; ``program`` is what the command is called.

    Raises:
        ValueError: a user error, in one line.
        SystemExit: with status 1, when a cell is missing or has failed.
    """
    given = parser(program).parse_args(argv)
    if given.processes < 1:
        raise ValueError(f"processes = {given.processes} must be at least 1: give --processes")
    until = _completed(given)
    tables = [Table(path, given) for path in given.recipes]
    if len({one.stem for one in tables}) < len(tables):
        raise ValueError(
            "two recipes have the same file name, under which their runs would be kept: rename one"
        )
    of = {run: one for one in tables for run in one.runs}
    for run in of:
        run.keep()
    outstanding = queue.ordered(list(of)) if until is not None else unfinished(list(of))
    for number, (run, fault) in enumerate(lanes.played(outstanding, given.processes, until), 1):
        one = of[run]
        if fault:
            one.faults[run] = fault
        run.keep()
        one.write()
        _write_page(given, tables)
        state = f"failed: {fault}" if fault else "done"
        print(
            f"{number}/{len(outstanding)} {one.stem}: {run.cell.label}, seed {run.seed}: {state}",
            flush=True,
        )
    complete = [one.write() for one in tables]
    for one in tables:
        print(f"\n{one.file('md').read_text()}\n{one.file('md')}, .csv, .svg")
    _write_page(given, tables)
    if not all(complete) and (until is None or any(one.faults for one in tables)):
        sys.exit(1)


def unfinished(runs: Sequence[Run]) -> list[Run]:
    """The runs to be trained, as they stand; runs in one folder are one training."""
    return list({run.folder: run for run in runs if not run.finished}.values())


def _completed(given: argparse.Namespace) -> float | None:
    """Fill in what depends on whether there is an end; when that is, by `time.monotonic`."""
    wait = given.until if given.hours is None else 3600.0 * given.hours
    if wait is not None and wait < 0:
        raise ValueError(f"hours = {given.hours:g} must be at least 0: give --hours")
    if given.seeds is None:
        given.seeds = [0] if wait is None else list(range(5))
    if wait is None:
        return None
    checkout = RECIPES != INSTALLED
    page = PACKAGES / "docs" / "leaderboard.md" if checkout else given.out / "leaderboard.md"
    given.page = given.page or (page if given.cells is None else None)
    given.cells = (
        given.cells or (PACKAGES / "benchmarks" / "results" if checkout else given.out) / "cells"
    )
    return time.monotonic() + wait


def _write_page(given: argparse.Namespace, tables: Sequence["Table"]) -> None:
    if given.page is not None:
        known = [
            leaderboard.Table(one.stem, given.budget, table.lines(one.runs, {})) for one in tables
        ]
        durable.write(given.page, leaderboard.page(known).encode())


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


def _seeds(text: str) -> list[int]:
    return sorted({int(part) for part in text.split(",")})


def _moment(text: str) -> float:
    """Seconds from now to the next time that the clock shows this."""
    now = datetime.now()
    then = now.replace(
        hour=int(text[: text.index(":")]),
        minute=int(text[text.index(":") + 1 :]),
        second=0,
        microsecond=0,
    )
    return (
        (then - now).total_seconds()
        if then > now
        else (then + timedelta(days=1) - now).total_seconds()
    )


def _names(text: str) -> list[str]:
    return [part.strip() for part in text.split(",")]


if __name__ == "__main__":
    raise SystemExit(main_guard(command))
