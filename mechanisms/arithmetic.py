"""How private sums are computed and noised: as floats in a simulation, exactly in a release.

Mechanisms are written once, in terms of these operations. `FLOATS` is fast, and agrees with the
theory up to rounding; `GRID` gives exactly the bits that the theory covers (`mechanisms/grid.py`).
It needs passes of one shape, so that a record's results do not depend on which others are there.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from mechanisms import grid
from mechanisms.entropy import SystemEntropy
from mechanisms.gradients.factors import Factors
from mechanisms.gradients.record_gradients import RecordGradients
from mechanisms.metric import Metric
from mechanisms.placing import known, place
from mechanisms.randomness import Draws, Source, words_of
from mechanisms.rounded_gaussian import SCALE_BITS, rounded_gaussian
from mechanisms.sampling import Batch


class LossTest(NamedTuple):
    """The noisy tests of K clients, with the exact numbers that are charged.

    Attributes:
        bound: C_v, bound on the absolute change.
        noise: s_v, standard deviation of the noise in units of the sensitivity 2 C_v.
        threshold: beta, in units of C_v.
    """

    bound: Sequence[float]
    noise: Sequence[float]
    threshold: Sequence[float]


class Arithmetic(Protocol):
    """Sums over records with parts of norm at most ``bound``, plus noise of deviation ``std``.

    A total may only be added to, and passed to `noised` with the bound of its parts.
    """

    def check_sizes(self, sizes: Sequence[int]) -> None:
        """Refuse clients with more records than their sums have room for.

        Raises:
            ValueError: a client has too many.
        """

    def width(self, records: int) -> int | None:
        """Records per client in a pass, from the expected number; None if passes vary in shape."""

    def gradient_sum(
        self,
        gradients: RecordGradients,
        params: Tensor,
        batch: Batch,
        factors: Factors,
        bound: Tensor,
        width: int | None,
        metric: Metric,
    ) -> tuple[Tensor, Tensor]:
        """The sums ``[K, P]`` of factor times gradient, parts of a total, and norms ``[K, B]``."""

    def norms(
        self, gradients: RecordGradients, params: Tensor, batch: Batch, width: int | None
    ) -> Tensor:
        """Gradient norms ``[K, B]``."""

    def losses(
        self, gradients: RecordGradients, params: Tensor, batch: Batch, width: int | None
    ) -> Tensor:
        """Losses ``[K, B]``."""

    def parts(self, values: Tensor, bound: Tensor) -> Tensor:
        """Records' parts ``[K, ...]``, to be added up to a total."""

    def total(self, values: Tensor) -> Tensor:
        """``[K]``: sums of ``values [K, B]`` in their own type, for what is bounded afterwards."""

    def begin_noise(self, streams: Draws, purpose: str, size: int) -> None:
        """Start the draws of a total ``[K, size]`` that is noised next for this purpose."""

    def noised(
        self, total: Tensor, bound: Tensor, std: Tensor, streams: Draws, purpose: str
    ) -> Tensor:
        """A noisy total ``[K, m]``, in the type of ``std [K]``."""

    def noised_from(self, source: Source, totals: Tensor, bound: float, std: float) -> Tensor:
        """Several totals ``[n, m]`` of one client, each with noise of its own, float64."""

    def below(self, change: Tensor, test: LossTest, streams: Draws, purpose: str) -> Tensor:
        """Bool ``[K]``: whether changes ``[K]`` within the bounds, plus noise, are below the
        thresholds."""


class Floats:
    """Sums in the tensors' own type."""

    def check_sizes(self, sizes: Sequence[int]) -> None:
        """Floats have room for all."""

    def width(self, records: int) -> int | None:
        """Passes are as large as memory allows."""
        return None

    def gradient_sum(
        self,
        gradients: RecordGradients,
        params: Tensor,
        batch: Batch,
        factors: Factors,
        bound: Tensor,
        width: int | None,
        metric: Metric,
    ) -> tuple[Tensor, Tensor]:
        """Float32 ``[K, P]`` and ``[K, B]``."""
        return gradients.scaled_sum(params, batch.x, batch.y, factors, metric)

    def norms(
        self, gradients: RecordGradients, params: Tensor, batch: Batch, width: int | None
    ) -> Tensor:
        """Float32."""
        return gradients.norms(params, batch.x, batch.y)

    def losses(
        self, gradients: RecordGradients, params: Tensor, batch: Batch, width: int | None
    ) -> Tensor:
        """Float32."""
        return gradients.losses(params, batch.x, batch.y)

    def parts(self, values: Tensor, bound: Tensor) -> Tensor:
        """The values, unchanged."""
        return values

    def total(self, values: Tensor) -> Tensor:
        """A float sum, in any order."""
        return values.sum(dim=1)

    def begin_noise(self, streams: Draws, purpose: str, size: int) -> None:
        """Float draws."""
        streams.begin("normal", purpose, size)

    def noised(
        self, total: Tensor, bound: Tensor, std: Tensor, streams: Draws, purpose: str
    ) -> Tensor:
        """Float normal draws, whatever the bound; none where there is no noise."""
        if known(~(std > 0)):
            return total
        draws = streams.normal(purpose, total.shape[1]).to(std)
        return draws.mul_(std[:, None]).add_(total)  # in place: a large model's row is slow to make

    def noised_from(self, source: Source, totals: Tensor, bound: float, std: float) -> Tensor:
        """Float64 normal draws; none where there is no noise.

        Raises:
            TypeError: the source is that of a release, whose noise is on the grid.
        """
        if isinstance(source, SystemEntropy):
            raise TypeError("float noise was asked for in a release, where noise is on a grid")
        draws = source.standard_normal(totals.shape) if std else np.zeros(totals.shape)
        return totals.double() + std * torch.from_numpy(draws).to(totals.device)

    def below(self, change: Tensor, test: LossTest, streams: Draws, purpose: str) -> Tensor:
        """Compared as floats."""
        bound, noise, threshold = (
            place(torch.tensor(one, dtype=torch.float32), change.device) for one in test
        )
        return change + 2 * bound * noise * streams.normal(purpose, 1)[:, 0] < threshold * bound


