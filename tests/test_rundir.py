"""A run directory belongs to one process, one set of records and one kind of device."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch

from mechanisms.accounting import ledger
from mechanisms.accounting.accountant import ORDERS, epsilon
from server import orders
from sim.commands.flags import parse
from sim.commands.guard import main_guard
from sim.config import configuration as config
from sim.engines.start import train
from sim.job import inputs, rundir
from sim.phases.build import build
from sim.run import command
from tests.vouched import fix_orders

pytestmark = pytest.mark.usefixtures("no_report")
SMALL = ["--clients=4", "--rounds=2", "--engine=inline", "--quiet"]


def records(path, shift: float) -> str:
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 60)
    np.savez(path, x=rng.normal(size=(60, 4)) + y[:, None] + shift, y=y)
    return str(path)


def run(folder, *flags: str):
    return train(parse([*SMALL, "--out", str(folder), "--name", "run", *flags], "run", ""))


def changed(array: np.ndarray) -> np.ndarray:
    """The same array but for its last entry, with the same set of values where it can be."""
    other = array.copy()
    other.flat[-1] = array.flat[0] if array.flat[0] != array.flat[-1] else array.flat[-1] + 1
    return other


def buffered(value: float) -> torch.nn.Module:
    module = torch.nn.Linear(2, 2)
    module.register_buffer("scale", torch.tensor([1.0, value]))
    return module


def frozen(value: float) -> torch.nn.Module:
    module = torch.nn.Linear(2, 2)
    module.bias = torch.nn.Parameter(torch.tensor([1.0, value]), requires_grad=False)
    return module


def trained(value: float) -> torch.nn.Module:
    module = torch.nn.Linear(2, 2)
    module.bias = torch.nn.Parameter(torch.tensor([1.0, value]))
    return module


INPUTS = {
    **{name: ("dataset", name) for name in ("x", "y", "x_test", "y_test")},
    **{name: ("partition", name) for name in ("indices", "offsets")},
}


@pytest.mark.parametrize("name", INPUTS)
def test_a_run_goes_on_with_the_same_inputs_only(tmp_path, name):
    """Of each array of records, and of who holds which, the last entry is another one."""
    job = build(config.load(None, {"dataset": records(tmp_path / "data.npz", 0.0), "clients": 4}))
    inputs.write(tmp_path, job)
    inputs.check(tmp_path, job)
    whole, part = INPUTS[name]
    other = replace(getattr(job, whole), **{part: changed(getattr(getattr(job, whole), part))})
    with pytest.raises(ValueError, match="records = "):
        inputs.check(tmp_path, replace(job, **{whole: other}))


@pytest.mark.parametrize("part", [0, 1])
def test_a_run_goes_on_with_the_same_public_records_only(tmp_path, part):
    """Clients train on them, so a replayed round would be a second release."""
    given = {"strategy": "fedfed", "shared_source": "public", "public_records": 8, "clients": 4}
    job = build(config.load(None, {"dataset": records(tmp_path / "data.npz", 0.0), **given}))
    inputs.write(tmp_path, job)
    inputs.check(tmp_path, job)
    other = list(job.holdout)
    other[part] = changed(other[part])
    with pytest.raises(ValueError, match="records = "):
        inputs.check(tmp_path, replace(job, holdout=tuple(other)))


@pytest.mark.parametrize("model", [buffered, frozen])
def test_a_run_goes_on_with_the_same_constants_of_the_model_only(tmp_path, model):
    """What is trained is no input: a resumed run has it from its checkpoint."""
    job = build(config.load(None, {"dataset": records(tmp_path / "data.npz", 0.0), "clients": 4}))
    inputs.write(tmp_path, replace(job, model=model(2.0)))
    inputs.check(tmp_path, replace(job, model=model(2.0)))
    with pytest.raises(ValueError, match="records = "):
        inputs.check(tmp_path, replace(job, model=model(3.0)))
    inputs.write(tmp_path, replace(job, model=trained(2.0)))
    inputs.check(tmp_path, replace(job, model=trained(3.0)))


def test_two_processes_do_not_go_on_with_one_run(tmp_path):
    """Both would read what was spent, and then both spend it."""
    folder = run(tmp_path)
    with rundir.lock(folder):
        with pytest.raises(ValueError, match="in use by another process"), rundir.lock(folder):
            pass
        (folder / rundir.LOCK).unlink()  # as if it were stale: two went on
        with pytest.raises(ValueError, match="in use by another process"):
            train(parse(["--resume", str(folder), "--quiet"], "run", ""))
    train(parse(["--resume", str(folder), "--quiet"], "run", ""))


def test_a_resumed_run_keeps_its_records(tmp_path):
    """The same named noise on other sums would give their difference away, and would be charged
    once."""
    data = tmp_path / "data.npz"
    folder = run(tmp_path, "--dataset", records(data, 0.0))
    records(data, 1e-3)
    with pytest.raises(ValueError, match="records = "):
        train(parse(["--resume", str(folder), "--quiet"], "run", ""))
    records(data, 0.0)
    train(parse(["--resume", str(folder), "--quiet"], "run", ""))


@pytest.mark.parametrize("flags", [[], ["--release"]])
def test_the_digest_of_the_records_tells_nothing_without_its_key(tmp_path, flags):
    """A plain one would decide, for whoever knows all records but one, which record the last one
    is."""
    a, b = (
        run(tmp_path / name, "--dataset", records(tmp_path / "data.npz", 0.0), *flags)
        for name in "ab"
    )
    digests = [json.loads((folder / inputs.INPUTS).read_text()) for folder in (a, b)]
    assert (
        digests[0]["records"] != digests[1]["records"]
        and digests[0]["device"] == digests[1]["device"]
    )
    keys = [(folder / inputs.KEY).read_bytes() for folder in (a, b)]
    assert keys[0] != keys[1] and {len(key) for key in keys} == {32}
    assert {(folder / inputs.KEY).stat().st_mode & 0o777 for folder in (a, b)} == {0o600}
    (b / inputs.KEY).write_bytes(keys[0])
    (b / inputs.INPUTS).write_text(json.dumps(digests[0]))
    inputs.check(b, build(config.load(b / "config.toml", {})))


@pytest.mark.parametrize(
    ("left", "words"),
    [(None, "No such file"), (b"", "0 bytes"), (b"k" * 31, "31 bytes"), (b"k" * 33, "33 bytes")],
)
def test_without_its_key_a_run_is_not_resumed(tmp_path, capsys, left, words):
    """Nobody could tell whether the records are the same."""
    folder = run(tmp_path)
    (folder / inputs.KEY).unlink()
    if left is not None:
        (folder / inputs.KEY).write_bytes(left)
    assert main_guard(command, ["--resume", str(folder), "--quiet"]) == 2
    said = capsys.readouterr().err
    assert (
        words in said
        and str(folder / inputs.KEY) in said
        and "start a new run" in said
        and said.count("\n") == 1
    )


def test_the_key_is_its_owners_even_where_a_start_that_failed_has_left_one(tmp_path):
    """A file that is there keeps its mode. Kills a key that is written into it."""
    (tmp_path / inputs.KEY).write_bytes(b"old")
    (tmp_path / inputs.KEY).chmod(0o644)
    flags = [*SMALL, "--dataset", records(tmp_path / "records.npz", 0.0)]
    inputs.write(tmp_path, build(parse(flags, "run", "").config))
    assert (tmp_path / inputs.KEY).stat().st_mode & 0o777 == 0o600
    assert len((tmp_path / inputs.KEY).read_bytes()) == inputs.KEY_BYTES


def test_any_checkpoint_that_is_kept_can_be_gone_on_from(tmp_path):
    """Whatever clients keep from their rounds is kept as long."""
    kept = ("--keep-state", "--momentum=0.9", "--rounds=6", "--keep-checkpoints=5")
    folder = run(tmp_path, *kept)
    whole = (folder / "model.safetensors").read_bytes()
    for name in ("summary.json", "model.safetensors"):
        (folder / name).unlink()
    for path in sorted(folder.glob("checkpoints/*.json"))[1:]:
        path.write_bytes(b"")
    with pytest.warns(UserWarning, match="damaged"):
        train(parse(["--resume", str(folder), "--quiet"], "run", ""))
    assert (folder / "model.safetensors").read_bytes() == whole


def test_the_orders_that_were_written_down_stay(tmp_path):
    """Another version may choose another order; after outputs have been seen it would prove
    nothing."""
    folder = run(tmp_path, "--rounds=1")
    assert orders.read(folder).keys() == set(range(4))
    chosen = fix_orders(folder, [{"orders": [7.0], "clients": "0-3"}])
    shutil.rmtree(folder / "checkpoints")  # which know the orders
    (folder / "rounds.jsonl").unlink()
    train(parse(["--resume", str(folder), "--quiet"], "run", ""))
    assert (folder / orders.FILE).read_bytes() == chosen
    assert orders.read(run(tmp_path / "open", "--mechanism=none")) == {}


UNEQUAL = [
    "--dirichlet=0.3",
    "--min-records=3",
    "--batch-size=3",
    "--steps=2",
    "--rounds=3",
    "--seed=2",
]


def test_the_epsilon_by_renyi_is_the_largest_of_all_clients(tmp_path):
    """Rates differ with sizes; it is never below what is certified."""
    folder = run(tmp_path, "--clients=6", *UNEQUAL)
    paid = ledger.read(folder / "ledger")
    largest = max(epsilon(paid[client], 1e-5, orders=ORDERS) for client in range(6))
    summary = json.loads((folder / "summary.json").read_text())
    assert (summary["epsilon_renyi"], summary["order"]) == largest
    assert summary["epsilon_renyi"] > max(summary["epsilon_certified"])
    assert summary["method"] == "loss distributions"


def test_a_resumed_run_keeps_its_kind_of_device(tmp_path):
    folder = run(tmp_path)
    path = folder / inputs.INPUTS
    path.write_text(json.dumps(json.loads(path.read_text()) | {"device": "cuda"}))
    with pytest.raises(ValueError, match=r"device = cpu \([A-Z0-9]+\) is not"):
        inputs.check(folder, build(config.load(folder / "config.toml", {})))


def test_a_resumed_simulation_keeps_its_kind_of_gpu(tmp_path, monkeypatch):
    """Another one has other draws for the same round, which is charged once."""
    job = build(config.load(None, {"clients": 2, "out": str(tmp_path)}))
    monkeypatch.setattr(inputs, "device_of", lambda config: torch.device("cuda"))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA H200")
    assert inputs._inputs(job, b"key")["device"] == "cuda (NVIDIA H200)"


def test_a_release_is_of_no_kind_of_processor(tmp_path):
    """Its rounds are not replayed."""
    job = build(config.load(None, {"clients": 2, "out": str(tmp_path), "release": True}))
    assert inputs._inputs(job, b"key")["device"] == "cpu"


def starting(folder, **own):
    """A new run's directory by two starts in the same second: the name that both have chosen."""
    job = build(config.load(None, {"out": str(folder), "clients": 2, "groups": 1, **own}))
    return job, rundir.choose(job.config)


def test_of_two_starts_at_once_each_has_a_folder_of_its_own(tmp_path):
    """The other one is at any moment: it fills its folder, or has renamed it."""
    job, folder = starting(tmp_path)
    part = tmp_path / f".{folder.name}.part"
    part.mkdir()
    with rundir.lock(part):
        second = rundir.create(folder, job)
    third, fourth = rundir.create(folder, job), rundir.create(folder, job)
    names = [folder.name, *(f"{folder.name}-{n}" for n in (2, 3))]
    assert [one.name for one in (third, second, fourth)] == names
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(names)
    assert all(json.loads((one / "manifest.json").read_text()) for one in (second, third, fourth))


def test_of_two_starts_of_one_name_one_is_refused(tmp_path):
    job, folder = starting(tmp_path, name="mine")
    part = tmp_path / ".mine.part"
    part.mkdir()
    with (
        rundir.lock(part),
        pytest.raises(ValueError, match=r"name = mine: another run is starting .* another --name"),
    ):
        rundir.create(folder, job)
    rundir.create(folder, job)
    before = (folder / "manifest.json").read_bytes()
    with pytest.raises(ValueError, match="name = mine: another run"):
        rundir.create(folder, job)
    assert (folder / "manifest.json").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
