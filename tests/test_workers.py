"""The workers of a run: how many there are, who hosts which group, and who cannot start."""

import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import NoReturn

import numpy as np
import pytest
import torch
from flwr.app import Message

from client.app import encode_request
from client.messages import TrainRequest, Upload
from server.federation import Exchange
from sim.commands.flags import parse
from sim.commands.guard import main_guard
from sim.config.settings import Execution
from sim.engines import cluster as clusters
from sim.engines import ray_grid, session
from sim.engines import worker as workers_of_ray
from sim.engines import workers as slots
from sim.engines.cluster import Cluster
from sim.engines.inline import inline_exchange
from sim.engines.session import Engine, run
from sim.engines.start import train
from sim.engines.worker import Actor, Worker, versions
from sim.engines.workers import Workers
from sim.job import rundir
from sim.job.job import Job
from sim.job.workers import workers_of
from sim.phases.build import build
from sim.phases.course import Host
from sim.run import command
from tests import phases
from tests.ray_nodes import free_port
from tests.test_exchange import Echo, identity
from tests.test_flower import LocalGrid, place

__all__ = ["identity"]

# --- how many ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cores", "cpus", "workers"),
    [
        ([1, 3], 1.0, 4),
        ([1, 3], 2.0, 1),  # one core is left over on each machine, which makes no worker
        ([2, 3], 0.5, 10),
        ([0, 8], 3.0, 2),  # a head node that is not to compute
        ([1, 3], 9.0, 1),  # which has no room, and is refused
    ],
)
def test_each_machine_has_a_worker_for_each_of_its_cores(cores, cpus, workers):
    run = Execution(cpus_per_worker=cpus)
    machines = [{"CPU": own} for own in cores]
    assert workers_of(run, machines) == workers
    assert workers_of(run.model_copy(update={"workers": 7}), machines) == 7


