"""Who sends a request again when a Ray worker has died: the engine, in a simulation alone."""

import ctypes
import gc
import os
import re
import signal
import time
import weakref
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from flwr.app import Message, RecordDict

from mechanisms.accounting import ledger
from server import loop
from server.app import exchange_over
from server.store import Store
from sim.config.configuration import load
from sim.data.partition import Partition
from sim.engines import cluster as clusters
from sim.engines import ray_grid, worker
from sim.engines.cluster import starting
from sim.engines.ray_grid import TRIES, RayGrid, grid_of
from sim.phases import training
from tests import phases
from tests.processes import NEEDS_PROC


@dataclass(frozen=True, eq=False)
class Fatal(Partition):
    """Whoever looks at a record dies, and leaves a line; after many it is an error, so that the
    test has an end."""

    trace: Path = Path()

    def of(self, client: int) -> None:
        with self.trace.open("a") as file:
            file.write("died\n")
        if self.trace.read_text().count("died") > 2 * TRIES:
            raise RuntimeError("asked again and again")
        os._exit(1)


def test_a_request_is_sent_again_in_a_simulation_and_never_in_a_release(tmp_path, monkeypatch):
    """A release that is asked again draws again, at a price that nobody had planned; a simulation
    draws the same. Workers for which there are no cores are refused, not waited for."""
    given = {"engine": "ray", "workers": 1, "strategy": "fedavg", "standardize": "none"}
    with starting(phases.job(tmp_path, **given).config) as cluster:
        greedy = phases.job(tmp_path / "greedy", cpus_per_worker=999.5, **given)
        monkeypatch.setattr(worker, "PATIENCE", 0.1)
        with pytest.raises(ValueError, match=r"^workers is 1, each with 999.5 CPU .* room for 0"):
            grid_of(greedy, tmp_path, cluster)
        monkeypatch.undo()
        monkeypatch.setattr(ray_grid, "TRIES", 2)  # each takes a new worker
        for release, tries in ((False, 2), (True, 1)):
            folder = tmp_path / str(release)
            job = phases.job(folder, release, **given)
            fatal = Fatal(job.partition.indices, job.partition.offsets, folder / "trace")
            job, federation = replace(job, partition=fatal), training.federation(job, folder)
            store = Store(folder, keep_checkpoints=2)
            (folder / "ledger").mkdir()
            (folder / "config.toml").touch()
            grid = grid_of(job, folder, cluster)
            exchange = exchange_over(grid, list(grid.get_node_ids()), run={})
            with pytest.raises(RuntimeError, match="group 0 failed: its worker died"):
                loop.run(federation, exchange, store, loop.restore(federation, store), [])
            assert (folder / "trace").read_text() == "died\n" * tries
            once = job.plans.of(0).round_charges(1)
            assert ledger.read(folder / "ledger") == dict.fromkeys(range(phases.CLIENTS), once)


class Reference:
    """What ends the process if it goes while Ray shuts down."""


def test_no_reference_to_ray_goes_while_it_ends(monkeypatch):
    """Neither one that the run lets go of, nor one of a cycle, which would go at any moment."""
    there = []
    held, in_cycle = Reference(), Reference()
    in_cycle.itself = in_cycle
    of_run, of_cycle = weakref.ref(held), weakref.ref(in_cycle)
    monkeypatch.setattr(clusters, "_start", lambda run: None)
    monkeypatch.setattr(
        clusters, "_stop", lambda started: there.append((of_run() is None, of_cycle() is None))
    )
    gc.disable()
    with starting(load(None, {"engine": "ray"})) as cluster:
        cluster.hold(held)
        del held, in_cycle
        cluster.leave()
    gc.enable()
    assert there == [(False, True)] * 2


class Pool:
    """Workers that note who is lost."""

    def __init__(self) -> None:
        self.lost: list[str] = []

    def lose(self, worker: str) -> None:
        self.lost.append(worker)


def waiting(monkeypatch, fault: Exception | None, tries: int = 1, most: int = TRIES) -> RayGrid:
    """A grid that has asked one worker, whose answer is a fault or itself, without Ray."""
    for name in ("_task_id", "_run_id", "_node_id"):
        monkeypatch.setattr(ray_grid.TaskIdentity, name, 1)
    grid = RayGrid.__new__(RayGrid)
    message = Message(RecordDict(), dst_node_id=3, message_type="train")
    grid._asked = {"a": ("reply", ray_grid._Asked(message, "worker", tries))}
    grid._workers, grid._tries = Pool(), most

    def get(reply: object) -> object:
        if fault is not None:
            raise fault
        return reply

    monkeypatch.setattr(ray_grid.ray, "get", get)
    return grid


@NEEDS_PROC
def test_sigterm_reaches_the_program_as_before(monkeypatch):
    """Ray sets a handler without Python's knowledge, which printed a stack and ended the process.
    Kills one that is set again before Ray has started."""

    def catches() -> bool:
        caught = re.search(r"SigCgt:\s*(\w+)", Path("/proc/self/status").read_text())
        return bool(caught and int(caught[1], 16) >> (signal.SIGTERM - 1) & 1)

    def start(run: object) -> None:
        time.sleep(0.1)
        ctypes.CDLL(None).signal(signal.SIGTERM, None)
        assert not catches()

    monkeypatch.setattr(clusters, "_start", start)
    monkeypatch.setattr(clusters, "_stop", lambda started: None)
    before = signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        with starting(load(None, {"engine": "ray"})) as cluster:
            cluster.wait()
            assert catches()
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_user_error_in_a_worker_is_the_users_error_here(monkeypatch):
    """In the same words, without those of Ray around them; a bug becomes an error message."""
    fault = ValueError("clients is 0")
    grid = waiting(monkeypatch, ray_grid.ray.exceptions.RayTaskError("f", "a traceback", fault))
    with pytest.raises(ValueError, match=r"^clients is 0$") as caught:
        grid._take("a")
    assert caught.value is fault and grid._asked == {}
    bug = ray_grid.ray.exceptions.RayTaskError("f", "a traceback", KeyError("bug"))
    said = waiting(monkeypatch, bug)._take("a")
    assert said.has_error() and said.error.code == ray_grid.NODE_FAILED
    assert "a traceback" in said.error.reason
    assert waiting(monkeypatch, None)._take("a") == "reply"


LOST = (
    ray_grid.ray.exceptions.ActorDiedError(),
    ray_grid.ray.exceptions.ActorUnavailableError("gone", None),
    ray_grid.ray.exceptions.ObjectLostError("0" * 56, None, ""),
)


@pytest.mark.parametrize("fault", LOST, ids=lambda fault: type(fault).__name__)
@pytest.mark.parametrize(("tries", "again"), [(1, True), (2, True), (3, False)])
def test_a_request_whose_worker_is_lost_is_sent_three_times_in_all(
    monkeypatch, fault, tries, again
):
    """Lost with its process, with its machine, or with its answer."""
    grid = waiting(monkeypatch, fault, tries)
    sent = []
    grid._hand_over = lambda *given: sent.append(given)
    message = grid._asked["a"][1].message
    said = grid._take("a")
    assert grid._workers.lost == (["worker"] if again else [])
    assert sent == ([(message, tries + 1, "a")] if again else [])
    assert (said is None) is again
    assert again or (said.has_error() and said.error.reason.startswith("its worker died: "))
