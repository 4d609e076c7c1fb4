"""The mechanisms that ``python -m sim.account`` can price: one row each, from flags to charges."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from mechanisms.events import Event, SampledGaussian


@dataclass(frozen=True)
class Flag:
    """One flag of a mechanism.

    Attributes:
        name: key of the value, such as "sample_rate" for ``--sample-rate``.
        parse: from the command line's text to the value.
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


@dataclass(frozen=True)
class Mechanism:
    """A row of the table.

    Attributes:
        help: one line.
        flags: the mechanism's own flags, beside those that all share.
        charges: (values of the flags by name, noise multiplier, steps) -> event -> count.
    """

    help: str
    flags: tuple[Flag, ...]
    charges: Callable[[Mapping[str, Any], float, int], dict[Event, int]]


def _dpsgd(flags: Mapping[str, Any], noise_multiplier: float, steps: int) -> dict[Event, int]:
    return {SampledGaussian(flags["sample_rate"], noise_multiplier): steps}


SAMPLE_RATE = Flag("sample_rate", float, "probability that a record enters a step's batch, in (0, 1]", required=True)

MECHANISMS: dict[str, Mechanism] = {
    "dpsgd": Mechanism("DPSGD (Abadi et al. 2016): Poisson-sampled Gaussian steps", (SAMPLE_RATE,), _dpsgd),
}
