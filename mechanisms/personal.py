"""Personal budgets: groups of clients, each with an epsilon of its own.

The setting ``budgets`` gives groups by their shares of all clients,
``conservative=1:0.5,liberal=8:0.5``, or by the clients' numbers,
``conservative=1@0-49,liberal=8@50-99``; or it is the path of a CSV file with the columns ``client``
and ``epsilon``. Who has which budget is public.
"""

import functools
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mechanisms.accounting.ranges import format_ranges, parse_ranges
from mechanisms.client_rows import by_numbers, client_of, is_file, reading
from mechanisms.settings import Privacy

EXAMPLE = "conservative=1:0.5,liberal=8:0.5"
COLUMNS = ("client", "epsilon")
_GROUP = re.compile(r"([\w.+-]+)=([^=:@,]*)([:@])([^=:@]*)", re.ASCII)
_BEFORE_A_GROUP = re.compile(r",(?=[^,=]*=)")


@dataclass(frozen=True)
class Group:
    """Clients with one budget.

    Attributes:
        name: of the group.
        epsilon: budget of each of its clients over the whole run [nats].
        clients: their numbers, ascending, int64 ``[n]``.
    """

    name: str
    epsilon: float
    clients: np.ndarray


def resolved(text: str, clients: int, rng: np.random.Generator, names: Sequence[str] = ()) -> str:
    """The same budgets by the clients' numbers; ``rng`` draws who belongs to a share, and ``names``
    are the clients' in the data set, if it names them: a file may have these.

    Raises:
        ValueError: the text or the file gives no budgets, or not each client one.
    """
    if is_file(text):
        found = _of_file(Path(text), clients, names)
    else:
        parts = _parts(text)
        by_share = parts[0][2] == ":"
        found = list(_drawn(parts, clients, rng) if by_share else _numbered(parts, clients))
    _check_complete(found, clients)
    return ",".join(f"{g.name}={g.epsilon!r}@{format_ranges(g.clients)}" for g in found)


@functools.lru_cache(maxsize=8)
def groups(text: str, clients: int) -> tuple[Group, ...]:
    """The groups of budgets by the clients' numbers, by rising epsilon.

    Raises:
        ValueError: the text gives no budgets by numbers, or not each client one.
    """
    found = tuple(_numbered(_parts(text), clients))
    _check_complete(found, clients)
    return found


def of_clients(privacy: Privacy, clients: int) -> np.ndarray:
    """Float64 ``[clients]``: each client's epsilon, infinite for none."""
    if privacy.budgets is None:
        return np.full(clients, math.inf if privacy.epsilon is None else privacy.epsilon)
    found = np.empty(clients)
    for group in groups(privacy.budgets, clients):
        found[group.clients] = group.epsilon
    return found


Part = tuple[float, str, str, str]
"""A group of a text: epsilon; name; ``:`` for a share, ``@`` for numbers; which."""


def _parts(text: str) -> list[Part]:
    """The groups of a text by rising epsilon, then by name; all by shares, or all by numbers."""
    found: dict[str, Part] = {}
    for part in _BEFORE_A_GROUP.split(text):
        if not (match := _GROUP.fullmatch(part)):
            raise ValueError(
                f"budgets has {part[:60]!r}, which is no group: write NAME=EPSILON:SHARE or "
                f"NAME=EPSILON@CLIENTS, with commas between, such as {EXAMPLE}, or give a .csv file"
            )
        name, epsilon, kind, which = match.groups()
        if name in found:
            raise ValueError(f"budgets has the group {name} twice: give each a name of its own")
        found[name] = _epsilon(epsilon, f"group {name}"), name, kind, which
    if len({kind for _, _, kind, _ in found.values()}) > 1:
        raise ValueError(
            "budgets has groups by shares and groups by clients' numbers: give all in one way"
        )
    return sorted(found.values())


def _epsilon(text: str, whose: str) -> float:
    found = _number(text)
    if not 0.0 < found < math.inf:
        raise ValueError(
            f"budgets: epsilon of {whose} is {text[:60]!r}; it must be a number above 0: correct it"
        )
    return found


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def _drawn(parts: list[Part], clients: int, rng: np.random.Generator) -> Iterator[Group]:
    """Groups of these shares, rounded to whole clients that are drawn at random."""
    shares = np.array([_number(which) for *_, which in parts])
    if not (shares > 0).all() or abs(shares.sum() - 1.0) > 1e-9:
        given = ", ".join(f"{name}:{which[:60]}" for _, name, _, which in parts)
        raise ValueError(
            f"budgets has the shares {given}; they must be above 0 and add up to 1: correct them"
        )
    ends = np.rint(np.cumsum(shares) * clients).astype(np.int64)
    members = np.split(rng.permutation(clients), ends[:-1])
    for (epsilon, name, _, which), drawn in zip(parts, members, strict=True):
        if not len(drawn):
            raise ValueError(
                f"budgets gives {name} a share of {which}, which is none of {clients} clients: "
                "give it a larger one, or leave it out"
            )
        yield Group(name, epsilon, np.sort(drawn))


def _numbered(parts: list[Part], clients: int) -> Iterator[Group]:
    for epsilon, name, kind, which in parts:
        try:
            numbers = parse_ranges(which if kind == "@" else "?")
        except ValueError:
            numbers = np.empty(0, dtype=np.int64)
        if not len(numbers) or numbers[-1] >= clients:
            raise ValueError(
                f"budgets gives {name} the clients {which[:60]!r}; they must be ascending numbers "
                f"below {clients}, such as 0-4,7: correct them"
            )
        yield Group(name, epsilon, numbers)


def _of_file(path: Path, clients: int, names: Sequence[str]) -> list[Group]:
    """A group for each epsilon of a CSV file, which names it."""
    found: dict[int, float] = {}
    with reading("budgets", path, COLUMNS, f"groups such as {EXAMPLE}") as rows:
        for row in by_numbers(list(rows), names):
            client = client_of(row, clients)
            if client in found:
                raise ValueError(f"client {client} has two rows")
            found[client] = _epsilon(row["epsilon"] or "", f"client {client}")
    numbers, budgets = np.array([*found], dtype=np.int64), np.array([*found.values()])
    return [
        Group(repr(epsilon), epsilon, np.sort(numbers[budgets == epsilon]))
        for epsilon in np.unique(budgets).tolist()
    ]


def _check_complete(found: Iterable[Group], clients: int) -> None:
    """Refuse clients without a budget, or with two."""
    counts = np.zeros(clients, dtype=np.int64)
    for group in found:
        counts[group.clients] += 1
    if (missing := np.flatnonzero(counts == 0)).size:
        raise ValueError(
            f"budgets lacks the clients {format_ranges(missing)[:60]} of {clients}: give each one "
            "an epsilon"
        )
    if (twice := np.flatnonzero(counts > 1)).size:
        raise ValueError(
            f"budgets has the clients {format_ranges(twice)[:60]} in two groups: leave them in one"
        )
