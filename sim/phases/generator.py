"""FedFed's generator, which splits records: all clients train it privately before they share.

It and the release after it are paid from one share of the budget (`sim.phases.sharing`).
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
    source = config.fedfed.shared_source
    return config.strategy.strategy == "fedfed" and source not in (NONE, PUBLIC)


def rounds(config: Config) -> int:
    """Round numbers reserved for it whenever clients share, even if it is not trained."""
    return config.fedfed.distill_rounds if clients_share(config) else 0


def plan(outlook: Outlook, earlier: Costs) -> PlanTable | None:
    """One step on all of a client's records per round; None if features are fixed.

    Raises:
        ValueError: there is no budget to take a share of.
    """
    config, own = outlook.config, outlook.config.fedfed
    if not clients_share(config) or not own.distills:
        return None
    privacy = Privacy(mechanism="none")
    if config.private:
        if math.isinf(config.target):
            raise ValueError("share_budget is a share of epsilon, which is not set: give --epsilon")
        epsilon = own.distill_budget * own.share_budget * config.target
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
    own, module = job.config.fedfed, distiller(job).to(job.device)
    training = Training(
        mechanism=MECHANISMS["dpsgd" if job.config.private else "none"],
        gradients=RecordGradients(module, objective(own.distill_penalty)),
        optimizer=sgd(),
        learning_rate=lambda round_, taken, steps: torch.full_like(taken, own.distill_lr),
        seed=job.seed,
    )
    return Node(training, group_data(job, group), job.plans_of[NAME], *files(run_dir, group, NAME))


def distiller(job: Job) -> Distiller:
    """Generator and classifier before training; their weights depend on the seed alone."""
    data, latent = job.dataset, job.config.fedfed.distill_latent
    with torch.random.fork_rng(devices=[]):
        module = Distiller(data.x.shape[1:], data.classes, latent)
    rng = generator(seed_key(job.config.run.seed), "generator")
    for layer in module.modules():
        if isinstance(layer, torch.nn.Linear):
            initialise(layer, rng)
    return module


def trained(job: Job, run_dir: Path) -> np.ndarray:
    """The trained generator ``[P]`` in the run directory; of length 0 if features are fixed.

    Raises:
        ValueError: its checkpoint is missing.
    """
    if NAME not in job.plans_of:
        return np.zeros(0, np.float32)
    newest = Store(run_dir / NAME, job.config.rounds.keep_checkpoints, run_dir / "ledger").newest()
    if newest is None:
        raise ValueError(
            f"{run_dir / NAME} has no complete checkpoint of the generator: restore it, or start "
            "a new run"
        )
    return newest.params


PHASE = Phase(NAME, rounds, plan, federation, node)
