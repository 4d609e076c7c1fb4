"""Traces of real dropouts: the rounds in which each client's answer is lost.

The setting ``dropout_trace`` is a text, ``0@2-4,7;5-6@1-3``: clients, and after the @ the rounds
that they miss; or it is the path of a CSV file with the columns ``client``, ``first_round`` and
``last_round``, both inclusive. A trace is public.
"""

import functools
import itertools
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from client.purse import Allowance
from mechanisms.accounting.ranges import MAX_CLIENTS, format_ranges, parse_pairs, parse_ranges
from mechanisms.client_rows import Row, client_of, is_file, number, reading

EXAMPLE = "0@2-4,7;5-6@1-3"
COLUMNS = ("client", "first_round", "last_round")
SPAN = MAX_CLIENTS
"""Rounds are below it, so that ``client * SPAN + round`` is a number of its own for each pair."""
MAX_RANGES = 10**6
"""Maximum of ranges in a trace: 10 MB of text, or a file that is read in seconds."""


@dataclass(frozen=True)
class Trace:
    """Ranges of rounds that clients miss, at least one.

    Attributes:
        firsts, lasts: int64 ``[n]``, the ends of each range as ``client * SPAN + round``,
            ascending and disjoint.
    """

    firsts: np.ndarray
    lasts: np.ndarray

    def lost(self, allowed: Allowance) -> np.ndarray:
        """Bool ``[K]``: whose answers are lost."""
        keys = allowed.clients * SPAN + allowed.round
        at = np.searchsorted(self.firsts, keys, side="right") - 1  # the last that begins by then
        return (at >= 0) & (keys <= self.lasts[at])

    def share(self, parts: np.ndarray, rounds: int) -> float:
        """The share that arrives of what clients send in a run of so many rounds, if each of them
        sends ``parts [clients]`` a round.

        It is that of the whole run: a trusted server, which divides each round's noisy sum by it,
        adds noise of the same scale in rounds with few answers or none. Rounds count alike, even if
        clients take turns.
        """
        who, first = np.divmod(self.firsts, SPAN)
        last = np.minimum(self.lasts % SPAN, rounds)
        missed = np.bincount(who, np.maximum(last - first + 1, 0), minlength=len(parts))
        return 1 - float((parts * missed).sum() / (parts.sum() * rounds))

    def __str__(self) -> str:
        """The text of the setting."""
        missed: dict[int, list[str]] = {}
        for key, end in zip(self.firsts.tolist(), self.lasts.tolist(), strict=True):
            client, first = divmod(key, SPAN)
            last = end % SPAN
            missed.setdefault(client, []).append(f"{first}-{last}" if last > first else f"{first}")
        alike: dict[str, list[int]] = {}
        for client, ranges in missed.items():
            alike.setdefault(",".join(ranges), []).append(client)
        return ";".join(f"{format_ranges(who)}@{rounds}" for rounds, who in alike.items())


def resolved(text: str, clients: int, rounds: int) -> str:
    """The trace of a text or of a file as a text.

    Raises:
        ValueError: it is no trace of so many clients, or nobody answers in so many rounds.
    """
    trace = _of_file(Path(text), clients) if is_file(text) else parse(text, clients)
    if trace.share(np.ones(clients), rounds) <= 0:
        raise ValueError(
            f"dropout_trace = {text[:60]!r} leaves no answer of {clients} clients in {rounds} "
            "rounds: give more --rounds, or leave rounds out of the trace"
        )
    return str(trace)


@functools.lru_cache(maxsize=2)
def parse(text: str, clients: int) -> Trace:
    """The trace that a text gives.

    Raises:
        ValueError: it is no trace of so many clients, or too large.
    """
    parts = [_part(part, clients) for part in text.split(";")]
    if (count := sum(len(who) * len(firsts) for who, firsts, _ in parts)) > MAX_RANGES:
        raise ValueError(
            f"dropout_trace has {count} ranges of rounds; at most {MAX_RANGES} are possible: "
            "leave some out"
        )
    firsts = np.concatenate([(who[:, None] * SPAN + ends).ravel() for who, ends, _ in parts])
    lasts = np.concatenate([(who[:, None] * SPAN + ends).ravel() for who, _, ends in parts])
    return _merged(firsts, lasts)


def _part(text: str, clients: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Clients, and the ends of the ranges of rounds that each of them misses."""
    who, _, rounds = text.partition("@")
    try:
        numbers, (firsts, lasts) = parse_ranges(who), parse_pairs(rounds)
    except ValueError:
        numbers = np.empty(0, dtype=np.int64)
    if not len(numbers) or numbers[-1] >= clients or firsts[0] < 1:
        raise ValueError(
            f"dropout_trace has {text[:60]!r}, which is no CLIENTS@ROUNDS: write ascending numbers "
            f"of clients below {clients} and of rounds from 1 to {SPAN - 1}, such as {EXAMPLE}, "
            "or give a .csv file"
        )
    return numbers, firsts, lasts


def _of_file(path: Path, clients: int) -> Trace:
    found: list[tuple[int, int]] = []
    with reading("dropout_trace", path, COLUMNS, f"a text such as {EXAMPLE}") as rows:
        for row in itertools.islice(rows, MAX_RANGES + 1):
            client = client_of(row, clients)
            first, last = (_round(row, column, client) for column in COLUMNS[1:])
            if first > last:
                raise ValueError(
                    f"client {client} has first_round {first}, which is above last_round {last}"
                )
            found.append((client * SPAN + first, client * SPAN + last))
        if not 0 < len(found) <= MAX_RANGES:
            raise ValueError(f"it has no row below the first, or more than {MAX_RANGES}")
    return _merged(*np.array(found, dtype=np.int64).T)


def _round(row: Row, column: str, client: int) -> int:
    found = number(row[column])
    if found < 1:
        raise ValueError(
            f"{column} of client {client} is {(row[column] or '')[:60]!r}; it must be a whole "
            f"number from 1 to {SPAN - 1}"
        )
    return found


def _merged(firsts: np.ndarray, lasts: np.ndarray) -> Trace:
    """Ranges in any order, as disjoint ones."""
    order = np.argsort(firsts)
    firsts, lasts = firsts[order], np.maximum.accumulate(lasts[order])
    apart = np.flatnonzero(firsts[1:] > lasts[:-1] + 1)
    return Trace(firsts[np.append(0, apart + 1)], lasts[np.append(apart, len(lasts) - 1)])
