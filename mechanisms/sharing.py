"""A client's release, once before training, for the data set that all clients share: class sums or
single records.

Class sums are one Gaussian release of a client: a record adds a vector of norm at most R to the sum
of its class, and to no other, so the sums of all classes together have sensitivity R (a record is
replaced by none).

Single records (FedFed: Yang et al., "FedFed: Feature Distillation against Data Heterogeneity in
Federated Learning", NeurIPS 2023) are released one by one, each clipped to norm R behind noise of
its own:

    clip(f(x_i), R) + s R N(0, I)

for each slot i that a coin of probability p has chosen, once for every view.

V views of a record with noise s tell as much as one with noise s / sqrt(V). They share a coin, so
they are one event: V events would assume that each view has a coin of its own.

There is no sum for others to hide in, so sampling gains nothing but the choice itself, which is
visible (`VisibleChoice`). Slots are the client's public number of records; in a
slot without a record only noise would be released. The label of a chosen record goes through k-ary
randomized response, unless labels are declared public.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from mechanisms.accounting.accountant import Charges
from mechanisms.accounting.events import (
    Gaussian,
    PublicLabels,
    RandomizedResponse,
    Unprotected,
    VisibleChoice,
)
from mechanisms.arithmetic import FLOATS, Arithmetic
from mechanisms.clipping import clip_factors
from mechanisms.randomness import Draws, Source
from mechanisms.sampling import COIN, threshold

Tensors = Sequence[Tensor]
"""A tensor for each client."""
Features = Callable[[Tensor], Tensor]
"""From records ``[M, ...]`` to features ``[M, D]`` for release, each from its own record alone."""
WIDE = torch.float64
"""Type of features from their clipping to their noise."""


@dataclass(frozen=True)
class Released:
    """What a cohort releases.

    Attributes:
        sums: ``[K, R]``, only ever added up over clients; R may be 0.
        records: arrays by name with a row for each single record; none, or ``x``, ``y`` and
            ``client``, its index in K.
    """

    sums: Tensor
    records: dict[str, np.ndarray]


class Release(Protocol):
    """A release on the client axis."""

    @property
    def size(self) -> int:
        """R, the length of a client's sums."""

    def __call__(self, x: Tensors, y: Tensors, streams: Draws, arithmetic: Arithmetic) -> Released:
        """The release of K clients with records ``x[k] [n_k, ...]`` and labels ``y[k] [n_k]``."""


@dataclass(frozen=True)
class SharingPlan:
    """A client's plan of one release: the only source of its clip bound, noise and charges.

    Attributes:
        noise_multiplier: s, noise standard deviation over R; 0 releases without protection.
        clip_norm: R, in units of the features; inf clips nothing.
        singly: whether records are released one by one, or summed by class.
        share_rate: p, probability that a slot is chosen.
        views: releases of each chosen record.
        label_epsilon: epsilon of randomized response; None if labels are public.
    """

    noise_multiplier: float
    clip_norm: float
    singly: bool = False
    share_rate: float = 1.0
    views: int = 1
    label_epsilon: float | None = None

    @property
    def steps(self) -> int:
        """A round is one release."""
        return 1

    @property
    def noise_std(self) -> float:
        """s R, standard deviation of the noise in every coordinate; 0 without noise, for any R."""
        return self.noise_multiplier * self.clip_norm if self.noise_multiplier else 0.0

    def arithmetic(self, of_run: Arithmetic) -> Arithmetic:
        """The run's arithmetic; without noise `FLOATS`, as there is nothing to prove."""
        return of_run if self.noise_multiplier else FLOATS

    def round_charges(self, nth: int) -> Charges:
        """The release; there is one round."""
        if not self.noise_multiplier:
            return {Unprotected(self.share_rate): 1}
        if not self.singly:
            return {Gaussian(self.noise_multiplier): 1}
        # One coin decides on all views of a record; together they are one view with less noise.
        labels = (
            PublicLabels() if self.label_epsilon is None else RandomizedResponse(self.label_epsilon)
        )
        noise = self.noise_multiplier / math.sqrt(self.views)
        return {VisibleChoice(self.share_rate, noise): 1, labels: 1}


def clipped(features: Tensor, plan: SharingPlan) -> Tensor:
    """Features ``[M, D]`` of norm at most R each, float64; one that is not finite becomes 0."""
    wide = features.to(WIDE)
    norms = torch.linalg.vector_norm(wide, dim=1)
    factors = clip_factors(norms[None], norms.new_tensor([plan.clip_norm]))[0]
    return torch.where(factors[:, None] > 0, wide, 0.0) * factors[:, None]


