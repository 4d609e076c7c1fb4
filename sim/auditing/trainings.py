"""Trains many central models at once on different records, as targets of membership inference."""

import bisect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from client.settings import Local
from mechanisms.accounting.accountant import epsilon
from mechanisms.accounting.allotment import Account, AdaptivePlan, payable
from mechanisms.cohort import Cohort
from mechanisms.mechanism import local_round
from mechanisms.optimizers import OPTIMIZERS, SCHEDULES
from mechanisms.plan import Terms, affordable_rounds, merge, planned
from mechanisms.randomness import Streams
from mechanisms.registry import mechanism_of, plan_table, settings_of
from mechanisms.sampling import CohortData
from sim.config.checks import refuse_trust
from sim.config.fields import Config
from sim.job.copies import pair_on
from sim.job.job import Job
from sim.phases.training import local_steps

AT_A_TIME = 8
"""Maximum number of trainings in one cohort."""


@dataclass(frozen=True)
class Trained:
    """Models of one configuration and their epsilons.

    Attributes:
        job: the configuration, its data and its model.
        params: parameters ``[K, P]``, on the computing device.
        epsilon: the largest certified epsilon of the K trainings, at the configuration's delta.
        epsilon_published: the largest published epsilon of what they released.
    """

    job: Job
    params: Tensor
    epsilon: float
    epsilon_published: float = math.inf

    def probabilities(self, records: NDArray[np.int64]) -> Tensor:
        """Each model's probabilities for records ``[M]``, float64 ``[K, M, classes]``."""
        x = torch.from_numpy(self.job.dataset.x[records]).to(self.params.device)
        rows = [self.job.gradients.logits(row[None], x[None])[0] for row in self.params]
        return torch.stack(rows).cpu().double().softmax(dim=2)


def train(job: Job, owned: Sequence[NDArray[np.int64]], key: bytes) -> Trained:
    """Train on each of these sets of records as one client that holds them, all rounds as one.

    With given noise, training ends after the last round that the budget pays for, as a run does.

    Raises:
        ValueError: the budget does not pay for the training.
    """
    config = job.config
    refuse_trust(config)
    row, sizes = mechanism_of(config.privacy), np.array([len(own) for own in owned])
    steps = np.array([local_steps(config, int(size)) * config.rounds.rounds for size in sizes])
    lengths = torch.from_numpy(steps).float()
    sized = zip(steps.tolist(), sizes.tolist(), strict=True)
    steps = np.array([paid_steps(config, most, size) for most, size in sized])
    own = settings_of(config.privacy, config)
    table = plan_table(config.privacy, own, steps, 1, sizes)
    device = job.device
    start = job.gradients.layout.initial(job.model).to(device)
    x, y = pair_on(device, (job.dataset.x, job.dataset.y))
    public = job.holdout and pair_on(device, job.holdout)
    models, settled = [], []
    for at in range(0, len(owned), AT_A_TIME):
        numbers = range(at, min(at + AT_A_TIME, len(owned)))
        plans = [table.of(k) for k in numbers]
        cohort = Cohort(
            gradients=job.gradients,
            data=CohortData(x, y, [owned[k] for k in numbers]),
            plans=plans,
            streams=Streams(key, 1, numbers, device),
            optimizer=OPTIMIZERS[config.local.optimizer](config.local.momentum),
            learning_rate=_rates(config.local, lengths[at : at + len(plans)].to(device)),
            nth=[1] * len(plans),
            accounts=[
                Account(p.allotment.order, p.allotment.rdp)
                for p in plans
                if isinstance(p, AdaptivePlan)
            ],
            holdout=public,
        )
        end = local_round(row, cohort, start)
        models.append(end.params)
        released = zip(plans, row.realized(cohort, end), strict=True)
        settled += [payable(merge(plan.round_charges(1), found)) for plan, found in released]
    delta = config.privacy.delta
    spent = max(epsilon(planned(plan, 1), delta).epsilon for plan in table.plans)
    claimed = max(epsilon(charges, delta, "published").epsilon for charges in settled)
    return Trained(job, torch.cat(models), spent, claimed)


def paid_steps(config: Config, steps: int, size: int) -> int:
    """The steps that the budget pays for at a given noise, in whole rounds and at least one.

    Calibrated noise pays for all ``steps``.
    """
    privacy, mechanism = config.privacy, mechanism_of(config.privacy)
    noise, own = privacy.noise_multiplier, settings_of(privacy, config)
    if noise is None or privacy.epsilon is None or not mechanism.private:
        return steps
    each = steps // config.rounds.rounds

    def too_many(rounds: int) -> bool:
        terms = Terms(privacy.of_size(size), own, each * rounds, 1, size)
        try:
            affordable_rounds(mechanism.plan(terms, noise), terms, at_most=1)
        except ValueError:
            return True
        return False

    further = bisect.bisect_left(range(2, config.rounds.rounds + 1), True, key=too_many)
    return each * (1 + further)


def _rates(local: Local, length: Tensor) -> Callable[[Tensor], Tensor]:
    """A function from steps taken ``[K]`` to learning rates ``[K]``, for ``length [K]`` steps."""
    return lambda taken: local.lr * SCHEDULES[local.lr_schedule](taken / length)
