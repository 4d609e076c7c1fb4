"""A Flower node's work: train a group's clients in chunks, pay from its purse, sum the updates."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np
import torch

from client.client_state import ClientState, NoState
from client.dropouts import Dropouts
from client.messages import TrainRequest, Upload
from client.metrics import Metrics
from client.purse import Allowance, Purse
from client.sums import WeightedSum, WholeSum
from client.uploads import Uploads
from mechanisms.accounting.ledger import Ledger
from mechanisms.cohort import Cohort, LocalState
from mechanisms.gradients.record_gradients import RecordGradients
from mechanisms.guide import GuideOf, Surroundings, alone
from mechanisms.mechanism import Mechanism, local_round
from mechanisms.optimizers import Optimizer
from mechanisms.placing import place
from mechanisms.plan import PlanTable, alike
from mechanisms.sampling import CohortData
from mechanisms.updates import UPDATE, Sent

ANSWERED, STALENESS = "answered", "staleness"
"""The metrics for the share of a round's clients that have answered, and for how many models theirs
were behind."""


@dataclass(frozen=True)
class Training:
    """How a client trains; the same for all clients.

    Attributes:
        mechanism: the local optimizer.
        gradients: per-record gradients of the model.
        optimizer: turns gradients into directions.
        learning_rate: from (round, steps taken in it ``[K]``, steps of a round ``[K]``) to rates
            ``[K]``.
        seed: of a simulation; None for a release, which draws from the operating system's entropy.
        dropouts: which clients train and pay, but do not answer; None for nobody.
        attackers: numbers of the clients that multiply what they send by ``attack_factor``.
        sent: what a client sends after a local round.
        guide: what steers its steps besides its own records.
    """

    mechanism: Mechanism
    gradients: RecordGradients
    optimizer: Optimizer
    learning_rate: Callable[[int, torch.Tensor, torch.Tensor], torch.Tensor]
    seed: int | None
    dropouts: Dropouts | None = None
    attackers: frozenset[int] = frozenset()
    attack_factor: float = 1.0
    sent: Sent = UPDATE
    guide: GuideOf = alone

    def cohort(self, allowed: Allowance, data: "GroupData", start: torch.Tensor) -> Cohort:
        """The allowed clients as a cohort, for a local round from the model ``start [P]``."""
        steps = torch.tensor([plan.steps for plan in allowed.plans], dtype=torch.float32)
        steps = place(steps, data.x.device)
        return Cohort(
            gradients=self.gradients,
            data=data.of(allowed.clients),
            plans=allowed.plans,
            streams=allowed.draws,
            optimizer=self.optimizer,
            learning_rate=lambda taken: self.learning_rate(allowed.round, taken, steps),
            nth=allowed.nth,
            accounts=allowed.accounts,
            holdout=data.holdout,
            guide=self.guide(Surroundings(self.gradients, allowed.draws, start, data.shared)),
            arithmetic=allowed.arithmetic,
        )

    def sent_by(
        self, cohort: Cohort, told: torch.Tensor, end: LocalState, who: np.ndarray, behind: int
    ) -> torch.Tensor:
        """What the clients ``who [K]`` of a cohort send, ``[K, P + extra]``, after they were
        ``told [P]`` or more; an update counts less the more models theirs is behind."""
        rows = self.sent.rows(cohort, told, end)
        if behind:
            rows[:, : len(told)] /= math.sqrt(1 + behind)
        if self.attackers:
            attacks = [client in self.attackers for client in who.tolist()]
            rows[attacks, : len(told)] *= self.attack_factor
        return rows

    def answering(self, allowed: Allowance) -> np.ndarray | slice:
        """Which of the allowed clients answer."""
        if self.dropouts is None:
            return slice(None)
        return np.flatnonzero(~self.dropouts.lost(allowed))


@dataclass(frozen=True)
class GroupData:
    """The group's clients and their records.

    Attributes:
        x, y: the data set's records ``[N, ...]`` and labels ``[N]`` on the computing device.
        records: from a client's number to its record numbers.
        chunks: the group's clients in the chunks that are computed together.
        weights: int64 ``[clients]``, every client's public weight.
        holdout: public records and labels, if any.
        shared: records and labels of the globally shared data set, if there is one.
    """

    x: torch.Tensor
    y: torch.Tensor
    records: Callable[[int], np.ndarray]
    chunks: Sequence[np.ndarray]
    weights: np.ndarray
    holdout: tuple[torch.Tensor, torch.Tensor] | None = None
    shared: tuple[torch.Tensor, torch.Tensor] | None = None

    def of(self, clients: np.ndarray) -> CohortData:
        """The records of these clients."""
        return CohortData(self.x, self.y, [self.records(int(c)) for c in clients])

    def parts(self, clients: np.ndarray) -> list[np.ndarray]:
        """Positions in ``clients`` of each chunk's members, in chunk order; empty ones left out.

        Raises:
            ValueError: one is not of this group.
        """
        numbers = np.concatenate(self.chunks)
        if not (known := np.isin(clients, numbers)).all():
            raise ValueError(
                f"client {clients[~known][0]} is not of this group, which has {len(numbers)}: give "
                "the server and all nodes the same settings and data set"
            )
        return [part for part in alike(self._chunk_of[clients]) if part.size]

    @cached_property
    def _chunk_of(self) -> np.ndarray:
        """Int64 ``[clients]``: the chunk of each of the group's clients."""
        numbers = np.full(len(self.weights), -1)
        for number, chunk in enumerate(self.chunks):
            numbers[chunk] = number
        return numbers


