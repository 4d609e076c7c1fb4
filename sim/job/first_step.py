"""A step of a mechanism of the user's own, tried on a made-up client before a run begins."""

import numpy as np
import torch

from mechanisms.accounting.allotment import Account, AdaptivePlan
from mechanisms.arithmetic import of_seed
from mechanisms.cohort import Cohort
from mechanisms.optimizers import OPTIMIZERS
from mechanisms.own import check_round
from mechanisms.randomness import draws_of
from mechanisms.registry import mechanism_of
from mechanisms.sampling import CohortData
from sim.job.copies import pair_on
from sim.job.job import Job


def check(job: Job) -> None:
    """Refuse a mechanism that fails at a client with as many records as the first one, all of them
    zeros.

    Raises:
        ValueError: it fails.
    """
    local, device, plan = job.config.local, job.device, job.plans.of(0)
    x, y = pair_on(device, (np.zeros_like(job.dataset.x[:1]), np.zeros_like(job.dataset.y[:1])))
    records = np.zeros(job.partition.sizes[0], dtype=np.int64)
    adaptive = [plan.allotment] if isinstance(plan, AdaptivePlan) else []
    cohort = Cohort(
        gradients=job.gradients,
        data=CohortData(x, y, [records]),
        plans=[plan],
        streams=draws_of(job.seed, 1, [0], device),
        optimizer=OPTIMIZERS[local.optimizer](local.momentum),
        learning_rate=lambda taken: torch.full_like(taken, local.lr),
        nth=[1],
        accounts=[Account(one.order, one.rdp) for one in adaptive],
        holdout=job.holdout and pair_on(device, job.holdout),
        arithmetic=of_seed(job.seed),
    )
    mechanism, start = mechanism_of(job.config.privacy), job.gradients.layout.initial(job.model)
    check_round(job.config.privacy.mechanism, mechanism, cohort, start.to(device), local.keep_state)