@pytest.mark.parametrize(
    ("here", "device", "workers"), [(1, "auto", 3), (1, "cpu", 9), (0, "auto", 9)]
)
def test_each_gpu_of_a_cluster_has_a_worker_where_clients_train_on_gpus(
    monkeypatch, here, device, workers
):
    """However many the driver's machine has, and wherever there are none."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: here)
    machines = [{"CPU": 4, "GPU": 2}, {"CPU": 4, "GPU": 1}, {"CPU": 1}, {}]
    assert workers_of(Execution(device=device), machines) == workers


def test_only_a_run_in_a_named_cluster_asks_it_for_its_cores(monkeypatch):
    """Kills a run without Ray that waits for it."""
    asked = []
    monkeypatch.setattr(Cluster, "begin", lambda cluster: asked.append(cluster) or 1 / 0)
    named, own = {"ray_address": "x:1"}, workers_of(Execution())
    for given, count in (
        ({}, own),
        ({"engine": "ray"}, own),
        ({"engine": "inline", **named}, own),
        ({"workers": 7, **named}, 7),
    ):
        run = Execution(**given)
        assert Cluster(run).workers(run) == count and asked == []
    with pytest.raises(ZeroDivisionError):
        Cluster(run).workers(Execution(**named))


# --- who hosts which group -----------------------------------------------------------------------


@dataclass(eq=False)
class Fake:
    """A worker without Ray: whether there is a place for it, whether it has started, and with which
    fault."""

    name: str
    node: str = ""
    ready: bool = False
    fault: str = ""
    ended: list[str] = field(default_factory=list)

    def is_ready(self) -> bool:
        return self.ready

    def check(self) -> None:
        if self.fault:
            raise ValueError(self.fault)

    def end(self) -> None:
        self.ended.append(self.name)


def pool(count: int, node: str = "") -> tuple[Workers, list[Fake], list[Fake]]:
    """Workers in so many slots, and those that will come, to a node if there is one."""
    first, coming = [Fake(f"first {slot}") for slot in range(count)], []

    def start() -> Fake:
        coming.append(Fake(f"later {len(coming)}", node))
        return coming[-1]

    return Workers(first, start), first, coming


def hosts(workers: Workers, groups: int) -> list[str]:
    return [workers.host(group)[0].name for group in range(groups)]


def test_the_groups_of_the_dead_are_shared_until_others_have_started():
    """By all who are left, and only theirs. Kills a group that waits for a machine that never
    comes."""
    workers, first, coming = pool(4)
    assert hosts(workers, 5) == ["first 0", "first 1", "first 2", "first 3", "first 0"]
    workers.lose(first[1])
    workers.lose(first[2])
    workers.lose(first[1])  # a second request of its own
    assert (len(coming), first[2].ended, first[0].ended) == (2, ["first 2"], [])
    assert hosts(workers, 5) == ["first 0", "first 0", "first 3", "first 3", "first 0"]
    coming[1].ready = True
    assert hosts(workers, 5)[2:4] == ["later 1", "first 3"] and len(coming) == 2


def test_who_shares_is_replaced_as_well():
    """Those who come for the first that died are waited for on."""
    workers, first, coming = pool(3)
    workers.lose(first[2])
    workers.lose(first[0])
    assert hosts(workers, 3) == ["first 1"] * 3
    coming[0].node = "a node"
    workers.lose(first[1])
    assert len(coming) == 3 and hosts(workers, 3) == ["later 0"] * 3
    for later in coming:
        later.ready = True
    assert hosts(workers, 3) == ["later 1", "later 2", "later 0"]


def test_who_comes_and_dies_is_replaced():
    """Also before it has started. Kills one that is waited for and never comes."""
    workers, first, coming = pool(1, "a node")
    workers.lose(first[0])
    assert hosts(workers, 1) == ["later 0"]
    workers.lose(coming[0])
    assert hosts(workers, 1) == ["later 1"] and len(coming) == 2


def test_a_group_is_new_to_whoever_did_not_host_it_last():
    """Kills a node that goes on from what it remembers, when another one has charged since."""
    workers, first, coming = pool(2)
    assert [workers.host(1)[1] for _ in range(2)] == [True, False]
    workers.lose(first[1])
    assert workers.host(1) == (first[0], True) and workers.host(1) == (first[0], False)
    coming[0].ready = True
    assert workers.host(1) == (coming[0], True)
    workers.lose(coming[0])
    assert workers.host(1) == (first[0], True)


def test_a_group_that_wanders_trains_and_pays_as_if_it_had_stayed(tmp_path, no_report):
    """Between two processes, of which one dies with each answer. Kills a node that reads its files
    once, and charges again what the other one has charged."""
    flags = "--clients=4 --rounds=3 --groups=1 --steps=2 --mechanism=dpagd --keep-state --quiet"

    def trained(name: str, exchange_of: Callable[[Job, Path], Exchange]) -> list[bytes]:
        asked = parse([*flags.split(), f"--out={tmp_path}", f"--name={name}"], "", "")
        job, folder = build(asked.config), tmp_path / name
        rundir.create(folder, job)
        run(job, folder, Engine(exchange_of(job, folder)))
        files = (folder / "model.safetensors", *(folder / "ledger").iterdir())
        return [file.read_bytes() for file in files]

    def wandering(job: Job, folder: Path) -> Exchange:
        two = [Host(job, folder), Host(job, folder)]

        def answer(request: TrainRequest) -> Upload:
            for host in two:
                host.forget(request.group)
                upload = host.node(request.group, request.phase).train(request)
            return upload

        return lambda requests: map(answer, requests)

    assert trained("stays", inline_exchange) == trained("wanders", wandering)


def test_a_new_worker_that_cannot_work_is_left_out():
    workers, first, coming = pool(2)
    workers.lose(first[1])
    coming[0].ready, coming[0].fault = True, "no torch"
    with pytest.warns(UserWarning, match="a new worker is left out: no torch"):
        assert hosts(workers, 2) == ["first 0"] * 2
    assert coming[0].ended and hosts(workers, 2) == ["first 0"] * 2


def test_a_run_whose_last_worker_died_ends_unless_there_is_room_for_another(monkeypatch):
    monkeypatch.setattr(slots, "GRACE", 0.0)
    workers, first, _ = pool(1)
    with pytest.raises(ValueError, match=r"^no Ray worker is left, .* resume the run"):
        workers.lose(first[0])
    workers, first, _ = pool(1, "a node")
    workers.lose(first[0])
    assert hosts(workers, 2) == ["later 0"] * 2  # which is asked before it has started


# --- the process of a worker ---------------------------------------------------------------------


def actor(tmp_path, monkeypatch) -> tuple[Actor, list[int], Message]:
    """An actor in this process, the groups that it has forgotten, and a request for it."""
    job, forgotten = phases.job(tmp_path), []
    monkeypatch.setattr(workers_of_ray.ray, "get", lambda reference: job)
    monkeypatch.setattr(Host, "forget", lambda host, group: forgotten.append(group))
    monkeypatch.setattr(Host, "node", lambda host, group, phase: Echo())
    nobody = (np.zeros(0, np.int64),) * 2
    request = TrainRequest(1, 0, "round-1", *nobody, np.zeros(2, np.float32))
    message = Message(encode_request(request, {}), dst_node_id=0, message_type="train")
    return Actor(["a reference"], str(tmp_path)), forgotten, message


def test_a_worker_without_the_run_directory_says_so(tmp_path, monkeypatch):
    """Its machine shares no file system with the driver. Kills ledgers that nobody reads."""
    one, _, message = actor(tmp_path, monkeypatch)
    with pytest.raises(ValueError, match=rf"the run directory {tmp_path} does not exist .* share"):
        one.handle(message, is_new=True)
    (tmp_path / "config.toml").touch()
    assert one.handle(message, is_new=True).has_content()


def test_a_worker_opens_the_files_of_a_group_that_is_new_to_it(tmp_path, monkeypatch):
    one, forgotten, message = actor(tmp_path, monkeypatch)
    (tmp_path / "config.toml").touch()
    one.handle(message, is_new=False)
    assert forgotten == []
    one.handle(message, is_new=True)
    assert forgotten == [0]


# --- a worker that does not fit ------------------------------------------------------------------


def test_a_node_with_other_versions_is_refused(monkeypatch):
    """Whose bits differ, or may."""
    ray = workers_of_ray.ray
    monkeypatch.setattr(Worker, "node", "abcdefghij")
    found = [{"NodeID": "abcdefghij", "NodeManagerHostname": "far"}]
    monkeypatch.setattr(ray, "nodes", lambda: found)
    worker = Worker("an actor", "a place", "a reference")
    for name in ("dp-federated-simulator", "Python", "torch", "numpy"):
        monkeypatch.setattr(ray, "get", lambda reference, n=name: versions() | {n: "0.1"})
        with pytest.raises(ValueError, match=rf"^the Ray node far \(abcdefgh\) has {name} 0.1"):
            worker.check()
    monkeypatch.setattr(ray, "get", lambda reference: versions())
    worker.check()


def test_a_worker_that_cannot_start_says_why(monkeypatch):
    """In the last line of what Ray says."""

    def died(reference: object) -> NoReturn:
        fault = workers_of_ray.ray.exceptions.RayActorError()
        fault.error_msg = "The actor died\n  File x.py\nModuleNotFoundError: No module 'sim'\n"
        raise fault

    monkeypatch.setattr(Worker, "node", "abcdefghij")
    monkeypatch.setattr(workers_of_ray.ray, "nodes", list)
    monkeypatch.setattr(workers_of_ray.ray, "get", died)
    with pytest.raises(ValueError, match=r"^a worker cannot start on .* \(ModuleNotFoundError: No"):
        Worker("an actor", "a place", "a reference").check()


def test_rays_workers_go_on_with_the_job_that_is_built_and_all_that_was_asked_of_it(
    tmp_path, monkeypatch
):
    """Of a resumed run some settings may change. Kills a second job, as the run was begun."""
    common = [f"--out={tmp_path}", "--clients=4"]
    begun = parse([*common, "--groups=2", "--name=one", "--workers=3", "--quiet"], "", "").config
    folder = rundir.create(tmp_path / "one", build(begun))
    changed = ["--engine=ray", "--workers=1", "--cpus-per-worker=0.5", "--no-quiet"]
    job, ran = build(parse([f"--resume={folder}", *changed], "", "").config), []
    monkeypatch.setattr(session, "run", lambda *given: ran.append(given[:2]))
    ray_grid.serve(job, folder, LocalGrid({4: place(0), 8: place(1)}))
    assert ran == [(job, folder)] and ran[0][0] is job


# --- Ray of a run's own --------------------------------------------------------------------------


@pytest.mark.parametrize(("workers", "cpus", "cores"), [(6, 1.5, 9), (3, 0.5, 4), (5, 0.5, 4)])
def test_a_ray_of_a_runs_own_has_room_for_its_workers(monkeypatch, workers, cpus, cores):
    """On a machine of 4 cores. Kills a run that is refused as Ray sees no room for it."""
    begun = []
    monkeypatch.setattr(clusters.os, "cpu_count", lambda: 4)
    monkeypatch.setattr(workers_of_ray.ray, "is_initialized", lambda: False)
    monkeypatch.setattr(workers_of_ray.ray, "init", lambda **given: begun.append(given))
    clusters._start(Execution(workers=workers, cpus_per_worker=cpus))
    assert [given["num_cpus"] for given in begun] == [cores]


def test_a_run_whose_folder_is_taken_while_its_workers_start_is_refused(tmp_path, monkeypatch):
    """They were told its path. Kills workers that charge in the ledgers of another run."""
    monkeypatch.setattr(clusters, "_start", lambda run: None)
    monkeypatch.setattr(clusters, "_stop", lambda started: None)
    monkeypatch.setattr(ray_grid, "grid_of", lambda job, told, cluster: rundir.create(told, job))
    monkeypatch.setattr(ray_grid, "serve", lambda *_: 1 / 0)
    flags = [f"--out={tmp_path}", "--engine=ray", "--workers=1", "--clients=2"]
    with pytest.raises(ValueError, match="another run is starting in"):
        train(parse(flags, "run", ""))
    assert len(list(tmp_path.iterdir())) == 1


def test_every_worker_has_a_group_and_is_checked_before_it_is_asked(tmp_path, monkeypatch):
    """Of 7 that there is room for. Kills cores that idle, and other versions that are let in."""
    job, started = phases.job(tmp_path, groups=3, chunk_clients=1), []
    ready = SimpleNamespace(wait=lambda: None, workers=lambda run: 7)

    def start() -> Fake:
        started.append(Fake(f"{len(started)}", fault="" if len(started) < 2 else "no torch"))
        return started[-1]

    monkeypatch.setattr(ray_grid, "starter", lambda *given: start)
    monkeypatch.setattr(ray_grid, "check_room", lambda *given: None)
    with pytest.raises(ValueError, match="no torch"):
        ray_grid.grid_of(job, tmp_path, ready)
    assert len(started) == len(job.groups) == 3


def test_a_cluster_is_called_at_its_host_and_port_whatever_is_around_them():
    """Kills an address that is refused though a cluster answers there."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        for address in (f"127.0.0.1:{port}", f"ray://127.0.0.1:{port}", "auto"):
            clusters._reach(address)
    for address in (f"127.0.0.1:{port}", f"ray://127.0.0.1:{port}"):
        with pytest.raises(ValueError, match="nobody answers there"):
            clusters._reach(address)


