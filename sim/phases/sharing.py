"""The shared data (FedFed's D^s): released once before training, and joined by the server."""

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from client.messages import Upload
from client.sharing import SharingNode
from client.tensors import read
from mechanisms.accounting.accountant import Charges
from mechanisms.accounting.calibration import smallest
from mechanisms.layout import Layout
from mechanisms.plan import PlanTable, merge
from mechanisms.sharing import ClassSums, Features, Release, SharingPlan, SingleRecords
from server.federation import Federation
from sim.config.fields import Config
from sim.job.job import Job
from sim.phases import generator, phase
from sim.phases.phase import Costs, Outlook, Phase, files, group_data, mean_sums
from sim.showing.sharing import SHARED_FILE
from strategies.distillation import sensitive
from strategies.fedfed import SharedSet, prototypes, union
from strategies.settings import FedFed

NAME = "share"
LABEL_SHARE = 0.25
"""Fraction of the share budget that pays for labels."""


def plan(outlook: Outlook, earlier: Costs) -> PlanTable | None:
    """Every client's release, with the least noise that the share budget pays for.

    The share budget also pays for the generator.

    Raises:
        ValueError: the shared source is public but there are no public records; the share budget
            pays for no release.
    """
    config, own = outlook.config, outlook.config.fedfed
    public = config.strategy.strategy == "fedfed" and own.shared_source == generator.PUBLIC
    if public and not outlook.holdout:
        raise ValueError("shared_source is public, but public_records is 0: give --public-records")
    if not generator.clients_share(config):
        return None
    if not config.private:
        return outlook.same(_release(own, math.inf, None, 0.0))
    if math.isinf(config.target) and own.share_noise is None:
        raise ValueError("share_budget is a share of epsilon, which is not set: give --epsilon")
    bound = 0.5 * math.sqrt(math.prod(outlook.shape)) if own.share_clip is None else own.share_clip
    labels = own.label_epsilon or LABEL_SHARE * own.share_budget * config.target
    if math.isinf(labels) and own.shared_source == "distilled" and not own.public_labels:
        raise ValueError(
            "label_epsilon is not set, and is then a share of epsilon, which is not set either: "
            "give --label-epsilon or --public-labels"
        )
    release = functools.partial(_release, own, bound, None if own.public_labels else labels)
    spent = earlier.get(generator.NAME, {})
    noise = own.share_noise or _least_noise(
        lambda noise: merge(spent, release(noise).round_charges(1)), config
    )
    return outlook.same(release(noise))


def _release(own: FedFed, bound: float, label_epsilon: float | None, noise: float) -> SharingPlan:
    if own.shared_source == "prototypes":
        return SharingPlan(noise, bound)
    return SharingPlan(noise, bound, True, own.share_rate, own.share_views, label_epsilon)


def _least_noise(charges_of: Callable[[float], Charges], config: Config) -> float:
    """The smallest noise multiplier whose charges stay within the share budget."""
    share = config.fedfed.share_budget
    epsilon = share * config.target
    try:
        return smallest(charges_of, epsilon, config.privacy.delta)
    except ValueError as fault:
        raise ValueError(
            f"share_budget = {share:g} of epsilon is {epsilon:.4g}, which pays for no release "
            f"({fault}): raise --share-budget or --epsilon, or lower --label-epsilon"
        ) from None


def federation(job: Job, run_dir: Path) -> Federation:
    """One round, whose releases become the shared data set."""

    def write(uploads: Sequence[Upload]) -> None:
        x, y = map(np.ascontiguousarray, _join(job, uploads))
        phase.write_result(run_dir / SHARED_FILE, {"x": x, "y": y})

    return phase.release(job, NAME, generator.trained(job, run_dir), collect=write)


def _join(job: Job, uploads: Sequence[Upload]) -> SharedSet:
    """D^s from the releases of all groups."""
    shape = job.dataset.x.shape[1:]
    if phase.sharing_plan(job, NAME).singly:
        return union([upload.shared for upload in uploads if upload.shared], shape)
    return prototypes(*mean_sums(job, uploads), shape)


def node(job: Job, group: int, run_dir: Path) -> SharingNode:
    """The clients of a group, which make the releases."""
    own, data, plans = functools.partial(release, job), group_data(job, group), job.plans_of[NAME]
    return SharingNode(own, data, plans, *files(run_dir, group, NAME), job.seed)


def release(job: Job, params: np.ndarray) -> Release:
    """The clients' release, given the generator ``params [P]``, of length 0 for fixed features."""
    own, classes = phase.sharing_plan(job, NAME), job.dataset.classes
    features = _distilled(job, params) if len(params) else fixed
    if own.singly:
        return SingleRecords(own, features, classes)
    return ClassSums(own, features, classes, int(np.prod(job.dataset.x.shape[1:])))


def fixed(x: torch.Tensor) -> torch.Tensor:
    """Records ``[M, ...]`` unchanged, as rows ``[M, D]``."""
    return x.flatten(1)


def _distilled(job: Job, params: np.ndarray) -> Features:
    module = generator.distiller(job)
    module.load_state_dict(Layout.of(module).unflatten(torch.from_numpy(params)))
    return sensitive(module.splitter.to(job.device))


def shared_set(job: Job, run_dir: Path) -> SharedSet | None:
    """D^s: the public records, or the run directory's file; None if nothing is shared (yet)."""
    source = job.config.fedfed.shared_source
    if job.config.strategy.strategy != "fedfed" or source == generator.NONE:
        return None
    if source == generator.PUBLIC:
        return job.holdout
    path = run_dir / SHARED_FILE
    if not path.exists():  # the phase is not over
        return None
    _, tensors = read(path)
    return tensors["x"], tensors["y"]


def joined(job: Job, run_dir: Path) -> Job:
    """The job with D^s; unchanged as long as there is none."""
    shared = shared_set(job, run_dir)
    return job if shared is None else replace(job, shared=shared)


PHASE = Phase(NAME, lambda config: 1, plan, federation, node, result=SHARED_FILE, apply=joined)
