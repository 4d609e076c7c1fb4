"""``python -m sim.report RUN_DIR ...``: redraw or serve a run's report, or compare several runs."""

from collections.abc import Sequence
from pathlib import Path

from sim.commands.guard import main_guard


def command(argv: Sequence[str], program: str = "python -m sim.report") -> None:
    """Redraw a run's report, or write the page that compares several, and print its path; or serve
    the report until the process is interrupted.

    ``program`` is the command's name in messages.

    Raises:
        ValueError: the arguments cannot be read; a directory is no run's, or damaged; ``--out`` is
            given for one run, ``--serve`` for several, or its port is taken.
    """
    from sim.commands.parser import Parser
    from sim.comparing.comparison import FILE, write_comparison
    from sim.serving import live
    from sim.showing.report import write_report

    parser = Parser(
        prog=program,
        description="Redraw the report of a run directory, serve it, or compare several runs.",
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
    parser.add_argument(
        "--serve",
        metavar="PORT",
        type=int,
        nargs="?",
        const=live.PORT,
        help="draw the report anew whenever a browser on this machine asks for it, at "
        f"http://{live.HOST}:PORT/ (default: {live.PORT}; 0: any free port); nothing is written",
    )
    given = parser.parse_args(argv)
    if given.serve is not None and (len(given.run_dirs) > 1 or given.out is not None):
        raise ValueError(
            f"--serve is {given.serve}, but it shows a single run and writes nothing: give one "
            "directory, and leave --out out"
        )
    if given.serve is not None:
        live.serve(given.run_dirs[0], given.serve)
    elif len(given.run_dirs) > 1:
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