def _parts(plan: SharingPlan, features: Tensor, arithmetic: Arithmetic) -> Tensor:
    """Clipped features ``[M, D]`` as parts of a total.

    Raises:
        ValueError: more records than a total has room for.
    """
    arithmetic.check_sizes([len(features)])
    bound = torch.tensor([plan.clip_norm], dtype=WIDE, device=features.device)
    return arithmetic.parts(clipped(features, plan)[None], bound)[0]


def _noised(
    plan: SharingPlan, total: Tensor, streams: Draws, purpose: str, arithmetic: Arithmetic
) -> Tensor:
    """A total ``[K, m]`` plus noise of deviation s R in every coordinate, float32."""
    bound = torch.full((len(total),), plan.clip_norm, dtype=WIDE, device=total.device)
    std = torch.full_like(bound, plan.noise_std)
    return arithmetic.noised(total, bound, std, streams, purpose).to(torch.float32)


@dataclass(frozen=True)
class ClassSums:
    """The noisy sum of clipped features of each class, ``[K, classes * D]``."""

    plan: SharingPlan
    features: Features
    classes: int
    width: int

    @property
    def size(self) -> int:
        """Classes times D."""
        return self.classes * self.width

    def __call__(self, x: Tensors, y: Tensors, streams: Draws, arithmetic: Arithmetic) -> Released:
        """One Gaussian release of each client."""
        arithmetic, sums = self.plan.arithmetic(arithmetic), []
        for own, labels in zip(x, y, strict=True):
            parts = _parts(self.plan, self.features(own), arithmetic)
            of_classes = parts.new_zeros(self.classes, self.width).index_add_(0, labels, parts)
            sums.append(of_classes.flatten())
        noisy = _noised(self.plan, torch.stack(sums), streams, "class sums", arithmetic)
        return Released(noisy, {})


@dataclass(frozen=True)
class Sum:
    """The noisy sum of clipped features, whatever the label, ``[K, size]``; its noise is drawn for
    a ``purpose``."""

    plan: SharingPlan
    features: Features
    size: int
    purpose: str = "sum"

    def __call__(self, x: Tensors, y: Tensors, streams: Draws, arithmetic: Arithmetic) -> Released:
        """One Gaussian release of each client."""
        arithmetic = self.plan.arithmetic(arithmetic)
        sums = [_parts(self.plan, self.features(own), arithmetic).sum(dim=0) for own in x]
        noisy = _noised(self.plan, torch.stack(sums), streams, self.purpose, arithmetic)
        return Released(noisy, {})


@dataclass(frozen=True)
class SingleRecords:
    """Clipped features of the chosen records, each with noise of its own, and their labels."""

    plan: SharingPlan
    features: Features
    classes: int

    @property
    def size(self) -> int:
        """0: there are no sums."""
        return 0

    def __call__(self, x: Tensors, y: Tensors, streams: Draws, arithmetic: Arithmetic) -> Released:
        """The chosen slots of each client, view after view."""
        arithmetic, parts = self.plan.arithmetic(arithmetic), []
        purposes = ("slots", "slot noise", "slot labels")
        for k, (coins, draws, answers) in enumerate(zip(*map(streams.of, purposes), strict=True)):
            chosen = np.flatnonzero(coins.random(len(y[k])) < threshold(self.plan.share_rate))
            slots = torch.from_numpy(chosen).to(x[k].device)
            sent = _parts(self.plan, self.features(x[k][slots]), arithmetic)
            labels = self._answers(y[k][slots].cpu().numpy(), answers)
            for _ in range(self.plan.views):
                bound, std = self.plan.clip_norm, self.plan.noise_std
                noisy = arithmetic.noised_from(draws, sent, bound, std).cpu().numpy()
                parts.append((noisy.astype(np.float32), labels, np.full(len(chosen), k)))
        columns = (np.concatenate(column) for column in zip(*parts, strict=True))
        records = dict(zip(("x", "y", "client"), columns, strict=True))
        return Released(x[0].new_zeros(len(x), 0), records)

    def _answers(self, labels: np.ndarray, source: Source) -> np.ndarray:
        """k-ary randomized response: the label with probability e^eps / (e^eps + k - 1), else one
        of the others."""
        if self.plan.label_epsilon is None or not self.plan.noise_multiplier:
            return labels
        # the probability of another label is rounded up, to a multiple of a coin, never down
        odds = math.exp(min(self.plan.label_epsilon, 700.0))
        lie = (self.classes - 1) / (odds + self.classes - 1)
        lie = (math.floor(lie * (1.0 + 2.0**-40) / COIN) + 1) * COIN
        others = (labels + source.integers(1, self.classes, len(labels))) % self.classes
        return np.where(source.random(len(labels)) < lie, others, labels)
