"""Recipes: a paper's table as rows and columns of settings, from a TOML file.

    title = "MNIST, one client"
    axis = "epsilon"                      # what the columns vary
    budget = "published"                  # if it can only be trained with this one
    plot = "epsilon"                      # what is drawn, see `PLOTS`

    [settings]                            # of every cell, by name, with the values of flags
    dataset = "mnist"

    [[columns]]
    name = "3"
    settings = { epsilon = 3.0 }

    [[rows]]
    name = "DPSUR"
    # start from the settings of another recipe's row (same column) or cell:
    like = "mnist-pixels/DPSGD"
    # settings that papers report (`sim.config.papers`):
    follows = ["dpsur-pvldb-2024/table-1/MNIST"]
    settings = { mechanism = "dpsur" }
    cells = { 3 = { noise_multiplier = 1.35 } }      # of single cells, by column
    certified = { dpsur_accounting = "visible" }     # only with this budget, or with `published`
    # rows of papers' results, by column; accuracies are compared with the first:
    paper = ["dpsur-pvldb-2024/table-2/MNIST/DPSUR"]
    paper_cells = { 3 = ["..."] }                    # results of single cells
    below = "..."             # why its cells stay below these results: what was measured

    [deviations]                # from a paper: the setting, or another aspect, and the reason
    lr = "..."

A row drops shared settings that it does not use; unused settings of its own are refused
(`sim.config.use`).

A cell's settings are those of `like`, the recipe, its column, its row, the budget and the cell,
each overriding those before; `follows` applies just before the settings beside it. One client
holds all records, unless ``clients = "many"``. A column with ``reach`` measures the smallest
epsilon at which that accuracy (in per cent) is reached; all such columns share one training.
"""

import functools
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, ValidationError, model_validator

from mechanisms.settings import Settings
from sim.config import papers
from sim.config.fields import find_setting
from sim.config.names import did_you_mean, suggest
from sim.config.papers import RECIPES, Claim

Values = dict[str, Any]
"""Settings by name."""

PLOTS = {
    "epsilon": "final accuracy against certified epsilon, a line for each row",
    "frontier": "the same, and a line through the cells that no other beats at a smaller epsilon",
    "column": "final accuracy against the columns, a line for each row",
    "boxes": "the same, a box for each cell: its spread over seeds",
    "accuracy": "accuracy by round, a line for each cell",
    "path": "accuracy against the epsilon of the budget's column spent so far, a line for each "
    "cell",
}
"""Values of ``plot``; any other is a metric of the mechanism, by round with a line per cell."""


SHARED = "reach"
"""In names of folders: all columns with ``reach``, which share a training."""


class Column(Settings):
    """A column of a recipe."""

    name: str = Field(min_length=1)
    settings: Values = Field({})
    rows: tuple[str, ...] | None = Field(None, strict=False)
    reach: float | None = Field(None, gt=0, lt=100)

    @model_validator(mode="after")
    def _one_training(self) -> Self:
        if self.reach is not None and self.settings:
            raise ValueError(
                f"column {self.name!r} has reach and settings, but it is measured on one training: "
                "drop one"
            )
        return self


class Row(Settings):
    """A row of a recipe."""

    name: str = Field(min_length=1)
    like: str | None = None
    follows: list[str] = Field([])
    settings: Values = Field({})
    cells: dict[str, Values] = Field({})
    certified: Values = Field({})
    published: Values = Field({})
    paper: list[str] = Field([])
    paper_cells: dict[str, list[str]] = Field({})
    below: str = ""
    columns: tuple[str, ...] | None = Field(None, strict=False)


class Recipe(Settings):
    """A recipe; ``columns`` of a row and ``rows`` of a column restrict which cells exist."""

    title: str
    axis: str = "epsilon"
    plot: str = "epsilon"
    clients: Literal["one", "many"] = "one"
    budget: Literal["certified", "published"] | None = None
    like: str | None = None
    follows: list[str] = Field([])
    settings: Values = Field({})
    deviations: dict[str, str] = Field({})
    columns: tuple[Column, ...] = Field(min_length=1, strict=False)
    rows: tuple[Row, ...] = Field(min_length=1, strict=False)

    @model_validator(mode="after")
    def _names_fit(self) -> Self:
        rows, columns = [row.name for row in self.rows], [column.name for column in self.columns]
        for kind, names in (("row", rows), ("column", columns)):
            slugs = [slug(name) for name in names]
            for name in names:
                if kind == "row" and not re.match("[a-z0-9]", slug(name)):
                    raise ValueError(
                        f"row {name!r} begins with neither a letter of a to z nor a digit, as "
                        "names of folders must: rename it"
                    )
                if slugs.count(slug(name)) > 1:
                    raise ValueError(
                        f"{kind} {name!r} has the name of another in letters and digits: rename one"
                    )
        shared = [column.name for column in self.columns if column.reach is not None]
        for column in self.columns:
            if shared and column.reach is None and slug(column.name) == SHARED:
                raise ValueError(
                    f"column {column.name!r} has the name of the folder in which {shared[0]!r} is "
                    "measured: rename it"
                )
        used = [
            (name, columns)
            for row in self.rows
            for name in (*row.cells, *row.paper_cells, *(row.columns or ()))
        ]
        used += [(name, rows) for column in self.columns for name in column.rows or ()]
        for name, known in used:
            if name not in known:
                raise ValueError(
                    f"{name!r} is no row or column of the recipe: {suggest(name, known)}"
                )
        return self


