"""A Ray worker: an actor that hosts groups, in a place that Ray reserves for it on one node."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version as installed
from pathlib import Path
from platform import python_version
from typing import Any

import ray
from flwr.app import Context, Message, RecordDict
from ray.util.placement_group import (
    PlacementGroup,
    placement_group,
    placement_group_table,
    remove_placement_group,
)
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from client.app import client_app
from client.messages import Answering
from sim.commands.version import DISTRIBUTION, version
from sim.engines.app import check_shared
from sim.job.device import in_one_order
from sim.job.job import Job
from sim.phases.course import Host

PATIENCE = 5.0
"""Seconds in which a cluster must have room for all workers."""


def versions() -> dict[str, str]:
    """The versions on which the bits of a result depend, by name."""
    libraries = {name: installed(name) for name in ("torch", "numpy")}
    return {DISTRIBUTION: version(), "Python": python_version()} | libraries


class Actor:
    """Hosts groups behind a Flower ClientApp, in a process of its own."""

    def __init__(self, shared: list[ray.ObjectRef], run_dir: str):
        job = ray.get(shared[0])
        in_one_order(job.config)
        self._host, self._groups = Host(job, Path(run_dir)), len(job.groups)

        def node_of(config: Mapping[str, Any], context: Context) -> Answering:
            check_shared(Path(run_dir), config["group"])
            return self._host.node(config["group"], config["phase"])

        self._app = client_app(node_of)

    def versions(self) -> dict[str, str]:
        """The versions in this process."""
        return versions()

    def handle(self, message: Message, is_new: bool) -> Message:
        """Answer one Flower message; ``is_new`` says that its group was last hosted elsewhere."""
        group, count = message.metadata.dst_node_id, self._groups
        if is_new:
            self._host.forget(group)
        place: dict[str, Any] = {"partition-id": group, "num-partitions": count}
        return self._app(message, Context(1, group, place, RecordDict(), {}))


@dataclass(frozen=True, eq=False)
class Worker:
    """An actor, its place, and a reference to its versions, which is ready when the actor is."""

    actor: Any
    place: PlacementGroup
    versions: ray.ObjectRef

    @property
    def node(self) -> str:
        """The ID of its node; empty while the cluster has no room for it."""
        (node,) = placement_group_table(self.place)["bundles_to_node_id"].values()
        return node

    def is_ready(self) -> bool:
        """Whether it has started, or has failed to."""
        return bool(ray.wait([self.versions], timeout=0)[0])

    def check(self) -> None:
        """Wait until it has started.

        Raises:
            ValueError: it cannot start, or runs other versions than this process.
        """
        try:
            theirs = ray.get(self.versions)
        except ray.exceptions.RayActorError as fault:
            *_, reason = str(fault).strip().splitlines()
            raise ValueError(
                f"a worker cannot start on {_described(self.node)} ({reason.strip()}): install "
                f"{DISTRIBUTION} {version()} and its dependencies in the environment in which ray "
                "start runs there"
            ) from None
        for name, own in versions().items():
            if theirs[name] != own:
                raise ValueError(
                    f"{_described(self.node)} has {name} {theirs[name]}, but this process has "
                    f"{own}: install the same versions on all machines"
                )

    def end(self) -> None:
        """Stop the actor in any state and release its placement group. Idempotent."""
        ray.kill(self.actor)
        remove_placement_group(self.place)


def starter(job: Job, run_dir: Path, needed: Mapping[str, float]) -> Callable[[], Worker]:
    """Starts workers that reserve the resources ``needed`` each; they wait until there is room.

    ``run_dir`` need not exist before the first request.
    """
    shared, place = [ray.put(job)], {name: share for name, share in needed.items() if share}
    actor: Any = ray.remote(num_cpus=needed["CPU"], num_gpus=needed["GPU"])(Actor)

    def start() -> Worker:
        reserved = placement_group([place])
        there = PlacementGroupSchedulingStrategy(reserved)
        own = actor.options(scheduling_strategy=there).remote(shared, str(run_dir))
        return Worker(own, reserved, own.versions.remote())

    return start


def placed(workers: Sequence[Worker], wanted: int, patience: float) -> list[Worker]:
    """The workers that have a place, as soon as there are enough or the seconds are over."""
    deadline = time.monotonic() + patience
    while True:
        found = [worker for worker in workers if worker.node]
        if len(found) >= wanted or time.monotonic() > deadline:
            return found
        time.sleep(0.1)


def check_room(workers: Sequence[Worker], needed: Mapping[str, float]) -> None:
    """Refuse workers for which there is no room: Ray would wait for it in silence.

    Raises:
        ValueError: not all have a place after `PATIENCE` seconds.
    """
    found = len(placed(workers, len(workers), PATIENCE))
    if found < len(workers):
        total, free = ray.cluster_resources(), ray.available_resources()
        share = {name: each for name, each in needed.items() if each}
        each = " and ".join(f"{amount:g} {name}" for name, amount in share.items())
        left = ", ".join(
            f"{free.get(name, 0.0) + found * amount:g} of {total.get(name, 0.0):g} {name}"
            for name, amount in share.items()
        )
        raise ValueError(
            f"workers is {len(workers)}, each with {each} on one machine, but the Ray cluster has "
            f"room for {found} (others leave {left}): give fewer --workers, wait for the others, "
            "or add machines"
        )


def _described(node: str) -> str:
    """A node by its host name and the beginning of its ID."""
    names = {one["NodeID"]: one["NodeManagerHostname"] for one in ray.nodes()}
    return f"the Ray node {names.get(node, 'that is gone')} ({node[:8]})"
