"""``dpfed COMMAND``, or ``python -m sim COMMAND``: all commands behind one name.

``dpfed`` searches the current folder for modules last, so that a ``client.py`` there hides nothing
and the user's own models are still found.
"""

import importlib
import os
import sys
from collections.abc import Sequence

from sim import hidden
from sim.config.names import did_you_mean

COMMANDS = {
    "run": "train many clients",
    "central": "train one client that holds all records",
    "bench": "reproduce the tables of papers, cell by cell",
    "account": "what a run would cost, or has cost",
    "audit": "a lower bound on epsilon, from one training with canaries",
    "attack": "how much membership-inference attacks learn from trained models",
    "report": "redraw a run's report, or compare runs",
}
"""Command, which is also a module of `sim` -> what it does."""


def main(arguments: Sequence[str] | None = None, program: str = "dpfed") -> int:
    """Run the command that the arguments name (default: the process's); returns the exit status."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if not words or words[0] in ("-h", "--help"):
        print(usage(program))
        return 0 if words else 2
    if words[0] == "--version":
        from sim.commands.version import version

        print(f"{program} {version()}")
        return 0
    name = words[0]
    if name not in COMMANDS:
        hint = did_you_mean(name, COMMANDS)
        print(f"error: unknown command {name}{hint} ({program} --help lists all)", file=sys.stderr)
        return 2
    return start(name, words[1:], f"{program} {name}")


def start(name: str, words: Sequence[str], program: str) -> int:
    """Run one command, called ``program`` in messages; returns the exit status."""
    from sim.commands.guard import main_guard

    return main_guard(
        lambda given: importlib.import_module(f"sim.{name}").command(given, program), words
    )


def usage(program: str) -> str:
    """The text of ``--help``."""
    lines = [f"  {name:<9}{text}" for name, text in COMMANDS.items()]
    head = [
        f"usage: {program} COMMAND [--flag value ...]",
        "",
        "Federated learning with local differential privacy.",
    ]
    return "\n".join([*head, "", *lines, "", f"{program} COMMAND --help lists a command's flags."])


def script() -> int:
    """The entry point of ``dpfed``: searches the current folder last, also in child processes."""
    folder = os.environ[hidden.LAST] = os.getcwd()
    hidden.put_last(folder)
    return main()


if __name__ == "__main__":
    raise SystemExit(main(program="python -m sim"))
