"""``python -m sim.audit``: its result stands beside the ledger's figures, is the same again; faults
are one line."""

import json

import numpy as np
import pytest
from torch import nn

from mechanisms.accounting.accountant import epsilon
from mechanisms.accounting.ledger import read
from mechanisms.registry import MECHANISMS
from server import sealed_json
from sim import run
from sim.audit import command
from sim.auditing import one_run
from sim.auditing.bounds import one_run_epsilon
from sim.auditing.one_run import SHARES
from sim.auditing.session import _plant
from sim.commands.audit import parse
from sim.commands.guard import INTERRUPTED, main_guard
from sim.config.configuration import load
from sim.library import whole
from sim.library.result import Result
from sim.models.initial import start_from
from sim.phases import build as jobs
from sim.phases.course import present
from sim.showing import wording
from sim.showing.report import write_report

SMALL = ["--rounds=5", "--quiet", "--chunk-clients=2"]


pytestmark = pytest.mark.usefixtures("no_report")


def audited(folder, *flags: str) -> dict:
    command([*SMALL, "--out", str(folder), "--name", "a", *flags])
    return sealed_json.loads((folder / "a" / "audit.json").read_bytes())


@pytest.mark.parametrize("clients", ["1", "3"])
def test_the_lower_bound_stands_below_the_certified_epsilon_of_the_ledger(tmp_path, clients):
    """Kills: scores of the wrong canary, coins that do not decide who is in, a null record that is
    drawn."""
    found = audited(tmp_path, "--clients", clients, "--epsilon", "8")
    spent = {
        client: epsilon(c, 1e-5).epsilon for client, c in read(tmp_path / "a" / "ledger").items()
    }
    assert found["epsilon_certified"] == pytest.approx(max(spent.values()), rel=1e-12)
    assert 0.15 * 8 < found["epsilon_lower"] < found["epsilon_certified"]
    assert (
        found["right"]
        <= found["guesses"]
        <= found["canaries"]
        == sum(row[1] for row in found["clients"])
    )
    assert [row[0] for row in found["clients"]] == list(range(int(clients)))
    assert [row[3] for row in found["clients"]] == pytest.approx(
        [spent[c] for c in range(int(clients))]
    )


def test_without_privacy_every_guess_is_right(tmp_path):
    found = audited(tmp_path, "--clients", "1", "--mechanism", "none", "--canaries", "200")
    assert found["right"] == found["guesses"] >= 100 and found["epsilon_lower"] > 3
    assert found["epsilon_certified"] is found["epsilon_published"] is None


def test_with_much_noise_nothing_is_found(tmp_path):
    found = audited(tmp_path, "--clients", "1", "--epsilon", "0.1")
    assert found["epsilon_lower"] <= 0.1


def test_the_black_box_sees_the_final_model_only(tmp_path):
    flags = (
        "--clients=1",
        "--mechanism=none",
        "--black-box",
        "--rounds=30",
        "--lr=2",
        "--model=mlp",
    )
    found = audited(tmp_path, *flags)
    assert found["view"] == "black-box" and found["epsilon_lower"] > 0


@pytest.mark.parametrize("mechanism", [name for name, row in MECHANISMS.items() if row.private])
def test_every_mechanism_can_be_audited(tmp_path, mechanism):
    flags = (
        "--clients=2",
        "--rounds=2",
        "--mechanism",
        mechanism,
        "--noise-multiplier=2",
        "--epsilon=none",
    )
    found = audited(tmp_path, *flags, "--sample-rate=0.5", "--canaries=100", "--delta=1e-4")
    assert found["epsilon_lower"] <= found["epsilon_certified"]


def test_the_same_seed_gives_the_same_result_whatever_the_groups(tmp_path):
    flags = ("--clients=4", "--canaries=120", "--rounds=2")
    found = [audited(tmp_path / str(groups), *flags, f"--groups={groups}") for groups in (1, 2)]
    other = audited(tmp_path / "other", *flags, "--seed=1")
    for one in (*found, other):
        assert len(one["run"]) == 64
        del one["run_dir"], one["run"]
    assert found[0] == found[1] != other


