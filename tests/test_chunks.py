"""How many clients are computed together: a rule of sizes alone, the same on every machine."""

import gc
import itertools
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import NoReturn

import numpy as np
import pytest
import torch
from threadpoolctl import threadpool_info, threadpool_limits
from torch import nn

from mechanisms.gradients.record_gradients import RecordGradients
from sim.attacking.session import attack
from sim.auditing.session import audit
from sim.commands.attack import parse as asked
from sim.commands.flags import parse
from sim.config import configuration as config
from sim.config.fields import Config
from sim.config.settings import Execution
from sim.engines import app, start, worker
from sim.job.chunks import chunk_width, device_width, group
from sim.job.device import device_of, single_thread
from sim.job.environment import importing
from sim.job.job import Job
from sim.job.workers import gpu_share, workers_of
from sim.phases import build as building
from sim.phases.build import build, with_groups
from tests.devices import META

SETTINGS = {"clients": 40, "partition": "iid", "engine": "inline"}


class Heavy(nn.Sequential):
    """Its convolution's outputs are many times its input."""

    def __init__(self) -> None:
        super().__init__(nn.Conv2d(1, 128, 1), nn.AvgPool2d(64), nn.Flatten(), nn.Linear(128, 2))


def built(folder: Path, side: int = 8, records: int = 400, **given: object) -> Job:
    x, y = np.random.default_rng(0).normal(size=(records, 1, side, side)), np.arange(records) % 2
    np.savez(folder / "records.npz", x=x, y=y, x_test=x[:9], y_test=y[:9])
    return build(config.load(None, SETTINGS | {"dataset": str(folder / "records.npz")} | given))


def test_small_clients_are_many_and_large_ones_few():
    """Kills a rule that ignores the work of a client, and one that has no bounds."""
    widths = [chunk_width(n, 1.0, 1_000, 1_000) for n in (100, 2_000, 4_000, 100_000)]
    assert widths == [100, 250, 500, 500]
    assert [chunk_width(100, 1.0, 1_000, 2**n) for n in (10, 20, 21, 22, 30)] == [100, 15, 8, 5, 5]
    assert [chunk_width(100, 1.0, 2**n, 1_000) for n in (10, 18, 20, 21, 30)] == [100, 8, 2, 1, 1]
    assert chunk_width(100, 1.0, 25_000, 1_000) == 50  # of which 83 would fit
    widths = [chunk_width(100_000, 1.0, 10, entries) for entries in range(0, 10**8, 10**5)]
    assert all(wider >= narrower for wider, narrower in itertools.pairwise(widths))


def test_a_chunk_has_as_many_small_clients_of_a_round_however_few_are_picked():
    """Those of a round are computed together; large ones are padded to each other in vain."""
    widths = [chunk_width(10_000, share, 1_000, 1_000) for share in (1.0, 0.5, 0.2, 0.02)]
    assert widths == [500, 1_000, 1_250, 5_000]
    assert [chunk_width(100, 0.1, 1_000, 2**n) for n in (10, 21, 22)] == [100, 50, 5]
    widths = [device_width(10_000, share, 10**6, 0, 2**37) for share in (1.0, 0.5, 0.05, 1e-3)]
    assert widths == [357, 714, 1_240, 25_000]


def test_the_choice_is_that_of_model_and_sizes_and_is_written_down(tmp_path):
    light = built(tmp_path, model="linear")
    heavy = built(tmp_path, side=64, model="tests.test_chunks:Heavy")
    assert (light.config.run.chunk_clients, heavy.config.run.chunk_clients) == (40, 5)
    assert {len(chunk) for chunks in heavy.groups for chunk in chunks} == {5}


@pytest.mark.parametrize("given", [{"workers": 1}, {"workers": 7}, {"groups": 2}, {"seed": 3}])
def test_the_choice_does_not_depend_on_who_computes(tmp_path, given):
    assert (
        built(tmp_path, **given).config.run.chunk_clients
        == built(tmp_path).config.run.chunk_clients
    )


@pytest.mark.parametrize(
    ("given", "workers", "groups"), [({}, 7, 3), ({}, 2, 2), ({"groups": 5}, 2, 5)]
)
def test_there_are_as_many_groups_as_workers_and_no_more_than_chunks(given, workers, groups):
    """Unless it is said otherwise: more groups would make chunks smaller on a machine with more
    cores."""
    assert with_groups(config.load(None, given), 25, 3, workers).run.groups == groups


