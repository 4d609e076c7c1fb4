"""One audited run from beginning to end: job, canaries, training, guesses, ``audit.json``."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from safetensors.torch import load
from torch import Tensor

from mechanisms import durable
from mechanisms.mechanism import Mechanism
from mechanisms.randomness import seed_key
from server import sealed_json
from server.manifest import run_of
from server.records import Summary, largest
from server.store import MODEL
from sim.auditing import clients, one_run
from sim.auditing.bounds import Floats, check_confidence
from sim.auditing.one_run import Canaries, Guesses, Watched
from sim.config.checks import check_classes
from sim.config.fields import Config
from sim.engines import session
from sim.engines.inline import inline_exchange
from sim.job import rundir
from sim.job.copies import copy_on
from sim.job.device import in_one_order
from sim.job.job import Job
from sim.phases.build import build
from sim.phases.course import present
from sim.phases.trust import trained_by
from sim.showing import wording
from sim.showing.audit import FILE, Audit
from sim.showing.report import write_report


@dataclass(frozen=True)
class Attack:
    """An attack on a training.

    Attributes:
        mechanism: what the clients train by, canaries among them.
        included: bool ``[m]``, the coins of the canaries.
        scored: from the run directory of the finished training to scores of the canaries, float64
            ``[m]``.
        by_client: from the scores to what each client's own canaries give.
    """

    mechanism: Mechanism
    included: NDArray[np.bool_]
    scored: Callable[[Path], Floats]
    by_client: Callable[[Floats], dict[int, Guesses]]


def audit(
    config: Config, count: int | None, black_box: bool, confidence: float, quiet: bool = False
) -> Audit:
    """Train once with canaries and write ``audit.json``.

    Args:
        config: the run's configuration; it trains in this process.
        count: number of canaries; None: the least of `one_run.MAX_CANARIES`, half of the records,
            and as many as give the largest client half of the parameters on average; if whole
            clients are protected, half of them.
        black_box: wrong labels and the final model, instead of crafted gradients and every upload.
        confidence: confidence of the bound.
        quiet: whether to print nothing.

    Raises:
        ValueError: a user error, in one line.
    """
    check_confidence(confidence)
    confidence = float(confidence)  # the result is a file of JSON
    check_classes(config, "an audit")
    if config.privacy.unit == "client" and black_box:
        raise ValueError(
            "unit is client, but black-box canaries are records: leave --black-box out, or use "
            "--unit record"
        )
    if config.run.release and config.privacy.unit == "record" and not black_box:
        raise ValueError(
            "release is on, but crafted gradients are no records, of which the exact sums of a "
            "release are made: add --black-box, or leave --release out"
        )
    in_one_order(config)
    quiet = config.run.quiet or quiet
    execution = config.run.model_copy(update={"engine": "inline", "quiet": quiet})
    config = config.model_copy(update={"run": execution})
    folder, job = rundir.choose(config, resumes=False), build(config)
    attack = (
        _on_clients(job, count)
        if config.privacy.unit == "client"
        else _on_records(job, count, black_box, confidence)
    )
    job = replace(job, canaries=len(attack.included))
    folder = rundir.create(folder, job)
    engine = session.Engine(inline_exchange(job, folder, attack.mechanism))
    summary = session.run(job, folder, engine)
    scores = attack.scored(folder)
    delta = config.privacy.delta
    found = one_run.guess(scores, attack.included, delta, confidence)
    view = "black-box" if black_box else "white-box"
    result = _result(summary, found, attack.by_client(scores), view, confidence)
    durable.write(folder / FILE, sealed_json.dumps(result.to_json()))
    write_report(folder)
    return result


def _on_records(job: Job, count: int | None, black_box: bool, confidence: float) -> Attack:
    """Canaries that are records."""
    canaries = _plant(job, count, black_box)
    watched = Watched(trained_by(job.config)[0], canaries)

    def scored(folder: Path) -> Floats:
        if black_box:
            x = copy_on(job.device, present(job, folder).dataset.x)
            first, last = _models(job, folder)
            return one_run.losses(job.gradients, canaries, x, first, last)
        if job.config.privacy.trust == "local":
            return watched.scores
        return _moved(job, folder, canaries.coordinates)

    def by_client(scores: Floats) -> dict[int, Guesses]:
        owned = [job.partition.of(client) for client in range(job.partition.clients)]
        delta = job.config.privacy.delta
        return one_run.by_client(canaries, scores, owned, delta, confidence)

    return Attack(watched.mechanism, canaries.included, scored, by_client)


def _on_clients(job: Job, count: int | None) -> Attack:
    """Canaries that are whole clients; one coin is too few for a bound of a client's own."""
    partition, privacy = job.partition, job.config.privacy
    owner = np.full(len(job.dataset.y), -1)
    owner[partition.indices] = np.repeat(np.arange(partition.clients), partition.sizes)
    room = partition.clients, job.gradients.layout.size
    size, key = one_run.LENGTH * privacy.clip_norm, seed_key(job.config.run.seed)
    canaries = clients.choose(owner, *room, count, key, size)
    mechanism = canaries.watched(trained_by(job.config)[0])
    return Attack(
        mechanism,
        canaries.included,
        lambda folder: _moved(job, folder, canaries.coordinates),
        lambda scores: {},
    )


