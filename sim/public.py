"""Public records: taken out of the training records before these are dealt out, so that no client holds them."""

from dataclasses import replace

import numpy as np

from sim.data import Dataset

Public = tuple[np.ndarray, np.ndarray]
"""Records float32 ``[M, ...]`` and labels int64 ``[M]`` that no guarantee covers."""


def set_aside(dataset: Dataset, records: int, rng: np.random.Generator) -> tuple[Dataset, Public | None]:
    """The data set without so many records, drawn uniformly, and these records; None for none.

    Raises:
        ValueError: no record would be left.
    """
    if records == 0:
        return dataset, None
    if records >= len(dataset.y):
        raise ValueError(f"public_records is {records}, but there are {len(dataset.y)} in all: lower --public-records")
    taken = np.zeros(len(dataset.y), dtype=bool)
    taken[rng.choice(len(dataset.y), records, replace=False)] = True
    rest = replace(dataset, x=dataset.x[~taken], y=dataset.y[~taken])
    return rest, (dataset.x[taken], dataset.y[taken])
