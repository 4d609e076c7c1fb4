"""The runs of a table: one run directory for each cell and seed."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from server import closing
from server.records import read_rounds
from server.store import ROUNDS
from sim.benching import kept
from sim.benching.kept import FREE, Result
from sim.config.configuration import Config, differences, load
from sim.config.fields import SETTINGS
from sim.config.recipe import SHARED, Cell, Recipe, Values, cells, checked, slug

OURS = frozenset(("budget", "name", "out", "quiet", "seed"))
"""Settings that a recipe has no say in."""


@dataclass(frozen=True, eq=False)
class Run:
    """One training: a cell with a seed, its folder, and its result file ``kept``."""

    cell: Cell
    seed: int
    config: Config
    folder: Path
    kept: Path | None = None

    @functools.cached_property
    def digest(self) -> str:
        """The digest of its configuration."""
        return kept.digest(self.config)

    @property
    def finished(self) -> bool:
        """Whether it needs no more training."""
        return (self.folder / closing.FILE).is_file() or self.loaded() is not None

    def loaded(self) -> Result | None:
        """Its result file's content; None without a file of these settings."""
        return None if self.kept is None else kept.load(self.kept, self.digest)

    def keep(self) -> None:
        """Write the result file of a finished run, if one is wanted."""
        summary = None if self.kept is None else closing.read(self.folder)
        if self.kept is not None and summary is not None and self.loaded() is None:
            kept.save(self.kept, self.cell, self.config, self.folder, summary)

    def check(self) -> None:
        """Refuse to resume a run directory with other settings.

        Raises:
            ValueError: names the settings that differ.
        """
        if not self.folder.exists():
            return
        saved = load(self.folder / "config.toml", {}, lenient=SETTINGS)
        chosen = {"chunk_clients"} if self.config.run.chunk_clients is None else set[str]()
        other = sorted(set(differences(saved, self.config)) - FREE - chosen)
        if other:
            raise ValueError(
                f"{self.folder} was trained with other settings ({', '.join(other)}): give another "
                "--out, or remove it"
            )


def plan(
    recipe: Recipe,
    folder: Path,
    budget: str,
    seeds: Sequence[int],
    given: Values,
    files: Path | None = None,
) -> list[Run]:
    """All runs of a recipe, cell by cell; nothing is written yet.

    Columns with ``reach`` share a run directory.

    Args:
        recipe: the recipe.
        folder: parent of the run directories.
        budget: ``certified`` or ``published``.
        seeds: seeds of each cell.
        given: settings that override those of all cells.
        files: folder of result files, or None.

    Raises:
        ValueError: a cell's settings are invalid, or a run directory has other settings.
    """
    runs = []
    for cell in cells(recipe, budget):
        for seed in seeds:
            column = SHARED if cell.reach is not None else slug(cell.column)
            name = f"{slug(cell.row)}_{column}_seed-{seed}"
            fixed: Values = {"budget": budget, "seed": seed, "out": str(folder), "name": name}
            fixed |= {"engine": cell.settings.get("engine", "inline"), "quiet": True}
            config = config_of(cell, given | fixed, central=recipe.clients == "one")
            file = None if files is None else files / folder.name / f"{name}.json"
            runs.append(Run(cell, seed, config, folder / name, file))
            runs[-1].check()
    return runs


def config_of(cell: Cell, given: Values, central: bool) -> Config:
    """The configuration of a cell; ``given`` settings override its own.

    Raises:
        ValueError: a setting is unknown or out of bounds, or one of its row is not in use; the
            message names the cell.
    """
    if theirs := sorted(OURS & cell.settings.keys()):
        raise ValueError(
            f"{cell.label}: {theirs[0]} is given by sim.bench itself: leave it out of the recipe"
        )
    try:
        settings = checked(cell.settings) | given
        return load(None, settings, central, lenient=settings.keys() - (cell.own - given.keys()))
    except ValueError as fault:
        raise ValueError(f"{cell.label}: {fault}") from None


def play(run: Run) -> str:
    """Start or resume the training; returns its error, or an empty string.

    An error of one cell is shown in the table and does not stop other cells.
    """
    from sim.job.environment import prepare

    prepare()
    from sim.commands.flags import Request
    from sim.engines.start import train

    begun = run.folder.exists()
    config = load(run.folder / "config.toml", {}, lenient=SETTINGS) if begun else run.config
    try:
        train(Request(config, run.folder if begun else None, frozenset()))
    except (ValueError, RuntimeError, MemoryError, OSError) as fault:
        return " ".join(str(fault).split()) or type(fault).__name__
    return ""


def result(run: Run) -> Result | None:
    """The results of a finished run; None if it is not finished."""
    if (summary := closing.read(run.folder)) is None:
        return run.loaded()
    return Result(summary, read_rounds(run.folder / ROUNDS))