class Grid:
    """Exact sums of whole numbers, and exact draws."""

    def check_sizes(self, sizes: Sequence[int]) -> None:
        """See `mechanisms.grid`."""
        grid.check_sizes(sizes)

    def width(self, records: int) -> int | None:
        """The expected number of records, at least one."""
        return max(1, records)

    def gradient_sum(
        self,
        gradients: RecordGradients,
        params: Tensor,
        batch: Batch,
        factors: Factors,
        bound: Tensor,
        width: int | None,
        metric: Metric,
    ) -> tuple[Tensor, Tensor]:
        """Int64 ``[K, P]`` and float64 ``[K, B]``."""
        return gradients.whole_sum(
            params, batch.x, batch.y, factors, bound, width or batch.y.shape[1], metric
        )

    def norms(
        self, gradients: RecordGradients, params: Tensor, batch: Batch, width: int | None
    ) -> Tensor:
        """Float64, as in an exact sum."""
        return gradients.norms(params, batch.x, batch.y, width=width)

    def losses(
        self, gradients: RecordGradients, params: Tensor, batch: Batch, width: int | None
    ) -> Tensor:
        """Float32, from passes of one shape."""
        return gradients.losses(params, batch.x, batch.y, width)

    def parts(self, values: Tensor, bound: Tensor) -> Tensor:
        """Each rounded to whole units."""
        return grid.whole_parts(values, bound)

    def total(self, values: Tensor) -> Tensor:
        """Correctly rounded, so records' order does not matter; NaN if a value is not finite."""
        rows = values.double().cpu().numpy()
        sums = [math.fsum(row) if np.isfinite(row).all() else math.nan for row in rows]
        return torch.tensor(sums, dtype=torch.float64, device=values.device)

    def begin_noise(self, streams: Draws, purpose: str, size: int) -> None:
        """Exact draws."""
        streams.begin("rounded", purpose, size)

    def noised(
        self, total: Tensor, bound: Tensor, std: Tensor, streams: Draws, purpose: str
    ) -> Tensor:
        """See `mechanisms.grid`."""
        return grid.noised(total, bound, std, streams.rounded(purpose, total.shape[1])).to(std)

    def noised_from(self, source: Source, totals: Tensor, bound: float, std: float) -> Tensor:
        """See `mechanisms.grid`."""
        limits = torch.full((len(totals),), bound, dtype=torch.float64, device=totals.device)
        drawn = torch.from_numpy(rounded_gaussian(words_of(source), totals.numel()))
        draws = drawn.view(totals.shape).to(totals.device)
        return grid.noised(totals, limits, torch.full_like(limits, std), draws)

    def below(self, change: Tensor, test: LossTest, streams: Draws, purpose: str) -> Tensor:
        """Compared as whole numbers.

        With noise of deviation 2^28, A points are the bound, and a point y is accepted with
        probability ``Phi((floor(beta A) + 1/2 - y) / 2^28)``. For ``|y| <= A - 1`` that lies within
        the probabilities at -bound and +bound, between which it is charged.

        Raises:
            ValueError: so much noise that the bound is less than a point.
        """
        bound, noise, threshold = (
            torch.tensor(one, dtype=torch.float64, device=change.device) for one in test
        )
        units = 2.0**SCALE_BITS / (2.0 * noise)
        # A - 1, because rounding the threshold moves it by up to half a point
        most = (units - 1.0).floor()
        if bool((most < 0).any()):
            raise ValueError(
                f"dpsur_validation_noise = {float(noise.max()):g} must be at most 2^27 in a "
                "release: lower --dpsur-validation-noise or --noise-multiplier"
            )
        points = (change.double() / bound * units).round()
        points = torch.minimum(torch.maximum(points, -most), most)
        noisy = points.to(torch.int64) + streams.rounded(purpose, 1)[:, 0]
        edge = (threshold * units).floor().clamp(-grid.MAX_POINT, grid.MAX_POINT)
        return noisy <= edge.to(torch.int64)


FLOATS, GRID = Floats(), Grid()


def of_seed(seed: int | None) -> Arithmetic:
    """`FLOATS` for a seeded simulation, `GRID` for a release, which has no seed."""
    return GRID if seed is None else FLOATS
