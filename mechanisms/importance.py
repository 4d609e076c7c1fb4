"""Poisson sampling in two steps, by an estimate of each record's gradient norm, so that few
gradients are computed.

A record is *proposed* by a coin of its own with a probability proportional to its estimate
``ghat``; a gradient is computed for proposed records only. A proposed record is *accepted* by a
second coin with probability ``min(1, |g| / ghat)``, so that it enters in proportion to its true
norm, as long as that is not above the estimate.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from mechanisms.cohort import Cohort
from mechanisms.sampling import Batch, CohortData, threshold

EDGE = 1.0 - 2.0**-40
"""Factor on proposal probabilities, so that rounding of coins or products makes none too large."""
LOOKED_AT = 1024
"""Records of one client gathered at once when only norms are wanted."""


@dataclass(frozen=True)
class Proposals:
    """Proposed records of K clients, and what decides whether they enter.

    Attributes:
        batch: the records, padded.
        estimates: ghat ``[K, B]``, in units of the clip bound, in (0, 1]; 0 in padding. Float64.
        coins: uniform draws in [0, 1), ``[K, B]``. Float64.
    """

    batch: Batch
    estimates: torch.Tensor
    coins: torch.Tensor

    def accepted(self, norms: torch.Tensor, clip_norm: torch.Tensor) -> torch.Tensor:
        """Bool ``[K, B]``: which records of gradient norms ``norms [K, B]``, clipped to ``clip_norm
        [K]``, enter.

        With probability ``min(1, |g| / ghat)``; never one with a zero gradient, and never padding.
        """
        bound = clip_norm[:, None]
        below = self.coins.to(norms) * self.estimates.to(norms) * bound
        return (below < torch.minimum(norms, bound)) & self.batch.mask


def propose(cohort: Cohort, rates: torch.Tensor, estimates: torch.Tensor) -> Proposals:
    """This step's proposals.

    If passes have one shape, all records that could be proposed are gathered, whatever their
    estimates, and the mask marks those that are, so that no record's place depends on another.

    Args:
        cohort: whose streams "batch" and "accept" are drawn from.
        rates: float64 ``[K]``, the probability that a record with estimate 1 is proposed, in (0,
            1].
        estimates: float64 ``[K, n]``, ghat of every record in units of the clip bound, in (0, 1]; n
            the largest size.
    """
    rows, levels = estimates.cpu().numpy(), rates.tolist()
    own, sources = cohort.data.records, cohort.streams.of("batch")
    first = [source.random(len(records)) for source, records in zip(sources, own, strict=True)]
    each = zip(levels, rows, own, strict=True)
    limits = [threshold(EDGE * rate * row[: len(records)]) for rate, row, records in each]
    gathered = limits if cohort.width(levels) is None else levels
    places = [np.flatnonzero(coins < limit) for coins, limit in zip(first, gathered, strict=True)]
    accepting = zip(places, cohort.streams.of("accept"), strict=True)
    second = [source.random(len(at)) for at, source in accepting]
    batch = gather(cohort.data, places)
    ghat = [row[at] for row, at in zip(rows, places, strict=True)]
    proposed = [(coins < limit)[at] for coins, limit, at in zip(first, limits, places, strict=True)]
    mask = _padded(proposed, batch) > 0
    return Proposals(replace(batch, mask=mask), _padded(ghat, batch), _padded(second, batch))


def gather(data: CohortData, places: list[np.ndarray]) -> Batch:
    """The records at the given positions of each client's own list."""
    return data.gather([own[at] for own, at in zip(data.records, places, strict=True)])


def look(
    cohort: Cohort, params: torch.Tensor, places: list[np.ndarray], rates: Sequence[float]
) -> list[np.ndarray]:
    """Gradient norms at ``params [K, P]`` of the records at some positions of each client's list,
    float64, in their order.

    The positions were drawn with ``rates [K]``. A record without a finite gradient has norm inf.
    """
    width = cohort.width(rates)
    width = width and min(width, LOOKED_AT)
    found: list[list[np.ndarray]] = [[] for _ in places]
    for start in range(0, max(map(len, places), default=0), LOOKED_AT):
        part = [at[start : start + LOOKED_AT] for at in places]
        batch = gather(cohort.data, part)
        norms = cohort.arithmetic.norms(cohort.gradients, params, batch, width)
        for at, rows, row in zip(part, found, norms.double().cpu().numpy(), strict=True):
            rows.append(row[: len(at)])
    return [np.concatenate(parts) if parts else np.empty(0) for parts in found]


def _padded(rows: list[np.ndarray], batch: Batch) -> torch.Tensor:
    """Values of each client's drawn records as float64 ``[K, B]``, 0 in padding."""
    values = np.zeros(tuple(batch.mask.shape))
    for row, value in zip(values, rows, strict=True):
        row[: len(value)] = value
    return torch.from_numpy(values).to(batch.mask.device)
