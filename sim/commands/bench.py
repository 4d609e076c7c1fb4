"""The command line of ``python -m sim.bench``."""

import argparse
import os
import time
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path

from mechanisms.accounting.choosing import check_mean
from mechanisms.durable import REPLACED, check_file
from sim.commands.parser import Parser
from sim.config.papers import INSTALLED, RECIPES, ROOT

MAX_HOURS = 8_760.0
"""A year; much longer waits overflow."""
LEADERBOARD_SEEDS = range(5)
"""Seeds of each cell of a leaderboard."""


def parser(program: str) -> argparse.ArgumentParser:
    """The command's arguments."""
    new = Parser(
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
        help="seeds of each cell, such as 0,1,2 (default: 0; with a time limit 0 to 4)",
    )
    new.add_argument(
        "--budget",
        choices=("certified", "published"),
        default="certified",
        help="which epsilon the budget bounds: the proved one (default), or the paper's claim; a "
        "recipe may state its own",
    )
    new.add_argument("--rows", help="train only these rows, such as DPSGD,DPSUR")
    new.add_argument("--columns", help="train only these columns, such as 3,4")
    cores, out = os.cpu_count() or 1, Path("runs/bench")
    new.add_argument("--processes", type=int, default=cores, help="runs at a time (CPU cores)")
    new.add_argument(
        "--out", type=_path, default=out, help="folder of tables and runs (%(default)s)"
    )
    new.add_argument(
        "--tries",
        metavar="MEAN",
        type=float,
        help="train a random number of random cells, MEAN on average, and name the best with its "
        "epsilon",
    )
    end = new.add_mutually_exclusive_group()
    end.add_argument("--hours", type=float, help="fill the leaderboard for that long [hours]")
    until = "fill the leaderboard up to this time of day, such as 09:30"
    end.add_argument("--until", type=_moment, help=until)
    cells = "folder of result files (with a time limit: benchmarks/results/cells)"
    new.add_argument("--cells", type=_path, help=cells)
    page = "the leaderboard's file (with a time limit: docs/leaderboard.md)"
    new.add_argument("--page", type=_path, help=page)
    folder = "folder of downloaded data sets; else $DP_FED_DATA, or the user's cache"
    new.add_argument("--data-dir", help=folder)
    return new


def parse(argv: Sequence[str], program: str) -> argparse.Namespace:
    """The arguments by name; ``end``: the `time.monotonic` until which runs start, or None; and
    ``project``: whether the page is the project's own, of all its recipes.

    Raises:
        ValueError: in one line, with the name, the value, its bound and a remedy.
    """
    given = parser(program).parse_args(argv)
    if given.processes < 1:
        raise ValueError(f"processes = {given.processes} must be at least 1: give --processes")
    if given.tries is not None:
        _check_tries(given)
    given.project = False
    given.end = _completed(given)
    if given.page is not None:
        check_file(given.page, REPLACED)
    if given.out.exists() and not given.out.is_dir():
        raise ValueError(f"out = {given.out} is no folder: give --out another")
    return given


def _check_tries(given: argparse.Namespace) -> None:
    """Refuse what does not go with a random choice of runs."""
    check_mean(given.tries)
    asked = {name: getattr(given, name) for name in ("hours", "until", "cells", "seeds")}
    found = [f"--{name}" for name, value in asked.items() if value is not None]
    found += ["--budget published"] * (given.budget == "published")
    found += ["other recipes"] * (len(given.recipes) > 1)
    if found:
        raise ValueError(
            f"--tries {given.tries:g} draws the cells of one recipe, each with a seed of its own, "
            f"and prices the best by its certified epsilon: drop {' and '.join(found)}"
        )


def _completed(given: argparse.Namespace) -> float | None:
    """Fill in defaults that depend on the time limit; returns its end by `time.monotonic`."""
    wait = given.until if given.hours is None else 3600.0 * given.hours
    if wait is not None and not 0 <= wait <= 3600.0 * MAX_HOURS:
        raise ValueError(
            f"hours = {given.hours:g} must be at least 0 and at most {MAX_HOURS:g}: give --hours"
        )
    if given.seeds is None:
        given.seeds = [0] if wait is None else list(LEADERBOARD_SEEDS)
    if wait is None:
        return None
    checkout = RECIPES != INSTALLED
    page = ROOT / "docs" / "leaderboard.md" if checkout else given.out / "leaderboard.md"
    given.project = checkout and given.page is None and given.cells is None
    given.page = given.page or (page if given.cells is None else None)
    given.cells = (
        given.cells or (ROOT / "benchmarks" / "results" if checkout else given.out) / "cells"
    )
    return time.monotonic() + wait


def _path(text: str) -> Path:
    if not text:
        raise argparse.ArgumentTypeError("'' is no path, and . is this folder: give a path")
    return Path(text)


def _recipe(text: str) -> Path:
    """The file at this path, or else the project's recipe of this name."""
    path, own = Path(text), RECIPES / f"{text}.toml"
    return own if own.is_file() and not path.exists() else path


def _seeds(text: str) -> list[int]:
    try:
        return sorted({int(part) for part in text.split(",")})
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} must be integers with commas between, such as 0,1,2"
        ) from None


def _moment(text: str) -> float:
    """Seconds from now to the next time that the clock shows this."""
    now = datetime.now()
    try:
        hour, minute = int(text[: text.index(":")]), int(text[text.index(":") + 1 :])
        then = now.replace(hour=hour, minute=minute, second=0, microsecond=0)
    except (ValueError, OverflowError):
        raise argparse.ArgumentTypeError(f"{text!r} must be a time of day, such as 09:30") from None
    return (then - now + timedelta(days=then <= now)).total_seconds()
