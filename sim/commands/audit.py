"""The command line of ``python -m sim.audit``: a run's settings and the command's own flags."""

from collections.abc import Sequence
from dataclasses import dataclass

from sim.commands import flags
from sim.commands.flags import number
from sim.commands.parser import OwnFlags
from sim.config.fields import Config

DESCRIPTION = (
    "An empirical lower bound on epsilon, to compare with the proved upper bound: each canary is "
    "in or out by a coin, one model is trained, and an attacker guesses the coins. --clients 1 is "
    "central training."
)
OWN: OwnFlags = {
    "--canaries": ("INT", "number of canaries (default: at most 1000)"),
    "--confidence": ("NUMBER", "confidence of the bound (default: 0.95)"),
    "--white-box": (None, "crafted gradients, every upload seen (the default)"),
    "--black-box": (None, "wrong labels, only the final model seen"),
    "--json": (None, "print audit.json and nothing else"),
}


@dataclass(frozen=True)
class Question:
    """A parsed command line of ``sim.audit``.

    Attributes:
        config: the run's configuration.
        canaries: number of canaries; None for the default.
        confidence: confidence of the bound.
        black_box: whether the attacker sees the final model only.
        json: whether to print JSON.
    """

    config: Config
    canaries: int | None
    confidence: float
    black_box: bool
    json: bool


def parse(argv: Sequence[str], program: str) -> Question:
    """Parse a command line.

    Raises:
        ValueError: in one line, with the name, the value, its bound and a remedy.
    """
    anew = "an audit is one training from its beginning"
    request = flags.parse(argv, program, DESCRIPTION, own=OWN, anew=anew)
    own = request.own
    if "white_box" in own and "black_box" in own:
        raise ValueError("--white-box and --black-box contradict each other: drop one of the two")
    return Question(
        config=request.config,
        canaries=number("--canaries", own["canaries"], int) if "canaries" in own else None,
        confidence=number("--confidence", own.get("confidence", "0.95"), float),
        black_box="black_box" in own,
        json="json" in own,
    )
