"""The command line of ``python -m sim.audit``: a run's settings, and what an audit needs."""

from collections.abc import Sequence
from dataclasses import dataclass

from sim.commands import flags
from sim.commands.flags import number
from sim.commands.parser import OwnFlags
from sim.config.fields import Config

DESCRIPTION = (
    "An empirical lower bound on epsilon beside the proved upper one: canaries in or out by a "
    "coin, one training, guesses. --clients 1 is central training."
)
OWN: OwnFlags = {
    "--canaries": ("INT", "canaries, each in or out (default: at most 1000)"),
    "--confidence": ("NUMBER", "of the bound (default: 0.95)"),
    "--white-box": (None, "crafted gradients, every upload seen (the default)"),
    "--black-box": (None, "wrong labels, only the final model seen"),
    "--json": (None, "print audit.json and nothing else"),
}


@dataclass(frozen=True)
class Question:
    """What is asked for.

    Attributes:
        config: of the run.
        canaries: how many; None for the default.
        confidence: of the bound.
        black_box: whether only the final model is seen.
        json: whether to print JSON.
    """

    config: Config
    canaries: int | None
    confidence: float
    black_box: bool
    json: bool


def parse(argv: Sequence[str], program: str) -> Question:
    """The question of a command line.

    Raises:
        ValueError: in one line, with the name, the value, its bound and a remedy.
    """
    request = flags.parse(argv, program, DESCRIPTION, own=OWN)
    own = request.own
    if request.resume is not None:
        fault = "an audit is one training from its beginning; start a new one"
        raise ValueError(f"--resume {request.resume}: {fault}")
    if "white_box" in own and "black_box" in own:
        raise ValueError("--white-box and --black-box contradict each other: drop one of the two")
    return Question(
        config=request.config,
        canaries=number("--canaries", own["canaries"], int) if "canaries" in own else None,
        confidence=number("--confidence", own.get("confidence", "0.95"), float),
        black_box="black_box" in own,
        json="json" in own,
    )
