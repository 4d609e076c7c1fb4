"""Canaries: records crafted to be detectable, and null records in place of those left out.

Both are inserted between a cohort and its mechanism, so that the audit tests the mechanism that
trains.
"""

from dataclasses import dataclass, replace
from typing import cast

import numpy as np
import torch
from torch import Tensor

from mechanisms.cohort import Cohort
from mechanisms.gradients.factors import Factors
from mechanisms.gradients.record_gradients import RecordGradients
from mechanisms.metric import IDENTITY, Metric, transform
from mechanisms.sampling import NULL, CohortData

CANARY_ENTRIES = 2**23
"""Maximum gradient entries of canaries held at once."""


@dataclass(frozen=True)
class ZeroedOut(CohortData):
    """Records of which some are null: these enter no batch, but count in the public sizes ``[K]``.

    ``records[k]`` are the records of client k that are not null.
    """

    public_sizes: tuple[int, ...]

    def sizes(self) -> Tensor:
        """``n_k``, float64 ``[K]``, null records included."""
        return torch.tensor(self.public_sizes, dtype=torch.float64)

    def slots(self) -> list[np.ndarray]:
        """Record numbers, and `NULL` up to the public size."""
        return [
            np.append(own, np.full(size - len(own), NULL))
            for own, size in zip(self.records, self.public_sizes, strict=True)
        ]


class CanaryGradients:
    """`RecordGradients` in which some records, the canaries, have a loss chosen by the auditor.

    A record of label ``classes + j`` is a gradient canary: its loss is ``-size w[coordinates[j]]``,
    so at every model its gradient lies along one coordinate; with a size above the clip bound its
    clipped gradient has exactly that length. All other records' gradients are set to 0 in these
    coordinates: an adversary who knows those records could subtract their contributions anyway.

    Args:
        inner: gradients of the model's true loss.
        classes: the number of true labels.
        coordinates: int64 ``[m]``, indices into a row of parameters.
        size: length of a canary's gradient, positive.
    """

    def __init__(self, inner: RecordGradients, classes: int, coordinates: Tensor, size: float):
        self.layout = inner.layout
        self._inner, self._classes, self._size = inner, classes, size
        self._coordinates = coordinates
        self._touched = torch.unique(coordinates)

    def scaled_sum(
        self, params: Tensor, x: Tensor, y: Tensor, factors: Factors, metric: Metric = IDENTITY
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
        """``[K, B]``: the L2 norm of each record's gradient."""
        return self.scaled_sum(params, x, y, torch.zeros_like, metric)[1]

    def losses(self, params: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """``[K, B]``: the loss of each record."""
        client, record = (y >= self._classes).nonzero(as_tuple=True)
        losses = self._inner.losses(params, x, self._true(y))
        places = self._coordinates[y[client, record] - self._classes]
        losses[client, record] = -self._size * params[client, places]
        return losses

    def _true(self, y: Tensor) -> Tensor:
        """Labels valid for the model's own loss; those of canaries do not matter."""
        return y.clamp(max=self._classes - 1)

    def _without_canaries(self, total: Tensor, metric: Metric) -> Tensor:
        """``total [K, P]`` with 0 in the canaries' coordinates, which the metric may mix."""
        back = {layer: torch.linalg.inv(matrix) for layer, matrix in metric.items()}
        plain = transform(back, self.layout, total)
        plain[:, self._touched] = 0.0
        return transform(metric, self.layout, plain)

    def _crafted(self, params: Tensor, client: Tensor, places: Tensor, metric: Metric) -> Tensor:
        """Canary gradients ``[n, P]`` of these clients and coordinates, under the metric."""
        rows = params.new_zeros(len(places), self.layout.size)
        rows[torch.arange(len(places), device=rows.device), places] = -self._size
        own = {layer: matrix[client] for layer, matrix in metric.items()}
        return transform(own, self.layout, rows)


@dataclass(frozen=True)
class Planted:
    """Which records are canaries, of which kind, and which are left out; the same for all cohorts.

    Attributes:
        labels: int64 ``[N]``, the data set's labels with those of the canaries replaced.
        absent: bool ``[N]``, canaries that are replaced by null records.
        coordinates: int64 ``[m]``, coordinates of gradient canaries; empty if there are none.
        classes: the number of true labels.
        size: length of a gradient canary's gradient.
    """

    labels: Tensor
    absent: np.ndarray
    coordinates: Tensor
    classes: int
    size: float

    def seen(self, cohort: Cohort) -> Cohort:
        """The cohort with the canaries, as its mechanism sees it."""
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