# --- Ray that cannot start -----------------------------------------------------------------------


def refused(tmp_path, capfd, *flags: str) -> str:
    """What a run says that is refused before it leaves anything; one line."""
    assert main_guard(command, [f"--out={tmp_path}", "--rounds=1", *flags]) == 2
    printed, said = capfd.readouterr()
    assert (printed, said.count("\n"), list(tmp_path.iterdir())) == ("", 1, [])
    return said


def test_a_cluster_that_cannot_be_joined_is_refused(tmp_path, capfd):
    nowhere = f"127.0.0.1:{free_port()}"
    said = refused(tmp_path, capfd, f"--ray-address={nowhere}")
    assert f"ray_address is {nowhere}, but nobody answers there" in said
    assert "ray start --head" in said
    said = refused(tmp_path, capfd, "--ray-address=rubbish")
    assert "ray_address is rubbish, but that cluster cannot be joined" in said


@pytest.mark.parametrize("name", ["ray", "flwr", None])
def test_ray_that_is_broken_is_refused_as_one_that_is_missing(monkeypatch, name):
    """By a library that cannot be loaded, which need not say of which module."""

    class Broken:
        def find_spec(self, module: str, *rest: object) -> None:
            if module == (name or "ray"):
                raise ImportError("libc++ is too old", name=name)

    for module in ("ray", "flwr"):
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setattr(sys, "meta_path", [Broken(), *sys.meta_path])
    with pytest.raises(ValueError, match=f"but {name or 'Ray'} cannot .* too old.*: install"):
        clusters._start(Execution(engine="ray"))


def test_ray_that_cannot_start_is_refused(tmp_path, capfd, monkeypatch):
    """Without Flower or Ray, and on a machine that has no room for Ray's files."""
    file = tmp_path.with_suffix(".file")
    file.touch()
    monkeypatch.setenv("RAY_TMPDIR", str(file / "folder"))
    said = refused(tmp_path, capfd, "--engine=ray")
    assert "Ray cannot start on this machine" in said and "--engine inline" in said
    for name in ("ray", "flwr"):
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, name, None)
            said = refused(tmp_path, capfd, "--engine=ray")
        assert f"engine is ray, but {name} cannot be imported" in said and "install" in said
