"""Builds a run's inputs from its configuration: data, clients, model, plans, chunks, groups."""

import math
from dataclasses import replace

import numpy as np
import torch

from mechanisms.randomness import generator, seed_key
from sim.config.checks import check_delta, check_parts, check_sizes
from sim.config.fields import Config
from sim.data.dataset import Dataset
from sim.data.features import load
from sim.data.holdout import Holdout, hold_out, set_aside
from sim.data.partition import Partition, partition
from sim.data.words import Words, words_of
from sim.job.chunks import chunk_width, device_width, group
from sim.job.copies import copy_on
from sim.job.device import device_of, memory_of
from sim.job.job import Job
from sim.job.workers import workers_of
from sim.models.networks import build as build_model
from sim.phases import course, sharing
from sim.phases.generator import rounds as generator_rounds
from sim.phases.phase import Outlook


def build(config: Config, workers: int | None = None) -> Job:
    """Load the data, partition it, calibrate the plans and form groups, by default one for each of
    the ``workers`` (None: those of this machine).

    Raises:
        ValueError: a user error, in one line.
    """
    check_parts(config)
    dataset, parts, holdout = split(config)
    words = words_of(config.data, dataset)
    model = model_of(config, dataset, words)
    check_delta(config, len(dataset.y))
    check_sizes(config, parts.sizes)
    plans = course.plan(Outlook(config, dataset.x.shape[1:], parts.sizes, holdout is not None))
    if sharing.NAME in plans and words:
        raise ValueError(
            f"shared_source is {config.fedfed.shared_source}, but word numbers with noise mean "
            "nothing: use --shared-source public or none, or another --strategy"
        )
    prior = course.paid_before(config, plans)
    job = Job(config, dataset, parts, model, plans, (), holdout, prior=prior)
    return in_groups(job, workers)


def split(config: Config) -> tuple[Dataset, Partition, Holdout | None]:
    """The data set without held-out records, its partition, and the public records.

    Raises:
        ValueError: the data set is missing or too small.
    """
    key, data = seed_key(config.run.seed), config.data
    held, evaluate = data.validation_records, data.evaluate_on == "validation"
    loaded = load(data, device_of(config))
    dataset = hold_out(loaded, held, evaluate, generator(key, "validation"))
    dataset, holdout = set_aside(dataset, data.public_records, generator(key, "public"))
    rng = generator(key, "partition")
    parts = partition(
        dataset.y,
        data.clients,
        data.partition,
        rng,
        alpha=data.dirichlet,
        shards_per_client=data.shards_per_client,
        minimum=data.min_records,
    )
    return dataset, parts, holdout


def model_of(config: Config, dataset: Dataset, words: Words | None) -> torch.nn.Module:
    """The configuration's model with its initial weights, for the records of a data set.

    Raises:
        ValueError: as `sim.models.networks.build`.
    """
    key, data = seed_key(config.run.seed), config.data
    seed, shape = int(generator(key, "model").integers(2**63)), dataset.x.shape[1:]
    return build_model(data.model, shape, dataset.classes, seed, data.activation, words)


def in_groups(job: Job, workers: int | None = None) -> Job:
    """The job with its clients in chunks and groups, recorded in its configuration.

    Raises:
        ValueError: the model mixes records.
    """
    config, sizes = job.config, job.partition.sizes
    job.gradients.refuse_mixing(*_two_records(job))
    _refuse_varying(job)
    width = config.run.chunk_clients or clients_at_a_time(job)
    chunks = math.ceil(len(sizes) / width)
    config = with_groups(config, width, chunks, workers or workers_of(config.run))
    return replace(job, config=config, groups=group(sizes, width, config.run.groups or 1))


def with_groups(config: Config, width: int, chunks: int, workers: int) -> Config:
    """The configuration with chunks of ``width`` clients and a fixed number of groups.

    By default there are as many groups as workers, but no more than ``chunks``, so that the result
    is the same with more cores. The number is saved, since it names ledger files.
    """
    groups = config.run.groups or min(workers, chunks)
    chosen = {"groups": groups} | ({"chunk_clients": width} if config.data.clients > 1 else {})
    return config.model_copy(update={"run": config.run.model_copy(update=chosen)})


def _refuse_varying(job: Job) -> None:
    """Refuse a model for which a GPU has no kernel that gives the same bits each time.

    Raises:
        ValueError: there is none for an operation of the model or of its gradient.
    """
    if job.device.type == "cpu":
        return
    start = job.gradients.layout.initial(job.model).to(job.device)
    try:
        job.gradients.norms(start[None], *_two_records(job))
    except RuntimeError as fault:
        if "deterministic" not in str(fault):
            raise
        raise ValueError(
            f"model = {job.config.data.model!r} has an operation that may give other bits each "
            f"time on a GPU ({str(fault).splitlines()[0]}): replace it, or use --device cpu"
        ) from None


def clients_at_a_time(job: Job) -> int:
    """The default number of clients computed together, by the kind of device."""
    everybody = generator_rounds(job.config) > 0
    clients = len(job.partition.sizes), 1.0 if everybody else job.config.rounds.fraction
    parameters = job.gradients.layout.size
    if job.device.type == "cpu":
        return chunk_width(*clients, parameters, step_entries(job))
    entries = math.ceil(_batch(job) * job.dataset.x[0].size)
    return device_width(*clients, parameters, entries, memory_of(job.device))


def step_entries(job: Job) -> int:
    """Tensor entries that a step of a median-sized client holds."""
    return math.ceil(_batch(job) * job.gradients.entries(*_two_records(job)))


def _batch(job: Job) -> float:
    """The expected batch of a median-sized client."""
    size = int(np.median(job.partition.sizes))
    return job.config.privacy.rate(max(size, 1)) * size


def _two_records(job: Job) -> tuple[torch.Tensor, torch.Tensor]:
    """The first two records ``[1, 2, ...]`` and their labels, to try the model on."""
    x, y = (copy_on(job.device, array[None, :2]) for array in (job.dataset.x, job.dataset.y))
    return x, y
