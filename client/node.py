"""A Flower node's work: a group of clients is charged, trained chunk by chunk as cohorts, and summed."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from client.messages import TrainRequest, Upload
from client.sums import WeightedSum
from client.uploads import Uploads
from mechanisms.cohort import Cohort
from mechanisms.gradients import RecordGradients
from mechanisms.ledger import Ledger
from mechanisms.optimizers import Optimizer
from mechanisms.plan import PlanTable
from mechanisms.randomness import Streams, fresh_key, seed_key
from mechanisms.registry import Mechanism, local_round
from mechanisms.sampling import CohortData


@dataclass(frozen=True)
class Training:
    """How a client trains; the same for all clients.

    Attributes:
        mechanism: the local optimizer.
        gradients: of the model.
        optimizer: turns gradients into directions.
        learning_rate: from (round, steps taken in it ``[K]``) to rates ``[K]``.
        seed: of a simulation, or None for a release, whose draws come from the operating system's entropy.
    """

    mechanism: Mechanism
    gradients: RecordGradients
    optimizer: Optimizer
    learning_rate: Callable[[int, torch.Tensor], torch.Tensor]
    seed: int | None


@dataclass(frozen=True)
class GroupData:
    """The group's clients and their records.

    Attributes:
        x, y: the data set's records ``[N, ...]`` and labels ``[N]`` on the computing device.
        records: from a client's number to its record numbers.
        chunks: the group's clients in the chunks that are computed together.
        weights: int64 ``[clients]``, every client's public weight.
    """

    x: torch.Tensor
    y: torch.Tensor
    records: Callable[[int], np.ndarray]
    chunks: Sequence[np.ndarray]
    weights: np.ndarray


class Node:
    """One group of clients with its ledger."""

    def __init__(self, training: Training, data: GroupData, plans: PlanTable, ledger: Ledger, uploads: Uploads):
        self._training, self._data, self._plans = training, data, plans
        self._ledger, self._uploads = ledger, uploads

    def train(self, request: TrainRequest) -> Upload:
        """Charge the round to every asked client, then train them and sum their updates.

        The charge is on disk before anything is computed. A seeded round that is asked again is the same release (same
        draws, same sums) and is charged once. A release draws anew each time that it is asked, so it is charged each
        time; its finished upload is kept on disk, for the server to find after a crash.

        Raises:
            ValueError: training diverged.
        """
        began = time.perf_counter()
        seed = self._training.seed
        key = fresh_key() if seed is None else seed_key(seed)
        self._charge(request, f"{request.release}-{key[:4].hex()}" if seed is None else request.release)
        total = WeightedSum(len(request.params))
        for chunk in self._data.chunks:
            clients = chunk[np.isin(chunk, request.clients)]
            if len(clients):
                total.add(self._train_chunk(request, clients, key), self._data.weights[clients])
        seconds = time.perf_counter() - began
        upload = Upload(request.round, request.group, request.clients, total.total, total.weight, seconds)
        if seed is None:
            self._uploads.keep(upload, request.params)
        return upload

    def _charge(self, request: TrainRequest, release: str) -> None:
        which = self._plans.which[request.clients]
        for number in np.unique(which):
            charges = self._plans.plans[number].round_charges()
            self._ledger.charge(release, request.round, request.clients[which == number].tolist(), charges)

    def _train_chunk(self, request: TrainRequest, clients: np.ndarray, key: bytes) -> torch.Tensor:
        """The updates ``[K, P]`` of some clients of one chunk."""
        training, device = self._training, self._data.x.device
        cohort = Cohort(
            gradients=training.gradients,
            data=CohortData(self._data.x, self._data.y, [self._data.records(int(c)) for c in clients]),
            plans=[self._plans.of(int(c)) for c in clients],
            streams=Streams(key, request.round, clients.tolist(), device),
            optimizer=training.optimizer,
            learning_rate=lambda taken: training.learning_rate(request.round, taken),
        )
        start = torch.tensor(request.params, device=device)
        return local_round(training.mechanism, cohort, start) - start
