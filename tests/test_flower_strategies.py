"""Flower's strategies as ours: every one of them is run or refused, gives what Flower gives and
what the literature says, goes on after a crash, and sees nothing that clients have not released."""

import gc
import itertools
import json
import logging
import random
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import strategy as flower
from safetensors.numpy import load, save
from scipy.stats import trim_mean

from mechanisms.accounting import ledger
from sim.commands.flags import parse
from sim.commands.guard import main_guard
from sim.config.configuration import load as configured
from sim.engines import policy
from sim.engines.start import train
from sim.run import command
from strategies import app, trial
from strategies.registry import strategy_of
from strategies.settings import Aggregation, FedFed
from strategies.strategy import Strategy
from tests.folders import model
from tests.test_flower import LocalGrid, allowed, identity, place, serve  # noqa: F401

HERE = "flwr.serverapp.strategy"
GUIDE = Path(__file__).parent.parent / "docs" / "howto" / "strategies.md"
ROUNDS, CLIENTS, SIZE = 4, 9, 6
UPDATES = np.random.default_rng(1).normal(size=(ROUNDS, CLIENTS, SIZE))
COUNTS = np.arange(1, 1 + CLIENTS)
SETTINGS = {
    "FedAvg": "",
    "FedAvgM": "server_learning_rate = 0.3, server_momentum = 0.7",
    "FedAdagrad": "eta = 0.3, tau = 1e-6",
    "FedAdam": "eta = 0.3, beta_1 = 0.7, beta_2 = 0.9, tau = 1e-6",
    "FedYogi": "eta = 0.3, beta_1 = 0.7, beta_2 = 0.9, tau = 1e-6",
    "FedMedian": "",
    "FedTrimmedAvg": "beta = 0.25",
    "Krum": "num_malicious_nodes = 2",
    "MultiKrum": "num_malicious_nodes = 2, num_nodes_to_select = 3",
    "Bulyan": "num_malicious_nodes = 1",
}
SINGLE = ("FedMedian", "FedTrimmedAvg", "Krum", "MultiKrum", "Bulyan")
SMALL = "--clients 6 --rounds 3 --steps 2 --sample-rate 0.5 --engine inline --quiet"
MODULE = """
import random
from subprocess import run

import numpy as np
from flwr.app import ArrayRecord
from flwr.serverapp import strategy as flower

INSTANCE = flower.FedAvgM(server_learning_rate=0.5)
PRIVATE = flower.DifferentialPrivacyServerSideFixedClipping(flower.FedAvg(), 1.0, 1.0, 5)


def factory(eta=0.2):
    return flower.FedAdagrad(eta=eta)


class Derived(flower.DifferentialPrivacyServerSideFixedClipping):
    def __init__(self):
        super().__init__(flower.FedAvg(), 1.0, 1.0, 5)


class Counting(flower.FedAvg):
    def __init__(self):
        super().__init__()
        self.seen, self.rounds, self.last = {1: (True, None)}, [], None

    def aggregate_train(self, server_round, replies):
        self.rounds.append(np.float32(server_round))
        self.seen[len(replies)] = ("met", 0.5)
        arrays, metrics = super().aggregate_train(server_round, replies)
        self.last = ArrayRecord(dict(arrays))
        return arrays, metrics


class Adding(flower.FedAvg):
    def __init__(self):
        super().__init__()
        self.total = np.zeros(2)

    def aggregate_train(self, server_round, replies):
        self.total += server_round
        return super().aggregate_train(server_round, replies)


class Renamed(flower.FedAdam):
    def __init__(self):
        super().__init__(eta=0.4)

    def configure_train(self, *given):
        return super().configure_train(*given)


class Telling(flower.FedAvg):
    def configure_train(self, server_round, arrays, config, grid):
        config["lr"] = 0.1
        return super().configure_train(server_round, arrays, config, grid)


class Drawing(flower.FedAvg):
    draws = random.Random(0)

    def aggregate_train(self, server_round, replies):
        return super().aggregate_train(server_round, self.draws.sample(list(replies), 2))


class Keeping(flower.FedAvg):
    def __init__(self):
        super().__init__()
        self.rng = np.random.default_rng(0)


class Asking(flower.FedAvg):
    def configure_train(self, server_round, arrays, config, grid):
        grid.push_messages([])
        return super().configure_train(server_round, arrays, config, grid)


class Changing(flower.FedAvg):
    def configure_train(self, server_round, arrays, config, grid):
        arrays["params"] = ArrayRecord([np.ones(7, np.float32)])["0"]
        return super().configure_train(server_round, arrays, config, grid)


class Layered(flower.FedAvg):
    def aggregate_train(self, server_round, replies):
        arrays, metrics = super().aggregate_train(server_round, replies)
        return ArrayRecord({"a": arrays["params"]}), metrics
"""


