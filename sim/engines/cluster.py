"""Starts and stops Ray in the background, while records are loaded, rounds run and the report is
written."""

import gc
import logging
import math
import os
import signal
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from sim.config.fields import Config
from sim.config.settings import Execution
from sim.data import files
from sim.job.workers import workers_of

REACH = 5.0
"""Seconds in which a named cluster must answer."""


class Cluster:
    """A Ray cluster on this machine or elsewhere, joined or started when it is first needed.

    Ray's processes die with the thread that started them, so the thread lives until `close`.
    """

    def __init__(self, run: Execution):
        self._run = run
        self._thread = ThreadPoolExecutor(max_workers=1)
        self._started: Future[None] | None = None
        self._held: list[object] = []

    def begin(self) -> Future[None]:
        """Start Ray in the background. Idempotent; the future has the error of a failed start."""
        if self._started is None:
            self._started = self._thread.submit(_start, self._run)
        return self._started

    def wait(self) -> None:
        """Wait until Ray has started. SIGTERM does again what it did before: with Ray's handler, it
        would print a stack and never reach the program's own.

        Raises:
            ValueError: Ray cannot start.
        """
        self.begin().result()
        handler = signal.getsignal(signal.SIGTERM)
        if handler is not None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, handler)

    def workers(self, run: Execution) -> int:
        """The number of workers of a run: as asked for, or by the GPUs or CPU cores of a named
        cluster's machines, or of this one.

        Raises:
            ValueError: the named cluster cannot be joined.
        """
        if run.workers or not (run.ray_address and from_start(run)):
            return workers_of(run)
        self.begin().result()
        import ray

        return workers_of(run, [node["Resources"] for node in ray.nodes()])

    def hold(self, held: object) -> None:
        """Keep an object that refers to Ray alive until Ray has ended; dropping such a reference
        during the shutdown would end the process."""
        self._held.append(held)

    def leave(self) -> None:
        """Begin to shut Ray down while the caller continues. Idempotent."""
        if self._started is not None:
            gc.collect()  # otherwise references in cycles could be dropped at any moment
            self._thread.submit(_stop, self._started)

    def close(self) -> None:
        """Wait until Ray has ended."""
        self.leave()
        self._thread.shutdown()


@contextmanager
def starting(config: Config) -> Iterator[Cluster]:
    """A cluster for a run; the Ray engine starts it at once.

    Raises:
        ValueError: the run's data are missing; checked first, as a start cannot be interrupted.
    """
    files.check(config.data.dataset, config.data.data_dir)
    cluster = Cluster(config.run)
    try:
        if from_start(config.run):
            cluster.begin()
        yield cluster
    finally:
        cluster.close()


def from_start(run: Execution) -> bool:
    """Whether all rounds are for Ray's workers."""
    return run.engine == "ray" or (run.engine == "auto" and run.ray_address is not None)


def _start(run: Execution) -> None:
    """Start Ray, or join the named cluster.

    Raises:
        ValueError: it cannot be done, in one line.
    """
    try:
        import flwr  # noqa: F401
        import ray
    except ImportError as fault:
        raise ValueError(
            f"engine is {run.engine}, but {fault.name or 'Ray'} cannot be imported ({fault}): "
            "install this project with its dependencies, or use --engine inline"
        ) from None
    if ray.is_initialized():
        raise ValueError(
            "Ray is running in this process already: end it by ray.shutdown(), or use --engine "
            "inline"
        )
    own: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False}
    if run.ray_address:
        _reach(run.ray_address)
    else:
        needed = math.ceil(workers_of(run) * run.cpus_per_worker)
        own |= {"num_cpus": max(needed, os.cpu_count() or 1), "include_dashboard": False}
    try:
        ray.init(address=run.ray_address or "local", **own)
    except Exception as fault:  # of any kind: Ray's reasons are the machine's
        remedy = "start one by ray start --head, or leave ray_address out"
        raise ValueError(
            f"ray_address is {run.ray_address}, but that cluster cannot be joined ({fault}): "
            f"{remedy}"
            if run.ray_address
            else f"Ray cannot start on this machine ({fault}): use --engine inline"
        ) from None


def _reach(address: str) -> None:
    """Refuse an address at which nobody answers: Ray would try it for minutes.

    Raises:
        ValueError: in one line.
    """
    host, _, port = address.rpartition("://")[2].rpartition(":")
    if not port.isdigit():  # auto; another word is refused by Ray itself
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), REACH).close()
    except OSError as fault:
        raise ValueError(
            f"ray_address is {address}, but nobody answers there ({fault}): start the cluster by "
            "ray start --head, and give the address that it prints"
        ) from None


def _stop(started: Future[None]) -> None:
    """Idempotent."""
    import ray

    if started.exception() is None:
        ray.shutdown()