def test_a_gpu_takes_as_many_clients_as_its_memory_has_room_for_and_an_eighth_of_all():
    """Kills 25 clients where a GPU wants hundreds, and parameters or records left out."""
    widths = [device_width(n, 1.0, 26_010, 47_040, 2**37) for n in (100, 1_000, 10_000, 10**6)]
    assert widths == [25, 125, 1250, 4096]
    sizes = (10**4, 10**6, 11 * 10**6, 10**9)
    assert [device_width(10**5, 1.0, p, 0, 2**34) for p in sizes] == [4096, 44, 4, 1]
    assert [device_width(10**5, 1.0, 10**4, n, 2**34) for n in (10**6, 10**8)] == [479, 5]
    assert device_width(10**5, 1.0, 10**6, 10**6, 2**37) == 330


def test_on_a_gpu_the_width_follows_its_memory_and_the_clients_batches(tmp_path, monkeypatch):
    """The bounds on a step of a CPU are those of its cache."""
    job, asked = built(tmp_path, sample_rate=0.5, fraction=0.25), []
    assert building.clients_at_a_time(job) == 40
    properties = SimpleNamespace(total_memory=150_754_820_096)
    monkeypatch.setattr("sim.job.job.device_of", lambda config: META)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    monkeypatch.setattr(building, "device_width", lambda *given: asked.append(given))
    building.clients_at_a_time(job)
    assert asked == [(40, 0.25, 130, 5 * 64, 2**37)]


def test_clients_who_all_train_a_generator_are_not_taken_for_a_part(tmp_path):
    distilled = {"strategy": "fedfed", "shared_source": "distilled", "distill_rounds": 1}
    widths = [
        building.clients_at_a_time(
            built(tmp_path, records=800, clients=400, fraction=0.25, **given)
        )
        for given in ({}, distilled, {"standardize": "private"})
    ]
    assert widths == [400, 100, 400]


def test_a_model_without_kernels_that_give_the_same_bits_is_refused(tmp_path, monkeypatch):
    def varies(*given: object) -> NoReturn:
        raise RuntimeError("adaptive_max_pool2d has no deterministic implementation\nbut you set")

    job = built(tmp_path)
    monkeypatch.setattr(RecordGradients, "norms", varies)
    building._refuse_varying(job)
    monkeypatch.setattr("sim.job.job.device_of", lambda config: META)
    with pytest.raises(ValueError, match=r"^model = 'linear' has .* each time on a GPU \(adap"):
        building._refuse_varying(job)


def test_an_operation_that_varies_is_said_to_before_a_trial_fails_at_it(tmp_path, monkeypatch):
    """That of a forward pass fails in every trial. Kills a remedy for a fault of another kind."""

    def varies(*given: object) -> NoReturn:
        raise RuntimeError("cumsum has no deterministic implementation")

    job = built(tmp_path)
    monkeypatch.setattr("sim.job.job.device_of", lambda config: META)
    monkeypatch.setattr(RecordGradients, "norms", varies)
    monkeypatch.setattr(RecordGradients, "refuse_mixing", varies)
    with pytest.raises(ValueError, match=r"each time on a GPU \(cumsum"):
        building.in_groups(job, 1)


def test_a_step_is_as_large_as_its_batch(tmp_path):
    one, two = (building.step_entries(built(tmp_path, batch_size=n)) for n in (2, 4))
    assert 0 < one == two / 2


def test_a_given_number_is_taken(tmp_path):
    assert built(tmp_path, chunk_clients=3).config.run.chunk_clients == 3


def test_clients_of_one_size_are_chunked_by_number_and_larger_ones_come_first():
    """On every machine alike, however it sorts. Kills chunks of unlike clients, which are padded to
    the largest."""
    sizes = np.array([3, 9] * 60)
    chunks = [chunk.tolist() for chunks in group(sizes, 30, 3) for chunk in chunks]
    odd, even = list(range(1, 120, 2)), list(range(0, 120, 2))
    assert sorted(chunks) == sorted([odd[:30], odd[30:], even[:30], even[30:]])
    loads = [
        sum(int(sizes[chunk].max()) * len(chunk) for chunk in chunks)
        for chunks in group(sizes, 30, 3)
    ]
    assert sorted(loads) == [180, 270, 270]


