"""One run from beginning to end: phases, rounds, closing files, report."""

from collections.abc import Callable
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


def run(
    job: Job, folder: Path, exchange: Exchange, trained: Callable[[], object] = lambda: None
) -> None:
    """Run the remaining rounds and write the closing files.

    ``trained`` is called when the exchange is no longer needed.

    Raises:
        ValueError: the run began with other records or on another device, or is in use.
    """
    inputs.check(folder, job)
    with rundir.lock(folder):
        durable.sync_folders(folder)
        if job.config.private:
            orders.write(folder, training.federation(job))
        _run(job, folder, exchange, trained)


def _run(job: Job, folder: Path, exchange: Exchange, trained: Callable[[], object]) -> None:
    job = before_training(job, folder, exchange)
    config, federation = job.config, training.federation(job)
    store = Store(folder, config.rounds.keep_checkpoints)
    standing = loop.restore(federation, store)
    with Progress(quiet=config.run.quiet) as progress:
        at_a_time, finished = config.run.chunk_clients or 1, standing.now.round
        progress.started(
            RunInfo(federation.rounds, finished, federation.clients, str(folder), at_a_time)
        )
        standing = loop.run(federation, exchange, store, standing, [progress.round])
        trained()
        summary = rundir.summarize(folder, job, standing)
        rundir.finish(folder, job, standing.now.params, summary)
        write_report(folder)
        progress.finished(summary)
