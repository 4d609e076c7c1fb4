"""The Ray engine: a Flower Grid whose nodes live in Ray actors.

The ServerApp is that of ``flwr run``, messages and ClientApp are Flower's; only the transport is
ours. When a worker dies, its unfinished requests go to those that follow it, except in a release,
where a second draw would be a second, unplanned charge.
"""

import itertools
import math
import shlex
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import ray
from flwr.app import Context, Error, Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

from sim.commands.flags import words
from sim.config.settings import EXECUTION_ONLY
from sim.engines import app
from sim.engines.cluster import Cluster
from sim.engines.worker import Worker, check_room, starter
from sim.engines.workers import Workers
from sim.job.job import Job
from sim.job.workers import gpu_share

TRIES = 3
NODE_FAILED = 1
SERVER = 0
"""The server's node ID."""
LOST = (ray.exceptions.RayActorError, ray.exceptions.ObjectLostError)
"""A worker is gone, or its machine with an answer that has not been fetched."""


def serve(job: Job, run_dir: Path, grid: "RayGrid") -> None:
    """Run the ServerApp of ``flwr run`` over a grid of Ray workers.

    Raises:
        ValueError: a user error.
    """
    app.know(job)
    line = shlex.join([f"--resume={run_dir}", *words(job.config, EXECUTION_ONLY)])
    context = Context(1, SERVER, {}, RecordDict(), {app.FLAGS: line})
    app.server(grid, context)


def grid_of(job: Job, run_dir: Path, cluster: Cluster) -> "RayGrid":
    """The job's groups in workers of the Ray cluster, which are ready; writes nothing.

    Raises:
        ValueError: Ray cannot start, or the workers cannot.
    """
    cluster.wait()
    run = job.config.run
    workers, gpus = min(cluster.workers(run), len(job.groups)), [0.0]
    if job.device.type == "cuda" or run.gpus_per_worker:
        gpus = [node["Resources"].get("GPU", 0.0) for node in ray.nodes()]
    needed = {"CPU": run.cpus_per_worker, "GPU": gpu_share(workers, gpus, run.gpus_per_worker)}
    start = starter(job, run_dir.resolve(), needed)
    started = [start() for _ in range(workers)]
    check_room(started, needed)
    for worker in started:
        worker.check()
    grid = RayGrid(job, Workers(started, start))
    grid.leave = cluster.leave
    cluster.hold(grid)
    return grid


@dataclass
class _Asked:
    """A message in transit: the worker that it was sent to, and the number of tries."""

    message: Message
    worker: Worker
    tries: int


class RayGrid(Grid):
    """A grid of ``len(job.groups)`` nodes, numbered by group, over Ray workers."""

    def __init__(self, job: Job, workers: Workers):
        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1
        self._workers = workers
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
        """Hand messages to their nodes' workers."""
        return [self._hand_over(message, tries=1) for message in messages]

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """The replies so far; the message of a worker that died is sent again under the same ID."""
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
        worker, is_new = self._workers.host(message.metadata.dst_node_id)
        reply = worker.actor.handle.remote(message, is_new)
        self._asked[name] = reply, _Asked(message, worker, tries)
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
        except LOST as fault:
            if asked.tries >= self._tries:
                died = Error(NODE_FAILED, f"its worker died: {fault}")
                return Message(died, reply_to=asked.message)
            self._workers.lose(asked.worker)
            self._hand_over(asked.message, asked.tries + 1, name)
            return None
