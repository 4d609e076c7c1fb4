"""Removes records from the training set: before partitioning, so that no client holds them, and of
each client, so that it is judged by what it has not seen."""

from dataclasses import dataclass, replace

import numpy as np

from sim.data.dataset import Dataset
from sim.data.partition import Partition

Holdout = tuple[np.ndarray, np.ndarray]
"""Records float32 ``[M, ...]`` and labels int64 ``[M]`` that no guarantee covers."""


@dataclass(frozen=True, eq=False)
class Held:
    """Records ``[M, ...]`` that clients hold and do not train on, labels, and whose each is."""

    x: np.ndarray
    y: np.ndarray
    partition: Partition


def hold_out(dataset: Dataset, records: int, evaluate: bool, rng: np.random.Generator) -> Dataset:
    """The data set without uniformly drawn validation records, its test part if ``evaluate``.

    Raises:
        ValueError: no record would be left.
    """
    rest, held = set_aside(dataset, records, rng, "validation_records")
    return rest if held is None or not evaluate else replace(rest, x_test=held[0], y_test=held[1])


def set_aside(
    dataset: Dataset, records: int, rng: np.random.Generator, name: str = "public_records"
) -> tuple[Dataset, Holdout | None]:
    """The data set without uniformly drawn records, and these records, None if there are none.

    Raises:
        ValueError: no record would be left, or none of a given client; the message says to change
            the setting ``name``.
    """
    if records == 0:
        return dataset, None
    if records >= len(dataset.y):
        flag = f"--{name.replace('_', '-')}"
        raise ValueError(
            f"{name} is {records}, but there are {len(dataset.y)} training records: lower {flag}"
        )
    taken = np.zeros(len(dataset.y), dtype=bool)
    taken[rng.choice(len(dataset.y), records, replace=False)] = True
    owner = None if dataset.owner is None else _rest(dataset.owner, ~taken, name)
    rest = replace(dataset, x=dataset.x[~taken], y=dataset.y[~taken], owner=owner)
    return rest, (dataset.x[taken], dataset.y[taken])


def _rest(owner: np.ndarray, left: np.ndarray, name: str) -> np.ndarray:
    """The owners of the records that are left."""
    absent = np.setdiff1d(owner, owner[left])
    if absent.size:
        raise ValueError(
            f"{name} leaves client {absent[0]} no record: lower --{name.replace('_', '-')}"
        )
    return owner[left]


def hold_back(
    dataset: Dataset, parts: Partition, share: float, rng: np.random.Generator
) -> tuple[Dataset, Partition, Held | None]:
    """The data set and its partition without a share of each client's records, rounded up, drawn
    uniformly, and these records; None for a share of 0. At least one of each client's stays.

    Raises:
        ValueError: no client has two records.
    """
    if not share:
        return dataset, parts, None
    sizes, owner = parts.sizes, np.repeat(np.arange(parts.clients), parts.sizes)
    held = np.minimum(np.ceil(np.round(share * sizes, 9)), np.maximum(sizes - 1, 0))
    order = np.lexsort((rng.random(len(owner)), owner))  # at random within each client
    place = np.arange(len(owner)) - np.repeat(parts.offsets[:-1], sizes)
    taken = np.zeros(len(owner), dtype=bool)
    taken[order[place < np.repeat(held, sizes)]] = True
    if not taken.any():
        raise ValueError(
            f"client_holdout is {share:g}, but no client has a second record that it could hold "
            "back: use fewer --clients, or leave --client-holdout out"
        )
    chosen = np.zeros(len(dataset.y), dtype=bool)
    chosen[parts.indices[taken]] = True

    def part(here: np.ndarray, records: np.ndarray) -> Partition:
        """The partition of these records, numbered anew."""
        counts = np.bincount(owner[here], minlength=parts.clients)
        numbers = np.cumsum(records) - 1
        return Partition(numbers[parts.indices[here]], np.concatenate(([0], np.cumsum(counts))))

    owners = None if dataset.owner is None else dataset.owner[~chosen]
    rest = replace(dataset, x=dataset.x[~chosen], y=dataset.y[~chosen], owner=owners)
    own = Held(dataset.x[chosen], dataset.y[chosen], part(taken, chosen))
    return rest, part(~taken, ~chosen), own
