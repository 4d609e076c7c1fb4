"""``python -m sim.account --verify``: the printed epsilons of runs, proved by a second path."""

import json
import shutil
from contextlib import nullcontext
from pathlib import Path

import pytest

from mechanisms.accounting.accountant import epsilon
from mechanisms.accounting.events import (
    DpsurStep,
    PublicLabels,
    SampledGaussian,
    TrialCap,
    Unproved,
)
from mechanisms.accounting.ledger import Ledger
from server import sealed_json
from sim.account import command
from sim.commands.guard import main_guard
from sim.config.caveats import SEEDED
from sim.run import command as train
from sim.showing import wording
from sim.verifying import session
from tests.vouched import fix_orders, vouch

COMMON = ["--clients=3", "--fraction=0.7", "--engine=inline", "--quiet"]
RUNS = {
    "dpsgd": ["--epsilon=4", "--batch-size=40", "--steps=1"],
    "renyi": ["--noise-multiplier=0.2", "--epsilon=1000"],
    "dpsur": ["--mechanism=dpsur", "--steps=2"],
    "dpsur selective": ["--mechanism=dpsur", "--steps=2", "--dpsur-accounting=selective"],
    "dpis": ["--mechanism=dpis", "--batch-size=40", "--steps=2"],
    "dphero": ["--mechanism=dphero", "--steps=2"],
    "screening": ["--mechanism=screening", "--rounds=1", "--steps=1"],
    "dpagd": ["--mechanism=dpagd", "--steps=2"],
    "fedfed": ["--strategy=fedfed", "--shared-source=distilled", "--distill-rounds=1"],
    "release": ["--release", "--standardize=private", "--steps=2"],
}
"""Tiny runs of every mechanism, and of what precedes training."""


def verified(capsys, folder: Path) -> tuple[int, dict]:
    capsys.readouterr()
    try:
        status = main_guard(command, [f"--verify={folder}", "--json"])
    except SystemExit as end:
        status = end.code
    return status, json.loads(capsys.readouterr().out)


@pytest.fixture(autouse=True)
def quick(monkeypatch, no_report):
    """The largest epsilon decides."""
    monkeypatch.setattr(session, "MAX_HISTORIES", 1)


@pytest.mark.parametrize("name", RUNS)
def test_what_a_run_prints_is_proved_and_a_percent_less_would_be_refuted(name, tmp_path, capsys):
    """Kills a second path that forgets a charge, or has another price for it."""
    train([*COMMON, "--rounds=2", *RUNS[name], f"--out={tmp_path}", "--name=run"])
    status, found = verified(capsys, tmp_path / "run")
    (row,) = found["verified"]
    assert status == 0 and found["confirmed"] and found["note"] == ""
    assert 0 <= found["slack"] == row["above"] < 2e-3
    assert 0.99 * row["epsilon_certified"] < row["lower"]


@pytest.fixture(scope="module")
def unequal(tmp_path_factory) -> Path:
    """A run whose clients have charges of their own."""
    folder = tmp_path_factory.mktemp("unequal")
    patch = pytest.MonkeyPatch()
    patch.setattr("sim.engines.session.write_report", lambda folder: folder)
    patch.setattr("sim.engines.drawer.drawing", lambda run: nullcontext())
    flags = [
        "--rounds=2",
        "--noise-multiplier=3",
        "--partition=quantity",
        "--batch-size=90",
        "--steps=1",
    ]
    train([*COMMON, *flags, "--fraction=1", f"--out={folder}", "--name=run"])
    patch.undo()
    return folder / "run"


def test_the_largest_epsilons_are_verified_first(unequal, capsys):
    spent = json.loads((unequal / "summary.json").read_text())["epsilon_certified"]
    assert len(set(spent)) == 3
    _, found = verified(capsys, unequal)
    (row,) = found["verified"]
    assert row["epsilon_certified"] == max(spent) and found["histories"] == 3
    assert row["clients"] == str(spent.index(max(spent)))


