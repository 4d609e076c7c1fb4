"""Metrics that add up over clients, chunks and groups: each is kept as (sum, number of clients)."""

from collections.abc import Iterable, Mapping

import torch

Pairs = dict[str, tuple[float, int]]


class Metrics:
    """A running sum of the mechanism's public metrics."""

    def __init__(self) -> None:
        self.pairs: Pairs = {}

    def add(self, metrics: Mapping[str, torch.Tensor]) -> None:
        """Add metrics of a cohort, each a value per client ``[K]``."""
        self.merge(
            {name: (float(values.double().sum()), len(values)) for name, values in metrics.items()}
        )

    def merge(self, pairs: Pairs) -> None:
        """Add another running sum."""
        for name, (total, count) in pairs.items():
            before, number = self.pairs.get(name, (0.0, 0))
            self.pairs[name] = (before + total, number + count)


def means(parts: Iterable[Pairs]) -> dict[str, float]:
    """The mean over all clients of each metric."""
    total = Metrics()
    for pairs in parts:
        total.merge(pairs)
    return {name: value / count for name, (value, count) in total.pairs.items()}
