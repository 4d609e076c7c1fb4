"""Recipes: a table of a paper as rows and columns of settings, from a TOML file.

    title = "MNIST, one client"
    axis = "epsilon"                      # what the columns are
    plot = "epsilon"                      # what is drawn, see `PLOTS`

    [settings]                            # of every cell, by name, as flags have them
    dataset = "mnist"

    [[columns]]
    name = "3"
    settings = { epsilon = 3.0 }

    [[rows]]
    name = "DPSUR"
    # settings of a row of another recipe, by column, or of a cell of it:
    like = "mnist-pixels/DPSGD"
    # settings that papers give (`sim.config.papers`):
    follows = ["dpsur-pvldb-2024/table-1/MNIST"]
    settings = { mechanism = "dpsur" }
    cells = { 3 = { noise_multiplier = 1.35 } }      # of single cells, by column
    certified = { dpsur_accounting = "visible" }     # with that budget alone, or with `published`
    # rows of papers' figures, by column; accuracies are compared with the first:
    paper = ["dpsur-pvldb-2024/table-2/MNIST/DPSUR"]
    paper_cells = { 3 = ["..."] }                    # figures of single cells

    [deviations]                # from what a paper gives: the setting, or what else, and the reason
    lr = "..."

Of the settings that rows share, a row drops those that are not in use; its own are refused
(`sim.config.use`).

A cell's settings are those that it is like, those of the recipe, its column, its row, the budget
and the cell, each over those before; what is followed lies right below the settings beside it. One
client holds all records, unless ``clients = "many"``. A column with ``reach`` measures the least
epsilon at which that accuracy (in per cent) is reached; all such columns are one training.
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
from sim.config.fields import SETTINGS
from sim.config.names import FORMER, did_you_mean, suggest
from sim.config.papers import RECIPES, Claim

Values = dict[str, Any]

PLOTS = {
    "epsilon": "final accuracy against certified epsilon, a line for each row",
    "column": "final accuracy against the columns, a line for each row",
    "accuracy": "accuracy by round, a line for each cell",
    "path": "accuracy against the epsilon of the budget's column spent so far, a line for each "
    "cell",
}
"""What ``plot`` may be; any other name is a figure of the mechanism, drawn by round, a line for
each cell."""


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
    columns: tuple[str, ...] | None = Field(None, strict=False)


class Recipe(Settings):
    """A recipe; ``columns`` of a row and ``rows`` of a column say which cells there are, where that
    is not all."""

    title: str
    axis: str = "epsilon"
    plot: str = "epsilon"
    clients: Literal["one", "many"] = "one"
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
                if slugs.count(slug(name)) > 1:
                    raise ValueError(
                        f"{kind} {name!r} has the name of another in letters and digits: rename one"
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
        own: names of the settings that its row gives; of those it shares with other rows, only some
            may be in use.
        claims: figures that papers give for it: accuracies in per cent, or with ``reach`` epsilons.
        reach: the accuracy in per cent whose least epsilon is measured; None where the accuracy is.
    """

    row: str
    column: str
    settings: Values
    claims: tuple[Claim, ...] = ()
    reach: float | None = None
    own: frozenset[str] = frozenset()

    @property
    def paper(self) -> float | None:
        """The figure that it is compared with: the first one."""
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
        raise ValueError(
            f"the recipe {path} cannot be read ({error.strerror}): check its path"
        ) from None
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"])) or "recipe"
        raise ValueError(
            f"{path}: {place}: {first['msg']}: see sim/config/recipe.py for the form"
        ) from None
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path} is no TOML file of a recipe: {error}") from None


def cells(recipe: Recipe, budget: str) -> list[Cell]:
    """The recipe's cells, row by row.

    Raises:
        ValueError: a reference to a paper or to another recipe leads nowhere.
    """
    found = []
    for row in recipe.rows:
        for column in recipe.columns:
            if column.name not in (row.columns or (column.name,)) or row.name not in (
                column.rows or (row.name,)
            ):
                continue
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
            found.append(Cell(row.name, column.name, settings, claims, column.reach, own))
    return found


def _like(place: str | None, column: str, budget: str) -> Values:
    """The settings of a cell of the project's recipes, ``recipe/row`` or ``recipe/row/column``;
    none for None."""
    if place is None:
        return {}
    parts = place.split("/")
    known = {(cell.row, cell.column): cell.settings for cell in _known(parts[0], budget)}
    wanted = (parts[1], parts[2] if len(parts) > 2 else column) if len(parts) > 1 else ("", column)
    if wanted not in known:
        raise ValueError(
            f"like = {place!r} is no cell: {suggest('/'.join(wanted), map('/'.join, known))}"
        )
    return known[wanted]


@functools.cache
def _known(stem: str, budget: str) -> list[Cell]:
    return cells(read(RECIPES / f"{stem}.toml"), budget)


def slug(name: str) -> str:
    """A name as part of a file's name."""
    return re.sub(r"[^a-z0-9.-]+", "-", name.lower())


def checked(settings: Values) -> Values:
    """Settings with what is unset turned into None, as a configuration file has them."""
    for name in settings:
        if name not in SETTINGS:
            now = (
                f": it is called {FORMER[name]} now"
                if name in FORMER
                else did_you_mean(name, SETTINGS)
            )
            raise ValueError(f"unknown setting {name}{now}")
    unset = {
        name
        for name, value in settings.items()
        if SETTINGS[name].optional and value == SETTINGS[name].unset
    }
    return {name: None if name in unset else value for name, value in settings.items()}
