"""Whom clients trust: how they train, what they send, and what the server makes of it."""

from collections.abc import Callable
from pathlib import Path
from typing import cast

import numpy as np
import torch

from client import trace
from client.dropouts import Coins, Dropouts
from mechanisms import bands, contributions, shares
from mechanisms.contributions import ContributionPlan
from mechanisms.mechanism import Mechanism
from mechanisms.optimizers import SCHEDULES
from mechanisms.registry import mechanism_of
from mechanisms.updates import Sent, without
from server import clip_norm
from server.aggregator import Aggregator
from server.curator import LEDGER, Curator
from server.federation import asked
from sim.config.fields import Config
from sim.job.job import Job
from sim.models import personal
from strategies.registry import strategy_of
from strategies.strategy import Strategy


def trained_by(config: Config) -> tuple[Mechanism, Sent]:
    """How clients train, and what they send before there is any share of noise in it."""
    privacy, votes = config.privacy, config.privacy.clip_quantile is not None
    if privacy.trust == "server":
        reach = bands.norm(privacy.noise_bands)
        return contributions.of_unit(privacy.unit, config.rounds.fraction, reach=reach, votes=votes)
    if privacy.trust == "aggregate":  # the server knows whom it asks
        return contributions.of_unit(privacy.unit, 1.0, shares.FAILURE, votes=votes)
    return mechanism_of(privacy), strategy_of(config.strategy, config.fedfed).sent


def aggregated(job: Job) -> Strategy:
    """The strategy, which also moves the clip norm if sums have votes on it."""
    strategy, privacy = strategy_of(job.config.strategy, job.config.fedfed), job.config.privacy
    if privacy.trust == "local" or privacy.clip_quantile is None:
        return strategy
    return clip_norm.moving(strategy, privacy.clip_norm, privacy.clip_quantile)


def sent_by(job: Job) -> Sent:
    """What clients send."""
    sent, layers = trained_by(job.config)[1], job.config.local.personal_layers
    if layers is not None:
        return without(sent, torch.from_numpy(personal.below(layers, job.gradients.layout)))
    return shares.shared(sent, _shares(job)) if job.config.privacy.trust == "aggregate" else sent


def curator(job: Job, run_dir: Path) -> Curator | None:
    """The server, if it is trusted."""
    if job.config.privacy.trust != "server":
        return None
    rounds, turns = job.config.rounds, job.config.privacy.noise_bands
    plan, expected, lost = _plan(job), _expected(job), dropouts(job.config)
    length = min(rounds.rounds, (rounds.max_participations or rounds.rounds) * turns)
    arriving = 1 if lost is None else lost.share(expected, length)
    answering = rounds.fraction / turns * arriving  # in the divisor alone
    return Curator(
        path=run_dir / "ledger" / LEDGER,
        plans=job.plans,
        bound=plan.clip_norm,
        multiplier=plan.multiplier,
        seed=job.seed,
        fraction=rounds.fraction,
        expected=answering * float(expected.sum()),
        factor=_factor(job.config),
        bands=turns,
    )


def aggregator(job: Job) -> Aggregator | None:
    """The server, if it learns sums alone."""
    if job.config.privacy.trust != "aggregate":
        return None
    return Aggregator(_shares(job), _plan(job).clip_norm, _expected(job), _factor(job.config))


def dropouts(config: Config) -> Dropouts | None:
    """Which clients do not answer: by the trace, or by coins; None if all answer."""
    rounds = config.rounds
    if rounds.dropout_trace is not None:
        return trace.parse(rounds.dropout_trace, config.data.clients)
    return Coins(rounds.dropout) if rounds.dropout else None


def rate(config: Config, round_: int, taken: torch.Tensor, steps: torch.Tensor) -> torch.Tensor:
    """The local learning rate ``[K]`` after so many of the round's steps ``[K]``."""
    schedule = SCHEDULES[config.local.lr_schedule]
    done = ((round_ - 1) * steps + taken) / (config.rounds.rounds * steps)
    return config.local.lr * schedule(done)


def _factor(config: Config) -> Callable[[int], float]:
    """What the server multiplies means by: updates are added as they are, gradients are followed
    downwards by a step of the local learning rate."""
    if config.privacy.unit == "client":
        return lambda round_: 1.0
    return lambda round_: -float(rate(config, round_, torch.zeros(1), torch.ones(1)))


def _plan(job: Job) -> ContributionPlan:
    """A client's plan; clip norm and noise are those of all."""
    return cast(ContributionPlan, job.plans.plans[0])


def _expected(job: Job) -> np.ndarray:
    """Float64 ``[clients]``: expected number of parts of norm C that each adds to a round of its
    own."""
    sizes, plans = job.partition.sizes, cast(tuple[ContributionPlan, ...], job.plans.plans)
    if job.config.privacy.unit == "client":
        return np.array([plan.own_rate for plan in plans])[job.plans.which]
    return np.array([plan.sample_rate for plan in plans])[job.plans.which] * sizes


def _shares(job: Job) -> shares.Shares:
    """How clients make the noise of a round; a sum is bounded by all records of the largest ones.

    Raises:
        ValueError: no shares fit the settings.
    """
    privacy, sizes = job.config.privacy, job.partition.sizes
    number = asked(job.config.rounds.fraction, len(sizes))
    largest = np.sort(sizes)[-number:].sum() if privacy.unit == "record" else number
    noise = _plan(job).noise_multiplier
    entries = job.gradients.layout.size + trained_by(job.config)[1].extra
    return shares.shares_of(
        noise, number, privacy.honest, float(largest), entries, privacy.aggregate_bits
    )
