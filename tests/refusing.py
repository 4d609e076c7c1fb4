"""What a command says when it refuses what it was given."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from sim import run
from sim.commands.guard import USER, main_guard


def refusal(capsys, command: Callable[[Sequence[str]], object], argv: Sequence[str]) -> str:
    """A single line, with exit code 2, and nothing else."""
    capsys.readouterr()
    assert main_guard(command, argv) == USER
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("error: ") and err.count("\n") == 1
    return err


def check_refused(flags: Sequence[str], begins: str, folder: Path) -> None:
    """A run is refused in a single line, with a flag as the remedy, before anything is written."""
    with pytest.raises(ValueError) as caught:
        run.command([*flags, f"--out={folder}"])
    said = str(caught.value)
    assert said.startswith(begins) and "\n" not in said and "--" in said
    assert not list(folder.glob("*"))
