"""The nodes of a run: a group's clients in one of the run's phases, their data on the computing device."""

import copy
import functools
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from safetensors.numpy import load

from client.carry import Carry
from client.messages import Answering
from client.node import GroupData, Node, Training
from client.sharing import SharingNode
from client.uploads import Uploads
from mechanisms.accounting.ledger import Ledger
from mechanisms.gradients.record_gradients import RecordGradients
from mechanisms.optimizers import OPTIMIZERS, SCHEDULES, sgd
from mechanisms.plan import PlanTable
from mechanisms.randomness import generator, seed_key
from mechanisms.registry import MECHANISMS, Mechanism
from mechanisms.sharing import ClassSums, Features, Release, SingleRecords, Sum
from sim.job.budget import NONE, PUBLIC, Sharing, same_for_all
from sim.job.job import Job, device_of
from sim.models.networks import initialise
from sim.phases.statistics import channel_moments, standardized
from sim.showing.sharing import SHARED_FILE
from strategies.distillation import Distiller, objective, sensitive
from strategies.fedfed import SharedSet
from strategies.registry import strategy_of

STATISTICS, DISTILL, SHARE, TRAIN = "statistics", "distill", "share", "train"
"""The phases: statistics of channels, the generator's training, what is shared, the model's training."""


class Host:
    """The nodes of one process, made when they are first asked; those of a phase go when the next one begins.

    Clients train by the configuration's mechanism, or by another ``mechanism``.
    """

    def __init__(self, job: Job, run_dir: Path, mechanism: Mechanism | None = None):
        self._job, self._run_dir, self._phase, self._now = job, run_dir, "", job
        self._nodes: dict[int, Answering] = {}
        self._builders = _BUILDERS | {TRAIN: functools.partial(training_node, mechanism=mechanism)}

    def node(self, group: int, phase: str) -> Answering:
        """The node of a group."""
        if phase != self._phase:
            self._nodes, self._phase = {}, phase
            self._now = present(self._job, self._run_dir)
        if group not in self._nodes:
            self._nodes[group] = self._builders[phase](self._now, group, self._run_dir)
        return self._nodes[group]


def present(job: Job, run_dir: Path) -> Job:
    """The job with its records as they are in this phase: standardized, once the statistics are there."""
    dataset, public = standardized(job.dataset, job.public, run_dir)
    return job if dataset is job.dataset else replace(job, dataset=dataset, public=public)


def training_node(job: Job, group: int, run_dir: Path, mechanism: Mechanism | None = None) -> Node:
    """The clients of a group that train the model, by the configuration's mechanism or by another one."""
    config = job.config
    schedule, strategy = SCHEDULES[config.local.lr_schedule], strategy_of(config.strategy, config.fedfed)
    training = Training(
        mechanism=mechanism or MECHANISMS[config.privacy.mechanism],
        gradients=_gradients(job),
        optimizer=OPTIMIZERS[config.local.optimizer](config.local.momentum),
        learning_rate=lambda round_, taken, steps: (
            config.local.lr * schedule(((round_ - 1) * steps + taken) / (config.rounds.rounds * steps))
        ),
        seed=job.seed,
        sent=strategy.sent,
        guide=strategy.guide,
    )
    carry = None
    if config.local.keep_state:
        carry = Carry(run_dir / "clients" / f"group-{group:04d}", training.mechanism.lasting)
    return Node(training, _data(job, group, run_dir), job.plans, *_files(run_dir, group, run_dir), carry)


def _gradients(job: Job) -> RecordGradients:
    """Per-record gradients of the model, whose constants are on the computing device."""
    device = device_of(job.config)
    if device.type == "cpu":
        return job.gradients
    return job.gradients_of(copy.deepcopy(job.model).to(device))


def distilling_node(job: Job, group: int, run_dir: Path) -> Node:
    """The clients of a group that train the generator, with a fresh optimizer in each round."""
    config, sharing = job.config, sharing_of(job)
    training = Training(
        mechanism=MECHANISMS[sharing.mechanism],
        gradients=RecordGradients(distiller(job).to(device_of(config)), objective(config.fedfed.distill_penalty)),
        optimizer=sgd(),
        learning_rate=lambda round_, taken, steps: torch.full_like(taken, config.fedfed.distill_lr),
        seed=job.seed,
    )
    return Node(training, _data(job, group, run_dir), generator_plans(job), *_files(run_dir, group, run_dir / DISTILL))


def sharing_node(job: Job, group: int, run_dir: Path) -> SharingNode:
    """The clients of a group that release what is shared."""
    data, (ledger, uploads) = _data(job, group, run_dir), _files(run_dir, group, run_dir / SHARE)
    return SharingNode(functools.partial(release, job), data, release_plans(job), ledger, uploads, job.seed)


