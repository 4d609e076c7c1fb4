"""Privacy events of runs whose parameters depend on outputs; collected in `accounting.events`.

Such a run pays for its releases in advance and at one Renyi order (`accounting.allotment`).
"""

from dataclasses import dataclass, field
from typing import ClassVar

from mechanisms.accounting.event import Event, above_one, nested, positive, whole


@dataclass(frozen=True)
class Allotment(Event):
    """One equal share of an adaptive run's budget at one Renyi order: certified `rdp` there,
    infinite elsewhere.

    It pays for releases that are recorded beside it as `Covered` events. Published 0: a
    `PaperClaim` says what the paper charges.

    Attributes:
        order: the run's one Renyi order, named before it starts, above 1.
        rdp: the budget of one share at that order [nats], positive.
        shares: number of shares in the run's plan; its target is `shares * rdp` at the order.
    """

    kind: ClassVar[str] = "allotment"
    order: float = above_one()
    rdp: float = positive()
    shares: float = whole()


@dataclass(frozen=True)
class Covered(Event):
    """A release that allotments have paid for: 0 in both columns, as long as they suffice
    (`allotment.overdrawn`).

    Attributes:
        event: what was released.
        order: the allotments' Renyi order, above 1.
    """

    kind: ClassVar[str] = "covered"
    event: Event = field(metadata={"check": nested})
    order: float = above_one()