@pytest.fixture(autouse=True)
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    sys.modules.pop("lab", None)
    (tmp_path / "lab.py").write_text(MODULE)


def named(name: str, settings: str = "") -> Strategy:
    full = name if ":" in name else f"{HERE}:{name}"
    return strategy_of(Aggregation(strategy=full, strategy_settings=settings), FedFed())


def ours(name: str, **settings: object) -> Strategy:
    return strategy_of(Aggregation(strategy=name, **settings), FedFed())


def path(strategy: Strategy) -> np.ndarray:
    """The models after each round, from zero; each round begins with what a file gives back."""
    params, models = np.zeros(SIZE, np.float32), []
    state = strategy.init(params)
    for updates in UPDATES:
        state = load(save(state))
        if strategy.each is None:
            state, params = strategy.aggregate(state, params, COUNTS @ updates / COUNTS.sum())
        else:
            state, params = strategy.each(state, params, updates, COUNTS)
        models.append(params)
    return np.array(models)


def by_flower(strategy: flower.Strategy, single: bool) -> np.ndarray:
    """The same, as Flower's own loop has it: one object, asked round by round."""
    params, models = np.zeros(SIZE, np.float32), []
    mean = (COUNTS[:, None] * UPDATES).sum(axis=1, keepdims=True) / COUNTS.sum()
    for number, updates in enumerate(UPDATES if single else mean, 1):
        list(
            strategy.configure_train(
                number, ArrayRecord({"params": Array(params)}), ConfigRecord(), app._Nodes(12)
            )
        )
        replies = []
        for node, (update, count) in enumerate(zip(updates, COUNTS, strict=False)):
            content = RecordDict(
                {
                    "a": ArrayRecord({"params": Array((params + update).astype(np.float32))}),
                    "m": MetricRecord({"num-examples": int(count)}),
                }
            )
            replies.append(Message(content, reply_to=Message(RecordDict(), node + 1, "train")))
        with app._apart():
            arrays, _ = strategy.aggregate_train(number, replies)
        params = arrays["params"].numpy().astype(np.float32)
        models.append(params)
    return np.array(models)


# Every one


def test_each_strategy_of_flower_s_is_run_or_refused_and_the_guide_says_which():
    """Kills a strategy of a newer Flower that nobody has looked at."""
    all_ = set(flower.__all__) - {"Strategy", "Result"}
    refused = {kind.__name__ for kind in app.REFUSED}
    assert set(SETTINGS) | refused == all_ and not set(SETTINGS) & refused
    text = GUIDE.read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`.*`) \| (runs|refused)[^|]*\| ([^|]*) \|$", text, re.MULTILINE)
    found = {
        name: (state, why) for names, state, why in rows for name in re.findall(r"`(\w+)`", names)
    }
    assert set(found) == all_ and {n for n, (state, _) in found.items() if state == "refused"} == (
        refused
    )
    assert {n for n, (_, why) in found.items() if why.startswith("each client's")} == set(SINGLE)


@pytest.mark.parametrize("name", SETTINGS)
def test_it_gives_what_flower_s_own_loop_gives_after_any_crash(name):
    """Bit for bit, the state through a file in each round. Kills momentum that a resumed run loses,
    and a round that is counted anew."""
    strategy = named(name, SETTINGS[name])
    trial.check(name, strategy, CLIENTS)
    assert (strategy.each is not None) is (name in SINGLE)
    arguments = eval(f"dict({SETTINGS[name]})")
    assert np.array_equal(
        path(strategy), by_flower(getattr(flower, name)(**arguments), name in SINGLE)
    )


def test_a_reply_says_how_much_it_counts_by_the_name_that_the_strategy_reads():
    for name in ("FedAvg", "MultiKrum"):
        renamed = f"{SETTINGS[name]}, weighted_by_key = 'mass'".removeprefix(", ")
        assert np.array_equal(path(named(name, renamed)), path(named(name, SETTINGS[name])))


