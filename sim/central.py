"""``python -m sim.central``: train one client that holds the whole training set, by the code that
trains many.

The client axis has length one, and nothing else differs: what `FIXED` in `sim.config.presets` lists
has no choice, and the server's step adds the client's update to the model as it is. A round is an
interval between two evaluations, each with a checkpoint; optimizer state crosses it.
"""

from collections.abc import Sequence

from sim.commands.flags import parse
from sim.commands.guard import main_guard

DESCRIPTION = (
    "Training with differential privacy where one client holds all training records. A round is "
    "the interval between two evaluations; --epochs or --steps is its length, --rounds how many "
    "there are."
)


def command(argv: Sequence[str], program: str = "python -m sim.central") -> None:
    """Run, or go on with a run, as the arguments say; ``program`` is what the command is called.

    Raises:
        ValueError: a user error, in one line.
    """
    request = parse(argv, program, DESCRIPTION, central=True)
    from sim.job.environment import prepare

    prepare()
    from sim.engines.start import train

    train(request)


if __name__ == "__main__":
    raise SystemExit(main_guard(command))