def test_one_client_s_epsilon_that_is_too_small_is_found(unequal, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(session, "MAX_HISTORIES", 20)
    copy = shutil.copytree(unequal, tmp_path / "changed")
    summary = json.loads((copy / "summary.json").read_text())
    del summary[sealed_json.DIGEST]
    summary["epsilon_certified"][1] *= 0.99
    (copy / "summary.json").write_bytes(sealed_json.dumps(summary))
    status, found = verified(capsys, copy)
    verdicts = {row["clients"]: row["verdict"] for row in found["verified"]}
    assert status == 1 and verdicts == {"0": "proved", "1": "refuted", "2": "proved"}


def test_an_unfinished_run_is_verified_at_its_orders(unequal, tmp_path, capsys):
    """With the share of delta that figures in progress have."""
    copy = shutil.copytree(unequal, tmp_path / "unfinished")
    (copy / "summary.json").unlink()
    status, found = verified(capsys, copy)
    (row,) = found["verified"]
    assert status == 0 and row["order"] is not None and row["above"] < 1e-6
    assert found["note"] == wording.AT_ONE_ORDER


def test_caps_of_an_unfinished_run_are_paid_for_beside_its_figure(tmp_path, capsys):
    """They use up more than its orders have. Kills caps that are subtracted from their share."""
    charges = {DpsurStep(0.1, 3.0, 0.05, 3.0, -1.0, "selective"): 3, TrialCap(0.5, 20): 3}
    with Ledger(tmp_path / "ledger" / "group0.jsonl") as ledger:
        ledger.charge("round-1", 1, [0], charges)
    own = '[privacy]\nmechanism = "dpsur"\ndelta = 1e-5\n[data]\nclients = 1\n'
    (tmp_path / "config.toml").write_text(own)
    vouch(tmp_path)
    fix_orders(tmp_path, [{"orders": [8.0, 16.0], "clients": "0"}])
    status, found = verified(capsys, tmp_path)
    (row,) = found["verified"]
    assert status == 0 and row["order"] == 16.0 and row["above"] < 1e-5


def test_clients_without_a_finite_epsilon_are_named(tmp_path, capsys):
    """Also one whose printed epsilon of 0 is not what its charges cost. Kills clients that are left
    out without a word."""
    step, nothing = SampledGaussian(0.1, 3.0), PublicLabels()
    with Ledger(tmp_path / "ledger" / "group0.jsonl") as ledger:
        ledger.charge("round-1", 1, [0], {step: 3})
        ledger.charge("round-1", 1, [1, 2], {Unproved("a search"): 1})
        ledger.charge("round-1", 1, [3], {nothing: 1})
    own = '[privacy]\nmechanism = "dpsgd"\ndelta = 1e-5\n[data]\nclients = 5\n'
    (tmp_path / "config.toml").write_text(own)
    spent = epsilon({step: 3}, 1e-5).epsilon
    for first, verdict in ((0.0, "refuted"), (spent, "proved")):
        closing = {"epsilon_certified": [first, None, None, 0.0, 0.0]}
        (tmp_path / "summary.json").write_text(json.dumps(closing))
        vouch(tmp_path)
        status, found = verified(capsys, tmp_path)
        assert found["not_proved"] == "1-2" and found["histories"] == 2
        assert found["verified"][0]["verdict"] == verdict and status == (verdict != "proved")
    main_guard(command, [f"--verify={tmp_path}"])
    assert "no finite epsilon is proved for them: clients 1-2." in capsys.readouterr().out


def test_the_verdict_is_printed(unequal, capsys):
    assert main_guard(command, [f"--verify={unequal}"]) == 0
    shown = capsys.readouterr().out
    shown = " ".join(shown.split())
    assert "Each of the 1 largest epsilons is proved" in shown and "1 of 3 histories" in shown
    assert shown.endswith(SEEDED)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--verify=nowhere"], "--verify = nowhere must be an existing run directory"),
        (["--verify=a", "--ledger=b"], "--verify proves what a run has printed: drop ledger"),
        (["--verify=a", "--delta=1e-6"], "--verify proves what a run has printed: drop delta"),
        (["dpsgd", "--verify=a", "--epsilon=3"], "--verify and dpsgd are two questions: drop one"),
    ],
)
def test_user_errors_are_one_line(flags, message, capsys):
    assert main_guard(command, flags) == 2
    assert capsys.readouterr().err.startswith(f"error: {message}")


def test_a_run_without_a_guarantee_has_nothing_to_verify(tmp_path, capsys):
    train([*COMMON, "--rounds=1", "--mechanism=none", f"--out={tmp_path}", "--name=run"])
    assert main_guard(command, [f"--verify={tmp_path / 'run'}"]) == 2
    assert "no finite certified epsilon" in capsys.readouterr().err


def test_a_run_that_has_charged_nothing_has_nothing_to_verify(tmp_path, capsys, monkeypatch):
    """Its epsilon is 0, which is finite."""
    monkeypatch.setattr("sim.engines.session.before_training", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        train([*COMMON, "--rounds=1", f"--out={tmp_path}", "--name=run"])
    assert main_guard(command, [f"--verify={tmp_path / 'run'}"]) == 2
    assert "has charged nothing so far: there is nothing" in capsys.readouterr().err
