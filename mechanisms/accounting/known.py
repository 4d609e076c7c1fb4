"""What can be charged at all: whole numbers of events of exactly the kinds that a ledger can hold.

A mechanism of the user's own charges these, or is refused: an event class of its own would have no
curve, or as a subclass the curve of its parent, and could not be read back.
"""

import numbers

from mechanisms.accounting.events import KINDS, Event


def check_known(event: object) -> None:
    """Refuse an event that is not exactly of one of the ledger's kinds.

    Raises:
        ValueError: it is of another type.
    """
    if KINDS.get(getattr(event, "kind", "")) is not type(event):
        known = ", ".join(sorted(kind.__name__ for kind in KINDS.values()))
        raise ValueError(
            f"event {event!r} is a {type(event).__name__}, which no ledger knows: charge events of "
            f"mechanisms/accounting ({known})"
        )


def check_count(event: Event, count: int) -> None:
    """Refuse an unknown event, and a count that is not a non-negative integer.

    Raises:
        ValueError: names the event and the count.
    """
    check_known(event)
    if not isinstance(count, numbers.Integral) or isinstance(count, bool) or count < 0:
        raise ValueError(
            f"count = {count!r} of {event} must be an integer, at least 0; charge whole "
            "applications"
        )