def test_what_precedes_training_is_part_of_an_audited_run(tmp_path, monkeypatch):
    """Kills nodes that are made before the shared data set is there, and train without it; and
    losses of records that are not standardized as those of the training were."""
    models, looked_at = [], []
    real = one_run.losses
    monkeypatch.setattr(
        one_run, "losses", lambda *given: looked_at.append(given[2]) or real(*given)
    )
    for weight in ("0", "0.5"):
        flags = (
            "--strategy=fedfed",
            "--standardize=private",
            "--clients=2",
            "--canaries=20",
            "--black-box",
        )
        audited(tmp_path / weight, *flags, f"--shared-weight={weight}")
        models.append((tmp_path / weight / "a" / "model.safetensors").read_bytes())
    assert models[0] != models[1]
    folder = tmp_path / "0" / "a"
    job = jobs.build(load(folder / "config.toml", {}))
    standardized = present(job, folder).dataset.x
    assert np.array_equal(looked_at[0].numpy(), standardized) and not np.array_equal(
        standardized, job.dataset.x
    )


def test_an_audited_run_is_not_resumed(tmp_path, capsys):
    """It would go on without its canaries, which nothing on disk can bring back."""
    audited(tmp_path, "--clients", "1", "--canaries", "20")
    assert main_guard(run.command, ["--resume", str(tmp_path / "a")]) == 2
    assert "is of an audit, which would go on without its canaries" in capsys.readouterr().err
    assert main_guard(command, ["--resume", str(tmp_path / "a")]) == 2
    assert "an audit is one training from its beginning" in capsys.readouterr().err


def test_an_audit_that_is_interrupted_is_not_said_to_go_on(tmp_path, capsys, monkeypatch):
    """It said to resume it, which is refused."""

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("sim.phases.training.evaluate", interrupted)
    words = ["--clients=2", "--rounds=1", "--quiet", f"--out={tmp_path}", "--name=a"]
    assert main_guard(command, words) == INTERRUPTED
    assert capsys.readouterr().err == (
        f"interrupted; an audit cannot be resumed: {tmp_path}/a keeps what it has paid, "
        "start a new one\n"
    )


def test_nobody_goes_on_with_a_model_that_has_learnt_canaries(tmp_path):
    """Card and `--init-from` took it for any other."""
    audited(tmp_path, "--clients", "1", "--canaries", "20")
    said = "| canaries | 20 of an audit, which it has learnt: do not use it |"
    assert said in (tmp_path / "a" / "model_card.md").read_text()
    with pytest.raises(ValueError, match="is an audited run, whose model has learnt canaries"):
        start_from(nn.Linear(2, 2), str(tmp_path / "a"))


def test_json_prints_the_file_and_nothing_else(tmp_path, capsys):
    """Also where nobody has said that the run is to be quiet."""
    command(
        [
            "--clients=1",
            "--rounds=1",
            "--canaries=50",
            "--json",
            "--out",
            str(tmp_path),
            "--name",
            "a",
        ]
    )
    written = (tmp_path / "a" / "audit.json").read_bytes()
    assert json.loads(capsys.readouterr().out) == sealed_json.loads(written)


