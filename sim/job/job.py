"""From a configuration to a run's inputs (data, clients, plans, model, groups), and from there to its two ends."""

import functools
import math
import os
from dataclasses import dataclass, replace

import numpy as np
import torch
from threadpoolctl import threadpool_limits

from mechanisms.gradients.record_gradients import RecordGradients
from mechanisms.plan import PlanTable, merge
from mechanisms.randomness import generator, seed_key
from mechanisms.registry import MECHANISMS, plan_table
from mechanisms.sharing import SharingPlan
from server.federation import Federation
from sim.config.caveats import tells_times
from sim.config.checks import check_delta, check_parts, check_sizes
from sim.config.configuration import Config
from sim.data.dataset import Dataset
from sim.data.features import load
from sim.data.holdout import Public, hold_out, set_aside
from sim.data.partition import Partition, partition
from sim.data.words import words_of
from sim.job.budget import Sharing, plan_sharing
from sim.models.networks import build as build_model
from sim.phases.statistics import plan_statistics
from strategies.registry import strategy_of

EVALUATION_BATCH = 2_000
MEBIBYTE = 2**20
CHUNK_ENTRIES = 2**24
"""Parameters of all clients of a chunk together, at most (where a single client has fewer); and what a step of theirs
holds on a CPU, where that is more than `FEWEST` clients' worth."""
FEWEST = 5
"""Clients of a chunk, at least: a chunk has a cost of its own."""
CACHED_ENTRIES = 2**21
"""Parameters of all clients of a chunk together, at most, on a CPU: further rows of them only push each other out."""


@dataclass(frozen=True)
class Job:
    """A run's inputs, the same in every process.

    Attributes:
        config: resolved.
        dataset: all clients' records and the test set.
        partition: who holds which record.
        model: the module; its initial parameters are the first model.
        plans: the clients' privacy plans.
        groups: for each group, the chunks of client numbers that are computed together.
        public: records that no client holds and no guarantee covers, where there are any.
        sharing: what clients release before training, where they share data.
        statistics: what they release to standardize channels, where they do.
    """

    config: Config
    dataset: Dataset
    partition: Partition
    model: torch.nn.Module
    plans: PlanTable
    groups: tuple[tuple[np.ndarray, ...], ...]
    public: Public | None = None
    sharing: Sharing | None = None
    statistics: SharingPlan | None = None

    @functools.cached_property
    def gradients(self) -> RecordGradients:
        """Per-record gradients of the model.

        Raises:
            ValueError: the model has a layer that mixes records.
        """
        return self.gradients_of(self.model)

    def gradients_of(self, module: torch.nn.Module) -> RecordGradients:
        """Per-record gradients of the model as ``module``, a copy of it on the computing device."""
        local = self.config.local
        limit = None if local.memory_limit is None else local.memory_limit * MEBIBYTE
        return RecordGradients(module, max_records=local.max_records, memory_limit=limit)

    @property
    def seed(self) -> int | None:
        """The seed of every draw, or None for a release."""
        return None if self.config.run.release else self.config.run.seed


def build(config: Config) -> Job:
    """Load, partition, calibrate and group.

    Raises:
        ValueError: anything the user can mend.
    """
    device = device_of(config)
    key, data = seed_key(config.run.seed), config.data
    check_parts(config)
    held, evaluate = data.validation_records, data.evaluate_on == "validation"
    dataset = hold_out(load(data, device), held, evaluate, generator(key, "validation"))
    dataset, public = set_aside(dataset, data.public_records, generator(key, "public"))
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
    shape = dataset.x.shape[1:]
    words = words_of(data, dataset)
    seed = int(generator(key, "model").integers(2**63))
    model = build_model(data.model, shape, dataset.classes, seed, data.activation, words)
    check_delta(config, len(dataset.y))
    own = getattr(config, config.privacy.mechanism, None)
    check_sizes(config, parts.sizes)
    steps = np.array([local_steps(config, int(size)) for size in parts.sizes])
    sharing = plan_sharing(config, shape, target(config), public is not None)
    if sharing and words:
        raise ValueError(
            f"shared_source is {config.fedfed.shared_source}, but noise on the numbers of words says nothing: use "
            "--shared-source public or none, or another --strategy"
        )
    statistics = plan_statistics(config, MECHANISMS[config.privacy.mechanism].private)
    prior = merge(statistics.round_charges(1) if statistics else {}, sharing.charges if sharing else {})
    plans = plan_table(config.privacy, own, steps, participations(config), parts.sizes, prior)
    return in_groups(Job(config, dataset, parts, model, plans, (), public, sharing, statistics))


def in_groups(job: Job) -> Job:
    """The job with its clients in chunks and groups, which its configuration then names.

    Raises:
        ValueError: the model mixes records.
    """
    config, sizes = job.config, job.partition.sizes
    job.gradients.refuse_mixing(*_two_records(job))
    width = config.run.chunk_clients or chunk_width(len(sizes), job.gradients.layout.size, step_entries(job))
    config = with_groups(config, width, most=math.ceil(len(sizes) / width))
    return replace(job, config=config, groups=group(sizes, width, config.run.groups or 1))


def single_thread() -> None:
    """One thread per process, of torch and of NumPy: sums then have one order, and processes share the cores.

    On a GPU, kernels that add up in a varying order are not taken.
    """
    torch.backends.cudnn.deterministic = True
    torch.set_num_threads(1)
    threadpool_limits(1)


def device_of(config: Config) -> torch.device:
    """The computing device.

    Raises:
        ValueError: CUDA was asked for and there is none.
    """
    present = torch.cuda.is_available()
    if config.run.device == "cuda" and not present:
        raise ValueError("device = cuda, but no CUDA device is present: use --device auto or --device cpu")
    return torch.device("cuda" if present and config.run.device != "cpu" else "cpu")


