"""The command line of ``python -m sim.bench``: recipes, and what is to be done with them."""

import argparse
import os
import time
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path

from sim.config.papers import INSTALLED, PACKAGES, RECIPES


def parser(program: str) -> argparse.ArgumentParser:
    """The command's arguments."""
    new = argparse.ArgumentParser(
        prog=program,
        description="Run the cells of recipes and write their tables.",
        allow_abbrev=False,
    )
    new.add_argument(
        "recipes",
        metavar="RECIPE",
        type=_recipe,
        nargs="+",
        help="TOML files, or names of the project's recipes, such as mnist-scattering",
    )
    new.add_argument(
        "--seeds",
        type=_seeds,
        help="seeds of each cell, such as 0,1,2 (default: 0; with an end 0 to 4)",
    )
    new.add_argument(
        "--budget",
        choices=("certified", "published"),
        default="certified",
        help="the figure that a cell's epsilon bounds: the proved one (default), or the paper's "
        "own claim",
    )
    new.add_argument("--rows", type=_names, help="these rows alone, such as DPSGD,DPSUR")
    new.add_argument("--columns", type=_names, help="these columns alone, such as 3,4")
    new.add_argument(
        "--processes",
        type=int,
        default=os.cpu_count() or 1,
        help="runs at a time (default: CPU cores)",
    )
    new.add_argument(
        "--out",
        type=Path,
        default=Path("runs/bench"),
        help="folder of tables and runs (%(default)s)",
    )
    end = new.add_mutually_exclusive_group()
    end.add_argument("--hours", type=float, help="fill the leaderboard for that long [hours]")
    end.add_argument(
        "--until", type=_moment, help="fill the leaderboard up to this time of day, such as 09:30"
    )
    new.add_argument(
        "--cells", type=Path, help="folder of result files (with an end: benchmarks/results/cells)"
    )
    new.add_argument(
        "--page", type=Path, help="the leaderboard's file (with an end: docs/leaderboard.md)"
    )
    new.add_argument(
        "--data-dir",
        help="folder of downloaded data sets; else the environment's, or the user's cache",
    )
    return new


def parse(argv: Sequence[str], program: str) -> argparse.Namespace:
    """What is asked for: the arguments by name, and ``end``, the last moment to start a run by
    `time.monotonic`, or None.

    Raises:
        ValueError: in one line, with the name, the value, its bound and a remedy.
        SystemExit: with status 2, for arguments that cannot be read.
    """
    given = parser(program).parse_args(argv)
    if given.processes < 1:
        raise ValueError(f"processes = {given.processes} must be at least 1: give --processes")
    given.end = _completed(given)
    return given


def _completed(given: argparse.Namespace) -> float | None:
    """Fill in what depends on whether there is an end; when that is, by `time.monotonic`."""
    wait = given.until if given.hours is None else 3600.0 * given.hours
    if wait is not None and wait < 0:
        raise ValueError(f"hours = {given.hours:g} must be at least 0: give --hours")
    if given.seeds is None:
        given.seeds = [0] if wait is None else list(range(5))
    if wait is None:
        return None
    checkout = RECIPES != INSTALLED
    page = PACKAGES / "docs" / "leaderboard.md" if checkout else given.out / "leaderboard.md"
    given.page = given.page or (page if given.cells is None else None)
    given.cells = (
        given.cells or (PACKAGES / "benchmarks" / "results" if checkout else given.out) / "cells"
    )
    return time.monotonic() + wait


def _recipe(text: str) -> Path:
    """A file, or else the project's recipe of that name."""
    path, own = Path(text), RECIPES / f"{text}.toml"
    return own if own.is_file() and not path.exists() else path


def _seeds(text: str) -> list[int]:
    return sorted({int(part) for part in text.split(",")})


def _moment(text: str) -> float:
    """Seconds from now to the next time that the clock shows this."""
    now = datetime.now()
    then = now.replace(
        hour=int(text[: text.index(":")]),
        minute=int(text[text.index(":") + 1 :]),
        second=0,
        microsecond=0,
    )
    return (
        (then - now).total_seconds()
        if then > now
        else (then + timedelta(days=1) - now).total_seconds()
    )


def _names(text: str) -> list[str]:
    return [part.strip() for part in text.split(",")]
