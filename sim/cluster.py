"""Ray's start and end. A start is seconds of waiting, so it begins before torch is imported and records are read."""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from sim.settings import Execution

Ready = Callable[[], object]
"""Returns when Ray is there, or raises what has kept it from starting."""


@contextmanager
def starting(run: Execution) -> Iterator[Ready]:
    """Begin to join a Ray cluster, or to start one on this machine; without the Ray engine, nothing.

    What Ray starts dies with the thread that started it, so the thread lives as long as the context.
    """
    if run.engine != "ray":
        yield lambda: None
        return
    with ThreadPoolExecutor(max_workers=1) as thread:
        started = thread.submit(_start, run)
        try:
            yield started.result
        finally:
            if started.exception() is None:
                _stop()


def workers_of(run: Execution) -> int:
    """How many workers there are to be."""
    return run.workers or os.cpu_count() or 1


def _start(run: Execution) -> None:
    import ray

    own = {} if run.ray_address else {"num_cpus": max(workers_of(run), os.cpu_count() or 1), "include_dashboard": False}
    ray.init(address=run.ray_address or "local", logging_level="ERROR", log_to_driver=False, **own)


def _stop() -> None:
    import ray

    ray.shutdown()