def local_steps(config: Config, size: int) -> int:
    """Local steps a round of a client of ``size`` records: as given, or enough for the expected number of passes."""
    if config.local.steps is not None:
        return config.local.steps
    return math.ceil(round(config.local.epochs / config.privacy.rate(size), 9))


def target(config: Config) -> float:
    """Epsilon per client that no round may pass; infinite for none, and for training without privacy."""
    private = MECHANISMS[config.privacy.mechanism].private
    return config.privacy.epsilon if private and config.privacy.epsilon is not None else math.inf


def participations(config: Config) -> int:
    """Rounds for which a client's budget is planned."""
    rounds = config.rounds
    return min(rounds.rounds, rounds.max_participations or math.ceil(round(rounds.fraction * rounds.rounds, 9)))


def with_groups(config: Config, width: int, most: int) -> Config:
    """The configuration with chunks of ``width`` clients, and the number of groups fixed, for it names ledger files.

    One client alone has no choice of either.

    Where the user has not said there are as many groups as workers, but no more than chunks: so the result is the same
    on a machine with more cores.
    """
    groups = config.run.groups or min(config.run.workers or os.cpu_count() or 1, most)
    chosen = {"groups": groups} | ({"chunk_clients": width} if config.data.clients > 1 else {})
    return config.model_copy(update={"run": config.run.model_copy(update=chosen)})


def step_entries(job: Job) -> int:
    """Tensor entries that a step of a client of median size holds on a CPU; 0 on other devices, which are wide."""
    if device_of(job.config).type != "cpu":
        return 0
    size = int(np.median(job.partition.sizes))
    return math.ceil(job.config.privacy.rate(max(size, 1)) * size * job.gradients.entries(*_two_records(job)))


def _two_records(job: Job) -> tuple[torch.Tensor, torch.Tensor]:
    """The first two records ``[1, 2, ...]`` and their labels, to try the model on."""
    return torch.from_numpy(job.dataset.x[None, :2]), torch.from_numpy(job.dataset.y[None, :2])


def chunk_width(clients: int, parameters: int, entries: int) -> int:
    """Clients computed together where the user has not said.

    Together they share the fixed cost of a step's calls: 10 to 20 times faster for small models of few records, and
    nothing where the work of one client, ``entries``, fills the cache, as it does for convolutions. There, more clients
    would only be padded to the largest of them. Nor does it gain where one client's parameters fill the cache. A rule
    instead of a trial run: the same on every machine.
    """
    wanted = min(max(25, clients // 40), 250)
    filling = max(FEWEST, CHUNK_ENTRIES // max(entries, 1))
    return max(1, min(wanted, filling, (CACHED_ENTRIES if entries else CHUNK_ENTRIES) // parameters))


def group(sizes: np.ndarray, chunk_clients: int, groups: int) -> tuple[tuple[np.ndarray, ...], ...]:
    """Chunks of clients of similar size, dealt to groups so that their work is even.

    Chunks depend on the sizes and the chunk size only, so results do not depend on the number of groups (as long as
    every group gets a chunk; with more groups than that, chunks are made smaller).

    Returns:
        For each group its chunks, each an int64 array of client numbers in ascending order.
    """
    groups = min(groups, len(sizes))
    width = min(chunk_clients, len(sizes) // groups)
    by_size = np.argsort(-sizes, kind="stable")
    chunks = [np.sort(by_size[at : at + width]) for at in range(0, len(by_size), width)]
    dealt: list[list[np.ndarray]] = [[] for _ in range(groups)]
    load = np.zeros(groups)
    for chunk in chunks:  # largest first, to the least loaded
        least = int(np.argmin(load))
        dealt[least].append(chunk)
        load[least] += len(chunk) * sizes[chunk].max()
    return tuple(tuple(chunks) for chunks in dealt)


def group_of(job: Job) -> np.ndarray:
    """Int64 ``[clients]``, each client's group."""
    numbers = np.empty(job.config.data.clients, dtype=np.int64)
    for number, chunks in enumerate(job.groups):
        numbers[np.concatenate(chunks)] = number
    return numbers


def federation(job: Job) -> Federation:
    """The server's inputs."""
    config = job.config
    return Federation(
        group_of=group_of(job),
        plans=job.plans,
        strategy=strategy_of(config.strategy, config.fedfed),
        initial=job.gradients.layout.initial(job.model).numpy().copy(),
        evaluate=functools.partial(evaluate, job),
        rounds=config.rounds.rounds,
        fraction=config.rounds.fraction,
        target=target(config),
        delta=config.privacy.delta,
        column=config.privacy.budget,
        seed=job.seed,
        evaluate_every=config.rounds.evaluate_every,
        timed=tells_times(config),
    )


def evaluate(job: Job, params: np.ndarray) -> tuple[float, float]:
    """(accuracy, mean cross-entropy) of the model ``[P]`` on the test set."""
    rows = torch.from_numpy(params)[None]
    right = loss = 0.0
    for at in range(0, len(job.dataset.y_test), EVALUATION_BATCH):
        x = torch.from_numpy(job.dataset.x_test[at : at + EVALUATION_BATCH])
        y = torch.from_numpy(job.dataset.y_test[at : at + EVALUATION_BATCH])
        logits = job.gradients.logits(rows, x[None])[0]
        right += float((logits.argmax(dim=1) == y).sum())
        loss += float(torch.nn.functional.cross_entropy(logits, y, reduction="sum"))
    return right / len(job.dataset.y_test), loss / len(job.dataset.y_test)
