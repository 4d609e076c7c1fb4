"""The default engine: rounds begin in this process, and go on in Ray's workers if that pays."""

import signal
import subprocess
import sys
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from client.messages import TrainRequest
from mechanisms.accounting import ledger
from sim.commands.flags import parse
from sim.config.configuration import load
from sim.config.settings import Execution
from sim.engines import cluster as clusters
from sim.engines import moving
from sim.engines.cluster import Cluster, from_start, starting
from sim.engines.moving import MOVE_SECONDS, Moving
from sim.engines.session import Engine, run
from sim.engines.start import all_by_workers, train
from sim.job import rundir
from sim.phases.build import build
from tests.folders import result
from tests.processes import NEEDS_PROC

ROOT = Path(__file__).resolve().parents[1]
COMMON = (
    "--clients=6 --rounds=3 --steps=2 --sample-rate=0.5 --epsilon=20 --chunk-clients=2 "
    "--partition=iid --workers=2 --quiet"
)
IN_A_ROUND = "--groups=3 --mechanism=dpsur --delta=1e-3"
"""The third request is the third group's in the first round."""
BEFORE_TRAINING = (
    "--groups=3 --strategy=fedfed --shared-source=distilled --distill-rounds=2 "
    "--distill-latent=1 --share-views=2"
)
"""The third request of the generator's phase is the third group's in its first round."""


@pytest.fixture
def common(tmp_path: Path, no_report) -> list[str]:
    """Flags of a small run on records of its own."""
    x = np.random.default_rng(0).normal(size=(90, 6)).astype(np.float32)
    y = np.arange(90) % 3
    np.savez(tmp_path / "records.npz", x=x, y=y, x_test=x[:9], y_test=y[:9])
    return [*COMMON.split(), f"--dataset={tmp_path / 'records.npz'}", f"--out={tmp_path}"]


class Slow(Cluster):
    """Ray that never gets ready, and when it was asked to start."""

    def __init__(self, asked: list[int], run: Execution):
        super().__init__(run)
        self.asked, self.begun = asked, []

    def begin(self) -> Future[None]:
        self.begun.append(len(self.asked))
        return Future()


def begun(monkeypatch, seconds: list[float], workers: int, groups: int, rounds: int) -> list[int]:
    """After how many requests Ray was asked to start, if each takes so many seconds."""
    now, asked = [0.0], []

    def answer(requests):
        now[0] += seconds[min(len(asked), len(seconds) - 1)]
        asked.append(requests[0])
        return requests

    monkeypatch.setattr(moving, "perf_counter", lambda: now[0])
    monkeypatch.setattr(moving, "inline_exchange", lambda job, folder: answer)
    config = load(None, {"workers": workers, "rounds": rounds})
    cluster = Slow(asked, config.run)
    exchange = Moving(SimpleNamespace(config=config, groups=[()] * groups), Path(), cluster)
    for number in range(1, rounds + 1):
        requests = [
            TrainRequest(number, group, "", *(np.zeros(0, np.int64),) * 2, np.array([]), "train")
            for group in range(groups)
        ]
        assert list(exchange(requests)) == requests
    assert exchange.where == "this process"
    return cluster.begun


@pytest.mark.parametrize(
    ("seconds", "workers", "groups", "first"),
    [
        ([3.1], 2, 2, None),  # 8 requests are left after two: 8 * 3.1 / 2 = 12.4 s saved
        ([3.8], 2, 2, 2),  # 15.2 s saved
        ([3.8], 4, 2, 2),  # there is no work for more workers than groups
        ([3.7], 4, 2, None),
        ([2.6], 4, 4, 2),  # 18 requests are left, a quarter of their time
        ([99.0], 1, 2, None),
        ([99.0], 2, 1, None),
        ([99.0, 99.0, 1.0], 2, 2, 2),  # the second request looks slow
        ([99.0, 3.0], 2, 2, None),  # the first one tells nothing
        ([1.0, 1.0, 99.0], 2, 2, None),  # one slow request is chance
    ],
)
def test_ray_starts_if_its_workers_save_more_than_the_move_costs(
    monkeypatch, seconds, workers, groups, first
):
    asked = begun(monkeypatch, seconds, workers, groups, rounds=5)
    assert (asked[0] if asked else None) == first
    assert MOVE_SECONDS == 15.0


def test_rays_workers_have_all_rounds_if_it_is_asked_for_or_a_cluster_is_named():
    assert load(None, {}).run.engine == "auto"
    cases = [{}, {"engine": "inline"}, {"engine": "ray"}, {"ray_address": "auto"}]
    assert [from_start(load(None, given).run) for given in cases] == [False, False, True, True]


