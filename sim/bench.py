"""``python -m sim.bench RECIPES...``: the tables of papers, cell by cell and seed by seed.

    python -m sim.bench recipes/mnist.toml --seeds 0,1,2 --data-dir data

A recipe (`sim.config.recipe`) names rows, columns and their settings. Each cell and seed is a run
directory under ``--out``; what is finished is not repeated and what was interrupted goes on, so the
same command continues a table. The table and its plot are written anew after every run. Exit status
0 if every cell is there, 1 if one is missing or has failed (the table says which), 2 for input that
cannot be used.

    python -m sim.bench recipes/*.toml --hours 2 --processes 2 --data-dir data

With an end it fills a leaderboard: cells with the fewest seeds come first, of these the cheapest.
What is finished is kept in small files (``--cells``), which are all that another machine needs to
go on, and ``--page`` is written of them; the exit status is then 1 only if something has failed.
"""

from collections.abc import Sequence

from sim.commands.bench import parse
from sim.commands.guard import main_guard


def command(argv: Sequence[str], program: str = "python -m sim.bench") -> None:
    """Run what is not finished, and write the tables; ``program`` is what the command is called.

    Raises:
        ValueError: a user error, in one line.
        SystemExit: with status 1, when a cell is missing or has failed.
    """
    given = parse(argv, program)
    from sim.benching.session import fill

    if not fill(given):
        raise SystemExit(1)


if __name__ == "__main__":
    raise SystemExit(main_guard(command))
