"""The last phase: trains the model, and evaluates it after rounds."""

import functools
import math
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from client.client_state import ClientState
from client.node import Node, Training
from mechanisms.mechanism import Mechanism
from mechanisms.optimizers import OPTIMIZERS
from mechanisms.own import check_charges
from mechanisms.placing import place
from mechanisms.plan import PlanTable, merge
from mechanisms.plugins import one_line
from mechanisms.randomness import generator, seed_key
from mechanisms.registry import plan_table, settings_of
from mechanisms.settings import MAX_TIMES
from server import manifest
from server.buffer import Buffer
from server.federation import Federation, asked
from sim.config.fields import Config
from sim.job.job import TRAIN, Job
from sim.models import personal
from sim.phases import phase, trust
from sim.phases.phase import Costs, Outlook, Phase, files, group_data
from strategies.registry import strategy_of

EVALUATION_BATCH = 2_000


def plan(outlook: Outlook, earlier: Costs) -> PlanTable:
    """Every client's plan, calibrated to the budget that earlier phases leave.

    Raises:
        ValueError: the budget does not pay for one round, the run's length would depend on outputs,
            or a mechanism of the user's own has a client or a round that costs nothing.
    """
    config, sizes = outlook.config, outlook.sizes
    kinds, which = np.unique(sizes, return_inverse=True)
    steps = np.array([local_steps(config, size) for size in kinds.tolist()])[which]
    own, rounds = settings_of(config.privacy, config), participations(config)
    prior, mechanism = merge(*earlier.values()), trust.trained_by(config)[0]
    table = plan_table(config.privacy, own, steps, rounds, sizes, prior, mechanism)
    if "mechanism" in config.own:
        for one in table.plans:  # a client may be picked in more rounds than are planned
            check_charges(config.privacy.mechanism, one, config.rounds.rounds)
    return table


def local_steps(config: Config, size: int) -> int:
    """Local steps per round of a client with ``size`` records: as given, or from the epochs.

    Raises:
        ValueError: so many epochs have more steps than a round may have.
    """
    if config.local.steps is not None:
        return config.local.steps
    epochs, rate = config.local.epochs or 1.0, config.privacy.rate(size)
    steps = math.ceil(round(epochs / rate, 9))
    if steps > MAX_TIMES:
        raise ValueError(
            f"epochs is {epochs:g}, which is {steps} steps a round at a sampling rate of {rate:g}; "
            f"at most {MAX_TIMES} are possible: give fewer --epochs, or a larger batch"
        )
    return steps


def participations(config: Config) -> int:
    """Rounds for which a client's budget is planned."""
    rounds = config.rounds
    by_coins = config.privacy.trust == "server"  # all clients pay for every round, or by turns
    share = 1.0 / config.privacy.noise_bands if by_coins else rounds.fraction
    share = share if rounds.buffer is None else rounds.buffer / config.data.clients
    expected = math.ceil(round(share * rounds.rounds, 9))
    return min(rounds.rounds, rounds.max_participations or expected)


def attackers(config: Config) -> frozenset[int]:
    """The clients that attack a simulation, drawn once by its seed."""
    return frozenset(_drawn(config, "attackers", config.rounds.attackers).tolist())


def buffer_of(config: Config) -> Buffer | None:
    """When clients answer, if the server does not wait for all; slow ones are drawn once by the
    seed."""
    rounds, clients = config.rounds, config.data.clients
    if rounds.buffer is None:
        return None
    slowness = np.ones(clients)
    slowness[_drawn(config, "stragglers", rounds.stragglers)] = rounds.straggler_factor
    return Buffer(rounds.buffer, asked(rounds.fraction, clients), slowness, config.run.seed)


def _drawn(config: Config, purpose: str, share: float) -> np.ndarray:
    """The numbers of a share of the clients, rounded up."""
    clients = config.data.clients
    count = math.ceil(round(share * clients, 9))
    return generator(seed_key(config.run.seed), purpose).choice(clients, count, replace=False)


