"""One run from beginning to end: job, run directory, engine, rounds, report."""

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from server import loop
from server.federation import Exchange
from server.records import RunInfo
from server.store import Store
from sim import job as jobs
from sim import rundir
from sim.cli import Request
from sim.nodes import Host
from sim.preparation import prepare
from sim.progress import Progress
from sim.report import write_report


def train(request: Request) -> Path:
    """Train as a parsed command line asks; returns the run directory.

    Raises:
        ValueError: anything the user can mend.
    """
    jobs.single_thread()
    if request.resume is None:
        folder = rundir.choose(request.config)
        job = jobs.build(request.config)
        rundir.create(folder, job)
    else:
        folder, job = request.resume, jobs.build(request.config)
    with _engine(job, folder) as exchange:
        run(job, folder, exchange)
    return folder


def run(job: jobs.Job, folder: Path, exchange: Exchange) -> None:
    """The rounds that are left, and the closing files.

    Raises:
        ValueError: the run began with other records or on another device, or another process is at it.
    """
    rundir.check_inputs(folder, job)
    with rundir.lock(folder):
        _run(job, folder, exchange)


def _run(job: jobs.Job, folder: Path, exchange: Exchange) -> None:
    job = prepare(job, folder, exchange)
    config, federation = job.config, jobs.federation(job)
    store = Store(folder, config.rounds.keep_checkpoints)
    standing = loop.restore(federation, store)
    with Progress(quiet=config.run.quiet) as progress:
        progress.started(RunInfo(federation.rounds, standing.now.round, federation.clients, str(folder)))
        standing = loop.run(federation, exchange, store, standing, [progress.round])
        summary = rundir.summarize(folder, job, standing)
        rundir.finish(folder, job, standing.now.params, summary)
        write_report(folder)
        progress.finished(summary)


def _engine(job: jobs.Job, folder: Path) -> AbstractContextManager[Exchange]:
    if job.config.run.engine == "ray":
        from sim.engine import ray_exchange

        return ray_exchange(job, folder)
    return nullcontext(inline_exchange(job, folder))


def inline_exchange(job: jobs.Job, folder: Path) -> Exchange:
    """All groups in this process, one after the other; needs neither Flower nor Ray."""
    host = Host(job, folder)
    return lambda requests: (host.node(request.group, request.phase).train(request) for request in requests)
