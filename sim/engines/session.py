"""One run from beginning to end: phases, rounds, closing files, report."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from mechanisms import durable
from server import loop, orders
from server.federation import Exchange
from server.records import RunInfo
from server.store import Store
from sim.job import inputs, rundir
from sim.job.job import Job
from sim.phases import training
from sim.phases.course import before_training
from sim.showing.progress import Progress
from sim.showing.report import write_report


@dataclass(frozen=True)
class Engine:
    """Where clients train.

    Attributes:
        exchange: sends requests to the groups.
        leave: called when the exchange is no longer needed.
        where: where clients have trained, in words for the closing table; empty for no such row.
        report: writes the report of the run directory; by default this process does.
    """

    exchange: Exchange
    leave: Callable[[], object] = lambda: None
    where: Callable[[], str] = lambda: ""
    report: Callable[[Path], object] | None = None


def run(job: Job, folder: Path, engine: Engine) -> None:
    """Run the remaining rounds and write the closing files.

    Raises:
        ValueError: the run began with other records or on another device, or is in use.
    """
    inputs.check(folder, job)
    with rundir.lock(folder):
        durable.sync_folders(folder)
        if job.config.private:
            orders.write(folder, training.federation(job))
        _run(job, folder, engine)


def _run(job: Job, folder: Path, engine: Engine) -> None:
    job = before_training(job, folder, engine.exchange)
    config, federation = job.config, training.federation(job)
    store = Store(folder, config.rounds.keep_checkpoints)
    standing = loop.restore(federation, store)
    with Progress(quiet=config.run.quiet) as progress:
        at_a_time, finished = config.run.chunk_clients or 1, standing.now.round
        progress.started(
            RunInfo(federation.rounds, finished, federation.clients, str(folder), at_a_time)
        )
        standing = loop.run(federation, engine.exchange, store, standing, [progress.round])
        engine.leave()
        summary = rundir.summarize(folder, job, standing)
        rundir.finish(folder, job, standing.now.params, summary)
        (engine.report or write_report)(folder)
        progress.finished(summary, engine.where())
