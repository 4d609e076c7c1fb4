"""``python -m sim.central``: train one client that holds the whole training set.

It runs the code that trains many clients, with a client axis of length one. `FIXED` in
`sim.config.presets` lists the settings that this fixes; the server adds the client's update to the
model unchanged. A round is the interval between two evaluations and ends with a checkpoint;
optimizer state carries over.
"""

from collections.abc import Sequence

from sim.commands.guard import main_guard

DESCRIPTION = (
    "Training with differential privacy where one client holds all training records. A round is "
    "the interval between two evaluations; --epochs or --steps sets its length, --rounds their "
    "number."
)


def command(argv: Sequence[str], program: str = "python -m sim.central") -> None:
    """Start or resume a run as the arguments say; ``program`` is the command's name in messages.

    Raises:
        ValueError: a user error, in one line.
    """
    from sim.commands.flags import parse

    request = parse(argv, program, DESCRIPTION, central=True)
    from sim.job.environment import importing, prepare

    prepare()
    from sim.engines.drawer import drawing

    with drawing(request.config.run) as report:
        with importing():
            from sim.engines.start import train
        train(request, report=report)


if __name__ == "__main__":
    raise SystemExit(main_guard(command))
