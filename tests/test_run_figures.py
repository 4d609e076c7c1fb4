"""Every number of ``summary.json`` and ``rounds.jsonl``, recomputed from ledger and model of
unequal clients."""

import json
import math
import statistics
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load

from client.metrics import Metrics, means
from mechanisms.accounting import ledger
from mechanisms.accounting.accountant import by_renyi, epsilon
from mechanisms.accounting.adaptive_events import Allotment
from mechanisms.plan import merge, most
from mechanisms.registry import MECHANISMS
from server import orders, sealed_json
from server.guarantees import guarantees
from server.records import RoundRecord, Summary
from sim import central, run
from sim.commands.guard import main_guard
from sim.config import configuration as config
from sim.config.caveats import caveats
from sim.phases.build import build
from sim.showing import wording
from tests import unequal
from tests.running import in_progress

DELTA = 3e-5
COMMON = [
    "--clients=7",
    "--partition=quantity",
    "--dirichlet=0.7",
    "--min-records=4",
    "--batch-size=4",
    "--steps=2",
]
COMMON += [
    "--rounds=6",
    "--fraction=0.6",
    f"--delta={DELTA}",
    "--seed=2",
    "--engine=inline",
    "--quiet",
]
RUNS = {
    "calibrated": [
        "--epsilon=6",
        "--max-participations=4",
        "--rounds=9",
        "--validation-records=30",
    ],
    "dpsur": [
        "--mechanism=dpsur",
        "--noise-multiplier=3",
        "--epsilon=3",
        "--dpsur-validation-rate=0.3",
    ],
    "the paper's budget": [
        "--mechanism=dpsur",
        "--dpsur-accounting=selective",
        "--noise-multiplier=1.5",
        "--epsilon=6",
    ],
    "a release": ["--release", "--noise-multiplier=2", "--epsilon=4"],
}
RUNS["the paper's budget"].append("--budget=published")
RUNS["calibrated"].append("--evaluate-on=validation")
"""The first ends before its ninth round, when everybody has retired."""


@pytest.fixture(scope="module")
def records(tmp_path_factory) -> str:
    rng, path = np.random.default_rng(0), tmp_path_factory.mktemp("data") / "records.npz"
    y = rng.integers(0, 3, 460)
    x = (rng.normal(size=(460, 6)) + y[:, None]).astype(np.float32)
    np.savez(path, x=x[60:], y=y[60:], x_test=x[:60], y_test=y[:60])
    return str(path)


class Finished:
    """A finished run: its job, what each client paid, and what it wrote."""

    def __init__(self, folder: Path, clients: int = 7):
        self.folder = folder
        self.job = build(config.load(folder / "config.toml", {}))
        self.paid = ledger.read(folder / "ledger")
        self.summary = sealed_json.loads((folder / "summary.json").read_bytes())
        del self.summary["files"], self.summary["ledger"]
        self.rounds = [
            json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()
        ]
        self.plans = [self.job.plans.of(client) for client in range(clients)]

    def spent(
        self, column: str, up_to: int | None = None, at: dict[int, tuple[float, ...]] | None = None
    ) -> list[float]:
        """Each client's epsilon after a round (the last one), in progress at given orders."""
        paid = ledger.read(self.folder / "ledger", up_to_round=up_to)
        if at is None:
            return [epsilon(paid.get(c, {}), DELTA, column).epsilon for c in range(7)]
        settings = self.job.config.privacy
        limit = settings.epsilon if settings.budget == "certified" else math.inf
        if any(isinstance(event, Allotment) for charges in paid.values() for event in charges):
            return [epsilon(paid.get(c, {}), DELTA, orders=at[c]).epsilon for c in range(7)]
        return [min(in_progress(paid.get(c, {}), DELTA, at[c]), limit) for c in range(7)]

    def taken(self, up_to: int) -> list[int]:
        """In how many rounds each client took part; every one of them is paid for, in a run without
        a crash."""
        lines = [
            json.loads(x)
            for path in (self.folder / "ledger").iterdir()
            for x in path.read_text().splitlines()
        ]
        count = np.zeros(7, dtype=int)
        for release in {(one["round"], one["release"]) for one in lines if one["round"] <= up_to}:
            text = ",".join(
                one["clients"] for one in lines if (one["round"], one["release"]) == release
            )
            count[list({int(c) for part in text.split(",") for c in _range(part)})] += 1
        return count.tolist()

    def over(self, up_to: int) -> int:
        """Clients whose next round would pass the budget."""
        settings, paid = (
            self.job.config.privacy,
            ledger.read(self.folder / "ledger", up_to_round=up_to),
        )
        after = [
            merge(paid.get(c, {}), most(self.plans[c], nth + 1))
            for c, nth in enumerate(self.taken(up_to))
        ]
        return sum(epsilon(one, DELTA, settings.budget).epsilon > settings.epsilon for one in after)