def test_where_we_have_an_equal_it_is_equal():
    """FedAvg bit for bit. Ours starts at v = tau^2 and Flower's at 0, and Flower's FedAdam corrects
    the bias of a step too late, which scales each step."""
    assert np.array_equal(path(named("FedAvg")), path(ours("fedavg", server_momentum=0.0)))
    shaped = {"server_lr": 0.3, "server_beta2": 0.9, "server_tau": 1e-6}
    pairs = {
        "FedAvgM": ours("fedavg", server_lr=0.3, server_momentum=0.7),
        "FedAdagrad": ours("fedadagrad", server_momentum=0.0, **shaped),
        "FedYogi": ours("fedyogi", server_momentum=0.7, **shaped),
    }
    for name, equal in pairs.items():
        np.testing.assert_allclose(path(named(name, SETTINGS[name])), path(equal), rtol=2e-5)
    adam = np.diff(path(ours("fedadam", server_momentum=0.7, **shaped)), axis=0, prepend=0)
    late = np.arange(2, 2 + ROUNDS)[:, None]
    scaled = np.cumsum(adam * np.sqrt(1 - 0.9**late) / (1 - 0.7**late), axis=0)
    np.testing.assert_allclose(path(named("FedAdam", SETTINGS["FedAdam"])), scaled, rtol=2e-5)


def test_what_looks_at_single_clients_sees_each_of_them():
    """From the papers, over all ways to choose. Kills replies that are the mean."""

    def scores(rows: np.ndarray, faulty: int) -> np.ndarray:
        """Krum's: squared distances to the n - f - 2 nearest others."""
        apart = ((rows[:, None] - rows) ** 2).sum(axis=2)
        return np.sort(apart, axis=1)[:, 1 : len(rows) - faulty - 1].sum(axis=1)

    def bulyan(rows: np.ndarray) -> np.ndarray:
        chosen = rows[np.argsort(scores(rows, 1))[: len(rows) - 2]]
        near = len(chosen) - 2
        middle = np.median(chosen, axis=0)
        sets = [chosen[list(s)] for s in itertools.combinations(range(len(chosen)), near)]
        far = [np.abs(one - middle).sum(axis=0) for one in sets]
        means = np.array([one.mean(axis=0) for one in sets])
        return means[np.argmin(far, axis=0), np.arange(rows.shape[1])]

    def multikrum(rows: np.ndarray) -> np.ndarray:
        best = np.argsort(scores(rows, 2))[:3]
        return COUNTS[best] @ rows[best] / COUNTS[best].sum()

    steps = {
        "FedMedian": lambda rows: np.median(rows, axis=0),
        "FedTrimmedAvg": lambda rows: trim_mean(rows, 0.25),
        "Krum": lambda rows: rows[np.argmin(scores(rows, 2))],
        "MultiKrum": multikrum,
        "Bulyan": bulyan,
    }
    for name, step in steps.items():
        expected = np.cumsum([step(rows) for rows in UPDATES], axis=0)
        found = path(named(name, SETTINGS[name]))
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5, err_msg=name)


# The user's own


def test_classes_instances_and_factories_are_taken():
    assert np.array_equal(
        path(named("lab:factory", "eta = 0.3")), path(named("FedAdagrad", "eta = 0.3"))
    )
    assert np.array_equal(path(named("lab:factory")), path(named("FedAdagrad", "eta = 0.2")))
    again = [path(named("lab:INSTANCE")) for _ in range(2)]
    assert np.array_equal(*again)
    assert np.array_equal(again[0], path(named("FedAvgM", "server_learning_rate = 0.5")))


def test_one_that_may_look_at_replies_gets_all_of_them():
    """Kills a subclass that filters replies and is shown their mean."""
    assert named("lab:Renamed").each is None
    assert np.array_equal(path(named("lab:Renamed")), path(named("FedAdam", "eta = 0.4")))
    counting = named("lab:Counting")
    assert counting.each is not None
    np.testing.assert_allclose(path(counting), path(named("FedAvg")), rtol=1e-5, atol=1e-6)
    state = counting.init(np.zeros(3, np.float32))
    for _ in range(2):
        state, after = counting.each(
            load(save(state)), np.zeros(3, np.float32), np.eye(3), COUNTS[:3]
        )
    kept = app.flower.FedAvg()
    assert app._recall(kept, state) == 2
    assert kept.seen == {1: (True, None), 3: ("met", 0.5)} and kept.rounds == [1.0, 2.0]
    assert np.array_equal(kept.last["params"].numpy(), after)


