"""The lines of a ledger file, such as

{"release": "train", "round": 3, "clients": "0-99,105", "event": {...}, "count": 12}
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mechanisms.accounting import events
from mechanisms.accounting.ranges import format_ranges, parse_ranges

Ids = NDArray[np.int64]
FIELDS = {"release", "round", "clients", "event", "count"}


@dataclass(frozen=True)
class Entry:
    """One line: each of `clients` (sorted) paid `count` times `event` for `release` in `round`."""

    release: str
    round: int
    clients: Ids
    event: events.Event
    count: int

    def line(self) -> str:
        """The line of the file, with its newline."""
        readable = {"clients": format_ranges(self.clients), "event": events.to_dict(self.event)}
        return json.dumps(vars(self) | readable) + "\n"


def sorted_clients(clients: Sequence[int] | Ids) -> Ids:
    """The ids in ascending order, int64 ``[n]``; ValueError for a negative or repeated one."""
    ids = np.sort(np.asarray(clients, dtype=np.int64).reshape(-1))
    if ids.size and ids[0] < 0:
        raise ValueError(f"client = {ids[0]} must be at least 0; ids count from 0")
    if (repeated := ids[1:][ids[1:] == ids[:-1]]).size:
        raise ValueError(
            f"client = {repeated[0]} must be named once in a charge; one release costs a client "
            "once"
        )
    return ids


def check_charge(release: str, round: int, charges: Mapping[events.Event, int]) -> None:
    """Refuse an empty release name, a non-integer round and a count that is not at least 1."""
    if not isinstance(release, str) or not release.strip():
        raise ValueError(
            f"release = {release!r} must be a non-empty name; it identifies one draw of the noise"
        )
    if isinstance(round, bool) or not isinstance(round, int | np.integer):
        raise ValueError(
            f"round = {round!r} must be an integer; training counts from 1, what comes before from "
            "0 down"
        )
    for event, count in charges.items():
        if isinstance(count, bool) or not isinstance(count, int | np.integer) or count < 1:
            raise ValueError(
                f"count = {count!r} of {event} must be an integer, at least 1; leave unused events "
                "out"
            )


def whole_length(data: bytes) -> int:
    """Length of a file's data without a torn last line, one without a newline or not JSON."""
    whole = data.rfind(b"\n") + 1
    last = data[data.rfind(b"\n", 0, max(whole - 1, 0)) + 1 : whole]
    if whole == len(data) and last:
        try:
            json.loads(last)
        except ValueError:
            return whole - len(last)
    return whole


def entries(path: Path, data: bytes) -> Iterator[Entry]:
    """The lines of a file's data, validated.

    Raises:
        ValueError: a damaged line; the message names file and line number.
    """
    for number, line in enumerate(data.split(b"\n")[:-1], start=1):
        try:
            yield _entry(json.loads(line))
        except (ValueError, TypeError, AttributeError) as error:
            raise ValueError(
                f"{path}, line {number} is damaged ({error}); restore the file from a copy"
            ) from error


def _entry(record: Mapping[str, Any]) -> Entry:
    if set(record) != FIELDS:
        raise ValueError(f"fields = {sorted(record)} must be {sorted(FIELDS)}")
    event = events.from_dict(record["event"])
    check_charge(record["release"], record["round"], {event: record["count"]})
    return Entry(
        record["release"], record["round"], parse_ranges(record["clients"]), event, record["count"]
    )