def statistics_node(job: Job, group: int, run_dir: Path) -> SharingNode:
    """The clients of a group that release statistics of their channels."""
    plans = statistics_plans(job)
    release = Sum(plans.plans[0], channel_moments, 2 * job.dataset.x.shape[1])
    data, (ledger, uploads) = _data(job, group, run_dir), _files(run_dir, group, run_dir / STATISTICS)
    return SharingNode(lambda params: release, data, plans, ledger, uploads, job.seed)


_BUILDERS = {DISTILL: distilling_node, SHARE: sharing_node, STATISTICS: statistics_node}


def sharing_of(job: Job) -> Sharing:
    """The plans of what comes before training.

    Raises:
        ValueError: nothing does.
    """
    if job.sharing is None:
        raise ValueError(f"strategy = {job.config.strategy.strategy}: clients share nothing before training")
    return job.sharing


def generator_plans(job: Job) -> PlanTable:
    """Every client's plan for training the generator.

    Raises:
        ValueError: none is trained.
    """
    plan = sharing_of(job).generator
    if plan is None:
        raise ValueError(f"shared_source = {job.config.fedfed.shared_source}: no generator is trained")
    return same_for_all(plan, job.config.data.clients)


def release_plans(job: Job) -> PlanTable:
    """Every client's plan for the release."""
    return same_for_all(sharing_of(job).release, job.config.data.clients)


def statistics_plans(job: Job) -> PlanTable:
    """Every client's plan for the release of statistics.

    Raises:
        ValueError: none are released.
    """
    if job.statistics is None:
        raise ValueError(f"standardize = {job.config.data.standardize}: no statistics are released")
    return same_for_all(job.statistics, job.config.data.clients)


def distiller(job: Job) -> Distiller:
    """Generator and classifier before training; their weights depend on the seed alone."""
    with torch.random.fork_rng(devices=[]):
        module = Distiller(job.dataset.x.shape[1:], job.dataset.classes, job.config.fedfed.distill_latent)
    rng = generator(seed_key(job.config.run.seed), "generator")
    for layer in module.modules():
        if isinstance(layer, torch.nn.Linear):
            initialise(layer, rng)
    return module


def release(job: Job, params: np.ndarray) -> Release:
    """What clients release with the generator ``params [P]``; empty where features are fixed."""
    plan, classes = sharing_of(job).release, job.dataset.classes
    width = int(np.prod(job.dataset.x.shape[1:]))
    features = _distilled(job, params) if len(params) else fixed
    if plan.singly:
        return SingleRecords(plan, features, classes)
    return ClassSums(plan, features, classes, width)


def fixed(x: torch.Tensor) -> torch.Tensor:
    """Records ``[M, ...]`` as they are, ``[M, D]``."""
    return x.flatten(1)


def _distilled(job: Job, params: np.ndarray) -> Features:
    module = distiller(job)
    layout = RecordGradients(module).layout
    module.load_state_dict(layout.unflatten(torch.from_numpy(params)))
    return sensitive(module.splitter.to(device_of(job.config)))


def shared_set(job: Job, run_dir: Path) -> SharedSet | None:
    """D^s: the public records, or what the run directory holds; None where nothing is shared."""
    own = job.config.fedfed
    if job.config.strategy.strategy != "fedfed" or own.shared_source == NONE:
        return None
    if own.shared_source == PUBLIC:
        return job.public
    path = run_dir / SHARED_FILE
    if not path.exists():  # a phase before there is one
        return None
    tensors = load(path.read_bytes())
    return tensors["x"], tensors["y"]


def _data(job: Job, group: int, run_dir: Path) -> GroupData:
    device = device_of(job.config)

    def pair(records: SharedSet | None) -> tuple[torch.Tensor, torch.Tensor] | None:
        return None if records is None else (_on(device, records[0]), _on(device, records[1]))

    return GroupData(
        x=_on(device, job.dataset.x),
        y=_on(device, job.dataset.y),
        records=job.partition.of,
        chunks=job.groups[group],
        weights=strategy_of(job.config.strategy, job.config.fedfed).weights(job.partition.sizes),
        public=pair(job.public),
        shared=pair(shared_set(job, run_dir)),
    )


def _files(run_dir: Path, group: int, phase_dir: Path) -> tuple[Ledger, Uploads]:
    """The group's ledger, one for all phases, and its phase's uploads."""
    return Ledger(run_dir / "ledger" / f"group-{group:04d}.jsonl"), Uploads(phase_dir / "uploads")


def _on(device: torch.device, array: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(array).to(device)
