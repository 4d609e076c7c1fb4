"""What papers say: their tables and figures, transcribed into ``recipes/papers``, so that a number
stands there once.

    name = "DPSUR"                        # what the paper is called in our tables
    [records]                             # training records by data set, for ``rates``
    MNIST = 60000
    [table-1]
    sets = "dpsur_validation_noise"       # the setting that each number of the table is, or
    sets = { k = "dpis_slack" }           # the settings that its symbols are
    # symbols that are numbers of records, and settings that are shares of all:
    rates = { B_v = "dpsur_validation_rate" }
    [table-1.MNIST]
    3 = 0.9
    [uncertain]
    "table-1/MNIST/3" = "why the transcription may be wrong"

A reference is the way to an entry, ``dpsur-pvldb-2024/table-2/MNIST/DPSUR/3``: file, place, rows,
column.
"""

import functools
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sim.config.names import suggest

PACKAGES = Path(__file__).resolve().parents[2]
"""The folder of the project's packages: a checkout, or where they are installed."""
INSTALLED = PACKAGES / "sim" / "recipes"
RECIPES = INSTALLED if INSTALLED.is_dir() else PACKAGES / "recipes"
"""The folder of the project's recipes; ``papers`` in it holds the transcriptions."""


@dataclass(frozen=True)
class Claim:
    """A figure that a paper gives for a cell.

    Attributes:
        paper: the paper's name.
        reference: where it stands.
        value: the figure.
    """

    paper: str
    reference: str
    value: float


def claims(references: Iterable[str], column: str) -> tuple[Claim, ...]:
    """The figures for a column: of an entry that is a row, the one of that name, if it has one; of
    a number, itself.

    Raises:
        ValueError: a reference leads nowhere, or to something that is no number.
    """
    found = []
    for reference in references:
        value = entry(reference)
        if isinstance(value, dict):
            if column not in value:
                continue
            reference, value = f"{reference}/{column}", value[column]
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise ValueError(f"{reference} is {value!r}: a cell needs a number of a paper")
        found.append(Claim(_paper(reference.split("/")[0])["name"], reference, float(value)))
    return tuple(found)


def settings(references: Iterable[str], column: str) -> dict[str, Any]:
    """The settings that rows of tables give, each over those before it; of a row by column, those
    of this column.

    Raises:
        ValueError: a reference leads nowhere, or to what is no row of settings.
    """
    values: dict[str, Any] = {}
    for reference in references:
        row, (stem, place, *_) = entry(reference), reference.split("/")
        table, records = entry(f"{stem}/{place}"), _paper(stem).get("records", {})
        sets, rates = table.get("sets"), table.get("rates", {})
        if not isinstance(row, dict) or sets is None:
            raise ValueError(
                f"{reference} is no row of settings: its table needs sets = ..., and a row has "
                "columns"
            )
        if isinstance(sets, str):
            values |= {sets: row[column]} if column in row else {}
            continue
        values |= {sets[symbol]: value for symbol, value in row.items() if symbol in sets}
        of = records.get(reference.split("/")[-1])
        values |= {rates[symbol]: value / of for symbol, value in row.items() if symbol in rates}
    return values


def entry(reference: str) -> Any:
    """What a reference leads to.

    Raises:
        ValueError: a part of it that there is not, with what there is.
    """
    stem, *path = reference.split("/")
    value: Any = _paper(stem)
    for part in path:
        if not isinstance(value, dict) or part not in value:
            known = value if isinstance(value, dict) else ()
            raise ValueError(
                f"{reference}: recipes/papers/{stem}.toml has no {part!r} there: "
                f"{suggest(part, known)}"
            )
        value = value[part]
    return value


@functools.cache
def _paper(stem: str) -> dict[str, Any]:
    known = sorted(path.stem for path in (RECIPES / "papers").glob("*.toml"))
    if stem not in known:
        raise ValueError(f"{stem!r} is no file of recipes/papers: {suggest(stem, known)}")
    return tomllib.loads((RECIPES / "papers" / f"{stem}.toml").read_text(encoding="utf-8"))
