"""``python -m sim.report RUN_DIR ...``: redraw the report of a run, or compare several runs."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from sim.commands.guard import main_guard
from sim.comparing.comparison import FILE, write_comparison
from sim.showing.report import write_report


def command(argv: Sequence[str], program: str = "python -m sim.report") -> None:
    """Redraw a run's report, or write the page that compares several, and print its path.

    ``program`` is the command's name in messages.

    Raises:
        ValueError: a directory is no run's, or damaged; or ``--out`` is given for one run.
    """
    parser = argparse.ArgumentParser(
        prog=program, description="Redraw the report of a run directory, or compare several runs."
    )
    parser.add_argument(
        "run_dirs",
        metavar="RUN_DIR",
        type=Path,
        nargs="+",
        help="a run's directory, finished or not",
    )
    parser.add_argument(
        "--out",
        metavar="FILE",
        type=Path,
        help=f"the comparison (default: {FILE} beside the first)",
    )
    given = parser.parse_args(argv)
    if len(given.run_dirs) > 1:
        print(write_comparison(given.run_dirs, given.out))
    elif given.out is not None:
        raise ValueError(
            f"--out is {given.out}, but a single run's report stays in its directory: leave --out "
            "out, or give several directories"
        )
    else:
        print(write_report(given.run_dirs[0]))


if __name__ == "__main__":
    raise SystemExit(main_guard(command))
