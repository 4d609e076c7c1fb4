"""Partitions: which client holds which record.

A data set may say it itself (`given`). Otherwise there are four kinds. Each record has exactly one
owner, and all are array operations, so that 10,000 clients cost as much as 10:

- `iid`: a random permutation, cut into equal parts (sizes differ by at most one).
- `dirichlet`: label skew. Each class is cut in the proportions of its own draw from
  Dirichlet(alpha) over the clients (Yurochkin et al., arXiv:1905.12022). Small alpha: few classes
  per client, and unequal sizes. Large alpha: all clients have the same share of every class,
  without even the random fluctuations of `iid`.
- `shards`: records sorted by label are cut into clients * shards_per_client equal shards; each
  client draws shards_per_client of them (McMahan et al., arXiv:1602.05629). A shard lies in one or,
  across a border, two classes.
- `quantity`: sizes in the proportions of one draw from Dirichlet(alpha), labels iid.

`dirichlet` and `quantity` can leave a client with fewer than `minimum` records. Drawing again until
none has fewer may never end; instead the largest clients are reduced to a common level and their
surplus goes, in contiguous runs, to the smallest (`_repair`). A run comes from one or few givers,
so label skew is preserved.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from sim.config.names import suggest


@dataclass(frozen=True, eq=False)
class Partition:
    """Which client holds which of N records, for any number of clients in two arrays.

    Attributes:
        indices: int64 [N], record numbers, those of client 0 first; ascending within a client.
        offsets: int64 [clients + 1]; client k holds indices[offsets[k] : offsets[k + 1]].
    """

    indices: np.ndarray
    offsets: np.ndarray

    @property
    def clients(self) -> int:
        """Number of clients."""
        return len(self.offsets) - 1

    @property
    def sizes(self) -> np.ndarray:
        """Records per client, int64 [clients]."""
        return np.diff(self.offsets)

    def of(self, client: int) -> np.ndarray:
        """The record numbers of one client, int64 [sizes[client]], a view.

        Raises:
            ValueError: no such client.
        """
        if not 0 <= client < self.clients:
            raise ValueError(
                f"client = {client} is outside 0 .. {self.clients - 1}: name a client of this "
                "partition"
            )
        return self.indices[self.offsets[client] : self.offsets[client + 1]]

    def counts(self, labels: np.ndarray, classes: int) -> np.ndarray:
        """Records per client and class, int64 [clients, classes], given labels int64 [N].

        Raises:
            ValueError: not one label per record, or labels outside 0 .. classes - 1.
        """
        fits = labels.shape == self.indices.shape
        if not fits or (labels.size and not 0 <= labels.min() <= labels.max() < classes):
            raise ValueError(
                f"labels of shape {labels.shape} do not fit {len(self.indices)} records of "
                f"{classes} classes: give the labels that were partitioned"
            )
        owner = np.repeat(np.arange(self.clients), self.sizes)
        cell = owner * classes + labels[self.indices]
        return np.bincount(cell, minlength=self.clients * classes).reshape(self.clients, classes)


def by_owners(owner: np.ndarray, clients: int = 0) -> Partition:
    """The partition by owners int64 [N], of `clients` clients or up to the largest number."""
    offsets = np.concatenate(([0], np.cumsum(np.bincount(owner, minlength=clients))))
    return Partition(np.argsort(owner, kind="stable"), offsets)


def partition(
    labels: np.ndarray,
    clients: int,
    kind: str,
    rng: np.random.Generator,
    *,
    alpha: float = 0.5,
    shards_per_client: int = 2,
    minimum: int = 1,
) -> Partition:
    """Assign each of N records to one of `clients` clients.

    Args:
        labels: integers [N], N >= 1.
        clients: number of clients, at least 1.
        kind: one of `KINDS`.
        rng: the only source of randomness; the same generator state gives the same partition.
        alpha: concentration of `dirichlet` and `quantity`, above 0: the smaller, the more skewed.
        shards_per_client: shards that each client gets, at least 1.
        minimum: minimum records per client; 0 allows empty clients.

    Raises:
        ValueError: unknown kind; a value outside its range; clients * minimum > N; more shards than
            records; shards too small for `minimum`.
    """
    _check(labels, clients, kind, alpha, shards_per_client, minimum)
    owner = _KINDS[kind](labels, clients, rng, alpha, shards_per_client)
    sizes = np.bincount(owner, minlength=clients)
    if kind == "shards" and sizes.min() < minimum:
        raise ValueError(
            f"min_records = {minimum} records per client is more than the smallest client's "
            f"{sizes.min()} with shards_per_client = {shards_per_client}: lower --min-records"
        )
    if sizes.min() < minimum:
        owner = _repair(owner, sizes, minimum, rng)
    return by_owners(owner, clients)


def _check(
    labels: np.ndarray, clients: int, kind: str, alpha: float, shards_per_client: int, minimum: int
) -> None:
    """Raise all errors that can be detected before any record is assigned."""
    if kind not in _KINDS:
        raise ValueError(f"partition = {kind!r} is unknown: {suggest(kind, KINDS)}")
    if labels.ndim != 1 or labels.size == 0 or labels.dtype.kind not in "iu":
        raise ValueError(
            f"labels are {labels.dtype} of shape {labels.shape}: give one integer for each of N >= "
            "1 records"
        )
    given = {"clients": clients, "shards_per_client": shards_per_client, "minimum": minimum}
    for name, value in given.items():
        least = 0 if name == "minimum" else 1
        if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
            raise ValueError(f"{name} = {value!r} is no integer of at least {least}: raise it")
    if not (math.isfinite(alpha) and alpha > 0):
        raise ValueError(
            f"alpha = {alpha} must be above 0 and finite: 0.1 is strong skew, 100 nearly none"
        )
    records = len(labels)
    if clients * minimum > records:
        most = records // minimum
        fewer = f"give at most --clients {most}" if most else "hold out fewer records"
        raise ValueError(
            f"clients = {clients}, each with at least min_records = {minimum}, need more than the "
            f"{records} records to divide: {fewer}, or lower --min-records"
        )
    if kind == "shards" and clients * shards_per_client > records:
        raise ValueError(
            f"clients = {clients} with shards_per_client = {shards_per_client} make more shards "
            f"than records ({records}): lower --clients or --shards-per-client"
        )


def _iid(
    labels: np.ndarray, clients: int, rng: np.random.Generator, alpha: float, shards: int
) -> np.ndarray:
    """Owners [N]: equal parts of a random permutation."""
    owner = np.empty(len(labels), np.int64)
    owner[rng.permutation(len(labels))] = np.arange(len(labels)) * clients // len(labels)
    return owner


def _dirichlet(
    labels: np.ndarray, clients: int, rng: np.random.Generator, alpha: float, shards: int
) -> np.ndarray:
    """Owners [N]: each class in its own proportions."""
    owner = np.empty(len(labels), np.int64)
    order = _by_label(labels, rng)
    # order is sorted by label, so a class ends where consecutive labels differ
    borders = np.flatnonzero(np.diff(labels[order])) + 1
    for members in np.split(order, borders):
        owner[members] = _proportional(len(members), clients, alpha, rng)
    return owner


def _shards(
    labels: np.ndarray, clients: int, rng: np.random.Generator, alpha: float, shards: int
) -> np.ndarray:
    """Owners [N]: `shards` random shards of the records in order of their labels."""
    total = clients * shards
    holder = rng.permutation(total) // shards  # each client occurs exactly `shards` times
    owner = np.empty(len(labels), np.int64)
    owner[_by_label(labels, rng)] = holder[np.arange(len(labels)) * total // len(labels)]
    return owner


def _quantity(
    labels: np.ndarray, clients: int, rng: np.random.Generator, alpha: float, shards: int
) -> np.ndarray:
    """Owners [N]: random records in skewed numbers."""
    owner = np.empty(len(labels), np.int64)
    owner[rng.permutation(len(labels))] = _proportional(len(labels), clients, alpha, rng)
    return owner


_KINDS: dict[str, Callable[[np.ndarray, int, np.random.Generator, float, int], np.ndarray]] = {
    "iid": _iid,
    "dirichlet": _dirichlet,
    "shards": _shards,
    "quantity": _quantity,
}
KINDS = tuple(_KINDS)


def _by_label(labels: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Record numbers [N] in order of their labels, in random order within a label."""
    order = rng.permutation(len(labels))
    return order[np.argsort(labels[order], kind="stable")]


