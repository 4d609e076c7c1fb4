"""The lines of a ledger file, such as

{"release": "train", "round": 3, "clients": "0-99,105", "event": {...}, "count": 12,
 "number": 7, "chain": "2f0b6e1b8b0c4d11"}

on one line. The last two fields are of `mechanisms.journal`, and so is a `first` before them.
"""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mechanisms.accounting import events
from mechanisms.accounting.known import check_known
from mechanisms.accounting.ranges import MAX_CLIENTS, format_ranges, parse_ranges

Ids = NDArray[np.int64]
FIELDS = {"release", "round", "clients", "event", "count"}
MAX_COUNT = 10**9
"""Maximum of a line's count and of a round's number: sums over any number of lines stay below
2^63."""


@dataclass(frozen=True)
class Entry:
    """One line: each of `clients` (sorted) paid `count` times `event` for `release` in `round`."""

    release: str
    round: int
    clients: Ids
    event: events.Event
    count: int

    def record(self) -> dict[str, Any]:
        """What the line says, as JSON can hold it."""
        readable = {"clients": format_ranges(self.clients), "event": events.to_dict(self.event)}
        return vars(self) | readable


def sorted_clients(clients: Sequence[int] | Ids) -> Ids:
    """The ids in ascending order, int64 ``[n]``; ValueError for one that is repeated or out of
    bounds."""
    ids = np.sort(np.asarray(clients, dtype=np.int64).reshape(-1))
    if ids.size and ids[0] < 0:
        raise ValueError(f"client = {ids[0]} must be at least 0; ids count from 0")
    if ids.size and ids[-1] >= MAX_CLIENTS:
        raise ValueError(f"client = {ids[-1]} must be below {MAX_CLIENTS}; use fewer clients")
    if (repeated := ids[1:][ids[1:] == ids[:-1]]).size:
        raise ValueError(
            f"client = {repeated[0]} must be named once in a charge; one release costs a client "
            "once"
        )
    return ids


def check_charge(release: str, round: int, charges: Mapping[events.Event, int]) -> None:
    """Refuse an empty release name, an unknown event, and a round or count that is no integer or
    out of bounds."""
    if not isinstance(release, str) or not release.strip():
        raise ValueError(
            f"release = {release!r} must be a non-empty name; it identifies one draw of the noise"
        )
    if not _whole(round, -MAX_COUNT):
        raise ValueError(
            f"round = {round!r} must be an integer, at most {MAX_COUNT} from 0; training counts "
            "from 1, what comes before from 0 down"
        )
    for event, count in charges.items():
        check_known(event)
        if not _whole(count, 1):
            raise ValueError(
                f"count = {count!r} of {event} must be an integer from 1 to {MAX_COUNT}; leave "
                "unused events out"
            )


def _whole(value: object, least: int) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        return False
    return bool(least <= value <= MAX_COUNT)


def entry_of(record: Mapping[str, Any]) -> Entry:
    """The inverse of `Entry.record`; ValueError for anything else."""
    if set(record) != FIELDS:
        raise ValueError(f"fields = {sorted(record)} must be {sorted(FIELDS)}")
    event = events.from_dict(record["event"])
    check_charge(record["release"], record["round"], {event: record["count"]})
    return Entry(
        record["release"], record["round"], _ids(record["clients"]), event, record["count"]
    )


@functools.lru_cache(maxsize=64)
def _ids(text: str) -> Ids:
    """One read-only array for the same clients, round after round."""
    ids = parse_ranges(text)
    ids.setflags(write=False)
    return ids
