"""``python -m sim.run``: train many clients with local differential privacy."""

from collections.abc import Sequence

from sim.commands.guard import main_guard

DESCRIPTION = (
    "Federated learning with local differential privacy. Every client keeps its own ledger of "
    "what it spent."
)


def command(argv: Sequence[str], program: str = "python -m sim.run") -> None:
    """Start or resume a run as the arguments say; ``program`` is the command's name in messages.

    Raises:
        ValueError: a user error, in one line.
    """
    from sim.commands.flags import parse

    request = parse(argv, program, DESCRIPTION)
    from sim.job.environment import importing, prepare

    prepare()
    from sim.engines.cluster import starting
    from sim.engines.drawer import drawing

    with starting(request.config) as cluster, drawing(request.config.run) as report:
        with importing():
            from sim.engines.start import train
        train(request, cluster, report)


if __name__ == "__main__":
    raise SystemExit(main_guard(command))
