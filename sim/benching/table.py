"""A recipe's table as Markdown and CSV: means and ranges over seeds, beside papers' results."""

import csv
import io
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from server.records import Epsilon, RoundRecord, finite, largest
from sim.benching.runs import Result, Run, result
from sim.config.recipe import Cell, Recipe
from sim.showing import wording

NOTES = {
    "certified": "The budget bounds the certified epsilon, which is proved. Papers' results are "
    "claims under their own accounting, which is the published column.",
    "published": "The budget bounds the published epsilon, the paper's own claim, for comparison "
    "with it. What is proved is the certified epsilon.",
}


FRONTIER = "frontier"
"""The name of the line of the best cells, and of the plot that has it."""
BOXES = "boxes"
"""The plot of the spread over seeds."""

CSV_HEAD = (
    "recipe row column budget state seeds mean least largest deviation paper difference "
    "certified_epsilon published_epsilon rounds seconds source"
)


@dataclass(frozen=True)
class Line:
    """One cell of the table.

    Attributes:
        cell: the recipe's cell.
        seeds: the number of requested seeds.
        results: the results of the finished runs.
        faults: the errors of failed runs.
    """

    cell: Cell
    seeds: int
    results: tuple[Result, ...]
    faults: tuple[str, ...]

    @property
    def complete(self) -> bool:
        """Whether every seed has finished."""
        return len(self.results) == self.seeds

    @property
    def measured(self) -> list[float]:
        """Final accuracies in per cent, or smallest epsilons, of the seeds that have one."""
        level = self.cell.reach
        if level is not None:
            found = [reached(r, level) for r in self.results]
            return [spent for spent in found if spent is not None]
        return [100 * r.summary.accuracy for r in self.results if r.summary.accuracy is not None]

    @property
    def mean(self) -> float | None:
        """The mean of `measured`; None if a seed never reached the accuracy ``reach``."""
        short = self.cell.reach is not None and len(self.measured) < len(self.results)
        return statistics.mean(self.measured) if self.measured and not short else None

    @property
    def spread(self) -> str:
        """The least and the largest of `measured`, as printed after the mean; empty for one."""
        found = self.measured
        return f" ({min(found):.2f} to {max(found):.2f})" if len(found) > 1 else ""

    @property
    def difference(self) -> float | None:
        """The mean minus the paper's result, in its unit."""
        return None if self.mean is None or self.cell.paper is None else self.mean - self.cell.paper

    def epsilon(self, column: str) -> Epsilon:
        """The largest ``certified`` or ``published`` epsilon over seeds; None if infinite."""
        return largest([largest(getattr(r.summary, f"epsilon_{column}")) for r in self.results])

    @property
    def seconds(self) -> float | None:
        """The mean time of the timed runs; None if there are none."""
        times = [r.summary.seconds for r in self.results if r.summary.seconds is not None]
        return statistics.mean(times) if times else None

    @property
    def state(self) -> str:
        """``done``, or what is missing."""
        if self.complete:
            return "done"
        what, absent = "failed" if self.faults else "missing", self.seeds - len(self.results)
        return f"{what} {absent} of {self.seeds} seeds" if self.results else what


def reached(result: Result, level: float) -> float | None:
    """The epsilon, as the budget bounds it, of the first round with ``level`` per cent accuracy."""
    for record in result.rounds:
        if record.accuracy is not None and 100 * record.accuracy >= level:
            return finite(_spent(record, result.summary.budget))
    return None


def _spent(record: RoundRecord, budget: str) -> Epsilon:
    return record.epsilon_published_max if budget == "published" else record.epsilon_certified_max


def lines(runs: Sequence[Run], faults: Mapping[Run, str]) -> list[Line]:
    """The table's cells, from results on disk and from the errors of runs just tried, unless
    another process has finished them."""
    by_cell: dict[tuple[str, str], list[Run]] = {}
    for run in runs:
        by_cell.setdefault((run.cell.row, run.cell.column), []).append(run)
    table = []
    for own in by_cell.values():
        found = {run: one for run in own if (one := result(run)) is not None}
        failed = ((run, faults[run]) for run in own if run not in found and faults.get(run))
        said = tuple(f"{run.cell.label}, seed {run.seed}: {fault}" for run, fault in failed)
        table.append(Line(own[0].cell, len(own), tuple(found.values()), said))
    return table


def markdown(recipe: Recipe, budget: str, table: Sequence[Line]) -> str:
    """The table in Markdown, followed by deviations and errors."""
    on = {r.summary.evaluated_on for line in table for r in line.results} or {"test"}
    head: tuple[str, ...] = ("", recipe.axis, f"{' / '.join(sorted(on))} accuracy, %", "paper")
    head += ("difference", "certified epsilon", "published epsilon", "rounds", "seconds")
    text = [f"# {recipe.title}", "", NOTES[budget], "", *in_markdown(head, map(_row, table))]
    deviations = [f"- {what}: {why}" for what, why in recipe.deviations.items()]
    text += ["", "What is not as in the papers:", "", *deviations] if deviations else []
    faults = [fault for line in table for fault in line.faults]
    text += ["", "What failed:", "", *(f"- {fault}" for fault in faults)] if faults else []
    return "\n".join(text) + "\n"


def in_markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """The lines of a table in Markdown; what is several lines is one."""
    every = (head, ("---",) * len(head), *rows)
    return [
        f"| {' | '.join(' '.join(part.replace('|', '/').split()) for part in row)} |"
        for row in every
    ]


