"""Writes the files of a recipe's table, and the leaderboard's page."""

import argparse
import warnings
from collections.abc import Container, Iterator, Sequence
from pathlib import Path

from mechanisms import durable
from sim.benching import leaderboard, table
from sim.benching.queue import missing
from sim.benching.runs import Run, plan
from sim.benching.tries import Tries
from sim.commands.bench import LEADERBOARD_SEEDS
from sim.config.names import suggest
from sim.config.papers import RECIPES
from sim.config.recipe import PLOTS, Cell, Recipe, read


class Table:
    """A recipe with its runs and the files of its table.

    Attributes:
        rows, columns: names of the requested ones.
        every: the runs of all cells.
        runs: those of requested cells.

    Raises:
        ValueError: the recipe is invalid, or no cell is requested.
    """

    def __init__(self, recipe: Path, given: argparse.Namespace):
        self.recipe, self.stem = read(recipe), recipe.stem
        self.rows, self.columns = _chosen(self.recipe, given)
        self.budget = self.recipe.budget or given.budget
        self.path = given.out / f"{self.stem}-{self.budget}"
        settings = {"data_dir": given.data_dir} if given.data_dir else {}

        def runs(seeds: Sequence[int]) -> list[Run]:
            return plan(self.recipe, self.path, self.budget, seeds, settings, given.cells)

        self.every = runs(given.seeds)
        self.runs = [run for run in self.every if self._asked(run.cell)]
        if not self.runs:
            raise ValueError(
                f"{recipe} has no cell in --rows {', '.join(self.rows)} and --columns "
                f"{', '.join(self.columns)}: choose others"
            )
        self.tries = None if given.tries is None else Tries(given.tries, self.runs)
        if self.tries is not None:
            drawn = self.tries.drawn(self.file("tries.json"), self.path)
            self.every = self.runs = [
                run
                for run in runs([seed for *_, seed in drawn])
                if (run.cell.row, run.cell.column, run.seed) in drawn
            ]
        self.faults: dict[Run, str] = {}

    def file(self, kind: str) -> Path:
        """The path of the table's ``md``, ``csv`` or ``svg``."""
        return self.path.with_name(f"{self.path.name}.{kind}")

    @property
    def lines(self) -> list[table.Line]:
        """The requested cells, and all others that have results."""
        every = table.lines(self.every, self.faults)
        return [line for line in every if line.results or self._asked(line.cell)]

    def _asked(self, cell: Cell) -> bool:
        return cell.row in self.rows and cell.column in self.columns

    def write(self) -> bool:
        """Write table and plot in their current state; returns whether all requested cells are
        complete."""
        from sim.showing import plots

        recipe, plot, budget = self.recipe, self.recipe.plot, self.budget
        lines = self.lines
        complete = all(line.complete for line in lines if self._asked(line.cell))
        durable.make_folder(self.path.parent)
        for kind, text in (("md", table.markdown), ("csv", table.as_csv)):
            durable.write(self.file(kind), text(recipe, budget, lines).encode(), shared=True)
        axes = dict.fromkeys(("epsilon", table.FRONTIER), "certified epsilon")
        axes |= {"column": recipe.axis, table.BOXES: recipe.axis, "path": f"{budget} epsilon"}
        y = "accuracy" if plot in axes else plot.replace("_", " ")
        x, places = axes.get(plot, "round"), plot in ("column", table.BOXES)
        ticks = [column.name for column in recipe.columns] if places else []
        draw = plots.boxes if plot == table.BOXES else plots.curves
        found, metrics = table.points(recipe, lines), table.metrics(lines)
        if plot not in (*PLOTS, *metrics) and complete:
            fault = f"plot = {plot!r} draws nothing, as no run has a metric of this name"
            warnings.warn(f"{fault}: {suggest(plot, (*PLOTS, *metrics))}", stacklevel=1)
        picture = draw(found, x, y, ticks)
        durable.write(self.file("svg"), plots.svg(picture), shared=True)
        return complete


def listed(given: argparse.Namespace, tables: Sequence[Table]) -> Sequence[Table]:
    """What the leaderboard lists: these tables, or all that is kept of the project's recipes."""
    if not given.project:
        return tables
    # trained runs are found by their result files alone: there are no run directories among these
    whole = vars(given) | {"rows": None, "columns": None, "budget": "certified", "out": given.cells}
    paths = {path.stem: path for path in (*RECIPES.glob("*.toml"), *given.recipes)}
    every = argparse.Namespace(**whole | {"seeds": LEADERBOARD_SEEDS})
    return [Table(paths[stem], every) for stem in sorted(paths)]


def write_page(given: argparse.Namespace, tables: Sequence[Table]) -> None:
    """Write the leaderboard of these tables if a page was requested."""
    if given.page is not None:
        known = [
            leaderboard.Table(one.stem, one.budget, table.lines(one.every, {}), missing(one.every))
            for one in tables
        ]
        durable.write(given.page, leaderboard.page(known).encode(), shared=True)


def _chosen(recipe: Recipe, given: argparse.Namespace) -> list[list[str]]:
    """The names of the requested rows, and of the requested columns."""
    chosen = []
    for kind, wanted in (("rows", given.rows), ("columns", given.columns)):
        known = [one.name for one in getattr(recipe, kind)]
        try:
            chosen.append(known if wanted is None else list(_names(wanted, known)))
        except KeyError as unknown:
            (name,) = unknown.args
            fault = f"--{kind} {name} is not in {recipe.title!r}"
            raise ValueError(f"{fault}: {suggest(name, known)}") from None
    return chosen


def _names(text: str, known: Container[str]) -> Iterator[str]:
    """The names in a list with commas between, of which some may have commas themselves.

    Raises:
        KeyError: the first that is not known.
    """
    parts = text.split(",")
    while parts:
        ends = (n for n in range(len(parts), 0, -1) if ",".join(parts[:n]).strip() in known)
        if not (end := next(ends, 0)):
            raise KeyError(parts[0].strip())
        yield ",".join(parts[:end]).strip()
        parts = parts[end:]
