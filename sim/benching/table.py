"""A recipe's table: means and spreads over seeds, beside the paper's figures, as Markdown and as
CSV."""

import csv
import io
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from server.records import Epsilon, RoundRecord, finite, largest
from sim.benching.runs import Result, Run, result
from sim.config.recipe import Cell, Recipe
from sim.showing import wording

NOTES = {
    "certified": "The budget bounds the certified epsilon, which is proved. Papers' figures are "
    "claims under their own accounting, which is the published column.",
    "published": "The budget bounds the published epsilon, the paper's own claim, for comparison "
    "with it. What is proved is the certified epsilon.",
}


@dataclass(frozen=True)
class Line:
    """One cell of the table.

    Attributes:
        cell: row, column and the paper's figure.
        seeds: how many were asked for.
        results: of the finished runs.
        faults: what was wrong with the others, as far as they were tried.
    """

    cell: Cell
    seeds: int
    results: tuple[Result, ...]
    faults: tuple[str, ...]

    @property
    def complete(self) -> bool:
        """Whether every seed is there."""
        return len(self.results) == self.seeds

    @property
    def measured(self) -> list[float]:
        """Accuracies of the last models, in per cent; or least epsilons. A seed that gave none has
        no figure here."""
        level = self.cell.reach
        if level is not None:
            found = [reached(r, level) for r in self.results]
            return [spent for spent in found if spent is not None]
        return [100 * r.summary.accuracy for r in self.results if r.summary.accuracy is not None]

    @property
    def mean(self) -> float | None:
        """The mean of what is measured; None where some seed never reached the accuracy that was
        asked for."""
        short = self.cell.reach is not None and len(self.measured) < len(self.results)
        return statistics.mean(self.measured) if self.measured and not short else None

    @property
    def difference(self) -> float | None:
        """The mean over the paper's figure, in its unit."""
        return None if self.mean is None or self.cell.paper is None else self.mean - self.cell.paper

    def epsilon(self, column: str) -> Epsilon:
        """The largest over seeds, ``certified`` or ``published``; None where it is infinite."""
        return largest([largest(getattr(r.summary, f"epsilon_{column}")) for r in self.results])

    @property
    def seconds(self) -> float | None:
        """The mean time of a run that was timed; None where none was."""
        times = [r.summary.seconds for r in self.results if r.summary.seconds is not None]
        return statistics.mean(times) if times else None

    @property
    def state(self) -> str:
        """``done``, or what is lacking."""
        if self.complete:
            return "done"
        what = "failed" if self.faults else "missing"
        return (
            what
            if not self.results
            else f"{what} {self.seeds - len(self.results)} of {self.seeds} seeds"
        )


def reached(result: Result, level: float) -> float | None:
    """The least epsilon, in the column that the budget bounds, at which a round's accuracy is
    ``level`` per cent."""
    for record in result.rounds:
        if record.accuracy is not None and 100 * record.accuracy >= level:
            return finite(_spent(record, result.summary.budget))
    return None


def _spent(record: RoundRecord, budget: str) -> Epsilon:
    return record.epsilon_published_max if budget == "published" else record.epsilon_certified_max


def lines(runs: Sequence[Run], faults: Mapping[Run, str]) -> list[Line]:
    """The table's cells from what is on disk, and from what was wrong with runs just tried."""
    by_cell: dict[tuple[str, str], list[Run]] = {}
    for run in runs:
        by_cell.setdefault((run.cell.row, run.cell.column), []).append(run)
    return [
        Line(
            own[0].cell,
            len(own),
            tuple(found for run in own if (found := result(run)) is not None),
            tuple(
                f"{run.cell.label}, seed {run.seed}: {faults[run]}"
                for run in own
                if faults.get(run)
            ),
        )
        for own in by_cell.values()
    ]


def markdown(recipe: Recipe, budget: str, table: Sequence[Line]) -> str:
    """The table in Markdown, with what is lacking below it."""
    on = {r.summary.evaluated_on for line in table for r in line.results} or {"test"}
    head: tuple[str, ...] = (
        "",
        recipe.axis,
        f"{' / '.join(sorted(on))} accuracy, %",
        "paper",
        "difference",
        "certified epsilon",
    )
    head += ("published epsilon", "rounds", "seconds")
    rows = [head, ("---",) * len(head), *(_row(line) for line in table)]
    text = [f"# {recipe.title}", "", NOTES[budget], ""]
    text += [f"| {' | '.join(cell.replace('|', '/') for cell in row)} |" for row in rows]
    deviations = [f"- {what}: {why}" for what, why in recipe.deviations.items()]
    text += ["", "What is not as in the papers:", "", *deviations] if deviations else []
    faults = [fault for line in table for fault in line.faults]
    text += ["", "What failed:", "", *(f"- {fault}" for fault in faults)] if faults else []
    return "\n".join(text) + "\n"


