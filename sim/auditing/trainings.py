"""Many central trainings at once, each on records of its own: what attacks on membership are tried on."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from client.settings import Local
from mechanisms.accounting.accountant import epsilon
from mechanisms.accounting.allotment import Account, AdaptivePlan
from mechanisms.cohort import Cohort
from mechanisms.optimizers import OPTIMIZERS, SCHEDULES
from mechanisms.plan import planned
from mechanisms.randomness import Streams
from mechanisms.registry import MECHANISMS, local_round, plan_table
from mechanisms.sampling import CohortData
from sim.job.device import device_of
from sim.job.job import Job
from sim.phases.training import local_steps

AT_A_TIME = 8
"""Trainings of one cohort."""


@dataclass(frozen=True)
class Trained:
    """Models of one configuration, and what each can tell.

    Attributes:
        job: the configuration, its data and its model.
        params: ``[K, P]``, on the CPU.
        epsilon: the largest certified epsilon of the K trainings, at the configuration's delta.
    """

    job: Job
    params: Tensor
    epsilon: float

    def probabilities(self, records: NDArray[np.int64]) -> Tensor:
        """``[K, M, classes]``: what each model says of these records ``[M]``, float64."""
        x = torch.from_numpy(self.job.dataset.x[records])
        rows = [self.job.gradients.logits(row[None], x[None])[0] for row in self.params]
        return torch.stack(rows).double().softmax(dim=2)


def train(job: Job, owned: Sequence[NDArray[np.int64]], key: bytes) -> Trained:
    """A training on each of these sets of records, as one client trains that holds them: all rounds in one go.

    Raises:
        ValueError: the budget does not pay for the training.
    """
    config = job.config
    row, sizes = MECHANISMS[config.privacy.mechanism], np.array([len(own) for own in owned])
    steps = np.array([local_steps(config, int(size)) * config.rounds.rounds for size in sizes])
    own = getattr(config, config.privacy.mechanism, None)
    table = plan_table(config.privacy, own, steps, 1, sizes)
    device = device_of(config)
    start = job.gradients.layout.initial(job.model).to(device)
    x, y = (torch.from_numpy(array).to(device) for array in (job.dataset.x, job.dataset.y))
    models = []
    for at in range(0, len(owned), AT_A_TIME):
        numbers = range(at, min(at + AT_A_TIME, len(owned)))
        plans = [table.of(k) for k in numbers]
        cohort = Cohort(
            gradients=job.gradients,
            data=CohortData(x, y, [owned[k] for k in numbers]),
            plans=plans,
            streams=Streams(key, 1, numbers, device),
            optimizer=OPTIMIZERS[config.local.optimizer](config.local.momentum),
            learning_rate=_rates(config.local, torch.tensor([float(p.steps) for p in plans], device=device)),
            nth=[1] * len(plans),
            accounts=[Account(p.allotment.order, p.allotment.rdp) for p in plans if isinstance(p, AdaptivePlan)],
        )
        models.append(local_round(row, cohort, start).params.cpu())
    spent = max(epsilon(planned(plan, 1), config.privacy.delta).epsilon for plan in table.plans)
    return Trained(job, torch.cat(models), spent)


def _rates(local: Local, length: Tensor) -> Callable[[Tensor], Tensor]:
    """From steps taken ``[K]`` to rates ``[K]`` of trainings of ``length [K]`` steps."""
    return lambda taken: local.lr * SCHEDULES[local.lr_schedule](taken / length)


def with_mechanism(job: Job, mechanism: str, target: float) -> Job:
    """The same job under another mechanism and budget."""
    privacy = job.config.privacy.model_copy(update={"mechanism": mechanism, "epsilon": target})
    return replace(job, config=job.config.model_copy(update={"privacy": privacy}))
