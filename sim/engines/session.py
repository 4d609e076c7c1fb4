"""One run from beginning to end: phases, rounds, closing files, report."""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from mechanisms import durable
from server import closing, loop
from server.federation import Exchange
from server.records import RunInfo, Summary
from server.store import Store
from sim.commands.guard import behind
from sim.job import inputs, manifest, rundir
from sim.job.job import Job
from sim.phases import evaluation, training
from sim.phases.course import before_training
from sim.showing.progress import Progress
from sim.showing.report import write_report
from sim.tracking.tracker import tracking


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


def run(job: Job, folder: Path, engine: Engine) -> Summary:
    """Run the remaining rounds and write the closing files; the summary.

    Raises:
        ValueError: the run began with other records, another model or version, or on another
            device; a file of it is not as it was; or it is in use.
        Exception: the machine or somebody's code failed; a note on it says how to go on.
    """
    manifest.check(folder, job)
    inputs.check(folder, job)
    with rundir.lock(folder), _resumable(folder, job.canaries):
        durable.sync_folders(folder)
        if job.config.private:
            training.federation(job, folder).write_orders(folder)
        return _run(job, folder, engine)


@contextlib.contextmanager
def _resumable(folder: Path, canaries: int) -> Iterator[None]:
    """Note on whatever ends the run early how it goes on; on a user's error, which run it is."""
    remedy = f"finished rounds are kept: resume the run by --resume {folder}"
    if canaries:
        remedy = f"an audit cannot be resumed: {folder} keeps what it has paid, start a new one"
    try:
        yield
    except ValueError as fault:
        if str(folder) not in str(fault):
            fault.add_note(f"the run directory {folder} keeps what clients have paid")
        raise
    except SystemExit as fault:  # of a model's code: it would end the process without a word
        if (cause := behind(fault)) is not fault:
            cause.add_note(remedy)
            raise cause from None
        exit_ = RuntimeError(f"the code of the model or the data called sys.exit({fault.code})")
        exit_.add_note(remedy)
        raise exit_ from fault
    except BaseException as fault:
        fault.add_note(remedy)
        raise


def _run(job: Job, folder: Path, engine: Engine) -> Summary:
    job = before_training(job, folder, engine.exchange)
    config, federation = job.config, training.federation(job, folder)
    store = Store(folder, config.rounds.keep_checkpoints)
    standing = loop.restore(federation, store)
    with (
        contextlib.closing(Progress(config.run.quiet)) as progress,
        tracking(config.run.track, folder, standing.records) as trackers,
    ):
        at_a_time, finished = config.run.chunk_clients or 1, standing.now.round
        shown = str(folder), at_a_time, config.data.metric_name
        progress.started(RunInfo(federation.rounds, finished, federation.clients, *shown))
        observers = [progress.round, *trackers]
        standing = loop.run(federation, engine.exchange, store, standing, observers)
        engine.leave()
        standing.budgets.check(store.paid(None))
        summary = rundir.summarize(folder, job, standing)
        scores = evaluation.write(folder, job, standing.now.params)
        rundir.finish(folder, job, standing.now.params, summary, scores)
        (engine.report or write_report)(folder)
        progress.finished(summary, engine.where(), closing.evaluation(folder))
    return summary
