"""A Flower node's work: a group of clients is charged, trained chunk by chunk as cohorts, and summed."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

from client.carry import Carry
from client.charging import charge_round, draws, name_draw
from client.figures import Figures
from client.messages import Payments, TrainRequest, Upload
from client.sums import WeightedSum
from client.uploads import Uploads
from mechanisms.accounting.accountant import Charges
from mechanisms.accounting.allotment import Account, AdaptivePlan, check_settlement, payable
from mechanisms.accounting.events import Event
from mechanisms.accounting.ledger import Ledger
from mechanisms.arithmetic import of_seed
from mechanisms.cohort import Cohort, LocalState
from mechanisms.gradients.record_gradients import RecordGradients
from mechanisms.guide import GuideOf, Surroundings, alone
from mechanisms.optimizers import Optimizer
from mechanisms.plan import PlanTable
from mechanisms.registry import Mechanism, local_round
from mechanisms.sampling import CohortData
from mechanisms.updates import UPDATE, Sent


@dataclass(frozen=True)
class Training:
    """How a client trains; the same for all clients.

    Attributes:
        mechanism: the local optimizer.
        gradients: of the model.
        optimizer: turns gradients into directions.
        learning_rate: from (round, steps taken in it ``[K]``, steps of a round ``[K]``) to rates ``[K]``.
        seed: of a simulation, or None for a release, whose draws come from the operating system's entropy.
        sent: what a client sends of a local round.
        guide: what leads its steps beside its own records.
    """

    mechanism: Mechanism
    gradients: RecordGradients
    optimizer: Optimizer
    learning_rate: Callable[[int, torch.Tensor, torch.Tensor], torch.Tensor]
    seed: int | None
    sent: Sent = UPDATE
    guide: GuideOf = alone


@dataclass(frozen=True)
class GroupData:
    """The group's clients and their records.

    Attributes:
        x, y: the data set's records ``[N, ...]`` and labels ``[N]`` on the computing device.
        records: from a client's number to its record numbers.
        chunks: the group's clients in the chunks that are computed together.
        weights: int64 ``[clients]``, every client's public weight.
        public: records and labels that are public, where there are any.
        shared: records and labels of the globally shared data set, where there is one.
    """

    x: torch.Tensor
    y: torch.Tensor
    records: Callable[[int], np.ndarray]
    chunks: Sequence[np.ndarray]
    weights: np.ndarray
    public: tuple[torch.Tensor, torch.Tensor] | None = None
    shared: tuple[torch.Tensor, torch.Tensor] | None = None

    def of(self, clients: np.ndarray) -> CohortData:
        """The records of these clients."""
        return CohortData(self.x, self.y, [self.records(int(c)) for c in clients])

    def parts(self, clients: np.ndarray) -> list[np.ndarray]:
        """Where in ``clients`` those of each chunk stand, in the order of the chunks, without those that have none."""
        numbers = self._chunk_of[clients]
        order = np.argsort(numbers, kind="stable")
        return [part for part in np.split(order, np.flatnonzero(np.diff(numbers[order])) + 1) if part.size]

    @cached_property
    def _chunk_of(self) -> np.ndarray:
        """Int64 ``[clients]``: the chunk of each of the group's clients."""
        numbers = np.full(len(self.weights), -1)
        for number, chunk in enumerate(self.chunks):
            numbers[chunk] = number
        return numbers