def _row(line: Line) -> tuple[str, ...]:
    name = line.cell.row, line.cell.column
    paper = ", ".join(f"{claim.paper} {claim.value:g}" for claim in line.cell.claims)
    if line.mean is None:
        unreached = line.complete and line.cell.reach is not None
        return (*name, "not reached" if unreached else f"**{line.state}**", paper, *("",) * 5)
    shown = f"{line.mean:.2f}" if line.cell.reach is None else f"at epsilon {line.mean:.2f}"
    shown += line.spread + ("" if line.complete else f" **{line.state}**")
    summaries = [r.summary for r in line.results]
    return (
        *name,
        shown,
        paper,
        "" if line.difference is None else f"{line.difference:+.2f}",
        wording.epsilon(line.epsilon("certified"), infinite="infinite"),
        wording.epsilon(line.epsilon("published"), infinite="infinite"),
        wording.span([s.rounds for s in summaries]),
        "" if line.seconds is None else f"{line.seconds:.0f}",
    )


def as_csv(recipe: Recipe, budget: str, table: Sequence[Line]) -> str:
    """The table as CSV, a line per cell; missing values are empty, infinite epsilons ``inf``."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(CSV_HEAD.split())
    for line in table:
        summaries, found, cell = [r.summary for r in line.results], line.measured, line.cell
        deviation = statistics.stdev(found) if len(found) > 1 else None
        ends = min(found, default=None), max(found, default=None)
        figures = [line.mean, *ends, deviation, cell.paper, line.difference]
        spent = [
            wording.epsilon(line.epsilon(c), digits=6, infinite="inf") if summaries else ""
            for c in ("certified", "published")
        ]
        rounds = statistics.mean(s.rounds for s in summaries) if summaries else None
        names = [recipe.title, cell.row, cell.column, budget, line.state, len(line.results)]
        source = " ".join(claim.reference for claim in cell.claims)
        last = [_number(rounds), _number(line.seconds), source]
        writer.writerow([*names, *map(_number, figures), *spent, *last])
    return buffer.getvalue()


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}"


def metrics(table: Sequence[Line]) -> list[str]:
    """The names of the metrics that a round of these runs has."""
    rounds = (record for line in table for one in line.results for record in one.rounds)
    return sorted({name for record in rounds for name in record.metrics})


def points(recipe: Recipe, table: Sequence[Line]) -> dict[str, list[tuple[float, float]]]:
    """The lines of the recipe's plot by name, each of points (x, y) in the order of x.

    Accuracies are in [0, 1] and, like metrics by round, means over the finished seeds, but of boxes
    those of each seed. The x of a column is its number.
    """
    curves: dict[str, list[tuple[float, float]]] = {}
    columns = [column.name for column in recipe.columns]
    for line in table:
        accuracy = None if line.cell.reach is not None else line.mean
        spent = finite(line.epsilon("certified")) if line.results else None
        if recipe.plot in ("epsilon", FRONTIER):
            if accuracy is not None and spent is not None:
                curves.setdefault(line.cell.row, []).append((spent, accuracy / 100))
        elif recipe.plot in ("column", BOXES):
            if accuracy is not None:
                place = columns.index(line.cell.column)
                found = line.measured if recipe.plot == BOXES else [accuracy]
                curves.setdefault(line.cell.row, []).extend((place, one / 100) for one in found)
        elif line.results:
            path, results = recipe.plot == "path", line.results
            curve = _path(results) if path else _by_round(recipe.plot, results)
            curves[_name(recipe, line.cell)] = curve
    if recipe.plot == FRONTIER:
        curves[FRONTIER] = _frontier(curves)
    return {name: sorted(one) for name, one in curves.items() if one}


def _frontier(curves: Mapping[str, Sequence[tuple[float, float]]]) -> list[tuple[float, float]]:
    """The points of all curves that lie above every point to their left."""
    best: list[tuple[float, float]] = []
    points = (one for curve in curves.values() for one in curve)
    for x, y in sorted(points, key=lambda one: (one[0], -one[1])):
        if not best or y > best[-1][1]:
            best.append((x, y))
    return best


def _name(recipe: Recipe, cell: Cell) -> str:
    if len(recipe.columns) == 1:
        return cell.row
    column = f"{recipe.axis} {cell.column}"
    return column if len(recipe.rows) == 1 else f"{cell.row}, {column}"


def _path(results: Sequence[Result]) -> list[tuple[float, float]]:
    """Means over runs of (epsilon spent, accuracy) after each round, by the budget's column."""
    found: dict[int, list[tuple[float, float]]] = {}
    for one in results:
        for record in one.rounds:
            spent, accuracy = finite(_spent(record, one.summary.budget)), finite(record.accuracy)
            if spent is not None and accuracy is not None:
                found.setdefault(record.round, []).append((spent, accuracy))
    axes = (zip(*pairs, strict=True) for pairs in found.values())
    return [(statistics.mean(x), statistics.mean(y)) for x, y in axes]


def _by_round(figure: str, results: Sequence[Result]) -> list[tuple[float, float]]:
    """Means over runs of the accuracy, or of a metric of the mechanism, by round."""
    found: dict[int, list[float]] = {}
    for record in (record for one in results for record in one.rounds):
        value = finite(record.accuracy if figure == "accuracy" else record.metrics.get(figure))
        if value is not None:
            found.setdefault(record.round, []).append(value)
    return [(number, statistics.mean(values)) for number, values in found.items()]