def _proportional(records: int, clients: int, alpha: float, rng: np.random.Generator) -> np.ndarray:
    """Owners [records], ascending, in numbers proportional to a Dirichlet(alpha) draw (rounded)."""
    # client k owns the records whose midpoint i + 1/2 lies in its interval: sizes add up exactly
    ends = np.cumsum(rng.dirichlet(np.full(clients, alpha)))[:-1] * records
    return np.searchsorted(ends, np.arange(records) + 0.5)


def _repair(
    owner: np.ndarray, sizes: np.ndarray, minimum: int, rng: np.random.Generator
) -> np.ndarray:
    """Owners [N] after the largest clients have filled up each client below `minimum`.

    Givers give up random records. Needs clients * minimum <= N; no giver falls below `minimum`.
    """
    wanted = np.maximum(minimum - sizes, 0)
    # the surplus above a level falls as the level rises: bisect for the highest that suffices, and
    # `minimum` does, because clients * minimum <= N
    low, high = minimum, int(sizes.max())
    while low < high:
        level = (low + high + 1) // 2
        if np.maximum(sizes - level, 0).sum() >= wanted.sum():
            low = level
        else:
            high = level - 1
    given = np.maximum(sizes - low, 0)
    # level low + 1 would not suffice, so the surplus is less than the number of givers: one each
    surplus = given.sum() - wanted.sum()
    given[np.flatnonzero(given)[:surplus]] -= 1
    listing = _by_label(owner, rng)
    place = np.arange(len(owner)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    repaired = owner.copy()
    repaired[listing[place < np.repeat(given, sizes)]] = np.repeat(np.arange(len(sizes)), wanted)
    return repaired
