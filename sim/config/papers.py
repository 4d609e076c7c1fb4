"""Results and settings of papers, transcribed once into ``recipes/papers``.

    name = "DPSUR"                        # what the paper is called in our tables
    [records]                             # training records by data set, for ``rates``
    MNIST = 60000
    [table-1]
    sets = "dpsur_validation_noise"       # the setting that each number of the table is, or
    sets = { k = "dpis_slack" }           # the setting for each of its symbols
    # symbols that count records, for settings that are fractions of all records:
    rates = { B_v = "dpsur_validation_rate" }
    [table-1.MNIST]
    3 = 0.9
    [uncertain]
    "table-1/MNIST/3" = "why the transcription may be wrong"

A reference is the path of an entry, ``dpsur-pvldb-2024/table-2/MNIST/DPSUR/3``: file, table, rows,
column.
"""

import functools
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sim.config.names import suggest

ROOT = Path(__file__).resolve().parents[2]
"""The folder that holds the project's packages: a checkout, or where they are installed."""
INSTALLED = ROOT / "sim" / "recipes"
RECIPES = INSTALLED if INSTALLED.is_dir() else ROOT / "recipes"
"""The folder of the project's recipes; its subfolder ``papers`` holds the transcriptions."""


@dataclass(frozen=True)
class Claim:
    """A number that a paper reports for a cell.

    Attributes:
        paper: the paper's name.
        reference: path of the entry.
        value: the number.
    """

    paper: str
    reference: str
    value: float


def claims(references: Iterable[str], column: str) -> tuple[Claim, ...]:
    """The numbers that the references give for a column: a row's entry of that name, or the number.

    Rows without the column are skipped.

    Raises:
        ValueError: a reference does not exist, or is not a number.
    """
    found = []
    for reference in references:
        value = entry(reference)
        if isinstance(value, dict):
            if column not in value:
                continue
            reference, value = f"{reference}/{column}", value[column]
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise ValueError(f"{reference} is {value!r}: a cell needs a number from a paper")
        found.append(Claim(_paper(reference.split("/")[0])["name"], reference, float(value)))
    return tuple(found)


def settings(references: Iterable[str], column: str) -> dict[str, Any]:
    """The settings that rows of papers' tables give for a column; later rows override earlier ones.

    Raises:
        ValueError: a reference does not exist, or is not a row of settings.
    """
    values: dict[str, Any] = {}
    for reference in references:
        row, (stem, place, *_) = entry(reference), reference.split("/")
        table, records = entry(f"{stem}/{place}"), _paper(stem).get("records", {})
        sets, rates = table.get("sets"), table.get("rates", {})
        if not isinstance(row, dict) or sets is None:
            raise ValueError(
                f"{reference} is not a row of settings: its table needs sets = ..., and a row has "
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
    """The entry at a reference.

    Raises:
        ValueError: a part of the path does not exist; the message lists what does.
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
        raise ValueError(f"{stem!r} is not a file of recipes/papers: {suggest(stem, known)}")
    return tomllib.loads((RECIPES / "papers" / f"{stem}.toml").read_text(encoding="utf-8"))
