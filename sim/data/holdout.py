"""Removes records from the training set before partitioning, so that no client holds them."""

from dataclasses import replace

import numpy as np

from sim.data.dataset import Dataset

Holdout = tuple[np.ndarray, np.ndarray]
"""Records float32 ``[M, ...]`` and labels int64 ``[M]`` that no guarantee covers."""


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