def test_buffers_are_kept_by_the_process_that_prepares_itself():
    """Page faults of a second buffer of 64 MiB: thousands, where the first has been returned to the
    system."""
    code = (
        "import resource, sys\n"
        "from sim.job.environment import prepare\n"
        "prepare() if sys.argv[1] == 'prepared' else None\n"
        "def faults(): return resource.getrusage(resource.RUSAGE_SELF).ru_minflt\n"
        "buffer = bytearray(b'x') * 2**26; del buffer; before = faults()\n"
        "buffer = bytearray(b'x') * 2**26; print(faults() - before)\n"
    )

    def second(word: str) -> int:
        done = subprocess.run(
            [sys.executable, "-c", code, word], capture_output=True, text=True, check=True, env={}
        )
        return int(done.stdout)

    if second("plain") < 1000:
        pytest.skip("this system's allocator or page size shows no difference")
    assert second("prepared") < 100


def test_garbage_is_looked_for_again_after_an_import_but_not_in_what_was_imported():
    """Also after one that fails."""
    held = [[] for _ in range(1000)]
    try:
        with pytest.raises(ImportError), importing():
            assert not gc.isenabled()
            raise ImportError
        assert gc.isenabled() and gc.get_freeze_count() > len(held)
        assert not any(one is held[0] for one in gc.get_objects())
    finally:
        gc.unfreeze()


@pytest.mark.parametrize("given", [{}, {"OMP_NUM_THREADS": "3", "RAY_USAGE_STATS_ENABLED": "1"}])
def test_what_the_user_has_set_for_the_process_stays(given: dict[str, str]):
    """Otherwise there is one thread, for sums have one order, and no telemetry."""
    names = ["OMP_NUM_THREADS", "RAY_USAGE_STATS_ENABLED", "FLWR_TELEMETRY_ENABLED"]
    code = (
        "import os; from sim.job.environment import prepare; prepare(); "
        f"print(*[os.environ[n] for n in {names}])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=given
    )
    usual = {"OMP_NUM_THREADS": "1", "RAY_USAGE_STATS_ENABLED": "0", "FLWR_TELEMETRY_ENABLED": "0"}
    assert done.stdout.split() == [(usual | given)[name] for name in names]


@pytest.mark.parametrize(
    ("clients", "width", "groups"), [(7, 5, 3), (10, 25, 4), (3, 2, 8), (1, 25, 2), (9, 2, 2)]
)
def test_every_group_has_a_chunk_and_every_client_its_place(clients, width, groups):
    """Kills a group without a client, which chunks that are too wide leave."""
    dealt = group(np.arange(clients) % 3 + 1, width, groups)
    assert len(dealt) == min(groups, clients) and all(len(chunks) for chunks in dealt)
    assert all(0 < len(chunk) <= width for chunks in dealt for chunk in chunks)
    hosted = np.concatenate([chunk for chunks in dealt for chunk in chunks])
    assert sorted(hosted.tolist()) == list(range(clients))


def test_there_are_as_many_workers_as_were_asked_for_and_else_one_for_each_core(monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 7)
    assert [workers_of(Execution(workers=n)) for n in (1, 3, None)] == [1, 3, 7]


@pytest.mark.parametrize(
    ("device", "workers", "found"),
    [("auto", None, 2), ("cuda", None, 2), ("cpu", None, 7), ("auto", 5, 5)],
)
def test_there_is_a_worker_for_each_gpu_where_clients_train_on_gpus(
    monkeypatch, device, workers, found
):
    """Kills as many workers as CPU cores, which would share a GPU."""
    monkeypatch.setattr(os, "cpu_count", lambda: 7)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    given = {"device": device, "workers": workers}
    assert workers_of(Execution(**given)) == found


