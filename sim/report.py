"""``python -m sim.report RUN_DIR``: draw the report of a run again, from the files of its directory
alone."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from sim.commands.guard import main_guard
from sim.showing.report import write_report


def command(argv: Sequence[str], program: str = "python -m sim.report") -> None:
    """Draw the report of a run directory again and print where it is; ``program`` is what the
    command is called."""
    parser = argparse.ArgumentParser(
        prog=program, description="Redraw the report of a run directory."
    )
    parser.add_argument(
        "run_dir", metavar="RUN_DIR", type=Path, help="directory of a run, finished or not"
    )
    print(write_report(parser.parse_args(argv).run_dir))


if __name__ == "__main__":
    raise SystemExit(main_guard(command))