class Node:
    """One group of clients with its ledger; with a ``carry``, clients keep state from round to round."""

    def __init__(
        self,
        training: Training,
        data: GroupData,
        plans: PlanTable,
        ledger: Ledger,
        uploads: Uploads,
        carry: Carry | None = None,
    ):
        self._training, self._data, self._plans = training, data, plans
        self._ledger, self._uploads, self._carry = ledger, uploads, carry

    def train(self, request: TrainRequest) -> Upload:
        """Charge the round to every asked client, then train them and sum their updates.

        The charge is on disk before anything is computed. A seeded round that is asked again is the same release (same
        draws, same sums) and is charged once. A release draws anew each time that it is asked, so it is charged each
        time; its finished upload is kept on disk, for the server to find after a crash.

        Raises:
            ValueError: training diverged.
        """
        release = name_draw(request, self._training.seed)
        charge_round(self._ledger, self._plans, request, release)
        if self._carry:
            self._carry.open(request.round)
        total = WeightedSum(len(request.params) + self._training.sent.extra)
        figures, realized = Figures(), Payments()
        start = torch.tensor(request.params, device=self._data.x.device)
        for part in self._data.parts(request.clients):
            clients = request.clients[part]
            cohort = self._cohort(request, clients, request.nth[part], start)
            end = self._local_round(cohort, clients, start)
            realized += self._settle(request, release, clients, self._training.mechanism.realized(cohort, end))
            figures.add(self._training.mechanism.report(cohort, end))
            total.add(self._training.sent.rows(cohort, start, end), self._data.weights[clients])
        if self._carry:
            self._carry.close(request.round)
        upload = Upload(
            request.round, request.group, request.clients, total.total, total.weight, figures.pairs, realized
        )
        if self._training.seed is None:
            self._uploads.keep(upload, request.params)
        return upload

    def _local_round(self, cohort: Cohort, clients: np.ndarray, start: torch.Tensor) -> LocalState:
        """The chunk's local round, from what its clients kept and to what they keep."""
        if not self._carry:
            return local_round(self._training.mechanism, cohort, start)
        carry = self._carry
        end = local_round(self._training.mechanism, cohort, start, lambda fresh: carry.resume(clients, fresh))
        carry.keep(clients, end)
        return end

    def _settle(
        self, request: TrainRequest, release: str, clients: np.ndarray, realized: Sequence[Charges]
    ) -> Payments:
        """Write down what was really released; what no allotment has paid for is to be charged to the clients.

        Clients with equal charges share a line.
        """
        for charges in realized:
            check_settlement(charges)
        sharing: dict[frozenset[tuple[Event, int]], list[int]] = {}
        for client, charges in zip(clients.tolist(), realized, strict=True):
            if charges:
                sharing.setdefault(frozenset(charges.items()), []).append(client)
        payments = [(np.array(ids, dtype=np.int64), dict(items)) for items, ids in sharing.items()]
        self._ledger.charge_all(release, request.round, payments)
        return [(ids, unpaid) for ids, charges in payments if (unpaid := payable(charges))]

    def _accounts(self, request: TrainRequest, clients: np.ndarray) -> list[Account]:
        """What each client of adaptive plans may spend in this round, which is charged already.

        A replayed round of a simulation sees its account as it was the first time.
        """
        at_round = None if self._training.seed is None else request.round
        plans = [(int(c), self._plans.of(int(c))) for c in clients]
        return [
            self._ledger.account(client, plan.allotment.order, at_round)
            for client, plan in plans
            if isinstance(plan, AdaptivePlan)
        ]

    def _cohort(self, request: TrainRequest, clients: np.ndarray, nth: np.ndarray, start: torch.Tensor) -> Cohort:
        """The surroundings of a local round of some clients of one chunk from the model ``start [P]``."""
        training, data = self._training, self._data
        streams = draws(training.seed, request.round, clients, data.x.device)
        plans = [self._plans.of(int(c)) for c in clients]
        steps = torch.tensor([float(plan.steps) for plan in plans], device=data.x.device)
        return Cohort(
            gradients=training.gradients,
            data=data.of(clients),
            plans=plans,
            streams=streams,
            optimizer=training.optimizer,
            learning_rate=lambda taken: training.learning_rate(request.round, taken, steps),
            nth=nth.tolist(),
            accounts=self._accounts(request, clients),
            public=data.public,
            guide=training.guide(Surroundings(training.gradients, streams, start, data.shared)),
            arithmetic=of_seed(training.seed),
        )
