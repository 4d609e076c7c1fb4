"""The inputs of a mechanism's step for K clients (data, plans, draws), and the state it changes."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from mechanisms.accounting.allotment import Account
from mechanisms.arithmetic import FLOATS, Arithmetic
from mechanisms.gradients.factors import Factors
from mechanisms.gradients.record_gradients import RecordGradients
from mechanisms.guide import Guide, unguided
from mechanisms.metric import IDENTITY, Metric
from mechanisms.optimizers import Optimizer
from mechanisms.placing import place
from mechanisms.randomness import Draws
from mechanisms.sampling import Batch, CohortData


@dataclass(frozen=True)
class Cohort:
    """The inputs of one local round of K clients; only the streams' positions and ``unseen``
    change.

    Attributes:
        gradients: sums of scaled per-record gradients of the model.
        data: the clients' records.
        plans: length K, all of the mechanism's own type.
        streams: the clients' random draws for this round.
        optimizer: turns a gradient into a direction.
        learning_rate: from steps taken in this round, ``[K]``, to rates, ``[K]``.
        nth: int64 ``[K]``, each client's count of rounds, this one included.
        accounts: length K where the plans are adaptive: what each client may spend in this round.
        holdout: records ``[M, ...]`` and labels ``[M]``, if any, that no client holds and no
            guarantee covers.
        guide: what steers a step besides the client's own records.
        arithmetic: how private sums are computed and noised.
        unseen: by k, the records that the client's shuffled pass has still to visit; draws change
            it.
    """

    gradients: RecordGradients
    data: CohortData
    plans: Sequence[Any]
    streams: Draws
    optimizer: Optimizer
    learning_rate: Callable[[torch.Tensor], torch.Tensor]
    nth: Sequence[int]
    accounts: Sequence[Account] = ()
    holdout: tuple[torch.Tensor, torch.Tensor] | None = None
    guide: Guide = unguided
    arithmetic: Arithmetic = FLOATS
    unseen: dict[int, np.ndarray] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.arithmetic.check_sizes([len(own) for own in self.data.records])

    def plan(self, name: str) -> torch.Tensor:
        """The plans' parameter ``name`` as float32 ``[K]`` on the data's device."""
        return place(torch.tensor(self.exact(name), dtype=torch.float32), self.data.x.device)

    def exact(self, name: str) -> list[float]:
        """The plans' parameter ``name``, length K, as charged: without float32's rounding."""
        return [float(getattr(p, name)) for p in self.plans]

    def width(self, rates: Sequence[float]) -> int | None:
        """Records per client in a pass over batches of these rates; None if shapes may vary."""
        expected = (
            math.ceil(rate * len(own)) for rate, own in zip(rates, self.data.records, strict=True)
        )
        return self.arithmetic.width(max(expected, default=0))

    def gradient_sum(
        self,
        params: torch.Tensor,
        batch: Batch,
        factors: Factors,
        bound: torch.Tensor,
        rates: Sequence[float],
        metric: Metric = IDENTITY,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The sums ``[K, P]`` of factor times gradient, each of norm at most ``bound [K]``; norms.

        ``factors`` maps norms ``[K, B]`` to factors; the batch was drawn with these ``rates [K]``.
        The draws of the purpose ``noise`` are made beside the gradients.
        """
        self.arithmetic.begin_noise(self.streams, "noise", params.shape[1])
        width = self.width(rates)
        return self.arithmetic.gradient_sum(
            self.gradients, params, batch, factors, bound, width, metric
        )

    def noised(
        self, total: torch.Tensor, bound: torch.Tensor, std: torch.Tensor, purpose: str
    ) -> torch.Tensor:
        """``total [K, m]`` plus noise of deviation ``std [K]`` from the streams of ``purpose``."""
        return self.arithmetic.noised(total, bound, std, self.streams, purpose)

    def losses(self, params: torch.Tensor, batch: Batch, rates: Sequence[float]) -> torch.Tensor:
        """``[K, B]``: the loss of each record of a batch that was drawn with these rates."""
        return self.arithmetic.losses(self.gradients, params, batch, self.width(rates))


@dataclass(frozen=True)
class LocalState:
    """All that a local round changes, a row per client: restoring a row fully undoes a step.

    Attributes:
        params: ``[K, P]``.
        optimizer: the optimizer's tensors ``[K, ...]``.
        taken: float32 ``[K]``, steps taken in this round.
        memory: the mechanism's own tensors ``[K, ...]``, by name.
    """

    params: torch.Tensor
    optimizer: tuple[torch.Tensor, ...]
    taken: torch.Tensor
    memory: Mapping[str, torch.Tensor] = field(default_factory=dict)

    @classmethod
    def start(cls, cohort: Cohort, params: torch.Tensor) -> "LocalState":
        """All K clients at the same model ``params [P]`` with a fresh optimizer and no memory."""
        rows = params.expand(len(cohort.plans), -1).contiguous()
        return cls(rows, cohort.optimizer.init(rows), rows.new_zeros(len(rows)))

    def remember(self, **memory: torch.Tensor) -> "LocalState":
        """This state with some of the mechanism's tensors replaced."""
        return replace(self, memory={**self.memory, **memory})

    def descend(self, cohort: Cohort, gradient: torch.Tensor) -> "LocalState":
        """One optimizer step along a released ``gradient [K, P]``, as changed by the guide."""
        direction, optimizer = cohort.optimizer.update(
            cohort.guide(self.params, gradient), self.optimizer
        )
        rate = cohort.learning_rate(self.taken)[:, None]
        params = torch.addcmul(self.params, rate, direction, value=-1)
        return replace(self, params=params, optimizer=optimizer, taken=self.taken + 1)

    def where(self, keep: torch.Tensor, other: "LocalState") -> "LocalState":
        """This state for the clients with ``keep [K]`` true, ``other``'s for the rest."""

        def choose(ours: torch.Tensor, theirs: torch.Tensor) -> torch.Tensor:
            return torch.where(keep.view(-1, *[1] * (ours.dim() - 1)), ours, theirs)

        return LocalState(
            choose(self.params, other.params),
            tuple(choose(a, b) for a, b in zip(self.optimizer, other.optimizer, strict=True)),
            choose(self.taken, other.taken),
            {name: choose(tensor, other.memory[name]) for name, tensor in self.memory.items()},
        )
