"""Canaries: records that are made to be noticed, and the null records that stand in for those that
are left out.

Both are put between a cohort and its mechanism, so that whatever is audited is the mechanism that
trains.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import cast

import numpy as np
import torch
from torch import Tensor

from mechanisms.cohort import Cohort
from mechanisms.gradients.record_gradients import RecordGradients
from mechanisms.metric import IDENTITY, Metric, transform
from mechanisms.sampling import CohortData

CANARY_ENTRIES = 2**23
"""Entries of canaries' gradients that are held at once."""


@dataclass(frozen=True)
class ZeroedOut(CohortData):
    """Records of which some are null records: they enter no batch, and the public sizes ``[K]``
    count them too.

    ``records[k]`` are those of client k that are not null.
    """

    public_sizes: tuple[int, ...]

    def sizes(self) -> Tensor:
        """``n_k``, float64 ``[K]``, null records included."""
        return torch.tensor(self.public_sizes, dtype=torch.float64)


class CanaryGradients:
    """Per-record gradients in which some records have a loss of the auditor's choice; as
    `RecordGradients` otherwise.

    A record of label ``classes + j`` is a gradient canary: its loss is ``-size w[coordinates[j]]``,
    so that its gradient lies along one coordinate, at every model; with a size above the clip bound
    its clipped gradient has the bound's length. All other records' gradients are 0 in these
    coordinates. An adversary who knows those records could subtract what they add there; so he need
    not.

    Args:
        inner: of the model and its true loss.
        classes: the number of true labels.
        coordinates: int64 ``[m]``, places in a row of parameters.
        size: length of a canary's gradient, positive.
    """

    def __init__(self, inner: RecordGradients, classes: int, coordinates: Tensor, size: float):
        self.layout = inner.layout
        self._inner, self._classes, self._coordinates, self._size = (
            inner,
            classes,
            coordinates,
            size,
        )
        self._touched = torch.unique(coordinates)

    def scaled_sum(
        self,
        params: Tensor,
        x: Tensor,
        y: Tensor,
        factors: Callable[[Tensor], Tensor],
        metric: Metric = IDENTITY,
    ) -> tuple[Tensor, Tensor]:
        """As `RecordGradients.scaled_sum`: ``(total [K, P], norms [K, B])``."""
        crafted = y >= self._classes

        def of_others(norms: Tensor) -> Tensor:
            return torch.where(crafted, 0.0, factors(norms))

        total, norms = self._inner.scaled_sum(params, x, self._true(y), of_others, metric)
        total = self._without_canaries(total, metric)
        client, record = crafted.nonzero(as_tuple=True)
        places = self._coordinates[y[client, record] - self._classes]
        step = max(1, CANARY_ENTRIES // self.layout.size)
        for block in range(0, len(places), step):
            some = slice(block, block + step)
            norms[client[some], record[some]] = self._crafted(
                params, client[some], places[some], metric
            ).norm(dim=1)
        scale = factors(norms)[client, record].to(total)
        for block in range(0, len(places), step):
            some = slice(block, block + step)
            rows = self._crafted(params, client[some], places[some], metric)
            total.index_add_(0, client[some], scale[some, None] * rows)
        return total, norms

    def norms(self, params: Tensor, x: Tensor, y: Tensor, metric: Metric = IDENTITY) -> Tensor:
        """``[K, B]``: the L2 norm of each record's whole gradient."""
        return self.scaled_sum(params, x, y, torch.zeros_like, metric)[1]

    def losses(self, params: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """``[K, B]``: the loss of each record."""
        client, record = (y >= self._classes).nonzero(as_tuple=True)
        losses = self._inner.losses(params, x, self._true(y))
        losses[client, record] = (
            -self._size * params[client, self._coordinates[y[client, record] - self._classes]]
        )
        return losses

    def _true(self, y: Tensor) -> Tensor:
        """Labels that the model's own loss takes; a canary's is of no consequence."""
        return y.clamp(max=self._classes - 1)

    def _without_canaries(self, total: Tensor, metric: Metric) -> Tensor:
        """``total [K, P]`` with 0 in the canaries' coordinates, as they are before the metric."""
        back = {layer: torch.linalg.inv(matrix) for layer, matrix in metric.items()}
        plain = transform(back, self.layout, total)
        plain[:, self._touched] = 0.0
        return transform(metric, self.layout, plain)

    def _crafted(self, params: Tensor, client: Tensor, places: Tensor, metric: Metric) -> Tensor:
        """Gradients ``[n, P]`` of canaries of these clients ``[n]`` at these coordinates ``[n]``,
        under the metric."""
        rows = params.new_zeros(len(places), self.layout.size)
        rows[torch.arange(len(places), device=rows.device), places] = -self._size
        return transform(
            {layer: matrix[client] for layer, matrix in metric.items()}, self.layout, rows
        )


@dataclass(frozen=True)
class Planted:
    """Which records are canaries, in which form, and which of them are left out; the same for every
    cohort.

    Attributes:
        labels: int64 ``[N]``, the data set's with the canaries' in their places.
        absent: bool ``[N]``, canaries that null records stand in for.
        coordinates: int64 ``[m]``, of gradient canaries; empty where there are none.
        classes: the number of true labels.
        size: length of a gradient canary's gradient.
    """

    labels: Tensor
    absent: np.ndarray
    coordinates: Tensor
    classes: int
    size: float

    def seen(self, cohort: Cohort) -> Cohort:
        """The cohort as its mechanism is to see it."""
        data = cohort.data
        present = [records[~self.absent[records]] for records in data.records]
        sizes = tuple(len(records) for records in data.records)
        gradients = cohort.gradients
        if len(self.coordinates):
            crafted = CanaryGradients(gradients, self.classes, self.coordinates, self.size)
            gradients = cast(RecordGradients, crafted)
        return replace(
            cohort, data=ZeroedOut(data.x, self.labels, present, sizes), gradients=gradients
        )
