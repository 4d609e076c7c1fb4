"""Ray's start and end: seconds of waiting, beside imports and the reading of records, and beside
the report."""

import gc
import logging
import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from sim.config.fields import Config
from sim.config.settings import Execution
from sim.data import files


@dataclass(frozen=True)
class Cluster:
    """Ray, as a run sees it.

    Attributes:
        ready: returns when Ray is there, or raises what has kept it from starting.
        leave: Ray is needed no more: it ends while the caller goes on.
        hold: keeps what refers to Ray until that has ended: it ends the process where a reference
            goes meanwhile.
    """

    ready: Callable[[], object]
    leave: Callable[[], object]
    hold: Callable[[object], object]


@contextmanager
def starting(config: Config) -> Iterator[Cluster]:
    """Begin to join a Ray cluster, or to start one on this machine; without the Ray engine,
    nothing.

    What Ray starts dies with the thread that started it, so the thread lives as long as the
    context.

    Raises:
        ValueError: the run's data are not there; a start that has begun could not be broken off.
    """
    if config.run.engine != "ray":
        yield Cluster(ready=lambda: None, leave=lambda: None, hold=lambda held: None)
        return
    files.check(config.data.dataset, config.data.data_dir)
    with ThreadPoolExecutor(max_workers=1) as thread:
        started = thread.submit(_start, config.run)
        held: list[object] = []

        def leave() -> Future[None]:
            gc.collect()  # references in cycles would go at any moment
            return thread.submit(_stop, started)

        try:
            yield Cluster(started.result, leave, held.append)
        finally:
            leave().result()


def workers_of(run: Execution) -> int:
    """How many workers there are to be."""
    return run.workers or os.cpu_count() or 1


def _start(run: Execution) -> None:
    import ray

    if ray.is_initialized():
        raise ValueError(
            "Ray is running in this process already: end it by ray.shutdown(), or use --engine "
            "inline"
        )
    own: dict[str, Any] = (
        {}
        if run.ray_address
        else {"num_cpus": max(workers_of(run), os.cpu_count() or 1), "include_dashboard": False}
    )
    ray.init(
        address=run.ray_address or "local", logging_level=logging.ERROR, log_to_driver=False, **own
    )


def _stop(started: Future[None]) -> None:
    """Idempotent."""
    import ray

    if started.exception() is None:
        ray.shutdown()