def test_a_round_that_is_repeated_has_the_state_that_it_had():
    """Kills arrays of a state that a strategy changes in place."""
    strategy, model = named("lab:Adding"), np.zeros(3, np.float32)
    before = strategy.init(model)
    found = [strategy.each(before, model, np.eye(3), COUNTS[:3])[0] for _ in range(2)]
    kept = app.flower.FedAvg()
    for state in found:
        app._recall(kept, state)
        assert kept.total.tolist() == [1.0, 1.0]


def test_flower_s_generator_and_logs_are_left_alone(caplog):
    random.seed(3)
    before, level = random.getstate(), logging.getLogger("flwr").level
    path(named("FedAdam"))
    assert (
        random.getstate() == before
        and not caplog.records
        and logging.getLogger("flwr").level == level
    )


def test_what_a_program_has_frozen_stays_so(monkeypatch):
    """Kills a process of Ray's, say, whose collections take long from then on."""
    monkeypatch.setattr(app, "_frozen_before", lambda: True)
    gc.freeze()
    try:
        path(named("FedAdam"))
        assert gc.get_freeze_count() > 0
    finally:
        gc.unfreeze()


def test_a_strategy_sees_as_many_nodes_as_it_waits_for():
    """More than those that answer, and than it is shown at least."""
    assert np.array_equal(path(named("FedAvg", "min_available_nodes = 30")), path(named("FedAvg")))
    few = named("FedAvg", "min_train_nodes = 12, min_available_nodes = 12")
    assert np.array_equal(path(few), path(named("FedAvg")))


REFUSED = [
    *[(f"{HERE}:{kind.__name__}", "", f"is Flower's {kind.__name__}: {why}")
      for kind, why in app.REFUSED.items()],
    ("lab:PRIVATE", "", "is Flower's DifferentialPrivacyServerSideFixedClipping: its clipping and"),
    ("lab:Derived", "", "is Flower's DifferentialPrivacyServerSideFixedClipping: its clipping and"),
    ("lab:INSTANCE", "server_momentum = 1", "lab:INSTANCE is an instance, which has its own"),
    ("lab:Telling", "", "it tells clients {'lr': 0.1}, which train by --steps, --lr"),
    ("lab:Drawing", "", "gives another model when it is called again"),
    ("lab:Keeping", "", "it keeps rng, a Generator, which a checkpoint cannot hold"),
    ("lab:Asking", "", "it sends messages of its own, which nobody would answer"),
    ("lab:Changing", "", "it sends clients another model than the round's"),
    ("lab:Layered", "", "it gives {'a': (7,)}, not one array 'params' of shape (7,)"),
    (f"{HERE}:FedAvg", "fraction_train = 0.5", "it asks 5 of 10 nodes, but --fraction decides"),
    (f"{HERE}:FedAdam", "fraction_train = 0.0", "it asks 0 of 10 nodes"),
    (f"{HERE}:FedAvg", "bogus = 1", "with strategy_settings = {'bogus': 1} fails (TypeError"),
    (f"{HERE}:Bulyan", "num_malicious_nodes = 1", "leaves the model as it is when 6 clients"),
    (f"{HERE}:FedTrimmedAvg", "beta = 0.5", "must be in the range [0, 0.5)"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "settings", "said"), REFUSED, ids=lambda part: str(part)[-40:])
def test_what_cannot_be_run_is_refused_in_one_line_before_a_run(capsys, name, settings, said):
    words = [*SMALL.split(), "--strategy", name, "--strategy-settings", settings]
    assert main_guard(command, words) == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1 and error.startswith("error: strategy")
    assert not list(Path().glob("runs/*"))


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (
            "--groups 2",
            "groups is 2, but strategy = flwr.serverapp.strategy:FedMedian looks at every",
        ),
        (
            "--trust server --steps 1",
            "FedMedian, which needs more of the clients than a bounded sum",
        ),
        (
            "--trust aggregate --steps 1",
            "FedMedian, which needs more of the clients than a bounded",
        ),
        (
            "--clients 2001 --min-records 1 --dataset many.npz",
            "at most 2000 --clients, or a strategy",
        ),
    ],
)
def test_sums_of_clients_are_not_shown_as_one_client(capsys, flags, said):
    """A median of sums is nobody's, and single clients' updates are not there where sums are
    trusted."""
    rng = np.random.default_rng(0)
    np.savez("many.npz", x=rng.normal(size=(3000, 2)).astype(np.float32), y=np.arange(3000) % 2)
    words = [*SMALL.replace("--steps 2", "").split(), *flags.split()]
    assert main_guard(command, [*words, "--strategy", f"{HERE}:FedMedian"]) == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1
    assert not list(Path().glob("runs/*"))


