"""Batches of a cohort as padded masks, by the kinds of `batches`."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

from mechanisms.placing import place
from mechanisms.randomness import Source

COIN = 2.0**-53
"""Coins are multiples of this in [0, 1)."""
NULL = -1
"""Number of a null record, which counts in a client's size and adds to no batch."""


@dataclass(frozen=True)
class Batch:
    """One batch per client, padded with zeros, which are no records, to the cohort's largest draw.

    ``x [K, B, ...]``, ``y [K, B]``, ``mask [K, B]`` (False: padding, to be given factor 0).
    """

    x: torch.Tensor
    y: torch.Tensor
    mask: torch.Tensor


@dataclass(frozen=True)
class CohortData:
    """The records of K clients, as places in one data set.

    ``x [N, ...]`` and ``y [N]`` live on the device; ``records[k]`` are client k's record numbers.
    """

    x: torch.Tensor
    y: torch.Tensor
    records: Sequence[np.ndarray]

    def sizes(self) -> torch.Tensor:
        """``n_k``, float64 ``[K]``: public (adjacency is zero-out)."""
        return torch.tensor([len(r) for r in self.records], dtype=torch.float64)

    def slots(self) -> Sequence[np.ndarray]:
        """What batches of a fixed size are drawn from, for each client: its record numbers, and
        `NULL` for each of its null records, of which only an audit has any."""
        return self.records

    def gather(self, chosen: Sequence[np.ndarray]) -> Batch:
        """The batch of the given record numbers, ``chosen[k]`` for client k (possibly none). One
        client's records in a row are not copied."""
        if len(chosen) == 1 and chosen[0].size and (np.diff(chosen[0]) == 1).all():
            row = slice(int(chosen[0][0]), int(chosen[0][-1]) + 1)
            x, y = self.x[None, row], self.y[None, row]
            return Batch(x, y, torch.ones(y.shape[:2], dtype=torch.bool, device=x.device))
        lengths = np.array([len(c) for c in chosen])
        width = int(lengths.max(initial=0))
        inside = np.arange(width)[None, :] < lengths[:, None]
        numbers = np.zeros((len(chosen), width), dtype=np.int64)
        numbers[inside] = np.concatenate(chosen) if len(chosen) else []
        index = place(torch.from_numpy(numbers.ravel()), self.x.device)
        padding = place(torch.from_numpy(np.flatnonzero(~inside)), self.x.device)
        rows = (part.index_select(0, index).index_fill_(0, padding, 0) for part in (self.x, self.y))
        x, y = (part.unflatten(0, numbers.shape) for part in rows)
        return Batch(x, y, place(torch.from_numpy(inside), self.x.device))

    @cached_property
    def whole(self) -> Batch:
        """All records of each client; kept, for the steps of a local round may all take them."""
        return self.gather(self.records)


def threshold(rate: float | np.ndarray) -> float | np.ndarray:
    """The bound below which coins fall with probability ``rate``, rounded down to whole `COIN`s."""
    return np.floor(rate / COIN) * COIN


def poisson(data: CohortData, sample_rate: Sequence[float], streams: Sequence[Source]) -> Batch:
    """Each record of client k enters independently with probability ``sample_rate[k]``; batches may
    be empty."""
    if min(sample_rate, default=0.0) >= 1:
        return data.whole
    chosen = [
        records if rate >= 1 else records[streams[k].random(len(records)) < threshold(rate)]
        for k, (records, rate) in enumerate(zip(data.records, sample_rate, strict=True))
    ]
    return data.gather(chosen)


def fixed(data: CohortData, batch_sizes: Sequence[int], streams: Sequence[Source]) -> Batch:
    """Exactly ``batch_sizes[k]`` of the records of client k, each set of them equally likely."""
    drawn = (
        slots[streams[k].choice(len(slots), size, replace=False)]
        for k, (slots, size) in enumerate(zip(data.slots(), batch_sizes, strict=True))
    )
    return data.gather([slots[slots != NULL] for slots in drawn])


def shuffled(
    data: CohortData,
    batch_sizes: Sequence[int],
    streams: Sequence[Source],
    unseen: dict[int, np.ndarray],
) -> Batch:
    """The next ``batch_sizes[k]`` records of client k's pass, or those that are left; ``unseen``,
    which is updated, has what its pass has still to visit."""
    chosen = []
    for k, (slots, size) in enumerate(zip(data.slots(), batch_sizes, strict=True)):
        left = unseen.get(k, slots[:0])
        if not left.size:
            left = slots[streams[k].choice(len(slots), len(slots), replace=False)]
        chosen.append(left[:size])
        unseen[k] = left[size:]
    return data.gather([slots[slots != NULL] for slots in chosen])
