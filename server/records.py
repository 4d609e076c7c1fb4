"""Frozen records of rounds and runs, given to observers and written as JSON."""

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Self

from mechanisms import durable

Epsilon = float | None
"""An epsilon in nats; None, infinite or NaN if there is no guarantee."""


def finite(value: Any) -> Any:
    """``value`` as JSON can hold it: infinite and NaN numbers become None, at any depth."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Record):
        return value.to_json()
    if isinstance(value, Mapping):
        return {key: finite(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(one) for one in value]
    return value


def largest(epsilons: Sequence[Epsilon]) -> Epsilon:
    """The largest epsilon; None if one of them is no guarantee, or there are none."""
    known = [value for value in epsilons if value is not None and math.isfinite(value)]
    return max(known, default=None) if len(known) == len(epsilons) else None


def middle(epsilons: Sequence[Epsilon]) -> Epsilon:
    """The median epsilon, a missing one counting as infinite; None for that and for no epsilons."""
    values = [math.inf if e is None else e for e in finite(epsilons)]
    return finite(statistics.median(values)) if values else None


@dataclass(frozen=True)
class Record:
    """A record that goes to JSON and back; numbers that are not finite become None there."""

    def to_json(self) -> dict[str, Any]:
        """A dictionary of numbers, texts, lists and None."""
        return finite(vars(self))

    @classmethod
    def from_json(cls, entries: Mapping[str, Any]) -> Self:
        """The record of a dictionary; unknown keys, from later versions, are ignored."""
        known = {f.name: entries[f.name] for f in fields(cls) if f.name in entries}
        return cls(**{name: tuple(v) if isinstance(v, list) else v for name, v in known.items()})


@dataclass(frozen=True)
class RunInfo(Record):
    """What is known when a run starts or is resumed.

    Attributes:
        rounds: planned length of the run.
        finished: rounds that were finished before (a resumed run).
        clients: number of clients.
        run_dir: where the files go.
        together: the most clients that are computed as one batch.
        metric: the name of what records have as ``accuracy``.
    """

    rounds: int
    finished: int
    clients: int
    run_dir: str
    together: int = 1
    metric: str = "accuracy"


@dataclass(frozen=True)
class RoundRecord(Record):
    """One finished round: a line of ``rounds.jsonl``.

    Attributes:
        round: its number, from 1.
        accuracy: of the new model on the test part, in [0, 1], or the metric that the run's
            configuration names; None or NaN where not evaluated.
        loss: mean loss on the test part [nats for cross-entropy]; None or NaN where not evaluated
            or not finite.
        epsilon_certified_max: the largest proved epsilon spent by a client so far.
        epsilon_certified_median: the median over all clients.
        epsilon_published_max: the largest epsilon that the paper would claim.
        retired: clients whose budget pays for no further round.
        participants: clients that trained in this round; None where that must stay hidden.
        seconds: wall time of the round; None where it would reveal what must stay hidden.
        seconds_training: the part of it for the clients' training and messages; None likewise.
        metrics: the mechanism's public metrics, each a mean over the round's clients.
    """

    round: int
    accuracy: float | None
    loss: float | None
    epsilon_certified_max: Epsilon
    epsilon_certified_median: Epsilon
    epsilon_published_max: Epsilon
    retired: int
    participants: int | None
    seconds: float | None
    seconds_training: float | None
    metrics: dict[str, float] = field(default_factory=dict)


def whole_lines(data: bytes) -> list[str]:
    """The lines of a file of JSON lines, without a last one that a crash cut off or left zeros
    in."""
    *lines, last = data.decode().split("\n")
    if lines and "\0" in lines[-1]:
        return lines[:-1]
    try:
        json.loads(last)
    except (ValueError, RecursionError):
        return lines
    return [*lines, last]


def read_rounds(path: Path) -> tuple[RoundRecord, ...]:
    """The records of a ``rounds.jsonl``, without a last line that a crash cut off; none if absent.

    Raises:
        ValueError: a line is damaged.
    """
    try:
        lines = whole_lines(durable.read(path)) if path.exists() else []
        return tuple(RoundRecord.from_json(json.loads(line)) for line in lines)
    except (ValueError, TypeError, RecursionError) as fault:
        raise ValueError(f"{path} is damaged ({fault}): resume the run, or restore it") from None


def total_seconds(records: Sequence[RoundRecord]) -> float | None:
    """Wall time of some rounds; None where one was not timed."""
    times = [record.seconds for record in records if record.seconds is not None]
    return sum(times) if len(times) == len(records) else None


@dataclass(frozen=True)
class Evaluation(Record):
    """Further scores of the final model: ``evaluation.json``. None or NaN where unknown.

    Attributes:
        evaluated_on: the records of all scores but those by client, ``test`` or ``validation``.
        accuracy_by_class: the share of each class's records that are found.
        f1_by_class: F1 of each class; unknown without records of it.
        auroc_by_class: area under the ROC curve of each class against the rest.
        f1: macro F1, the mean of ``f1_by_class``.
        auroc: the mean of ``auroc_by_class``.
        calibration_error: expected calibration error, in 15 bins of equal width, in [0, 1].
        perplexity: of a word, for the next word.
        unprotected: what to know of scores by client that have no noise, where there are any.
        clients_on: the records of scores by client: ``held-out`` ones of each, or its ``training``.
        accuracy_by_client: of each client, on these; of its own model, if it has one. With the
            noise of released scores it may be below 0 or above 1.
        client_mean: their mean, each client counting the same.
        client_deviation: their standard deviation, without what noise adds to it.
        client_worst_tenth: the mean of the worst tenth of clients; not of released scores.
        client_worst: the worst client's; likewise.
        score_noise: standard deviation of the noise on a client's number of found records, if
            scores are released; those are protected, and paid for.
        client_mean_noise: standard deviation of what that noise adds to ``client_mean``.
    """

    evaluated_on: str
    accuracy_by_class: tuple[float | None, ...] = ()
    f1_by_class: tuple[float | None, ...] = ()
    auroc_by_class: tuple[float | None, ...] = ()
    f1: float | None = None
    auroc: float | None = None
    calibration_error: float | None = None
    perplexity: float | None = None
    unprotected: str = ""
    clients_on: str = ""
    accuracy_by_client: tuple[float | None, ...] = ()
    client_mean: float | None = None
    client_deviation: float | None = None
    client_worst_tenth: float | None = None
    client_worst: float | None = None
    score_noise: float | None = None
    client_mean_noise: float | None = None


@dataclass(frozen=True)
class Summary(Record):
    """A finished run: ``summary.json``. The tuples have one entry per client, in client order.

    Attributes:
        accuracy: of the final model, in [0, 1], or the value of ``metric``.
        loss: its mean loss [nats for cross-entropy].
        epsilon_certified: proved epsilon of each client.
        epsilon_published: epsilon that the paper would claim for each client.
        delta: of each client's guarantee.
        order: the Renyi order that gives ``epsilon_renyi``; None without privacy.
        noise_multiplier: of each client; 0 without privacy.
        events: privacy events charged to each client, counted with multiplicity.
        retired: clients whose budget pays for no further round.
        rounds: finished rounds.
        seconds: wall time of the whole run, over all its resumptions; None where rounds were not
            timed.
        run_dir: where the files are.
        release: whether noise and batches came from the system's entropy.
        epsilon_renyi: the clients' largest certified epsilon by Renyi differential privacy alone.
        method: what proves the largest certified epsilon, ``loss distributions`` or ``Renyi``.
        note: a sentence on why the published epsilon differs from the certified one, if it does.
        budget: the epsilon that the budget bounded, ``certified`` or ``published``.
        evaluated_on: the records that give accuracy and loss, ``test`` or ``validation``.
        caveats: what the guarantee does not cover or assumes, one sentence each.
        metric: the name of what ``accuracy`` holds.
        guarantees: against whom, of what, at which epsilon (`server.guarantees`).
        budgets: what each group of personal budgets has spent (`server.guarantees.by_group`).
    """

    accuracy: float | None
    loss: float | None
    epsilon_certified: tuple[Epsilon, ...]
    epsilon_published: tuple[Epsilon, ...]
    delta: float
    order: float | None
    noise_multiplier: tuple[float, ...]
    events: tuple[int, ...]
    retired: int
    rounds: int
    seconds: float | None
    run_dir: str
    release: bool
    epsilon_renyi: Epsilon = None
    method: str = ""
    note: str = ""
    budget: str = "certified"
    evaluated_on: str = "test"
    caveats: tuple[str, ...] = ()
    metric: str = "accuracy"
    guarantees: tuple[Mapping[str, Any], ...] = ()
    budgets: tuple[Mapping[str, Any], ...] = ()