# Whole runs


def run(name: str, *flags: str) -> Path:
    return train(parse([*SMALL.split(), "--name", name, *flags], "run", ""))


@pytest.mark.usefixtures("no_report")
@pytest.mark.parametrize("name", ["FedAvg", "FedAdam", "FedMedian"])
def test_a_run_costs_what_ours_costs_and_is_resumed_where_it_was(name):
    flags = ("--strategy", f"{HERE}:{name}")
    folder, plain = run("one", *flags), run("plain", "--server-momentum", "0")
    assert ledger.read(folder / "ledger") == ledger.read(plain / "ledger")
    assert (model(folder) == model(plain)) is (name == "FedAvg")
    files = len(list((folder / "ledger").iterdir()))
    assert files == configured(folder / "config.toml", {}).run.groups
    assert (files == 6) is (name == "FedMedian")
    before, whole = model(folder), (folder / "rounds.jsonl").read_text()
    for part in folder.glob("checkpoints/*3.*"):
        part.unlink()
    for part in ("model.safetensors", "summary.json"):
        (folder / part).unlink()
    train(parse(["--resume", str(folder), "--quiet"], "run", ""))
    assert model(folder) == before
    rows = [[json.loads(line) for line in text.splitlines()] for text in (
        whole, (folder / "rounds.jsonl").read_text())]  # fmt: skip
    assert [r["accuracy"] for r in rows[0]] == [r["accuracy"] for r in rows[1]]


@pytest.mark.usefixtures("no_report")
def test_each_client_s_own_update_is_shown():
    """Their mean by Flower's own FedAvg, from clients of different sizes, is ours but for rounding.
    Kills updates that are shown times their weight, and another client's weight."""
    flags = ("--dirichlet", "0.2", "--chunk-clients", "1")
    single, plain = (
        run("single", *flags, "--strategy", "lab:Counting"),
        run("plain", *flags, "--server-momentum", "0"),
    )
    for name, tensor in load(model(single)).items():
        np.testing.assert_allclose(tensor, load(model(plain))[name], rtol=1e-4, atol=1e-5)


@pytest.mark.usefixtures("no_report")
def test_flower_s_nodes_are_enough_for_it_or_too_few(tmp_path):
    """On Flower's own engines the number of nodes is that of the groups."""
    flags = {"rounds": 1, "out": str(tmp_path / "runs"), "strategy": f"{HERE}:FedMedian"}
    two = LocalGrid({7: place(0), 8: place(1)})
    with pytest.raises(ValueError, match=r"^groups is 2, but strategy = .*FedMedian looks at"):
        serve(two, clients=3, name="few", **flags)
    serve(two, clients=2, name="enough", **flags)
    assert (tmp_path / "runs" / "enough" / "model.safetensors").is_file()


def test_a_node_calls_flower_s_strategies_and_its_own_modules_alone(tmp_path, monkeypatch):
    """The server chooses the arguments: what a module has imported is not called, nor anything of
    the project's. Kills a node that runs any program for a server."""
    monkeypatch.setenv(policy.FOLDER, str(tmp_path))
    monkeypatch.setenv(policy.MODULES, "lab")
    for strategy in (f"{HERE}:FedAdam", "lab:factory", "lab:Counting", "lab:INSTANCE"):
        policy.check(configured(None, {"strategy": strategy}), tmp_path / "a")
    refused = {
        "lab:run": "strategy = 'lab:run' is of subprocess, from which this Flower node calls",
        "mechanisms.plugins:plugin": "needs mechanisms.plugins, which this Flower node does not im",
        "flwr.serverapp.exception:AppExitException": "needs flwr.serverapp.exception, which this F",
    }
    for name, said in refused.items():
        with pytest.raises(ValueError, match=re.escape(said)):
            policy.check(configured(None, {"strategy": name}), tmp_path / "a")
        with pytest.raises(
            ValueError,
            match=re.escape(
                said.replace("strategy", "partition", 1) if said.startswith("s") else said
            ),
        ):
            policy.check(configured(None, {"partition": name}), tmp_path / "a")
    policy.check(configured(None, {"dataset": "lab:factory"}), tmp_path / "a")
    for name in ("sim.job.rundir:os.abort", "lab:run"):
        with pytest.raises(ValueError, match=r"^dataset = .*, from which this Flower node calls n"):
            policy.check(configured(None, {"dataset": name}), tmp_path / "a")
