"""Append-only files of charges: one file per group of clients, one JSON line per event of a charge.

Charge first, release after: :meth:`Ledger.charge` returns when the lines are on the disk, and only
then may the update leave. A release name identifies one draw of the noise on one sum, so a
(release, client, event) is charged once, however often a round is replayed. Every epsilon can be
recomputed from these files by :func:`read`.
"""

import secrets
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from mechanisms.accounting.accountant import Charges
from mechanisms.accounting.allotment import Account, Movement, movement_of, total
from mechanisms.accounting.events import Event
from mechanisms.accounting.ledger_lines import (
    Entry,
    Ids,
    check_charge,
    entry_of,
    sorted_clients,
)
from mechanisms.journal import Journal, Place, records, start, whole_of

Key = tuple[str, Event]


class Ledger:
    """The ledger file of one group, open for charging by one process; also a context manager.

    Args:
        path: the ``.jsonl`` file; made with its folder if absent. A torn end (the process
            died while writing it, so its upload never left) is cut off with a warning.

    Raises:
        ValueError: a damaged line; the message names file and line.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._paid: dict[Key, dict[int, Ids]] = {}
        self._releases: set[str] = set()
        self._movements: dict[int, list[Movement]] = {}
        self._journal = Journal(self.path, lambda record: self._remember(entry_of(record)))

    def charge(
        self, release: str, round: int, clients: Sequence[int] | Ids, charges: Charges
    ) -> None:
        """Charge each client with all of `charges`; returns when they are safely on the disk.

        What this file already holds for (release, client, event) is not written again.

        Args:
            release: name of one draw of the noise on one sum.
            round: the round it belongs to: from 1 in training, 0 and below before it.
            clients: ids, at least 0, each at most once.
            charges: event -> number of applications, each at least 1.

        Raises:
            ValueError: a bad argument, or a release charged before with another count.
            OSError: writing failed; the ledger is closed and the part written of this charge is cut
                off.
        """
        self.charge_all(release, round, [(clients, charges)])

    def charge_all(
        self, release: str, round: int, payments: Iterable[tuple[Sequence[int] | Ids, Charges]]
    ) -> None:
        """Charge several sets of clients, disjoint for each event, in one write: all (clients,
        charges) pairs are on the disk on return. Arguments and errors are those of :meth:`charge`.
        """
        fresh = []
        named: dict[Event, list[Ids]] = defaultdict(list)
        for clients, charges in payments:
            check_charge(release, round, charges)
            ids = sorted_clients(clients)
            for event, count in charges.items():
                named[event].append(ids)
                unpaid = self._unpaid((release, event), count, ids)
                if unpaid.size:
                    fresh.append(Entry(release, int(round), unpaid, event, int(count)))
        for several in named.values():
            sorted_clients(np.concatenate(several))  # one that is named twice would pay once
        if fresh:
            self._journal.append([entry.record() for entry in fresh])
            for entry in fresh:
                self._remember(entry)

    def has(self, release: str) -> bool:
        """Whether somebody has paid for a release of this name."""
        return release in self._releases

    def account(self, client: int, order: float, at_round: int | None = None) -> Account:
        """What this file's allotments at one order have left for a client.

        With `at_round`, as it was when that round had just been charged: what a crash has left of
        the round's releases and of later rounds does not count.
        """
        moved = self._movements.get(client, [])
        if at_round is not None:
            moved = [
                m for m in moved if m.round < at_round or (m.round == at_round and not m.spent)
            ]
        return total(moved, order)

    @property
    def place(self) -> Place:
        """Where the file ends, by what this process has read and written."""
        return self._journal.place

    def close(self) -> None:
        """Close the file; charging afterwards is refused. Idempotent."""
        self._journal.close()

    def __enter__(self) -> "Ledger":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _unpaid(self, key: Key, count: int, ids: Ids) -> Ids:
        """The ids that have not paid for `key` yet; refuses another count under the same name."""
        for paid_count, paid in self._paid.get(key, {}).items():
            known = np.isin(ids, paid, assume_unique=True)
            if paid_count != count and known.any():
                raise ValueError(
                    f"release = {key[0]!r}: count = {count} of {key[1]} for client "
                    f"{ids[known][0]} must be {paid_count} as charged before in {self.path}; name "
                    "a different draw of the noise differently"
                )
            ids = ids[~known]
        return ids

    def _remember(self, entry: Entry) -> None:
        self._releases.add(entry.release)
        counts = self._paid.setdefault((entry.release, entry.event), {})
        known = counts.get(entry.count)
        counts[entry.count] = entry.clients if known is None else np.union1d(known, entry.clients)
        movement = movement_of(entry.round, entry.event, entry.count)
        if movement is not None:
            for client in entry.clients.tolist():
                self._movements.setdefault(client, []).append(movement)


def release_name(round: int, seed: int | None) -> str:
    """The name of a round's draws: the same if a simulation replays it, and never used before in a
    release, which has no seed."""
    return f"round-{round}" if seed is not None else f"round-{round}-{secrets.token_hex(8)}"


def read(
    folder: str | Path,
    up_to_round: int | None = None,
    known: Iterable[Mapping[str, Place]] = (),
) -> dict[int, Counter[Event]]:
    """What every client has paid, from all ``*.jsonl`` files of a folder, which are only read.

    A (release, client, event) counts once across files, too, with its largest count if they differ.
    With `up_to_round`, the charges of later rounds are left out. `known` are places that files have
    passed, by name: they must still be in them.

    Returns:
        client -> event -> number of applications; clients without a charge are absent.

    Raises:
        ValueError: no such folder, a damaged line, or a file that lacks a known place. A torn last
            line is skipped with a warning.
    """
    folder = Path(folder)
    known = list(known)
    if not folder.is_dir() and not any(known):
        raise ValueError(
            f"ledger = {folder} must be an existing folder; name the folder that holds the .jsonl "
            "files"
        )
    lines: dict[Key, list[Entry]] = {}
    for path, passed in files(folder, known):
        for entry in entries(path, passed):
            if up_to_round is not None and entry.round > up_to_round:
                continue
            lines.setdefault((entry.release, entry.event), []).append(entry)
    paid: dict[Event, list[tuple[Ids, Ids]]] = {}
    alike: Counter[tuple[Event, bytes]] = Counter()
    for (_, event), group in lines.items():
        if len(group) == 1:  # the same clients in every round are added up as they come
            alike[event, group[0].clients.tobytes()] += group[0].count
        else:
            paid.setdefault(event, []).append(_largest_counts(group))
    for (event, clients), count in alike.items():
        ids = np.frombuffer(clients, dtype=np.int64)
        paid.setdefault(event, []).append((ids, np.full(ids.size, count, dtype=np.int64)))
    return _by_client(paid)


class Older(ValueError):
    """A file lacks lines that it had."""


def files(
    folder: Path, known: Iterable[Mapping[str, Place]]
) -> list[tuple[Path, Mapping[int, str]]]:
    """A folder's files, also those that should be there, with the places that each must have
    passed (number -> checksum)."""
    passed: dict[str, dict[int, str]] = {path.name: {} for path in folder.glob("*.jsonl")}
    for places in known:
        for name, place in places.items():
            passed.setdefault(name, {})[place.number] = place.chain
    return [(folder / name, passed[name]) for name in sorted(passed)]


def entries(path: Path, passed: Mapping[int, str]) -> Iterator[Entry]:
    """The entries of a file that must have passed these places.

    Raises:
        ValueError: a damaged line, or a place that is not there (`Older` if the file ends before).
    """
    remedy = "restore the file from a copy, or start a new run"
    if not path.exists():
        had = f", which had {max(passed)} lines" if passed else ""
        raise ValueError(f"{path} is missing{had}: {remedy}")
    place = start(path)
    for place, entry in records(path, whole_of(path), entry_of):
        if passed.get(place.number, place.chain) != place.chain:
            raise ValueError(
                f"{path} is of another run: its line {place.number} is not the one that was "
                f"there; {remedy}"
            )
        yield entry
    if place.number < max(passed, default=0):
        raise Older(f"{path} has {place.number} lines, but had {max(passed)} before: {remedy}")


def _largest_counts(group: list[Entry]) -> tuple[Ids, Ids]:
    """Distinct clients of lines that share release and event, and the largest count of each."""
    ids, where = np.unique(np.concatenate([entry.clients for entry in group]), return_inverse=True)
    counts = np.zeros(ids.size, dtype=np.int64)
    np.maximum.at(
        counts, where, np.concatenate([np.full(entry.clients.size, entry.count) for entry in group])
    )
    return ids, counts


def _by_client(paid: dict[Event, list[tuple[Ids, Ids]]]) -> dict[int, Counter[Event]]:
    """Sums of the counts of each event over its releases, by client."""
    totals: dict[int, Counter[Event]] = {}
    for event, parts in paid.items():
        ids, where = np.unique(np.concatenate([ids for ids, _ in parts]), return_inverse=True)
        sums = np.zeros(ids.size, dtype=np.int64)
        np.add.at(sums, where, np.concatenate([counts for _, counts in parts]))
        for client, count in zip(ids.tolist(), sums.tolist(), strict=True):
            totals.setdefault(client, Counter())[event] = count
    return totals