@pytest.mark.parametrize(("gpus", "by_workers"), [(0, False), (1, False), (2, True)])
def test_several_gpus_have_workers_from_the_start_and_one_is_for_this_process(
    monkeypatch, gpus, by_workers
):
    """Where one GPU is all there is, Ray would cost its start and gain nothing."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    assert all_by_workers(load(None, {})) is by_workers
    assert all_by_workers(load(None, {"engine": "ray"}))
    assert not all_by_workers(load(None, {"device": "cpu"}))


def inline(argv: list[str], name: str) -> Path:
    return train(parse([*argv, "--engine=inline", f"--name={name}"], "run", ""))


@pytest.mark.parametrize(
    ("own", "number"),
    [(BEFORE_TRAINING, -2), pytest.param(IN_A_ROUND, 1, marks=pytest.mark.slow)],
    ids=["before training", "in training"],
)
def test_a_move_changes_no_bit(tmp_path, common, monkeypatch, own, number):
    """In the middle of a round, of a phase before training, and so in all of the training. Kills a
    request that is asked of both, or of none."""
    monkeypatch.setattr(moving, "MOVE_SECONDS", 0.0)
    argv = [*common, *own.split()]
    config = parse([*argv, "--name=moved"], "run", "").config
    with starting(config) as cluster:
        cluster.begin().result()
        job = build(config)
        rundir.create(tmp_path / "moved", job)
        exchange = Moving(job, tmp_path / "moved", cluster)
        run(job, tmp_path / "moved", Engine(exchange))
    assert exchange.where == f"this process; from round {number} on, 2 Ray workers"
    assert result(tmp_path / "moved") == result(inline(argv, "inline"))


def test_where_ray_cannot_start_training_goes_on_here(common, monkeypatch):
    """It is tried once."""
    tried = []
    monkeypatch.setattr(moving, "MOVE_SECONDS", 0.0)
    monkeypatch.setattr(clusters, "_start", lambda run: tried.append(run) or 1 / 0)
    argv = [*common, *IN_A_ROUND.split(), "--rounds=6"]
    with pytest.warns(UserWarning, match="training goes on in this process: division by zero") as w:
        here = train(parse([*argv, "--name=here"], "run", ""))
    assert len(tried) == len(w) == 1 and result(here) == result(inline(argv, "inline"))


KILLED = """
import os, signal, sys
from concurrent.futures import Future
from sim.engines.moving import Cluster, Moving
from sim.engines import moving
from sim.run import command
from tests.processes import descendants, wait_for
moment, moving.MOVE_SECONDS = sys.argv[1], 0.0
begin, see, ray = Cluster.begin, Moving._see, Moving._ray
def die():
    os.kill(os.getpid(), signal.SIGKILL)
def begun(cluster):
    if moment == "between the engines":
        ready = Future()
        ready.set_result(None)
        return ready
    if moment != "Ray starts":
        begin(cluster).result()
    return begin(cluster)
def seen(self, *what):
    if self._cluster._started:
        wait_for(lambda: any("gcs_server" in title for title in descendants(os.getpid()).values()))
        die()
    see(self, *what)
def moved(self):
    if moment == "between the engines":
        die()
    exchange = ray(self)
    def answered(requests):
        next(iter(exchange(requests)))
        die()
    return answered
Cluster.begin, Moving._see, Moving._ray = begun, seen, moved
command(sys.argv[2:])
"""


@pytest.mark.parametrize(
    ("moment", "charges"),
    [
        pytest.param("Ray starts", 6, marks=[NEEDS_PROC, pytest.mark.slow]),
        ("between the engines", 4),
        pytest.param("a worker has answered", 6, marks=pytest.mark.slow),
    ],
)
def test_a_kill_during_the_move_loses_nothing(tmp_path, common, moment, charges):
    """The third group's request of the first round is not asked yet, or its upload not added. Slow
    are the moments at which Ray's processes are there: what a run has on the disk then it has
    between the engines too, where they are not needed."""
    argv = [*common, *IN_A_ROUND.split()]
    words = [sys.executable, "-c", KILLED, moment, *argv, "--name=killed"]
    assert subprocess.run(words, cwd=ROOT).returncode == -signal.SIGKILL
    assert len(ledger.read(tmp_path / "killed/ledger")) == charges
    train(parse(["--resume", str(tmp_path / "killed"), "--engine=inline", "--quiet"], "run", ""))
    assert result(tmp_path / "killed") == result(inline(argv, "inline"))