@pytest.mark.parametrize("view", ["white-box", "black-box"])
def test_what_the_flags_say_is_what_the_result_says(tmp_path, view):
    """And its bounds are at that confidence, shared by the choices, and at the run's delta."""
    flags = ("--clients=3", "--rounds=2", "--mechanism=none", "--delta=1e-3", f"--{view}")
    found = audited(tmp_path, *flags, "--confidence=0.8", "--canaries=90")
    assert (found["view"], found["confidence"], found["canaries"], found["delta"]) == (
        view,
        0.8,
        90,
        1e-3,
    )
    counts = found["guesses"], found["right"], found["canaries"]
    assert found["epsilon_lower"] == one_run_epsilon(*counts, 1e-3, 1 - 0.2 / len(SHARES))
    if view == "white-box":
        assert found["right"] > 0.8 * found["guesses"] > 0
        for _, coins, lower, certified in found["clients"]:
            sides = [2 * int(share * coins / 2) for share in SHARES]
            tried = [(n, n - wrong) for n in sides for wrong in range(n // 2)]
            bounds = [one_run_epsilon(*one, coins, 1e-3, 1 - 0.2 / len(SHARES)) for one in tried]
            assert lower in (0.0, *bounds) and certified is None
        assert max(lower for _, _, lower, _ in found["clients"]) > 0
    job = jobs.build(load(tmp_path / "a" / "config.toml", {}))
    canaries = _plant(job, 90, view == "black-box")
    own = [len(canaries.places(job.partition.of(client))) for client in range(3)]
    assert [coins for _, coins, _, _ in found["clients"]] == own and len(set(own)) > 1


def test_the_result_is_shown_beside_published_and_certified(tmp_path, capsys):
    """Unless the audit is to be quiet."""
    audited(tmp_path / "quiet", "--clients=1", "--rounds=1", "--canaries=50")
    assert capsys.readouterr().out == ""
    audited(
        tmp_path,
        "--no-quiet",
        "--clients=1",
        "--rounds=1",
        "--canaries=50",
        "--mechanism=dpsur",
        "--noise-multiplier=3",
    )
    out = capsys.readouterr().out
    assert "lower bound" in out and "with confidence 0.95" in out
    assert (
        "certified epsilon" in out
        and "published epsilon" in out
        and "50 canaries, white-box" in out
    )


def test_the_report_has_a_lower_bound_for_each_client(tmp_path):
    found = audited(tmp_path, "--clients=3", "--rounds=2")
    text = write_report(tmp_path / "a").read_text()
    assert "<h2>Audit</h2>" in text and len(found["clients"]) == 3
    for number, coins, lower, certified in found["clients"]:
        bounds = f"<td>{wording.lower_bound(lower)}</td><td>{wording.epsilon(certified)}</td>"
        assert f"<td>{number}</td><td>{coins}</td>{bounds}" in text
    (tmp_path / "a" / "audit.json").write_text("{")
    with pytest.raises(ValueError, match="audit again"):
        write_report(tmp_path / "a")
    (tmp_path / "a" / "audit.json").unlink()
    assert "<h2>Audit</h2>" not in write_report(tmp_path / "a").read_text()


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (["--canaries=0"], "canaries = 0"),
        (["--release"], "release is on, but crafted gradients are no records"),
        (["--canaries=99999"], "canaries = 99999"),
        (["--canaries=many"], "--canaries is 'many'"),
        (["--canaries=651", "--clients=1"], "650 parameters"),
        (["--confidence=1"], "confidence = 1.0"),
        (["--resume=runs/x"], "runs/x"),
        (["--epsilom=3"], "--epsilon"),
        (["--white-box", "--black-box"], "contradict each other"),
    ],
)
def test_a_fault_is_one_line_and_nothing_is_written(tmp_path, capsys, flags, named):
    (tmp_path / "x").mkdir()
    assert main_guard(command, [*flags, "--out", str(tmp_path / "x"), "--quiet"]) == 2
    error = capsys.readouterr().err
    assert (
        named in error.splitlines()[-1]
        and error.startswith("error: ")
        and not list((tmp_path / "x").iterdir())
    )


def test_the_help_names_the_flags(capsys):
    with pytest.raises(SystemExit):
        command(["--help"])
    out = capsys.readouterr().out
    assert all(
        flag in out
        for flag in ("--canaries", "--confidence", "--black-box", "--white-box", "--epsilon")
    )
    assert "--config" in out and "--resume" not in out
    assert f"(default: at most {one_run.MAX_CANARIES})" in " ".join(out.split())
    assert parse([], "").confidence == 0.95 and "(default: 0.95)" in out


def test_a_flipped_result_of_an_audit_is_found(tmp_path):
    audited(tmp_path, "--clients=2", "--canaries=20")
    run, path = tmp_path / "a", tmp_path / "a" / "audit.json"
    assert whole.look(run)["whole"]
    path.write_bytes(path.read_bytes().replace(b'"epsilon_lower": ', b'"epsilon_lower": 1'))
    found = whole.look(run)
    assert [row["file"] for row in found["files"] if row["state"] != "whole"] == ["audit.json"]
    with pytest.raises(ValueError, match=r"audit\.json is damaged"):
        Result(run).audit  # noqa: B018