@pytest.mark.parametrize("gpus", range(1, 10))
def test_all_workers_find_room_on_any_gpus(gpus):
    """2 and 3 would have waited for ever, 8 and 6 would have been refused: Ray takes whole GPUs, or
    parts of one in ten-thousandths. Kills a share that is rounded up."""
    for workers in range(1, 40):
        parts = gpu_share(workers, [gpus]) * 10_000
        assert parts == pytest.approx(round(parts), abs=1e-6) and 0 < parts <= 10_000
        room = gpus * (10_000 // round(parts))
        assert room >= workers and (parts == 10_000 or room < workers + gpus)
    assert gpu_share(3, [2]) == 0.5 and gpu_share(6, [4, 0, 4]) == 1.0 and gpu_share(7, []) == 0.0


@pytest.mark.parametrize(
    ("workers", "gpus", "given"), [(4, [1, 1], 0.5), (2, [5], 2.0), (9, [], 0.0)]
)
def test_a_share_that_is_given_is_taken_if_all_workers_find_room(workers, gpus, given):
    assert gpu_share(workers, gpus, given) == given


@pytest.mark.parametrize(
    ("workers", "gpus", "given", "why"),
    [
        (
            5,
            [2],
            0.5,
            r"^gpus_per_worker is 0.5, so the cluster's GPUs \(2\) have room for 4 ",
        ),
        (4, [2], 0.6, "room for 2 workers, and there are 4: give fewer --workers"),
        (3, [5], 2.0, "room for 2 workers"),
        (3, [3.0, 3.0], 2.0, r"GPUs \(6\) have room for 2 workers"),  # one is left over on each
        (1, [], 0.5, "room for 0 workers"),
        (1, [8], 1.5, r"^gpus_per_worker is 1.5; above 1 it must be a whole number"),
    ],
)
def test_a_share_for_which_there_is_no_room_is_refused(workers, gpus, given, why):
    """Ray would wait for more GPUs in silence."""
    with pytest.raises(ValueError, match=why):
        gpu_share(workers, gpus, given)


def begin_run(_: Config) -> None:
    start.train(parse(["--engine=inline"], "", ""))


def begin_audit(of: Config) -> None:
    audit(of, None, False, 0.95)


def begin_attack(_: Config) -> None:
    attack(asked(["--quiet"]))


def begin_node(of: Config) -> None:
    app._job(of.model_dump_json())


def begin_worker(of: Config) -> None:
    worker.Actor(["a reference"], "nowhere")


@pytest.mark.parametrize(
    ("begin", "first"),
    [
        (begin_run, "engines.start.build"),
        (begin_audit, "auditing.session.build"),
        (begin_attack, "attacking.session.build"),
        (begin_node, "phases.build.build"),
        (begin_worker, "engines.worker.Host"),
    ],
)
def test_whoever_computes_has_one_thread_whatever_the_process_has(monkeypatch, begin, first):
    """Before anything is built. Kills sums whose order follows the number of cores."""

    def threads() -> set[int]:
        return {torch.get_num_threads(), *(pool["num_threads"] for pool in threadpool_info())}

    class Stop(Exception):
        """Far enough."""

    def seen(*_: object, **__: object) -> NoReturn:
        found.append(threads())
        raise Stop

    found: list[set[int]] = []
    settings = config.load(None, {})
    monkeypatch.setattr(f"sim.{first}", seen)
    monkeypatch.setattr(start.rundir, "choose", lambda config, **_: Path("nowhere"))
    monkeypatch.setattr(worker.ray, "get", lambda reference: SimpleNamespace(config=settings))
    try:
        torch.set_num_threads(2)
        threadpool_limits(2)
        found.append(threads())
        with pytest.raises(Stop):
            begin(settings)
    finally:
        single_thread()
    assert 2 in found[0] and found[1] == {1}


@pytest.mark.parametrize(
    ("asked", "present", "found"),
    [
        ("cpu", True, "cpu"),
        ("auto", True, "cuda"),
        ("cuda", True, "cuda"),
        ("cpu", False, "cpu"),
        ("auto", False, "cpu"),
        ("cuda", False, None),
    ],
)
def test_the_device_is_the_one_that_was_asked_for(monkeypatch, asked, present, found):
    """And a GPU where nothing was said and there is one."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: present)
    settings = config.load(None, {"device": asked})
    if found is None:
        with pytest.raises(ValueError, match="no CUDA device is present"):
            device_of(settings)
    else:
        assert device_of(settings).type == found
