"""Builds a run's inputs from its configuration: data, clients, model, plans, chunks, groups."""

import math
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from client import trace
from mechanisms import grid, personal
from mechanisms.randomness import generator, seed_key
from mechanisms.shares import least_answers
from server.federation import asked
from sim.config.checks import check_clients, check_delta, check_parts, check_sizes
from sim.config.fields import Config
from sim.config.settings import BY_LABEL, Data
from sim.data.dataset import Dataset
from sim.data.holdout import Held, Holdout, hold_back, hold_out, set_aside
from sim.data.partition import Partition, by_owners, partition
from sim.data.words import Words, words_of
from sim.features.loading import load
from sim.job import first_step
from sim.job.chunks import chunk_width, device_width, group
from sim.job.copies import pair_on
from sim.job.device import device_of, memory_of
from sim.job.job import TRAIN, Job
from sim.job.workers import workers_of
from sim.models import personal as personal_models
from sim.models.initial import start_from
from sim.models.networks import build as build_model
from sim.models.objectives import objective, refuse_mixing
from sim.models.own import trying
from sim.phases import course, sharing, training, trust
from sim.phases.generator import rounds as generator_rounds
from sim.phases.phase import Outlook
from sim.sources.owners import owners
from strategies import trial
from strategies.registry import strategy_of

MAX_SINGLE = 2000
"""Maximum number of groups of one client; each has arrays as long as their number."""


def build(config: Config, workers: int | None = None, features: Path | None = None) -> Job:
    """Load the data, partition it, calibrate the plans and form groups, by default one for each of
    the ``workers`` (None: those of this machine). Features are kept in a folder of their own, or in
    the data directory.

    Raises:
        ValueError: a user error, in one line.
    """
    check_parts(config)
    dataset, parts, holdout, held = split(config, features)
    config = _with_trace(with_clients(config, parts.clients, dataset))
    words = words_of(config.data, dataset)
    model = model_of(config, dataset, words)
    check_delta(config, len(dataset.y))
    check_sizes(config, parts.sizes)
    if ":" in (own := config.strategy.strategy):
        trial.check_weights(own, strategy_of(config.strategy, config.fedfed), parts.sizes)
    plans = course.plan(Outlook(config, dataset.x.shape[1:], parts.sizes, holdout is not None))
    if sharing.NAME in plans and words:
        raise ValueError(
            f"shared_source is {config.fedfed.shared_source}, but word numbers with noise mean "
            "nothing: use --shared-source public or none, or another --strategy"
        )
    prior = course.paid_before(config, plans)
    job = Job(config, dataset, parts, model, plans, (), holdout, prior=prior, held=held)
    layout = job.gradients.layout
    personal_models.mask(config, layout)  # before anything is written
    if config.run.release:
        for plan in plans[TRAIN].plans:
            grid.slack(layout.size, getattr(plan, "noise_multiplier", 0.0))  # refuses too much
    job = in_groups(job, workers)
    trust.aggregator(job)  # before anything is written: shares of noise may not fit
    return job


def with_clients(config: Config, clients: int, dataset: Dataset | None = None) -> Config:
    """The configuration with the number of clients that a data set gives, and personal budgets by
    their numbers, if it has any; a file may have the names of the data set's own clients.

    Raises:
        ValueError: another number was given, settings ask for more clients or for sums that hide
            nobody, or the budgets are none of so many.
    """
    data = config.data
    if data.clients not in (clients, Data.model_fields["clients"].default):
        raise ValueError(
            f"clients is {data.clients}, but {data.dataset} has {clients}: leave --clients out"
        )
    config = config.model_copy(update={"data": data.model_copy(update={"clients": clients})})
    check_clients(config)
    privacy = config.privacy
    if privacy.trust == "aggregate":
        least_answers(asked(config.rounds.fraction, clients), privacy.honest)
    if privacy.budgets is None:
        return config
    rng = generator(seed_key(config.run.seed), "budgets")
    names = dataset.clients if dataset is not None and data.partition == "given" else ()
    budgets = personal.resolved(privacy.budgets, clients, rng, names)
    return config.model_copy(update={"privacy": privacy.model_copy(update={"budgets": budgets})})


def _with_trace(config: Config) -> Config:
    """The configuration with the trace of dropouts as a text, if it has one.

    Raises:
        ValueError: it is no trace of the run's clients.
    """
    rounds = config.rounds
    if rounds.dropout_trace is None:
        return config
    text = trace.resolved(rounds.dropout_trace, config.data.clients, rounds.rounds)
    return config.model_copy(update={"rounds": rounds.model_copy(update={"dropout_trace": text})})


def split(
    config: Config, features: Path | None = None
) -> tuple[Dataset, Partition, Holdout | None, Held | None]:
    """The data set without held-out records, its partition, the public records, and those that
    clients hold and do not train on.

    Raises:
        ValueError: the data set is missing or too small, or the loss is unknown.
    """
    key, data = seed_key(config.run.seed), config.data
    objective(data)  # an unknown loss is refused before the records are read by it
    # for every seed the same: no other seed may train on what one is judged by
    apart = seed_key(0)
    held, evaluate = data.validation_records, data.evaluate_on == "validation"
    loaded = load(data, device_of(config), features)
    dataset = hold_out(loaded, held, evaluate, generator(apart, "validation"))
    dataset, holdout = set_aside(dataset, data.public_records, generator(apart, "public"))
    parts = _partition(data, dataset, generator(key, "partition"))
    share, rng = data.client_holdout, generator(key, "client holdout")
    dataset, parts, own = hold_back(dataset, parts, share, rng)
    return dataset, parts, holdout, own


