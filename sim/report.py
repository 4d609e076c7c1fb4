"""``python -m sim.report RUN_DIR``: redraw the report of a run from its directory."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from sim.commands.guard import main_guard
from sim.showing.report import write_report


def command(argv: Sequence[str], program: str = "python -m sim.report") -> None:
    """Redraw a run's report and print its path; ``program`` is the command's name in messages."""
    parser = argparse.ArgumentParser(
        prog=program, description="Redraw the report of a run directory."
    )
    parser.add_argument(
        "run_dir", metavar="RUN_DIR", type=Path, help="directory of a run, finished or not"
    )
    print(write_report(parser.parse_args(argv).run_dir))


if __name__ == "__main__":
    raise SystemExit(main_guard(command))
