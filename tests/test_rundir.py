"""A run directory belongs to one process, one set of records and one kind of device."""

import json

import numpy as np
import pytest

from mechanisms.accounting import ledger
from mechanisms.accounting.accountant import epsilon, pld_epsilon
from sim import rundir
from sim.cli import parse
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


def test_a_resumed_run_keeps_its_kind_of_device(tmp_path):
    folder = run(tmp_path)
    inputs = folder / rundir.INPUTS
    inputs.write_text(json.dumps(json.loads(inputs.read_text()) | {"device": "cuda"}))
    with pytest.raises(ValueError, match="device = cpu"):
        train(parse(["--resume", str(folder), "--quiet"], "run", ""))
