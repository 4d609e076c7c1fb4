"""Tiny worlds for the many-run audit: a linear model of six parameters, three records, and a
gradient canary."""

import dataclasses
from typing import Any

import numpy as np
import torch
from torch import nn

from mechanisms.accounting.accountant import epsilon
from mechanisms.gradients.record_gradients import RecordGradients
from mechanisms.optimizers import Optimizer, sgd
from mechanisms.plan import Plan, planned
from mechanisms.randomness import seed_key
from mechanisms.registry import MECHANISMS, plan_table
from mechanisms.settings import Dpsur, Privacy, Screening, Settings
from sim.auditing.canaries import CanaryGradients
from sim.auditing.many_run import World
from sim.config.fields import TABLES

DELTA = 1e-2
"""Of every claim here: a threshold shows more of a given epsilon where delta is not too small for
the runs."""
CONFIDENCE = 0.999
KEY = seed_key(1)
OWN: dict[str, Settings] = {
    "dpsur": Dpsur(dpsur_validation_noise=30.0),
    "screening": Screening(screening_stages=1, screening_clip=0.03),
}
"""Settings that differ from the mechanism's defaults."""

LOUDER = {"dpsur": 0.99, "screening": 1.3}
"""Noise in units of what DPSGD needs, where a search for the smallest one would take longer than
the audit."""

INPUTS = CLASSES = 2
WEIGHT = torch.tensor([1.0, 0.0, 0.0, 0.1])
"""Of the first model, ``[2, 2]`` row by row: DP-Hero's noise is large in its first row and small in
its second."""
LOUD, QUIET = 1, 2
"""Coordinates in its first and second row."""


def plan(
    mechanism: str, target: float, own: Settings | None = None, steps: int = 3, **privacy: Any
) -> Plan:
    """A plan of the mechanism whose single round costs ``target``, or not much less."""
    if mechanism in LOUDER and own is None:
        of_dpsgd = plan("dpsgd", target, steps=steps, **privacy)
        privacy["noise_multiplier"] = LOUDER[mechanism] * getattr(of_dpsgd, "noise_multiplier", 0.0)
    own = own or OWN.get(mechanism) or (TABLES[mechanism]() if mechanism in TABLES else None)
    settings = Privacy(mechanism=mechanism, epsilon=target, delta=DELTA, **privacy)
    return plan_table(settings, own, steps, 1, np.array([4])).of(0)


def claimed(plan: Plan, rounds: int = 1) -> float:
    """The certified epsilon."""
    return epsilon(planned(plan, rounds), DELTA).epsilon


def world(
    mechanism: str,
    plan: Plan,
    at: int = LOUD,
    size: float = 10.0,
    optimizer: Optimizer | None = None,
) -> World:
    """The data sets differ in the last record, a canary of gradient ``size`` at coordinate
    ``at``."""
    return World(
        mechanism=MECHANISMS[mechanism],
        plan=plan,
        gradients=CanaryGradients(
            RecordGradients(nn.Linear(INPUTS, CLASSES)), CLASSES, torch.tensor([at]), size
        ),  # type: ignore[arg-type]
        x=torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [0.0, 0.0]]),
        y=torch.tensor([0, 1, 0, CLASSES]),
        canary=3,
        start=torch.cat([WEIGHT, torch.zeros(CLASSES)]),
        optimizer=optimizer or sgd(),
        rate=0.1,
    )


def alone(world: World) -> World:
    """The world of the canary only, whose neighbour is a data set of nothing."""
    return dataclasses.replace(world, x=world.x[3:], y=world.y[3:], canary=0)


def moved(models: torch.Tensor, at: int = LOUD) -> torch.Tensor:
    """How far a coordinate moved, ``[runs]``, in ``models [1 + rounds, runs, P]``."""
    return models[-1, :, at] - models[0, :, at]