def _range(text: str) -> range:
    first, _, last = text.partition("-")
    return range(int(first), int(last or first) + 1)


@pytest.fixture(scope="module", params=RUNS)
def finished(request, records, tmp_path_factory) -> Finished:
    folder = tmp_path_factory.mktemp("run")
    patch = pytest.MonkeyPatch()
    patch.setattr("sim.engines.session.write_report", lambda folder: folder)
    run.command(
        [f"--dataset={records}", *COMMON, *RUNS[request.param], f"--out={folder}", "--name=run"]
    )
    patch.undo()
    return Finished(folder / "run")


def measured(found: Finished) -> tuple[float, float]:
    """Accuracy and loss of the model that was written, by plain PyTorch."""
    tensors = load((found.folder / "model.safetensors").read_bytes())
    logits = torch.func.functional_call(
        found.job.model, tensors, (torch.from_numpy(found.job.dataset.x_test),)
    )
    y = torch.from_numpy(found.job.dataset.y_test)
    return float((logits.argmax(dim=1) == y).double().mean()), float(
        torch.nn.functional.cross_entropy(logits, y)
    )


def test_every_figure_of_the_summary(finished):
    """The order is that of whoever has spent most, who is not the first client; each tuple is in
    client order."""
    found, settings = finished.summary, finished.job.config
    certified = finished.spent("certified")
    worst = int(np.argmax(certified))
    accuracy, loss = measured(finished)
    renyi = max(by_renyi(finished.paid[c], DELTA) for c in range(7))
    expected = {
        "accuracy": pytest.approx(accuracy),
        "loss": pytest.approx(loss, rel=1e-5),
        "epsilon_certified": certified,
        "epsilon_published": finished.spent("published"),
        "delta": DELTA,
        "order": renyi.order,
        "epsilon_renyi": renyi.epsilon,
        "method": epsilon(finished.paid[worst], DELTA).method,
        "noise_multiplier": [plan.noise_multiplier for plan in finished.plans],
        "events": [sum(finished.paid[c].values()) for c in range(7)],
        "retired": finished.over(found["rounds"]),
        "rounds": len(finished.rounds),
        "seconds": pytest.approx(sum(one["seconds"] for one in finished.rounds)),
        "run_dir": str(finished.folder),
        "release": settings.run.release,
        "note": MECHANISMS[settings.privacy.mechanism].note,
        "budget": settings.privacy.budget,
        "evaluated_on": settings.data.evaluate_on,
        "caveats": list(caveats(settings)),
        "metric": "accuracy",
        "guarantees": list(guarantees("local", "record", 7, max(certified))),
        "budgets": [],
    }
    assert expected.keys() == unequal.names(Summary) == found.keys()
    assert {name for name in found if found[name] != expected[name]} == set()


def test_the_clients_of_these_runs_differ(finished):
    """Else the tests here would not see one client's figure in the place of another's. Who is
    picked for a release nobody knows."""
    found = finished.summary
    if found["release"]:
        return
    spent, own = (
        found["epsilon_certified"],
        [epsilon(finished.paid[client], DELTA) for client in range(7)],
    )
    assert len(set(spent)) > 3 and max(spent) not in (statistics.median(spent), spent[0], spent[-1])
    assert found["order"] not in (own[0].order, own[-1].order)
    assert max(spent) != max(found["epsilon_published"])
    assert len(set(zip(found["events"], found["noise_multiplier"], strict=True))) > 1
    assert (len(finished.rounds) < finished.job.config.rounds.rounds) is (
        found["evaluated_on"] == "validation"
    )
    counts = [(one["participants"], one["retired"]) for one in finished.rounds]
    assert (
        len(set(counts)) > 1 and counts[-1][1] > 0 and len({sum(one) for one in counts} - {7}) > 0
    )