def _row(line: Line) -> tuple[str, ...]:
    name = line.cell.row, line.cell.column
    paper = ", ".join(f"{claim.paper} {claim.value:g}" for claim in line.cell.claims)
    if line.mean is None:
        lacking = (
            "not reached" if line.complete and line.cell.reach is not None else f"**{line.state}**"
        )
        return (*name, lacking, paper, *("",) * 5)
    shown = f"{line.mean:.2f}" if line.cell.reach is None else f"at epsilon {line.mean:.2f}"
    if len(line.measured) > 1:
        shown += f" ({min(line.measured):.2f} to {max(line.measured):.2f})"
    shown += "" if line.complete else f" **{line.state}**"
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
    """The table as CSV, one line a cell; what there is not is empty, an infinite epsilon is
    ``inf``."""
    head: tuple[str, ...] = (
        "recipe",
        "row",
        "column",
        "budget",
        "state",
        "seeds",
        "mean",
        "least",
        "largest",
        "deviation",
        "paper",
    )
    head += ("difference", "certified_epsilon", "published_epsilon", "rounds", "seconds", "source")
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(head)
    for line in table:
        summaries, found = [r.summary for r in line.results], line.measured
        figures: list[float | None] = [
            line.mean,
            min(found, default=None),
            max(found, default=None),
        ]
        figures += [
            statistics.stdev(found) if len(found) > 1 else None,
            line.cell.paper,
            line.difference,
        ]
        spent = [
            wording.epsilon(line.epsilon(c), digits=6, infinite="inf")
            for c in ("certified", "published")
        ]
        rounds = statistics.mean(s.rounds for s in summaries) if summaries else None
        names = (
            recipe.title,
            line.cell.row,
            line.cell.column,
            budget,
            line.state,
            len(line.results),
        )
        measured, last = (
            ["" if v is None else f"{v:.6g}" for v in part]
            for part in (figures, [rounds, line.seconds])
        )
        source = " ".join(claim.reference for claim in line.cell.claims)
        writer.writerow([*names, *measured, *(spent if summaries else ["", ""]), *last, source])
    return buffer.getvalue()


def points(recipe: Recipe, table: Sequence[Line]) -> dict[str, list[tuple[float, float]]]:
    """What the recipe's plot shows: for each of its lines, (x, y) in the order of x; of columns, x
    is the number.

    Accuracies are in [0, 1] and, like figures by round, means over the seeds that are there.
    """
    curves: dict[str, list[tuple[float, float]]] = {}
    columns = [column.name for column in recipe.columns]
    for line in table:
        accuracy = None if line.cell.reach is not None else line.mean
        spent = finite(line.epsilon("certified")) if line.results else None
        if recipe.plot == "epsilon":
            if accuracy is not None and spent is not None:
                curves.setdefault(line.cell.row, []).append((spent, accuracy / 100))
        elif recipe.plot == "column":
            if accuracy is not None:
                curves.setdefault(line.cell.row, []).append(
                    (columns.index(line.cell.column), accuracy / 100)
                )
        elif line.results:
            by_round = (
                _path(line.results)
                if recipe.plot == "path"
                else _by_round(recipe.plot, line.results)
            )
            curves[_name(recipe, line.cell)] = by_round
    return {name: sorted(one) for name, one in curves.items() if one}


def _name(recipe: Recipe, cell: Cell) -> str:
    if len(recipe.columns) == 1:
        return cell.row
    return (
        f"{recipe.axis} {cell.column}"
        if len(recipe.rows) == 1
        else f"{cell.row}, {recipe.axis} {cell.column}"
    )


def _path(results: Sequence[Result]) -> list[tuple[float, float]]:
    """Means over runs of the epsilon spent after a round, in the column that the budget bounds, and
    of its accuracy."""
    found: dict[int, list[tuple[float, float]]] = {}
    for one in results:
        for record in one.rounds:
            spent, accuracy = finite(_spent(record, one.summary.budget)), finite(record.accuracy)
            if spent is not None and accuracy is not None:
                found.setdefault(record.round, []).append((spent, accuracy))
    return [
        (statistics.mean(x), statistics.mean(y))
        for x, y in (zip(*pairs, strict=True) for pairs in found.values())
    ]


def _by_round(figure: str, results: Sequence[Result]) -> list[tuple[float, float]]:
    """Means over runs of the accuracy, or of a figure of the mechanism, by round."""
    found: dict[int, list[float]] = {}
    for record in (record for one in results for record in one.rounds):
        value = finite(record.accuracy if figure == "accuracy" else record.metrics.get(figure))
        if value is not None:
            found.setdefault(record.round, []).append(value)
    return [(number, statistics.mean(values)) for number, values in found.items()]
