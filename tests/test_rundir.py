"""A run directory belongs to one process, one set of records and one kind of device."""

import json

import numpy as np
import pytest

from mechanisms.accounting import ledger
from mechanisms.accounting.accountant import epsilon, pld_epsilon
from mechanisms.accounting.events import DpsurStep, SampledGaussian
from server import orders
from sim import inputs, rundir
from sim.cli import main_guard, parse
from sim.run import command
from sim.session import train

SMALL = ["--clients=4", "--rounds=2", "--engine=inline", "--quiet"]


def records(path, shift: float) -> str:
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 60)
    np.savez(path, x=rng.normal(size=(60, 4)) + y[:, None] + shift, y=y)
    return str(path)


def run(folder, *flags: str):
    return train(parse([*SMALL, "--out", str(folder), "--name", "run", *flags], "run", ""))


def test_two_processes_do_not_go_on_with_one_run(tmp_path):
    """Both would read what was spent, and then both spend it."""
    folder = run(tmp_path)
    with rundir.lock(folder):
        with pytest.raises(ValueError, match="in use by another process"), rundir.lock(folder):
            pass
        with pytest.raises(ValueError, match="in use by another process"):
            train(parse(["--resume", str(folder), "--quiet"], "run", ""))
    train(parse(["--resume", str(folder), "--quiet"], "run", ""))


def test_a_resumed_run_keeps_its_records(tmp_path):
    """The same named noise on other sums would give their difference away, and would be charged once."""
    data = tmp_path / "data.npz"
    folder = run(tmp_path, "--dataset", records(data, 0.0))
    records(data, 1e-3)
    with pytest.raises(ValueError, match="records = "):
        train(parse(["--resume", str(folder), "--quiet"], "run", ""))
    records(data, 0.0)
    train(parse(["--resume", str(folder), "--quiet"], "run", ""))


@pytest.mark.parametrize("flags", [[], ["--release"]])
def test_the_digest_of_the_records_tells_nothing_without_its_key(tmp_path, flags):
    """A plain one would decide, for whoever knows all records but one, which record the last one is."""
    a, b = (run(tmp_path / name, "--dataset", records(tmp_path / "data.npz", 0.0), *flags) for name in "ab")
    digests = [json.loads((folder / inputs.INPUTS).read_text()) for folder in (a, b)]
    assert digests[0]["records"] != digests[1]["records"] and digests[0]["device"] == digests[1]["device"]
    keys = [(folder / inputs.KEY).read_bytes() for folder in (a, b)]
    assert keys[0] != keys[1] and {len(key) for key in keys} == {32}
    assert {(folder / inputs.KEY).stat().st_mode & 0o777 for folder in (a, b)} == {0o600}
    (b / inputs.KEY).write_bytes(keys[0])
    (b / inputs.INPUTS).write_text(json.dumps(digests[0]))
    train(parse(["--resume", str(b), "--quiet"], "run", ""))


@pytest.mark.parametrize(("left", "words"), [(None, "No such file"), (b"", "0 bytes"), (b"k" * 31, "31 bytes")])
def test_without_its_key_a_run_is_not_resumed(tmp_path, capsys, left, words):
    """As one of an earlier version: nobody could tell whether the records are the same."""
    folder = run(tmp_path)
    (folder / inputs.KEY).unlink()
    if left is not None:
        (folder / inputs.KEY).write_bytes(left)
    assert main_guard(command, ["--resume", str(folder), "--quiet"]) == 2
    said = capsys.readouterr().err
    assert words in said and str(folder / inputs.KEY) in said and "start a new run" in said and said.count("\n") == 1


def test_the_orders_that_were_written_down_stay(tmp_path):
    """Another version may choose another order; after outputs have been seen it would prove nothing."""
    folder = run(tmp_path)
    assert orders.read(folder).keys() == set(range(4))
    chosen = json.dumps([{"order": 7.0, "clients": "0-3"}])
    (folder / orders.FILE).write_text(chosen)
    train(parse(["--resume", str(folder), "--quiet"], "run", ""))
    assert (folder / orders.FILE).read_text() == chosen
    assert orders.read(run(tmp_path / "open", "--mechanism=none")) == {}


UNEQUAL = ["--dirichlet=0.3", "--min-records=3", "--batch-size=3", "--steps=2", "--rounds=3", "--seed=2"]


def test_the_pld_epsilon_is_the_largest_of_all_clients(tmp_path):
    """Rates differ with sizes, and the client with the largest certified epsilon does not have the largest of these."""
    folder = run(tmp_path, "--clients=12", *UNEQUAL)
    paid = list(ledger.read(folder / "ledger").values())
    figures = [pld_epsilon(charges, 1e-5) for charges in paid]
    first = max(range(12), key=lambda client: epsilon(paid[client], 1e-5).epsilon)
    found = json.loads((folder / "summary.json").read_text())["epsilon_pld"]
    assert found == max(figures) > figures[first] + 0.1


def test_among_many_different_clients_no_pld_epsilon_is_said(tmp_path):
    summary = json.loads((run(tmp_path, "--clients=25", *UNEQUAL) / "summary.json").read_text())
    assert len(set(summary["epsilon_certified"])) > rundir.MOST_PLD and summary["epsilon_pld"] is None


def test_the_pld_epsilon_is_computed_for_as_many_clients_as_it_may_be(monkeypatch):
    paid = [{SampledGaussian(0.5, noise): 3} for noise in (4.0, 2.0, 3.0)]
    monkeypatch.setattr(rundir, "MOST_PLD", 3)
    assert rundir._largest_pld(paid, 1e-5) == pld_epsilon(paid[1], 1e-5) > pld_epsilon(paid[2], 1e-5)
    assert rundir._largest_pld([*paid, {DpsurStep(0.1, 2.0, 0.1, 2.0, -1.0, "visible"): 1}][1:], 1e-5) is None
    monkeypatch.setattr(rundir, "MOST_PLD", 2)
    assert rundir._largest_pld(paid, 1e-5) is None


def test_a_resumed_run_keeps_its_kind_of_device(tmp_path):
    folder = run(tmp_path)
    path = folder / inputs.INPUTS
    path.write_text(json.dumps(json.loads(path.read_text()) | {"device": "cuda"}))
    with pytest.raises(ValueError, match="device = cpu"):
        train(parse(["--resume", str(folder), "--quiet"], "run", ""))