def test_every_figure_of_every_round(finished):
    """While the run goes on at the orders that were written down, in the last round at the best
    one."""
    at, last = orders.read(finished.folder), finished.rounds[-1]
    for number, found in enumerate(finished.rounds, 1):
        own = None if found is last else at
        certified, published = (
            finished.spent("certified", number, own),
            finished.spent("published", number),
        )
        before, after = finished.taken(number - 1), finished.taken(number)
        exact = {
            "round": number,
            "epsilon_certified_max": max(certified),
            "epsilon_certified_median": statistics.median(certified),
            "epsilon_published_max": max(published),
            "retired": finished.over(number),
            "participants": sum(after) - sum(before),
        }
        assert exact.keys() | {
            "accuracy",
            "loss",
            "seconds",
            "seconds_training",
            "metrics",
        } == unequal.names(RoundRecord)
        assert {name: found[name] for name in exact} == exact
        assert 0 < found["seconds_training"] < found["seconds"] and 0 <= found["accuracy"] <= 1
    assert (last["accuracy"], last["loss"]) == (
        finished.summary["accuracy"],
        finished.summary["loss"],
    )


def test_a_figure_of_a_round_is_the_mean_over_its_clients():
    """Whatever the cohorts and groups they come in; each figure has its own number of clients."""
    groups = []
    for parts in ([[1.0, 4.0, 2.5], [8.0]], [[0.5]]):
        one = Metrics()
        for values in parts:
            one.add({"noise": torch.tensor(values)})
        groups.append(one)
    groups[1].add({"rate": torch.tensor([0.25, 0.5], dtype=torch.float64)})
    assert groups[0].pairs == {"noise": (15.5, 4)} and groups[1].pairs == {
        "noise": (0.5, 1),
        "rate": (0.75, 2),
    }
    assert means([group.pairs for group in groups]) == {"noise": 16.0 / 5, "rate": 0.375}
    assert means([]) == {}


def test_what_a_central_run_prints_is_what_its_ledger_says(records, tmp_path, capsys, monkeypatch):
    """One client: the certified figure above the claim, its own noise, its own order, no
    other's."""
    monkeypatch.setattr("sim.engines.session.write_report", lambda folder: folder)
    flags = [
        "--mechanism=dpsur",
        "--epsilon=3",
        f"--delta={DELTA}",
        "--rounds=3",
        "--steps=2",
        "--batch-size=50",
    ]
    command = [
        f"--dataset={records}",
        *flags,
        "--dpsur-validation-rate=0.1",
        f"--out={tmp_path}",
        "--name=alone",
    ]
    assert main_guard(central.command, command) == 0
    shown = dict(
        line.split("  ", 1) for line in capsys.readouterr().out.splitlines() if "  " in line
    )
    shown = {name: text.strip() for name, text in shown.items()}
    found = Finished(tmp_path / "alone", clients=1)
    certified, published = (
        epsilon(found.paid[0], DELTA, column) for column in ("certified", "published")
    )
    renyi = by_renyi(found.paid[0], DELTA)
    accuracy, loss = measured(found)
    assert {name: text for name, text in shown.items() if name != "time"} == {
        "test accuracy": f"{accuracy:.4f}",
        "test loss": f"{loss:.4f}",
        "certified epsilon": f"{wording.epsilon(certified.epsilon)}, delta 3e-05, "
        "by loss distributions",
        "published epsilon": wording.epsilon(published.epsilon),
        "by Renyi alone": f"{wording.epsilon(renyi.epsilon)} at order {renyi.order:g}",
        "noise multiplier": f"{found.plans[0].noise_multiplier:.4g}",
        "protected": "one record",
        "from anyone else": f"epsilon {wording.epsilon(certified.epsilon)}, seeing the final model",
        "budget": "used up",
        "rounds": "3",
        "run directory": str(tmp_path / "alone"),
    }
    assert shown["time"] == wording.duration(found.summary["seconds"])
    different = {wording.epsilon(one.epsilon) for one in (certified, published, renyi)}
    assert len(different) == 3 and accuracy != loss