@dataclass(frozen=True)
class Cell:
    """A cell of a recipe's table.

    Attributes:
        row, column: names.
        settings: by name.
        own: names of the settings that its row gives; unlike shared ones they must be in use.
        below: why it stays below what papers report, if it does; empty if that was not measured.
        claims: what papers report for it: accuracies in per cent, or epsilons with ``reach``.
        reach: if not None, the smallest epsilon with this accuracy (in per cent) is measured.
    """

    row: str
    column: str
    settings: Values
    claims: tuple[Claim, ...] = ()
    reach: float | None = None
    own: frozenset[str] = frozenset()
    below: str = ""

    @property
    def paper(self) -> float | None:
        """The paper's number that it is compared with: the first claim."""
        return self.claims[0].value if self.claims else None

    @property
    def label(self) -> str:
        """Its row and its column."""
        return f"{self.row}, {self.column}"


def read(path: Path) -> Recipe:
    """The recipe in a TOML file.

    Raises:
        ValueError: in one line, with the file, the place and a remedy.
    """
    try:
        return Recipe(**tomllib.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        hint = did_you_mean(path.stem, (one.stem for one in RECIPES.glob("*.toml")))
        fault = f"the recipe {path} cannot be read ({error.strerror}){hint or ':'} check its path"
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"])) or "recipe"
        said = first["msg"]
        if first["type"] == "extra_forbidden":
            known = (*Recipe.model_fields, *Row.model_fields, *Column.model_fields)
            said = f"unknown{did_you_mean(str(first['loc'][-1]), known)}"
        fault = f"{path}: {place}: {said}: see sim/config/recipe.py for the form"
    except (ValueError, TypeError, RecursionError) as error:
        fault = f"{path} is not a TOML file of a recipe: {error}; correct it"
    raise ValueError(fault)


def cells(recipe: Recipe, budget: str) -> list[Cell]:
    """The recipe's cells, row by row.

    Raises:
        ValueError: a reference to a paper or to another recipe does not exist.
    """
    return [
        _cell(recipe, row, column, budget)
        for row in recipe.rows
        for column in recipe.columns
        if (not row.columns or column.name in row.columns)
        and (not column.rows or row.name in column.rows)
    ]


def _cell(recipe: Recipe, row: Row, column: Column, budget: str) -> Cell:
    of_budget = row.published if budget == "published" else row.certified
    layers = (
        _like(recipe.like, column.name, budget),
        _like(row.like, column.name, budget),
        papers.settings(recipe.follows, column.name),
        recipe.settings,
        column.settings,
        papers.settings(row.follows, column.name),
        row.settings,
        of_budget,
        row.cells.get(column.name, {}),
    )
    settings: Values = {}
    for layer in layers:
        settings |= layer
    own = frozenset(name for layer in layers[-3:] for name in layer)
    references = (*row.paper, *row.paper_cells.get(column.name, ()))
    claims = papers.claims(references, column.name)
    return Cell(row.name, column.name, settings, claims, column.reach, own, row.below)


def _like(place: str | None, column: str, budget: str) -> Values:
    """The settings of a recipe's cell, ``recipe/row`` or ``recipe/row/column``; empty for None."""
    if place is None:
        return {}
    stem, _, cell = place.partition("/")
    row, _, named = cell.partition("/")
    column = named or column
    known = {(cell.row, cell.column): cell.settings for cell in _known(stem, budget)}
    if (row, column) in known:
        return known[row, column]
    if columns := [of for other, of in known if other == row]:
        fault = f"{row!r} has no column {column!r}: write {stem}/{row}/COLUMN with one of its own; "
        raise ValueError(f"like = {place!r} is no cell: {fault}{suggest(column, columns)}")
    rows = dict.fromkeys(other for other, _ in known)
    raise ValueError(f"like = {place!r} is no cell: {suggest(row, rows)}")


@functools.cache
def _known(stem: str, budget: str) -> list[Cell]:
    return cells(read(RECIPES / f"{stem}.toml"), budget)


def slug(name: str) -> str:
    """A name in the form used in file names."""
    return re.sub(r"[^a-z0-9.-]+", "-", name.lower())


def checked(settings: Values) -> Values:
    """Settings with None in place of the text for "not set".

    Raises:
        ValueError: an unknown setting.
    """
    return {name: find_setting(name).read(value) for name, value in settings.items()}
