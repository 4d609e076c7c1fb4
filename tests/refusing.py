"""What a command says when it refuses what it was given."""

from collections.abc import Callable, Sequence

from sim.commands.guard import USER, main_guard


def refusal(capsys, command: Callable[[Sequence[str]], object], argv: Sequence[str]) -> str:
    """A single line, with exit code 2, and nothing else."""
    capsys.readouterr()
    assert main_guard(command, argv) == USER
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("error: ") and err.count("\n") == 1
    return err
