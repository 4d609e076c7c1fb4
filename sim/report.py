"""``python -m sim.report RUN_DIR ...``: redraw or serve a run's report, or compare several runs."""

from argparse import ArgumentParser
from collections.abc import Sequence
from pathlib import Path

from sim.commands.guard import main_guard


def command(argv: Sequence[str], program: str = "python -m sim.report") -> None:
    """Redraw a run's report, or write the page that compares several, or a picture of what their
    models look at, and print its path; or serve the report until the process is interrupted.

    ``program`` is the command's name in messages.

    Raises:
        ValueError: the arguments cannot be read; a directory is no run's, or damaged; ``--out`` is
            given for one run, ``--serve`` for several, or its port is taken; or as
            `sim.library.heat_maps.write_heat_maps`.
    """
    from sim.comparing.comparison import write_comparison
    from sim.serving import live
    from sim.showing.report import write_report

    given = _parser(program).parse_args(argv)
    if given.serve is not None and given.heat_maps is not None:
        raise ValueError(
            f"--serve is {given.serve}, and --heat-maps is {given.heat_maps}, which writes a "
            "picture: leave one of them out"
        )
    if given.serve is not None and (len(given.run_dirs) > 1 or given.out is not None):
        raise ValueError(
            f"--serve is {given.serve}, but it shows a single run and writes nothing: give one "
            "directory, and leave --out out"
        )
    if given.out is not None and not given.out.absolute().parent.is_dir():
        raise ValueError(f"--out is {given.out}, but {given.out.parent} is no folder: create it")
    if given.serve is not None:
        live.serve(given.run_dirs[0], given.serve)
    elif given.heat_maps is not None:
        from sim.library.heat_maps import write_heat_maps  # loads torch

        print(write_heat_maps(given.run_dirs, given.heat_maps, given.out))
    elif len(given.run_dirs) > 1:
        print(write_comparison(given.run_dirs, given.out))
    elif given.out is not None:
        raise ValueError(
            f"--out is {given.out}, but a single run's report stays in its directory: leave --out "
            "out, or give several directories"
        )
    else:
        print(write_report(given.run_dirs[0]))


def _parser(program: str) -> ArgumentParser:
    from sim.commands.parser import Parser
    from sim.comparing.comparison import FILE
    from sim.serving import live

    parser = Parser(
        prog=program,
        description="Redraw the report of a run directory, serve it, compare several runs, or draw "
        "what their models look at.",
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
        help=f"the comparison (default: {FILE} beside the first), or the heat maps",
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
    parser.add_argument(
        "--heat-maps",
        metavar="N",
        type=int,
        help="instead of a report, draw where the finished runs' convolutional models see the "
        "class of N test records (Grad-CAM), as heat_maps.svg in the first directory or as --out; "
        "test records are shown as they are, they are not protected",
    )
    return parser


if __name__ == "__main__":
    raise SystemExit(main_guard(command))
