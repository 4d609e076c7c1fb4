"""The generator that splits records for FedFed, trained by all clients with differential privacy
before they share.

Its price and that of the release after it come out of one share of the budget
(`sim.phases.sharing`).
"""

import math
from pathlib import Path

import numpy as np
import torch

from client.node import Node, Training
from mechanisms.gradients.record_gradients import RecordGradients
from mechanisms.layout import Layout
from mechanisms.optimizers import sgd
from mechanisms.plan import PlanTable
from mechanisms.randomness import generator, seed_key
from mechanisms.registry import MECHANISMS, plan_table
from mechanisms.settings import Privacy
from server.federation import Federation
from server.store import Store
from sim.config.fields import Config
from sim.job.device import device_of
from sim.job.job import Job
from sim.models.networks import initialise
from sim.phases import phase
from sim.phases.phase import Costs, Outlook, Phase, files, group_data
from strategies.distillation import Distiller, objective
from strategies.fedavg import fedavg

NAME = "distill"
NONE, PUBLIC = "none", "public"


def clients_share(config: Config) -> bool:
    """Whether clients release something that all of them share."""
    return config.strategy.strategy == "fedfed" and config.fedfed.shared_source not in (
        NONE,
        PUBLIC,
    )


def rounds(config: Config) -> int:
    """Round numbers that are kept for it wherever clients share, so that they do not depend on its
    taking place."""
    return config.fedfed.distill_rounds if clients_share(config) else 0


def plan(outlook: Outlook, earlier: Costs) -> PlanTable | None:
    """One step on all of a client's records in each round; None where features are fixed.

    Raises:
        ValueError: there is no budget of which to take a share.
    """
    config, own = outlook.config, outlook.config.fedfed
    if not clients_share(config) or not own.distills:
        return None
    privacy = Privacy(mechanism="none")
    if outlook.private:
        if math.isinf(outlook.target):
            raise ValueError("share_budget is a share of epsilon, which is none: give --epsilon")
        epsilon = own.distill_budget * own.share_budget * outlook.target
        privacy = Privacy(epsilon=epsilon, delta=config.privacy.delta, clip_norm=own.distill_clip)
    one = np.ones(1, dtype=np.int64)
    return outlook.same(plan_table(privacy, None, one, own.distill_rounds, one).plans[0])


def federation(job: Job, run_dir: Path) -> Federation:
    """Rounds of federated averaging."""
    module = distiller(job)
    initial = Layout.of(module).initial(module).numpy().copy()
    return phase.federation(job, NAME, fedavg(job.config.strategy), initial)


def node(job: Job, group: int, run_dir: Path) -> Node:
    """The clients of a group that train the generator, with a fresh optimizer in each round."""
    own = job.config.fedfed
    training = Training(
        mechanism=MECHANISMS["dpsgd" if job.private else "none"],
        gradients=RecordGradients(
            distiller(job).to(device_of(job.config)), objective(own.distill_penalty)
        ),
        optimizer=sgd(),
        learning_rate=lambda round_, taken, steps: torch.full_like(taken, own.distill_lr),
        seed=job.seed,
    )
    return Node(training, group_data(job, group), job.plans_of[NAME], *files(run_dir, group, NAME))


def distiller(job: Job) -> Distiller:
    """Generator and classifier before training; their weights depend on the seed alone."""
    with torch.random.fork_rng(devices=[]):
        module = Distiller(
            job.dataset.x.shape[1:], job.dataset.classes, job.config.fedfed.distill_latent
        )
    rng = generator(seed_key(job.config.run.seed), "generator")
    for layer in module.modules():
        if isinstance(layer, torch.nn.Linear):
            initialise(layer, rng)
    return module


def trained(job: Job, run_dir: Path) -> np.ndarray:
    """The generator ``[P]`` that the run directory holds; of length 0 where features are fixed.

    Raises:
        ValueError: its training is not there.
    """
    if NAME not in job.plans_of:
        return np.zeros(0, np.float32)
    newest = Store(run_dir / NAME, job.config.rounds.keep_checkpoints).checkpoints.newest()
    if newest is None:
        raise ValueError(
            f"{run_dir / NAME} has no whole checkpoint of the generator: restore it, or start a "
            "new run"
        )
    return newest.params


PHASE = Phase(NAME, rounds, plan, federation, node)
