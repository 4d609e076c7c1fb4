"""The Ray engine: a Flower Grid whose nodes live in Ray actors.

The ServerApp is that of ``flwr run``, messages and ClientApp are Flower's; only the transport is
ours. An actor hosts one or more groups for the whole run. If it dies, a new one replaces it and its
unfinished request is sent again, except in a release, where a second draw would be a second,
unplanned charge.
"""

import itertools
import math
import shlex
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
from flwr.app import Context, Error, Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

from client.app import client_app
from client.messages import Answering
from sim.commands.flags import words
from sim.config.settings import EXECUTION_ONLY
from sim.engines import app
from sim.engines.cluster import Cluster
from sim.job.device import in_one_order
from sim.job.job import Job
from sim.job.workers import gpu_share, workers_of
from sim.phases.course import Host

TRIES = 3
NODE_FAILED = 1
SERVER = 0
"""The server's node ID."""
SETTLING = 5.0
"""Seconds in which a cluster that has just started reports all its cores."""


def serve(job: Job, run_dir: Path, cluster: Cluster) -> None:
    """Run the ServerApp of ``flwr run`` over a grid of Ray workers.

    Raises:
        ValueError: a user error.
    """
    app.know(job)
    line = shlex.join([f"--resume={run_dir}", *words(job.config, EXECUTION_ONLY)])
    context = Context(1, SERVER, {}, RecordDict(), {app.FLAGS: line})
    app.server(grid_of(job, run_dir, cluster), context)


def grid_of(job: Job, run_dir: Path, cluster: Cluster) -> "RayGrid":
    """The job's groups in workers of the Ray cluster; waits until that is ready.

    Raises:
        ValueError: the cluster has not enough cores or GPUs for the workers.
    """
    run = job.config.run
    workers = min(workers_of(run), len(job.groups))
    cluster.begin().result()
    _check_cores(workers * run.cpus_per_worker)
    wanted = job.device.type == "cuda" or run.gpus_per_worker
    gpus = ray.cluster_resources().get("GPU", 0) if wanted else 0
    share = gpu_share(workers, int(gpus), run.gpus_per_worker)
    grid = RayGrid(job, run_dir, workers, run.cpus_per_worker, share)
    grid.leave = cluster.leave
    cluster.hold(grid)
    return grid


def _check_cores(needed: float) -> None:
    """Refuse more workers than the cluster has cores for: Ray would wait for more in silence.

    Raises:
        ValueError: there are too few, also after `SETTLING` seconds.
    """
    deadline = time.monotonic() + SETTLING
    while (cores := ray.cluster_resources().get("CPU", 0.0)) < needed:
        if time.monotonic() > deadline:
            raise ValueError(
                f"all workers together need {needed:g} CPU cores (workers times cpus_per_worker), "
                f"but the Ray cluster has {cores:g}: give fewer --workers or --cpus-per-worker, or "
                "add machines"
            )
        time.sleep(0.1)


class _Worker:
    """The actor: hosts groups behind a Flower ClientApp."""

    def __init__(self, shared: list[ray.ObjectRef], run_dir: str):
        job = ray.get(shared[0])
        in_one_order(job.config)
        host = Host(job, Path(run_dir))

        def node_of(config: Mapping[str, Any], context: Context) -> Answering:
            return host.node(config["group"], config["phase"])

        self._app, self._groups = client_app(node_of), len(job.groups)

    def handle(self, message: Message) -> Message:
        """Answer one Flower message."""
        group, count = message.metadata.dst_node_id, self._groups
        place: dict[str, Any] = {"partition-id": group, "num-partitions": count}
        return self._app(message, Context(1, group, place, RecordDict(), {}))


@dataclass
class _Asked:
    """A message in transit: the worker that it was sent to, and the number of tries."""

    message: Message
    worker: Any
    tries: int


class RayGrid(Grid):
    """A grid of ``len(job.groups)`` nodes, numbered by group, over ``workers`` actors."""

    def __init__(self, job: Job, run_dir: Path, workers: int, cpus: float, gpus: float):
        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1
        shared = [ray.put(job)]  # one copy on each machine
        actor: Any = ray.remote(num_cpus=cpus, num_gpus=gpus)(_Worker)
        self._new_worker = lambda: actor.remote(shared, str(run_dir))
        self._workers = [self._new_worker() for _ in range(workers)]
        self._tries = 1 if job.seed is None else TRIES
        self._groups = range(len(job.groups))
        self._asked: dict[str, tuple[ray.ObjectRef, _Asked]] = {}
        self._names = itertools.count()
        self._run = Run.create_empty(1)
        self.patience = math.inf
        """Seconds to wait for the first answers; Ray reports workers that fail to start."""
        self.leave: Callable[[], object] = lambda: None
        """Called when the grid is no longer needed."""

    def set_run(self, run: Run) -> None:
        """Set the run that messages belong to."""
        self._run = run

    @property
    def run(self) -> Run:
        """The run that messages belong to."""
        return self._run

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """A message to one node."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> Iterable[int]:
        """The group numbers."""
        return self._groups

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Hand messages to their nodes' actors."""
        return [self._hand_over(message, tries=1) for message in messages]

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """The replies so far; the message of an actor that died is sent again under the same ID."""
        names = {self._asked[name][0]: name for name in message_ids if name in self._asked}
        ready, _ = ray.wait(list(names), num_returns=len(names), timeout=0) if names else ([], [])
        return [reply for ref in ready if (reply := self._take(names[ref])) is not None]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterator[Message]:
        """Send messages and give their replies as they arrive."""
        waiting = set(self.push_messages(messages))
        deadline = time.monotonic() + (timeout or math.inf)
        while waiting and (left := deadline - time.monotonic()) > 0:
            replies = [self._asked[name][0] for name in waiting]
            ray.wait(replies, timeout=None if math.isinf(left) else left)
            yield from self.pull_messages(list(waiting))
            waiting &= self._asked.keys()

    def _hand_over(self, message: Message, tries: int, name: str | None = None) -> str:
        name = name or str(next(self._names))
        worker = self._workers[message.metadata.dst_node_id % len(self._workers)]
        self._asked[name] = worker.handle.remote(message), _Asked(message, worker, tries)
        return name

    def _take(self, name: str) -> Message | None:
        """One reply, or None if the message is sent again.

        A node's user error is raised unchanged; other failures become Flower error messages.
        """
        reply, asked = self._asked.pop(name)
        try:
            return ray.get(reply)
        except ray.exceptions.RayTaskError as fault:
            if isinstance(fault.cause, ValueError):
                raise fault.cause from None
            return Message(Error(NODE_FAILED, str(fault)), reply_to=asked.message)
        except ray.exceptions.RayActorError as fault:
            self._workers = [self._new_worker() if w is asked.worker else w for w in self._workers]
            if asked.tries >= self._tries:
                died = Error(NODE_FAILED, f"its worker died: {fault}")
                return Message(died, reply_to=asked.message)
            self._hand_over(asked.message, asked.tries + 1, name)
            return None
