"""Records taken out of the training records before these are dealt out, so that no client holds
them."""

from dataclasses import replace

import numpy as np

from sim.data.dataset import Dataset

Holdout = tuple[np.ndarray, np.ndarray]
"""Records float32 ``[M, ...]`` and labels int64 ``[M]`` that no guarantee covers."""


def hold_out(dataset: Dataset, records: int, evaluate: bool, rng: np.random.Generator) -> Dataset:
    """The data set without so many records for tuning, drawn uniformly; they become its test part,
    where ``evaluate``.

    Raises:
        ValueError: no record would be left.
    """
    rest, held = set_aside(dataset, records, rng, "validation_records")
    return rest if held is None or not evaluate else replace(rest, x_test=held[0], y_test=held[1])


def set_aside(
    dataset: Dataset, records: int, rng: np.random.Generator, name: str = "public_records"
) -> tuple[Dataset, Holdout | None]:
    """The data set without so many records, drawn uniformly, and these records; None for none.

    Raises:
        ValueError: no record would be left; ``name`` is the setting to change.
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
    rest = replace(dataset, x=dataset.x[~taken], y=dataset.y[~taken])
    return rest, (dataset.x[taken], dataset.y[taken])
