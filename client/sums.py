"""Exact sums: updates in int64 fixed point, so the order and grouping of clients change no bit.

One unit is 2^-32. The sum cannot overflow while ``sum_k weight_k |update_k| < 2^31`` in every
coordinate; anything larger, or not finite, is refused. (Secure aggregation adds this form, too.)
"""

import numpy as np
import torch

SCALE = 2.0**32
LIMIT = 2.0**31
BLOCK = 2**20
"""Coordinates made whole at once on a CPU: memory for more takes longer to get than to fill."""


class WeightedSum:
    """A running ``sum_k weight_k update_k``; its size does not depend on the number of clients."""

    def __init__(self, size: int):
        self.total = np.zeros(size, dtype=np.int64)
        self.weight = 0
        self._largest = 0.0

    def add(self, updates: torch.Tensor, weights: np.ndarray) -> None:
        """Add the updates ``[K, P]`` (float32) of K clients with whole-number ``weights [K]``.

        Raises:
            ValueError: an update is not finite or too large for the sum.
        """
        largest = (
            _largest(updates).double().cpu().numpy() if updates.shape[1] else np.zeros(len(updates))
        )
        self._largest += float(largest @ weights)
        if not self._largest < LIMIT:  # also NaN
            worst = int(np.argmax(np.where(np.isfinite(largest), largest, np.inf)))
            raise ValueError(
                f"the update of client {worst} of this chunk has a coordinate of size "
                f"{largest[worst]:g}: training diverged (the weighted sum must stay below "
                f"{LIMIT:g}); lower --lr"
            )
        factors = torch.as_tensor(weights, dtype=torch.int64, device=updates.device)
        if updates.is_cuda:  # CUDA has no integer matrix product
            units = _units(updates).mul_(factors[:, None])
            self.total += units.sum(dim=0).cpu().numpy()
        else:
            columns = max(1, BLOCK // max(1, len(updates)))
            totals = torch.from_numpy(self.total).split(columns)
            for rows, total in zip(updates.split(columns, dim=1), totals, strict=True):
                total.addmv_(_units(rows).T, factors)
        self.weight += int(weights.sum())


class WholeSum:
    """A running sum of whole numbers of clients, each of which counts the same."""

    def __init__(self, size: int):
        self.total = np.zeros(size, dtype=np.int64)
        self.weight = 0

    def add(self, rows: torch.Tensor, weights: np.ndarray) -> None:
        """Add rows int64 ``[K, P]``, which are bounded so that no sum overflows."""
        self.total += rows.sum(dim=0).cpu().numpy()
        self.weight += len(weights)


def _units(updates: torch.Tensor) -> torch.Tensor:
    """Int64, exact but for the rounding: SCALE is a power of two."""
    return updates.mul(SCALE).round_().to(torch.int64)


def _largest(updates: torch.Tensor) -> torch.Tensor:
    """The largest absolute coordinate of each row, ``[K]``; NaN if the row has a NaN."""
    return torch.maximum(updates.amax(dim=1), -updates.amin(dim=1))


def mean(totals: list[np.ndarray], weight: int) -> np.ndarray:
    """The weighted mean update ``[P]`` (float64), from the groups' int64 totals and total weight.

    Raises:
        ValueError: the groups' totals are too large to be added.
    """
    total, largest = np.zeros_like(totals[0]), np.zeros(len(totals[0]))
    for one in totals:  # not all at once: that would be as much memory again, several times
        total += one
        largest += np.abs(one, dtype=np.float64)
    if not largest.max(initial=0.0) < SCALE * LIMIT:
        raise ValueError(
            f"training diverged (the groups' sums together exceed {LIMIT:g}); lower --lr"
        )
    return np.asarray(total / (SCALE * weight))