def _models(job: Job, folder: Path) -> tuple[Tensor, Tensor]:
    """The first model and the last, ``[P]``."""
    layout, final = job.gradients.layout, load((folder / MODEL).read_bytes())
    last = layout.flatten({name: final[name] for name in layout.names})
    return layout.initial(job.model).to(job.device), last.to(job.device)


def _moved(job: Job, folder: Path, coordinates: NDArray[np.int64]) -> Floats:
    """How far the model has moved along these coordinates, ``[m]``."""
    first, last = _models(job, folder)
    return np.asarray((last - first).double().cpu().numpy()[coordinates])


def show(result: Audit) -> None:
    """Print the result."""
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column()
    table.add_column(overflow="fold")
    guesses = f"{result.right} of {result.guesses} guesses right"
    guesses += f", {result.canaries} canaries, {result.view}"
    lower = wording.lower_bound(result.epsilon_lower)
    rows = (
        ("lower bound", f"{lower} with confidence {result.confidence:g}"),
        ("certified epsilon", wording.epsilon(result.epsilon_certified)),
        ("published epsilon", wording.epsilon(result.epsilon_published)),
        ("attacker", guesses),
        ("run directory", result.run_dir),
    )
    for row in rows:
        table.add_row(*row)
    Console(highlight=False).print(table)


def _plant(job: Job, count: int | None, black_box: bool) -> Canaries:
    config, parameters = job.config, job.gradients.layout.size
    owned = [job.partition.of(client) for client in range(job.partition.clients)]
    if config.privacy.trust != "local":  # one sum of all
        owned = [np.concatenate(owned)]
    most = sum(map(len, owned)) // 2
    records, largest = sum(map(len, owned)), max(map(len, owned))
    room = most if black_box else parameters // 2 * records // largest  # on average in that client
    chosen = min(one_run.MAX_CANARIES, most, room) if count is None else count
    size = 0.0 if black_box else one_run.LENGTH * config.privacy.clip_norm
    key = seed_key(config.run.seed)
    return one_run.plant(
        job.dataset.y, job.dataset.classes, owned, parameters, chosen, key, size, job.device
    )


def _result(
    summary: Summary, found: Guesses, of_client: dict[int, Guesses], view: str, confidence: float
) -> Audit:
    certified = summary.epsilon_certified
    return Audit(
        view=view,
        confidence=confidence,
        delta=summary.delta,
        canaries=found.coins,
        guesses=found.guesses,
        right=found.right,
        epsilon_lower=found.epsilon,
        epsilon_certified=largest(certified),
        epsilon_published=largest(summary.epsilon_published),
        clients=tuple(
            (client, one.coins, one.epsilon, certified[client]) for client, one in of_client.items()
        ),
        run_dir=summary.run_dir,
        run=run_of(Path(summary.run_dir)),
    )
