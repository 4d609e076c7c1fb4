"""The closing figures of a run, each of them told apart from every other, against the files of its
directory."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from mechanisms.accounting import ledger
from mechanisms.accounting.accountant import epsilon
from mechanisms.accounting.allotment import payable
from mechanisms.accounting.events import SampledGaussian
from server.checkpoints import Checkpoints
from server.records import RunInfo
from sim.commands.flags import parse
from sim.config import configuration as config
from sim.engines import session
from sim.engines.cluster import Cluster
from sim.engines.inline import inline_exchange
from sim.engines.start import train
from sim.job import rundir
from sim.phases.build import build

FLAGS = (
    "--clients=6 --rounds=6 --engine=inline --quiet --model=linear --dirichlet=0.3 "
    "--min-records=3 --batch-size=3 --mechanism=dpsur --noise-multiplier=5 "
    "--dpsur-validation-noise=8 --steps=2 --dpsur-accounting=selective --delta=1e-4 "
    "--fraction=0.5 --epsilon=3 --evaluate-every=1 --evaluate-on=validation "
    "--validation-records=40 --seed=3 --keep-checkpoints=3"
)


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    """Clients differ in what they have spent, some have retired, and the published epsilon is not
    the certified one."""
    out = tmp_path_factory.mktemp("runs")
    x, y = np.random.default_rng(0).normal(size=(200, 4)).astype(np.float32), np.arange(200) % 3
    np.savez(out / "records.npz", x=x, y=y, x_test=x[:9], y_test=y[:9])
    return train(
        parse(
            [*FLAGS.split(), f"--dataset={out / 'records.npz'}", f"--out={out}", "--name=run"],
            "run",
            "",
        )
    )


def test_charges_that_somebody_adds_to_the_ledger_meanwhile_are_noticed_at_the_end(tmp_path):
    """Of a round that this process knows nothing of, after its last one."""
    words = "--clients=2 --groups=1 --rounds=1 --quiet --model=linear --engine=inline"
    job = build(parse([*words.split(), f"--out={tmp_path}", "--name=run"], "run", "").config)
    folder = rundir.create(tmp_path / "run", job)

    def charge() -> None:
        with ledger.Ledger(folder / "ledger" / "group-0000.jsonl") as other:
            other.charge("round-2", 2, [0], {SampledGaussian(0.5, 9.0): 1})

    engine = session.Engine(inline_exchange(job, folder), leave=charge)
    with pytest.raises(ValueError, match=r"something else of client 0 .* another one has gone on"):
        session.run(job, folder, engine)
    assert not (folder / "summary.json").exists()


def test_the_summary_says_what_the_files_say(finished):
    summary = json.loads((finished / "summary.json").read_text())
    spent = [ledger.read(finished / "ledger").get(client, {}) for client in range(6)]
    paid = [payable(charges) for charges in spent]
    certified = [epsilon(charges, 1e-4) for charges in paid]
    published = [epsilon(charges, 1e-4, "published").epsilon for charges in paid]
    assert summary["epsilon_certified"] == pytest.approx(
        [one.epsilon for one in certified], rel=1e-9
    )
    assert summary["epsilon_published"] == pytest.approx(published, rel=1e-9)
    worst = max(range(6), key=lambda client: certified[client].epsilon)
    assert summary["order"] == certified[worst].order
    assert summary["events"] == [sum(charges.values()) for charges in paid]
    least = min(certified, key=lambda one: one.epsilon)
    assert worst > 0 and certified[worst].order not in (certified[0].order, least.order)
    assert summary["delta"] == 1e-4 and summary["noise_multiplier"] == [5.0] * 6
    assert len(set(summary["events"])) > 2 and not {one.epsilon for one in certified} & set(
        published
    )


def test_the_summary_says_what_proves_the_largest_epsilon(finished, tmp_path):
    """Others, the first client among them, may not have spent anything, which every method
    proves."""
    few = f"--clients=6 --rounds=1 --fraction=0.1 --epsilon=none --out={tmp_path} --name=few"
    few += " --seed=2"
    data = f"--dataset={finished.parent / 'records.npz'}"
    summary = json.loads(
        (train(parse([*FLAGS.split(), data, *few.split()], "run", "")) / "summary.json").read_text()
    )
    assert sorted(summary["epsilon_certified"])[-2] == 0.0 < max(summary["epsilon_certified"])
    assert summary["epsilon_certified"][0] == 0.0
    assert "Renyi" in summary["method"]
    assert "Renyi" not in epsilon({}, 1e-4).method


def test_the_summary_ends_as_the_rounds_do(finished):
    summary = json.loads((finished / "summary.json").read_text())
    rounds = [json.loads(line) for line in (finished / "rounds.jsonl").read_text().splitlines()]
    assert rounds[0]["loss"] != rounds[-1]["loss"] != rounds[-1]["accuracy"]
    for name in ("accuracy", "loss", "retired"):
        assert summary[name] == rounds[-1][name]
    assert summary["retired"] not in (0, 3, 6)
    assert summary["seconds"] == pytest.approx(sum(one["seconds"] for one in rounds))
    assert summary["evaluated_on"] == "validation" and summary["run_dir"] == str(finished)
    assert (
        summary["budget"] == "certified"
        and summary["release"] is False
        and "DPSUR" in summary["note"]
    )


def test_the_model_file_is_the_last_model_and_not_the_first(finished):
    now = Checkpoints(finished / "checkpoints", 2).newest()
    job = build(config.load(finished / "config.toml", {}))
    tensors = load_file(finished / "model.safetensors")
    layout = job.gradients.layout
    assert np.array_equal(
        layout.flatten({name: torch.from_numpy(tensors[name]) for name in layout.names}), now.params
    )
    kept = sorted(path.name for path in (finished / "checkpoints").glob("*.json"))
    assert kept == [f"round-00000{n}.json" for n in (4, 5, 6)], "as many as are asked for"
    assert now.round == 6 and not np.array_equal(layout.initial(job.model), now.params)


def test_a_resumed_run_says_where_it_stands_and_when_training_is_over(finished, monkeypatch):
    told, left = [], []

    class Watching(session.Progress):
        def started(self, info: RunInfo) -> None:
            told.append(info)

    monkeypatch.setattr(session, "Progress", Watching)
    (finished / "report.html").unlink()
    before = (finished / "summary.json").read_bytes()
    monkeypatch.setattr(Cluster, "leave", lambda cluster: left.append(True))
    request = parse(["--resume", str(finished), "--quiet", "--engine=auto"], "run", "")
    train(request, Cluster(request.config.run))
    assert told == [RunInfo(6, 6, 6, str(finished), build(request.config).config.run.chunk_clients)]
    assert left == [True] and (finished / "report.html").exists()
    assert (finished / "summary.json").read_bytes() == before


class Scaled(torch.nn.Module):
    """A model with a constant and a buffer beside what is trained."""

    def __init__(self, input_shape, classes):
        super().__init__()
        self.layer = torch.nn.Linear(input_shape[0], classes)
        self.layer.bias.requires_grad_(False)
        self.layer.bias.data = torch.arange(float(classes))

    def forward(self, x):
        return self.layer(x)


def test_a_run_that_ends_early_says_so_and_its_model_file_has_the_constants(tmp_path, finished):
    """Each client has the noise of its own rate; the model file is enough to compute with."""
    flags = (
        f"--dataset={finished.parent / 'records.npz'} --model=tests.test_summary:Scaled "
        "--engine=inline --quiet --clients=4 --dirichlet=0.3 --min-records=3 --batch-size=3 "
        f"--rounds=40 --max-participations=2 --epsilon=2 --out={tmp_path} --name=run --release "
        "--budget=published"
    )
    folder = train(parse(flags.split(), "run", ""))
    summary = json.loads((folder / "summary.json").read_text())
    job = build(config.load(folder / "config.toml", {}))
    assert summary["rounds"] == len((folder / "rounds.jsonl").read_text().splitlines()) < 40
    assert summary["noise_multiplier"] == [
        job.plans.of(client).noise_multiplier for client in range(4)
    ]
    assert len(set(summary["noise_multiplier"])) > 1 and summary["retired"] == 4
    assert (
        summary["release"] is True
        and summary["budget"] == "published"
        and summary["evaluated_on"] == "test"
    )
    tensors = load_file(folder / "model.safetensors")
    assert tensors.keys() == {"layer.weight", "layer.bias"} and tensors["layer.bias"].tolist() == [
        0.0,
        1.0,
        2.0,
    ]


def test_a_new_run_does_not_take_the_place_of_another(tmp_path):
    """Two starts in one second get two folders; a name that is taken is refused."""
    given = config.load(None, {"out": str(tmp_path), "name": None})
    first = rundir.choose(given)
    first.mkdir()
    second = rundir.choose(given)
    second.mkdir(exist_ok=True)
    assert first != second and rundir.choose(given) not in (first, second)
    with pytest.raises(ValueError, match=r"name = taken: .* exists; give another --name$"):
        (tmp_path / "taken").mkdir()
        rundir.choose(config.load(None, {"out": str(tmp_path), "name": "taken"}))


def test_a_folder_that_cannot_be_written_is_refused_before_anything_is_trained(
    tmp_path, monkeypatch
):
    asked = []
    monkeypatch.setattr(rundir.os, "access", lambda path, mode: asked.append((path, mode)))
    with pytest.raises(ValueError, match=r"out = .* cannot be written: give --out a writable"):
        rundir.choose(config.load(None, {"out": str(tmp_path), "name": None}))
    assert asked == [(tmp_path, os.W_OK | os.X_OK)]
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match=r"out = .*inner cannot be created \(Not a directory\)"):
        rundir.choose(config.load(None, {"out": str(tmp_path / "file" / "inner"), "name": None}))
