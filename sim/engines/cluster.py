"""Starts and stops Ray in the background, while records are loaded and the report is written."""

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
    """A Ray cluster that is starting, as a run uses it.

    Attributes:
        ready: returns when Ray is ready, or raises the error of its start.
        leave: starts to shut Ray down while the caller continues.
        hold: keeps an object that refers to Ray alive until Ray has ended; dropping such a
            reference during the shutdown would end the process.
    """

    ready: Callable[[], object]
    leave: Callable[[], object]
    hold: Callable[[object], object]


@contextmanager
def starting(config: Config) -> Iterator[Cluster]:
    """Join or start a Ray cluster in the background; does nothing without the Ray engine.

    Ray's processes die with the thread that started them, so the thread lives as long as the
    context.

    Raises:
        ValueError: the run's data are missing; checked first, as a start cannot be interrupted.
    """
    if config.run.engine != "ray":
        yield Cluster(ready=lambda: None, leave=lambda: None, hold=lambda held: None)
        return
    files.check(config.data.dataset, config.data.data_dir)
    with ThreadPoolExecutor(max_workers=1) as thread:
        started = thread.submit(_start, config.run)
        held: list[object] = []

        def leave() -> Future[None]:
            gc.collect()  # otherwise references in cycles could be dropped at any moment
            return thread.submit(_stop, started)

        try:
            yield Cluster(started.result, leave, held.append)
        finally:
            leave().result()


def workers_of(run: Execution) -> int:
    """The number of workers; by default one per CPU core."""
    return run.workers or os.cpu_count() or 1


def _start(run: Execution) -> None:
    import ray

    if ray.is_initialized():
        raise ValueError(
            "Ray is running in this process already: end it by ray.shutdown(), or use --engine "
            "inline"
        )
    own: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False}
    if not run.ray_address:
        own |= {"num_cpus": max(workers_of(run), os.cpu_count() or 1), "include_dashboard": False}
    ray.init(address=run.ray_address or "local", **own)


def _stop(started: Future[None]) -> None:
    """Idempotent."""
    import ray

    if started.exception() is None:
        ray.shutdown()