def federation(job: Job, run_dir: Path) -> Federation:
    """The configured rounds, numbered from 1."""
    rounds = job.config.rounds
    own: dict[str, Any] = {
        "evaluate": functools.partial(evaluate, job),
        "fraction": rounds.fraction,
        "curator": trust.curator(job, run_dir),
        "aggregator": trust.aggregator(job),
        "buffer": buffer_of(job.config),
    }
    initial = job.gradients.layout.initial(job.model).numpy().copy()
    return phase.federation(job, TRAIN, trust.aggregated(job), initial, **own)


def evaluate(job: Job, params: np.ndarray) -> tuple[float, float]:
    """(metric, mean loss) of the model ``[P]`` on the test set.

    Raises:
        ValueError: the user's own metric fails.
    """
    x_test, y_test = job.tests
    objective = job.objective
    found = torch.zeros(2, dtype=torch.float64, device=job.device)  # read once, at the end
    every = []
    for output, y in outputs(job, params, x_test, y_test):
        found[1] += objective.loss(output, y).double().sum()
        if objective.whole:
            every.append(output)
        else:
            found[0] += objective.metric(output, y).double().sum()
    metric, loss = (found / len(y_test)).tolist()
    if not math.isfinite(loss):
        warnings.warn(
            f"the mean loss on the test part is {loss}: look for what makes the model's outputs so "
            "(its layers, the records, a large --lr)",
            stacklevel=2,
        )
    if every:
        metric = _whole(job, torch.cat(every), y_test)
    return metric, loss


def outputs(
    job: Job, params: np.ndarray, x: torch.Tensor, y: torch.Tensor, at_a_time: int | None = None
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Outputs ``[B, ...]`` and targets of so many records at a time, in their order."""
    rows, step = place(torch.from_numpy(params), job.device)[None], at_a_time or EVALUATION_BATCH
    for at in range(0, len(y), step):
        part = slice(at, at + step)
        yield job.gradients.logits(rows, x[part][None])[0], y[part]


def _whole(job: Job, outputs: torch.Tensor, targets: torch.Tensor) -> float:
    """The user's own metric of all test records, which it may write over.

    Raises:
        ValueError: it fails, or gives neither a number nor one for each record.
    """
    shape, size = tuple(outputs.shape), len(targets)
    try:
        found = torch.as_tensor(job.objective.metric(outputs, targets.clone())).detach().double()
    except (Exception, SystemExit) as error:  # the user's code can raise anything
        raise ValueError(
            f"metric = {job.config.data.metric!r} fails ({one_line(error)}) on outputs of shape "
            f"{shape} and targets of shape {tuple(targets.shape)}: correct it"
        ) from error
    if found.numel() != 1 and found.shape != (size,):
        raise ValueError(
            f"metric = {job.config.data.metric!r} gives {tuple(found.shape)} for {size} records, "
            f"and must give a number, or one for each, ({size},): take the mean, for instance"
        )
    return float(found.mean())


def node(job: Job, group: int, run_dir: Path, mechanism: Mechanism | None = None) -> Node:
    """The clients of a group, which train the model by ``mechanism`` or the configuration's."""
    config, strategy = job.config, strategy_of(job.config.strategy, job.config.fedfed)
    training = Training(
        mechanism=mechanism or trust.trained_by(config)[0],
        gradients=job.gradients,
        optimizer=OPTIMIZERS[config.local.optimizer](config.local.momentum),
        learning_rate=functools.partial(trust.rate, config),
        seed=job.seed,
        dropouts=trust.dropouts(config),
        attackers=attackers(config),
        attack_factor=config.rounds.attack_factor,
        sent=trust.sent_by(job),
        guide=strategy.guide,
    )
    client_state, own = None, personal.mask(config, job.gradients.layout)
    folder, run = personal.folder(run_dir, group), manifest.run_of(run_dir) or ""
    if (keep := config.local.keep_state) or own is not None:
        lasting = training.mechanism.lasting if keep else ()
        checkpoints = config.rounds.keep_checkpoints
        client_state = ClientState(folder, lasting, keep, own, run, checkpoints)
    ledger, uploads = files(run_dir, group) if config.privacy.trust != "server" else (None, None)
    kept = uploads if config.privacy.trust == "local" else None
    return Node(training, group_data(job, group), job.plans, ledger, kept, client_state)


PHASE = Phase(TRAIN, lambda config: config.rounds.rounds, plan, federation, node)