def _partition(data: Data, dataset: Dataset, rng: np.random.Generator) -> Partition:
    if data.partition == "given":
        if dataset.owner is None:
            raise ValueError(
                f"partition is given, but {dataset.name} does not say whose records it holds: add "
                "an array client, give a table's --client-column, or use another --partition"
            )
        return by_owners(dataset.owner)
    if dataset.owner is not None and data.clients > 1:
        warnings.warn(
            f"{dataset.name} says whose records it holds, which partition = {data.partition} "
            "ignores: --partition given keeps them together",
            stacklevel=2,
        )
    if ":" in data.partition:
        own, records = (data.partition, data.partition_settings), (dataset.x, dataset.y)
        return by_owners(owners(*own, records, data.clients, rng, data.min_records))
    labels = dataset.labels
    if labels is None and data.partition in BY_LABEL:
        raise ValueError(
            f"partition is {data.partition}, which divides classes, and the targets of loss = "
            f"{data.loss} are no classes: use --partition iid, quantity or given"
        )
    return partition(
        np.zeros(len(dataset.y), dtype=np.int64) if labels is None else labels,
        data.clients,
        data.partition,
        rng,
        alpha=data.dirichlet,
        shards_per_client=data.shards_per_client,
        minimum=data.min_records,
    )


def model_of(config: Config, dataset: Dataset, words: Words | None) -> torch.nn.Module:
    """The configuration's model with its initial weights, for the records of a data set.

    Raises:
        ValueError: as `sim.models.networks.build`, or `sim.models.initial.start_from`.
    """
    key, data = seed_key(config.run.seed), config.data
    seed, shape = int(generator(key, "model").integers(2**63)), dataset.x.shape[1:]
    model = build_model(data.model, shape, dataset.classes, seed, data.activation, words)
    if data.init_from is not None:
        start_from(model, data.init_from)
    return model


def in_groups(job: Job, workers: int | None) -> Job:
    """The job with its clients in chunks and groups, recorded in its configuration.

    Raises:
        ValueError: the model or the loss mixes records, the user's own metric fails, or there are
            more groups than clients.
    """
    config, sizes = job.config, job.partition.sizes
    alone = config.run.release and config.privacy.unit == "client"  # nobody moves another's bits
    single = strategy_of(config.strategy, config.fedfed).each is not None
    with trying(config.data.model):
        _try_own(job)
        _refuse_varying(job)  # first, as what varies fails in all other trials
        job.gradients.refuse_mixing(*_two_records(job))
        width = 1 if alone or single else config.run.chunk_clients or clients_at_a_time(job)
    chunks = math.ceil(len(sizes) / width)
    if (config.run.groups or 1) > len(sizes):
        raise ValueError(
            f"groups is {config.run.groups}, but there are {len(sizes)} clients to form them: use "
            f"at most --groups {len(sizes)}, or as many Flower nodes"
        )
    if single:
        _check_single(config, len(sizes))
        workers = len(sizes)
    config = with_groups(config, width, chunks, workers or workers_of(config.run))
    grouped = replace(job, config=config, groups=group(sizes, width, config.run.groups or 1))
    vars(grouped)["gradients"] = job.gradients  # of the same model, which was tried here
    return grouped


def _check_single(config: Config, clients: int) -> None:
    """Refuse groups of several clients, which send a sum, to a strategy that looks at each one's
    update; and more groups than a machine has room for.

    Raises:
        ValueError: there are fewer groups, or too many clients.
    """
    name, groups = config.strategy.strategy, config.run.groups
    if groups is not None and groups < clients:
        raise ValueError(
            f"groups is {groups}, but strategy = {name} looks at every client's update, and "
            f"a group of several sends their sum: use --groups {clients}, or as many Flower nodes, "
            "or a strategy that takes the mean"
        )
    if clients > MAX_SINGLE:
        raise ValueError(
            f"clients is {clients}, but strategy = {name} looks at every client's update, which "
            f"makes each a group of its own: use at most {MAX_SINGLE} --clients, or a strategy "
            "that takes the mean"
        )


def _try_own(job: Job) -> None:
    """Try a loss, a metric and a mechanism of the user's own on the initial model, before the run
    begins."""
    data, initial = job.config.data, job.gradients.layout.initial(job.model)
    if ":" in data.loss:
        x, y = _two_records(job)
        output = job.gradients.logits(initial.to(job.device)[None], x)[0]
        refuse_mixing(data.loss, job.objective.loss, output, y[0])
    if job.objective.whole:
        training.evaluate(job, initial.numpy())
    if ":" in job.config.privacy.mechanism:
        first_step.check(job)


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
    clients, parameters = len(job.partition.sizes), job.gradients.layout.size
    # the generator is trained by all clients
    fraction = 1.0 if generator_rounds(job.config) > 0 else job.config.rounds.fraction
    if job.device.type == "cpu":
        return chunk_width(clients, fraction, parameters, step_entries(job))
    entries = math.ceil(_batch(job) * job.dataset.x[0].size)
    return device_width(clients, fraction, parameters, entries, memory_of(job.device))


def step_entries(job: Job) -> int:
    """Tensor entries that a step of a median-sized client holds."""
    return math.ceil(_batch(job) * job.gradients.entries(*_two_records(job)))


def _batch(job: Job) -> float:
    """The expected batch of a median-sized client."""
    size = int(np.median(job.partition.sizes))
    return job.config.privacy.rate(max(size, 1)) * size


def _two_records(job: Job) -> tuple[torch.Tensor, torch.Tensor]:
    """The first two records ``[1, 2, ...]`` and their labels, to try the model on."""
    return pair_on(job.device, (job.dataset.x[None, :2], job.dataset.y[None, :2]))
