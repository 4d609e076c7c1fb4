"""The leaderboard: trained cells by certified epsilon, and a list of those that have not run."""

from collections.abc import Sequence
from typing import NamedTuple

from sim.benching.table import Line
from sim.showing import wording

_MEASURED = ("accuracy, %", "seeds", "published epsilon")
HEAD = ("certified epsilon", "data", "clients", "row", *_MEASURED, "papers", "recipe")

TOP = """# Leaderboard

Written by `python -m sim.bench`; each line is a cell of a recipe, the accuracy of the last model on
the test part, the mean over seeds (least to largest). The first column is what is proved, the
largest over seeds. Papers' figures are claims under their own accounting. The choice of settings is
not covered.
"""


NOT_RUN = """There was no time for these. Core hours are a rough estimate for one seed of each
cell that has none.
"""


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
    rows = [HEAD, ("---",) * len(HEAD), *(_row(table, line) for table, line in found)]
    text = [TOP, *(f"| {' | '.join(part.replace('|', '/') for part in row)} |" for row in rows)]
    text += ["", "## What has not run", "", NOT_RUN]
    text += ["| recipe | budget | cells | with a seed | with three | core hours | without any |"]
    text += ["|---|---|---|---|---|---|---|"]
    for table in tables:
        seeds = [len(line.results) for line in table.lines]
        counts = f"{len(seeds)} | {sum(n > 0 for n in seeds)} | {sum(n > 2 for n in seeds)}"
        hours = f"{table.missing / 3600:.2g}" if 0 in seeds else ""
        text += [f"| {table.stem} | {table.budget} | {counts} | {hours} | {_absent(table.lines)} |"]
    return "\n".join(text) + "\n"


def _absent(lines: Sequence[Line]) -> str:
    """Cells without a seed, row by row; ``all`` if none has one."""
    rows: dict[str, list[str]] = {}
    for line in lines:
        if not line.results:
            rows.setdefault(line.cell.row.replace("|", "/"), []).append(line.cell.column)
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
    settings, shown = line.cell.settings, f"{line.mean:.2f}"
    if len(line.measured) > 1:
        shown += f" ({min(line.measured):.2f} to {max(line.measured):.2f})"
    return (
        wording.epsilon(line.epsilon("certified"), infinite="infinite"),
        str(settings.get("dataset", "digits")),
        str(settings.get("clients", "1")),
        line.cell.row,
        shown,
        str(len(line.results)),
        wording.epsilon(line.epsilon("published"), infinite="infinite"),
        ", ".join(f"{claim.paper} {claim.value:g}" for claim in line.cell.claims),
        f"{table.stem}, {line.cell.column}",
    )
