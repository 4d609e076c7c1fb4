"""The leaderboard: trained cells by certified epsilon, why some are below a paper's figure, and
a list of those that have not run."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from sim.benching.table import Line, in_markdown
from sim.config.papers import Claim
from sim.showing import wording

_MEASURED = ("accuracy, %", "seeds", "published epsilon")
HEAD = ("certified epsilon", "data", "clients", "row", *_MEASURED, "papers", "recipe")

TOP = """# Leaderboard

Written by `python -m sim.bench`; each line is a cell of a recipe, the accuracy of the last model on
the test part, the mean over seeds (least to largest). The first column is what is proved, the
largest over seeds. Papers' figures are claims under their own accounting. The choice of settings is
not covered.
"""

REACHED = """The epsilon that a run had spent, as its budget bounds it, when the model first had the
accuracy on the test part: the mean over seeds (least to largest). That the test part tells this
round is not covered.
"""
REACHED_HEAD = ("epsilon", "budget", "data", "row", "accuracy, %", "seeds", "papers", "recipe")

BELOW = """Rows with cells whose mean is below a figure that a paper reports for them, with the
largest of these figures, and why, as far as it was measured.
"""
BELOW_HEAD = ("recipe, row", "cells", "why")

NOT_RUN = """There was no time for these. Core hours are a rough estimate for one seed of each
cell that has none.
"""
_COUNTS = ("cells", "with a seed", "with three", "core hours")
NOT_RUN_HEAD = ("recipe", "budget", *_COUNTS, "without any")


class Table(NamedTuple):
    """The lines of a recipe with one budget, and roughly the seconds on one core of a seed of each
    that has none."""

    stem: str
    budget: str
    lines: Sequence[Line]
    missing: float


def page(tables: Sequence[Table]) -> str:
    """The page in Markdown: by data set, then epsilon, the best accuracy first."""
    pairs = [(table, line) for table in tables for line in table.lines]
    found = [(t, line) for t, line in pairs if line.cell.reach is None and line.mean is not None]
    found.sort(key=_place)
    text = [TOP, *in_markdown(HEAD, (_row(table, line) for table, line in found))]
    reached = [(t, line) for t, line in pairs if line.cell.reach is not None and line.results]
    if reached:
        rows = (_reached(table, line) for table, line in reached)
        text += ["", "## Epsilon for an accuracy", "", REACHED, *in_markdown(REACHED_HEAD, rows)]
    text += ["", "## Below a paper's figure", "", BELOW, *in_markdown(BELOW_HEAD, _below(found))]
    states = in_markdown(NOT_RUN_HEAD, map(_state, tables))
    text += ["", "## What has not run", "", NOT_RUN, *states]
    return "\n".join(text) + "\n"


def _below(found: Sequence[tuple[Table, Line]]) -> Iterator[tuple[str, ...]]:
    """Rows of recipes with cells whose mean, as printed, is below a paper's figure."""
    rows: dict[tuple[str, str], list[str]] = {}
    for table, line in found:
        most = max((claim.value for claim in line.cell.claims), default=0.0)
        shown = f"{line.mean:.2f}"
        if float(shown) < most:
            key = f"{table.stem}, {line.cell.row}", line.cell.below or "not measured"
            rows.setdefault(key, []).append(f"{line.cell.column}: {shown} of {most:g}")
    return ((name, "; ".join(cells), why) for (name, why), cells in rows.items())


def _state(table: Table) -> tuple[str, ...]:
    """How many cells of a recipe have run."""
    seeds = [len(line.results) for line in table.lines]
    counts = len(seeds), sum(n > 0 for n in seeds), sum(n > 2 for n in seeds)
    hours = f"{table.missing / 3600:.2g}" if 0 in seeds else ""
    return (table.stem, table.budget, *map(str, counts), hours, _absent(table.lines))


def _absent(lines: Sequence[Line]) -> str:
    """Cells without a seed, row by row; ``all`` if none has one."""
    rows: dict[str, list[str]] = {}
    for line in lines:
        if not line.results:
            rows.setdefault(line.cell.row, []).append(line.cell.column)
    if sum(map(len, rows.values())) == len(lines):
        return "all"
    return "; ".join(f"{row}: {', '.join(columns)}" for row, columns in rows.items())


def _place(entry: tuple[Table, Line]) -> tuple[object, ...]:
    line = entry[1]
    spent, data = line.epsilon("certified"), str(line.cell.settings.get("dataset", "digits"))
    target = line.cell.settings.get("epsilon", "none")
    known = isinstance(target, int | float) and spent is not None
    return data, not known, target if known else 0.0, -(line.mean or 0.0)


def _row(table: Table, line: Line) -> tuple[str, ...]:
    settings = line.cell.settings
    return (
        wording.epsilon(line.epsilon("certified"), infinite="infinite"),
        str(settings.get("dataset", "digits")),
        str(settings.get("clients", "1")),
        line.cell.row,
        f"{line.mean:.2f}{line.spread}",
        str(len(line.results)),
        wording.epsilon(line.epsilon("published"), infinite="infinite"),
        "; ".join(map(_reported, line.cell.claims)),
        f"{table.stem}, {line.cell.column}",
    )


def _reached(table: Table, line: Line) -> tuple[str, ...]:
    return (
        "not reached" if line.mean is None else f"{line.mean:.2f}{line.spread}",
        table.budget,
        str(line.cell.settings.get("dataset", "digits")),
        line.cell.row,
        f"{line.cell.reach:g}",
        str(len(line.results)),
        "; ".join(map(_reported, line.cell.claims)),
        f"{table.stem}, {line.cell.column}",
    )


def _reported(claim: Claim) -> str:
    """A paper's figure, with its table or figure, row and column."""
    place, *entry = claim.reference.split("/")[1:]
    return f"{claim.value:g} ({claim.paper}, {place.replace('-', ' ')}, {', '.join(entry)})"
