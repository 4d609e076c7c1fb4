"""One audited run from beginning to end: job, canaries, training, guesses, ``audit.json``."""

import numpy as np
from rich.console import Console
from rich.table import Table
from safetensors.torch import load

from mechanisms import durable
from mechanisms.randomness import seed_key
from server import labels
from server.records import Summary, largest
from sim.auditing import one_run
from sim.auditing.bounds import check_confidence
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


def audit(
    config: Config, count: int | None, black_box: bool, confidence: float, quiet: bool = False
) -> Audit:
    """Train once with canaries and write ``audit.json``.

    Args:
        config: the run's configuration; it trains in this process.
        count: number of canaries; None: the least of `one_run.MAX_CANARIES`, half of the records,
            and half of the parameters per client.
        black_box: wrong labels and the final model, instead of crafted gradients and every upload.
        confidence: confidence of the bound.
        quiet: whether to print nothing.

    Raises:
        ValueError: a user error, in one line.
    """
    check_confidence(confidence)
    check_classes(config, "an audit")
    if config.privacy.unit == "client":
        raise ValueError("unit is client, but canaries are records: use --unit record")
    in_one_order(config)
    quiet = config.run.quiet or quiet
    execution = config.run.model_copy(update={"engine": "inline", "quiet": quiet})
    config = config.model_copy(update={"run": execution})
    folder, job = rundir.choose(config), build(config)
    canaries = _plant(job, count, black_box)
    watched = Watched(trained_by(config)[0], canaries)
    folder = rundir.create(folder, job)
    durable.make_empty([folder / rundir.AUDITED])
    engine = session.Engine(inline_exchange(job, folder, watched.mechanism))
    summary = session.run(job, folder, engine)
    scores = watched.scores
    if black_box or config.privacy.trust != "local":
        layout = job.gradients.layout
        final = load((folder / "model.safetensors").read_bytes())
        last = layout.flatten({name: final[name] for name in layout.names})
        first, last = (model.to(job.device) for model in (layout.initial(job.model), last))
        x = copy_on(job.device, present(job, folder).dataset.x)
        scores = (
            one_run.losses(job.gradients, canaries, x, first, last)
            if black_box
            else (last - first).double().cpu().numpy()[canaries.coordinates]
        )
    delta = config.privacy.delta
    found = one_run.guess(scores, canaries.included, delta, confidence)
    owned = [job.partition.of(client) for client in range(job.partition.clients)]
    clients = one_run.by_client(canaries, scores, owned, delta, confidence)
    result = _result(summary, found, clients, "black-box" if black_box else "white-box", confidence)
    durable.write(folder / FILE, labels.sealed(result.to_json()))
    write_report(folder)
    return result


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
    room = most if black_box else len(owned) * (parameters // 2)
    chosen = min(one_run.MAX_CANARIES, most, room) if count is None else count
    size = 0.0 if black_box else one_run.LENGTH * config.privacy.clip_norm
    key = seed_key(config.run.seed)
    return one_run.plant(
        job.dataset.y, job.dataset.classes, owned, parameters, chosen, key, size, job.device
    )


def _result(
    summary: Summary, found: Guesses, clients: dict[int, Guesses], view: str, confidence: float
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
            (client, one.coins, one.epsilon, certified[client]) for client, one in clients.items()
        ),
        run_dir=summary.run_dir,
    )
