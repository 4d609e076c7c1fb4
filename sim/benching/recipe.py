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
    settings = { mechanism = "dpsur" }
    cells = { 3 = { noise_multiplier = 1.35 } }     # of single cells, by column
    certified = { accounting = "visible" }          # with that budget alone, or with `published`
    paper = { 3 = 98.88 }                           # the paper's accuracies in per cent, by column

A cell's settings are those of the recipe, its column, its row, the budget and the cell, each over those before. One
client holds all records, unless ``clients = "many"``.
"""

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, ValidationError, model_validator

from mechanisms.settings import Settings
from sim.config import Config, load
from sim.fields import SETTINGS
from sim.names import did_you_mean, suggest

Values = dict[str, Any]

PLOTS = {
    "epsilon": "final accuracy against certified epsilon, a line for each row",
    "column": "final accuracy against the columns, a line for each row",
    "accuracy": "accuracy by round, a line for each cell",
}
"""What ``plot`` may be; any other name is a figure of the mechanism, drawn by round, a line for each cell."""


class Column(Settings):
    """A column of a recipe."""

    name: str = Field(min_length=1)
    settings: Values = Field({})
    rows: tuple[str, ...] | None = Field(None, strict=False)


class Row(Settings):
    """A row of a recipe."""

    name: str = Field(min_length=1)
    settings: Values = Field({})
    cells: dict[str, Values] = Field({})
    certified: Values = Field({})
    published: Values = Field({})
    paper: dict[str, float] = Field({})
    columns: tuple[str, ...] | None = Field(None, strict=False)


class Recipe(Settings):
    """A recipe; ``columns`` of a row and ``rows`` of a column say which cells there are, where that is not all."""

    title: str
    axis: str = "epsilon"
    plot: str = "epsilon"
    clients: Literal["one", "many"] = "one"
    settings: Values = Field({})
    columns: tuple[Column, ...] = Field(min_length=1, strict=False)
    rows: tuple[Row, ...] = Field(min_length=1, strict=False)

    @model_validator(mode="after")
    def _names_fit(self) -> Self:
        rows, columns = [row.name for row in self.rows], [column.name for column in self.columns]
        for kind, names in (("row", rows), ("column", columns)):
            slugs = [slug(name) for name in names]
            for name in names:
                if slugs.count(slug(name)) > 1:
                    raise ValueError(f"{kind} {name!r} has the name of another in letters and digits: rename one")
        used = [(name, columns) for row in self.rows for name in (*row.cells, *row.paper, *(row.columns or ()))]
        used += [(name, rows) for column in self.columns for name in column.rows or ()]
        for name, known in used:
            if name not in known:
                raise ValueError(f"{name!r} is no row or column of the recipe: {suggest(name, known)}")
        return self


@dataclass(frozen=True)
class Cell:
    """A cell of a recipe's table.

    Attributes:
        row, column: names.
        settings: by name.
        paper: the paper's accuracy in per cent, where it gives one.
    """

    row: str
    column: str
    settings: Values
    paper: float | None

    @property
    def label(self) -> str:
        """Its row and its column."""
        return f"{self.row}, {self.column}"

    def config(self, given: Values, central: bool) -> Config:
        """Its configuration with further settings ``given`` over its own.

        Raises:
            ValueError: a setting is unknown or out of its bounds; the cell is named.
        """
        try:
            return load(None, _checked(self.settings) | given, central)
        except ValueError as fault:
            raise ValueError(f"{self.label}: {fault}") from None


def read(path: Path) -> Recipe:
    """The recipe in a TOML file.

    Raises:
        ValueError: in one line, with the file, the place and a remedy.
    """
    try:
        return Recipe(**tomllib.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise ValueError(f"the recipe {path} cannot be read ({error.strerror}): check its path") from None
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"])) or "recipe"
        raise ValueError(f"{path}: {place}: {first['msg']}: see sim/benching/recipe.py for the form") from None
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path} is no TOML file of a recipe: {error}") from None


def cells(recipe: Recipe, budget: str) -> list[Cell]:
    """The recipe's cells, row by row."""
    found = []
    for row in recipe.rows:
        for column in recipe.columns:
            if column.name not in (row.columns or (column.name,)) or row.name not in (column.rows or (row.name,)):
                continue
            of_budget = row.published if budget == "published" else row.certified
            layers = (recipe.settings, column.settings, row.settings, of_budget, row.cells.get(column.name, {}))
            settings: Values = {}
            for layer in layers:
                settings |= layer
            found.append(Cell(row.name, column.name, settings, row.paper.get(column.name)))
    return found


def slug(name: str) -> str:
    """A name as part of a file's name."""
    return re.sub(r"[^a-z0-9.-]+", "-", name.lower())


def _checked(settings: Values) -> Values:
    """Settings with what is unset turned into None, as a configuration file has them."""
    for name in settings:
        if name not in SETTINGS:
            raise ValueError(f"unknown setting {name}{did_you_mean(name, SETTINGS)}")
    unset = {name for name, value in settings.items() if SETTINGS[name].optional and value == SETTINGS[name].unset}
    return {name: None if name in unset else value for name, value in settings.items()}