class Node:
    """One group of clients with its purse; a ``client_state`` keeps their state between rounds.

    ``ledger`` is None where the server pays for what it releases; ``uploads`` is None where what a
    group sends has too little noise for a copy of it to stay on disk.
    """

    def __init__(
        self,
        training: Training,
        data: GroupData,
        plans: PlanTable,
        ledger: Ledger | None,
        uploads: Uploads | None,
        client_state: ClientState | None = None,
    ):
        self._training, self._data = training, data
        self._uploads, self._client_state = uploads, client_state
        self._purse = Purse(ledger, plans, training.seed)

    def train(self, request: TrainRequest) -> Upload:
        """Train the requested clients within what the purse allows, and sum their updates.

        In a release the finished upload is kept on disk, for the server to find after a crash.

        Raises:
            ValueError: training diverged; or, before anything is charged, the request is not for
                these clients and this model.
        """
        training, data, kept = self._training, self._data, self._client_state or NoState()
        size = training.gradients.layout.size
        models = {0: request.params, **request.earlier}
        for model in models.values():
            _check(model, size, training.sent.extra)
        parts = list(self._parts(request))
        told = {n: place(torch.tensor(one), data.x.device) for n, one in models.items()}
        sum_of = WholeSum if training.sent.whole else WeightedSum
        total = sum_of(size + training.sent.extra)
        metrics = Metrics()
        # releases are settled before the state that they left is kept: a crash between the two must
        # not leave a state whose releases the filter does not know
        with kept.round(request.round), self._purse.open(request, data.x.device) as opened:
            for part, behind in parts:
                allowed, start = opened.allow(part), told[behind][:size]
                cohort = training.cohort(allowed, data, start)
                end = kept.keep(
                    allowed.clients, partial(local_round, training.mechanism, cohort, start)
                )
                opened.note(allowed.clients, training.mechanism.realized(cohort, end))
                metrics.add(training.mechanism.metrics(cohort, end))
                rows = training.sent_by(cohort, told[behind], end, allowed.clients, behind)
                here = training.answering(allowed)
                if training.dropouts and not training.sent.whole:  # who enters a sum stays hidden
                    answers, asked = len(allowed.clients[here]), len(allowed.clients)
                    metrics.merge({ANSWERED: (float(answers), asked)})
                if request.behind is not None:
                    metrics.merge({STALENESS: (float(behind * len(part)), len(part))})
                total.add(rows[here], data.weights[allowed.clients][here])
        sums = (total.total, total.weight, metrics.pairs)
        upload = Upload(request.round, request.group, request.clients, *sums, opened.unpaid)
        if training.seed is None and self._uploads is not None:
            self._uploads.keep(upload, request.params)
        return upload

    def _parts(self, request: TrainRequest) -> Iterator[tuple[np.ndarray, int]]:
        """Positions of clients that are computed together, and how many models theirs is behind."""
        for part in self._data.parts(request.clients):
            if request.behind is None:
                yield part, 0
            else:
                ages = request.behind[part]
                yield from ((part[ages == age], int(age)) for age in np.unique(ages))


def _check(model: np.ndarray, size: int, extra: int) -> None:
    """Refuse a model that is not this node's.

    Raises:
        ValueError: its numbers are not float32, or not as many, with what may follow them.
    """
    if model.dtype != np.float32 or model.shape not in ((size,), (size + extra,)):
        raise ValueError(
            f"the server's model is {model.dtype} of shape {model.shape}, and this node's float32 "
            f"of shape {(size,)}: give the server and all nodes the same settings and data set"
        )
