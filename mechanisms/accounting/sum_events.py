"""Privacy events of sums over clients; collected in `accounting.events`."""

from dataclasses import dataclass
from typing import ClassVar

from mechanisms.accounting.event import Event, share


@dataclass(frozen=True)
class SummedShares(Event):
    """Beside a Gaussian event whose noise is a sum of whole-number shares of clients, added up
    modulo a power of two (`mechanisms.shares`): 0 in both columns but for a part of delta.

    Attributes:
        failure: bounds what the sum's law may differ by from a rounded Gaussian's, in [0, 1].
    """

    kind: ClassVar[str] = "summed_shares"
    REACH: ClassVar[float] = 300.0
    """The largest epsilon at which that is proved (`docs/theory/sums.md`, Proposition 24)."""
    failure: float = share()
