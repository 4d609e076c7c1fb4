"""What a row of ``python -m sim.account`` is: a mechanism's flags, and its charges."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from mechanisms.accounting import events

Values = Mapping[str, Any]
Charges = Mapping[events.Event, int]


@dataclass(frozen=True)
class Flag:
    """One flag of a mechanism.

    Attributes:
        name: key of the value, such as "sample_rate" for ``--sample-rate``.
        parse: from the command line's text to the value; ``bool`` for a switch without a text.
        help: what it means, with its unit.
        default: value when absent; None for none.
        required: absent is an error.
        choices: the allowed values, if they are few.
    """

    name: str
    parse: Callable[[str], Any]
    help: str
    default: Any = None
    required: bool = False
    choices: tuple[str, ...] = ()

    @property
    def option(self) -> str:
        """The flag as typed."""
        return "--" + self.name.replace("_", "-")

    @property
    def metavar(self) -> str:
        """What stands for the value in the help."""
        return self.name.upper()


STEPS = Flag("steps", int, "how often it runs", 1)


@dataclass(frozen=True)
class Mechanism:
    """A row of the table.

    Attributes:
        help: one line.
        flags: the mechanism's own flags, beside those that all share.
        charges: (values of the flags by name, noise multiplier, times that it runs) -> event -> count.
        extra: (values of the flags by name, noise multiplier) -> further figures to print.
        count: the flag that says how often it runs.
        noise: the flags of which one gives the noise.
        multiplier: values of the flags by name -> the noise multiplier that they give; None where there is none.
        claim: whether the paper has a figure of its own.
    """

    help: str
    flags: tuple[Flag, ...]
    charges: Callable[[Values, float, int], Charges]
    extra: Callable[[Values, float], dict[str, float]] = lambda flags, noise: {}
    count: Flag = STEPS
    noise: tuple[str, ...] = ("noise_multiplier",)
    multiplier: Callable[[Values], float | None] = lambda flags: flags["noise_multiplier"]
    claim: bool = True
