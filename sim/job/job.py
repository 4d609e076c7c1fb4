"""A run's inputs, the same in every process: data, clients, model, plans and groups."""

import copy
import functools
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch

from mechanisms.gradients.record_gradients import RecordGradients
from mechanisms.plan import PlanTable
from server.orders import Paid
from sim.config.fields import Config
from sim.data.dataset import Dataset
from sim.data.holdout import Held, Holdout
from sim.data.partition import Partition
from sim.job.copies import pair_on
from sim.job.device import device_of
from sim.models.objectives import Objective, objective

TRAIN = "train"
"""The name of the phase in which the model is trained."""
MEBIBYTE = 2**20


@dataclass(frozen=True)
class Job:
    """A run's inputs.

    Attributes:
        config: resolved.
        dataset: all clients' records and the test set.
        partition: which client holds which record.
        model: the module; its initial parameters are the first model.
        plans_of: the clients' privacy plans, by the name of the phase.
        groups: for each group, the chunks of client numbers that are computed together.
        holdout: records that no client holds and no guarantee covers, or None.
        shared: records of the globally shared data set, once there are any.
        held: records that clients hold and do not train on, or None.
        prior: the most that a client has paid at the end of each phase before training.
        canaries: how many records or clients are an audit's own, which no file has.
    """

    config: Config
    dataset: Dataset
    partition: Partition
    model: torch.nn.Module
    plans_of: Mapping[str, PlanTable]
    groups: tuple[tuple[np.ndarray, ...], ...]
    holdout: Holdout | None = None
    shared: tuple[np.ndarray, np.ndarray] | None = None
    held: Held | None = None
    prior: tuple[Paid, ...] = ()
    canaries: int = 0

    @property
    def plans(self) -> PlanTable:
        """The clients' plans in training."""
        return self.plans_of[TRAIN]

    @property
    def seed(self) -> int | None:
        """The seed of every draw, or None for a release."""
        return None if self.config.run.release else self.config.run.seed

    @property
    def group_of(self) -> np.ndarray:
        """Int64 ``[clients]``, each client's group."""
        numbers = np.empty(self.config.data.clients, dtype=np.int64)
        for number, chunks in enumerate(self.groups):
            numbers[np.concatenate(chunks)] = number
        return numbers

    @functools.cached_property
    def gradients(self) -> RecordGradients:
        """Per-record gradients of the model, with its constants on the computing device.

        Raises:
            ValueError: the model has a layer that mixes records.
        """
        local = self.config.local
        limit = None if local.memory_limit is None else local.memory_limit * MEBIBYTE
        module = copy.deepcopy(self.model).to(self.device)
        loss = self.objective.loss
        bf16, most = self.config.run.bf16, local.max_records
        return RecordGradients(module, loss, max_records=most, memory_limit=limit, bf16=bf16)

    @property
    def objective(self) -> Objective:
        """The loss and the metric."""
        return objective(self.config.data)

    @property
    def device(self) -> torch.device:
        """The computing device of this process."""
        return device_of(self.config)

    @functools.cached_property
    def tests(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The records and labels that models are evaluated on, on the computing device."""
        return pair_on(self.device, (self.dataset.x_test, self.dataset.y_test))

    def __getstate__(self) -> dict[str, object]:
        """What is sent to workers: without `tests`, which only the server uses, and `gradients`,
        which each makes of the model."""
        made = ("tests", "gradients")
        return {name: value for name, value in vars(self).items() if name not in made}
