"""``python -m sim.bench RECIPES...``: reproduce the tables of papers, cell by cell, seed by seed.

    python -m sim.bench recipes/mnist-scattering.toml --seeds 0,1,2 --data-dir data

A recipe (`sim.config.recipe`) names rows, columns and their settings. Each cell and seed is a run
directory under ``--out``; finished runs are not repeated and interrupted ones go on, so the same
command continues a table. The table and its plot are rewritten after every run. Exit status: 0 if
every cell is complete, 1 if one is missing or has failed (the table says which), 2 for invalid
input.

    python -m sim.bench recipes/*.toml --hours 2 --processes 2 --data-dir data

With a time limit it fills a leaderboard: cells with the fewest seeds come first, among these the
cheapest. Results are kept in small files (``--cells``), which are all that another machine needs to
continue and from which ``--page`` is written; the exit status is then 1 only if a run has failed.
"""

from collections.abc import Sequence

from sim.commands.guard import main_guard


def command(argv: Sequence[str], program: str = "python -m sim.bench") -> None:
    """Run what is not finished and write the tables; ``program`` is the command's name in messages.

    Raises:
        ValueError: a user error, in one line.
        SystemExit: with status 1, when a cell is missing or has failed.
    """
    from sim.commands.bench import parse

    given = parse(argv, program)
    from sim.benching.session import fill

    if not fill(given):
        raise SystemExit(1)


if __name__ == "__main__":
    raise SystemExit(main_guard(command))
