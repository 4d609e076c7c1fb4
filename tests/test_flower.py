"""``flwr run``: Flower's own engines compute the same bits and charge the same privacy as the
inline engine.

Every process that Flower starts inherits a FLWR_HOME of this file, by which it is found again and
ended.
"""

import contextlib
import importlib.util
import itertools
import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Array, Context, Error, Message, MessageType, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.config import parse_config_args
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

from client.app import client_app, decode_request, decode_upload, encode_request, encode_upload
from client.messages import TrainRequest, Upload
from mechanisms.accounting.events import Gaussian, PaperClaim
from mechanisms.plan import merge
from server import sealed_json
from server.app import exchange_over, find_groups
from sim import account
from sim.commands.flags import parse
from sim.commands.guard import main_guard
from sim.config import configuration
from sim.engines import app, policy, session, start
from tests.folders import contents
from tests.processes import wait_for

pytestmark = pytest.mark.usefixtures("no_report")
ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
CONFIG = PROJECT["tool"]["flwr"]["app"]["config"]
PATH = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
COMMANDS = (
    "flwr",
    "flower-superlink",
    "flower-supernode",
    "flower-superexec",
    "flwr-simulation",
    "flwr-serverapp",
)

OWN = """
from dataclasses import replace

from flwr.serverapp.strategy import FedAdam
from mechanisms import dpsgd

MECHANISM = replace(dpsgd.MECHANISM, start=dpsgd.start)


def adam(eta=0.1):
    return FedAdam(eta=eta)


def by_class(y, clients, rng):
    order = rng.permutation(len(y))
    owner = y.copy()
    owner[order[y[order].argsort(kind="stable")]] = [i * clients // len(y) for i in range(len(y))]
    return owner
"""
"""A module of the user's own, which the nodes import."""
BY_OWN = {
    "mechanism": "lab:MECHANISM",
    "strategy": "lab:adam",
    "strategy_settings": "eta = 0.05",
    "partition": "lab:by_class",
}
ROUNDS = 2
SIMULATED = ("--federation-config", "num-supernodes=2 client-resources-num-cpus=1")

MISSING = [command for command in COMMANDS if shutil.which(command, path=PATH) is None]


def words(given: Mapping[str, object]) -> list[str]:
    """The command line that gives these flags."""
    switches = {True: "--{}", False: "--no-{}"}
    form = {
        name: switches[v] if isinstance(v, bool) else f"--{{}}={v}" for name, v in given.items()
    }
    return [form[name].format(name.replace("_", "-")) for name in given]


class Flower:
    """A FLWR_HOME and everything that runs in it."""

    def __init__(self, home: Path, **environment: str):
        self.home = home
        off = ("FLWR_DISABLE_UPDATE_CHECK", "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION")
        self._environment = (
            os.environ
            | environment
            | dict.fromkeys(off, "1")
            | {
                "PATH": PATH,
                "FLWR_HOME": str(home),
                "FLWR_TELEMETRY_ENABLED": "0",
                "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1",
                "RAY_USAGE_STATS_ENABLED": "0",
            }
        )
        self.started: list[subprocess.Popen] = []

    def start(self, *command: str, **environment: str) -> None:
        with (self.home / f"{command[0]}-{len(self.started)}.log").open("wb") as log:
            started = subprocess.Popen(
                command,
                cwd=self.home,
                env=self._environment | environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.started.append(started)

    def run(self, connection: str, *flags: str, **given: object) -> str:
        """What ``flwr run`` printed, the run's log included."""
        line = f"{app.FLAGS}={json.dumps(shlex.join(words(given)))}"
        return self.call(
            "flwr", "run", str(ROOT), connection, "--stream", *flags, "--run-config", line
        )

    def call(self, *command: str) -> str:
        """What a command printed."""
        done = subprocess.run(
            command,
            cwd=self.home,
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        return done.stdout.decode()

    def alive(self) -> list[int]:
        """The processes whose environment has this home."""
        mark, found = f"FLWR_HOME={self.home}".encode(), []
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if mark in (process / "environ").read_bytes().split(b"\0"):
                    found.append(int(process.name))
        return found

    def end(self) -> None:
        """Until none is left: one that was just being started is found the next time."""
        while alive := self.alive():
            for process in alive:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
            for process in self.started:
                process.wait()
            time.sleep(0.1)


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def listens(port: int) -> bool:
    with socket.socket() as client:
        return not client.connect_ex(("127.0.0.1", port))


@pytest.fixture(scope="module")
def simulation(tmp_path_factory) -> Iterator[Flower]:
    """The simulation engine: ``flwr run`` starts a SuperLink of its own, on ports that nobody else
    uses."""
    http, control = map(str, free_ports(2))
    ports = {"FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": http, "FLWR_LOCAL_CONTROL_API_PORT": control}
    home = tmp_path_factory.mktemp("simulation")
    flower = Flower(home, **ports, **{policy.FOLDER: str(home)})
    try:
        yield flower
    finally:
        flower.end()


@pytest.fixture(scope="module")
def deployment(tmp_path_factory) -> Iterator[Flower]:
    """The deployment engine: a SuperLink, a SuperNode, and a connection by the name of lab."""
    home = tmp_path_factory.mktemp("deployment")
    (home / "lab.py").write_text(OWN)
    allows = {policy.FOLDER: str(home / "results"), policy.MODULES: "lab"}
    flower = Flower(home, **allows, PYTHONPATH=f"{home}{os.pathsep}{ROOT}")
    superlink, node = free_ports(2)
    address = f"127.0.0.1:{superlink}"
    (flower.home / "config.toml").write_text(
        f'[superlink.lab]\naddress = "{address}"\ninsecure = true\n'
    )
    try:
        flower.start(
            "flower-superlink", "--insecure", "--host", "127.0.0.1", "--port", str(superlink)
        )
        place = ("--node-config", "partition-id=0 num-partitions=1")
        listen = ("--host", "127.0.0.1", "--port", str(node))
        flower.start("flower-supernode", "--insecure", "--superlink", address, *listen, *place)
        wait_for(lambda: listens(superlink), flower.started[0])
        yield flower
    finally:
        flower.end()


@pytest.fixture(scope="module")
def settings(tmp_path_factory) -> dict:
    """What is run; its data set loads faster than scikit-learn."""
    rng = np.random.default_rng(0)
    path = tmp_path_factory.mktemp("data") / "blobs.npz"
    y = rng.integers(0, 3, 300)
    np.savez(path, x=(rng.normal(size=(300, 8)) + y[:, None]).astype(np.float32), y=y)
    return {"dataset": str(path), "clients": 20, "rounds": ROUNDS, "epsilon": 4.0}


@pytest.fixture(scope="module")
def reference(tmp_path_factory, settings) -> Path:
    """The same run by ``python -m sim.run --engine inline``."""
    out = tmp_path_factory.mktemp("reference")
    line = words(
        settings
        | {"engine": "inline", "groups": 2, "out": str(out), "name": "inline", "quiet": True}
    )
    return start.train(parse(line, "", ""))


def epsilons(folder: Path, capsys) -> dict:
    """What ``python -m sim.account --ledger`` recomputes."""
    capsys.readouterr()
    assert main_guard(account.command, ["--ledger", str(folder), "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    return {name: value for name, value in figures.items() if value != str(folder)}


def rounds(folder: Path) -> list[dict]:
    """The rounds' records without their durations."""
    records = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    return [
        {name: value for name, value in r.items() if not name.startswith("seconds")}
        for r in records
    ]


def assert_same_run(folder: Path, reference: Path, capsys, log: str = "") -> None:
    assert (folder / "summary.json").is_file(), log
    assert (folder / "model.safetensors").read_bytes() == (
        reference / "model.safetensors"
    ).read_bytes()
    assert rounds(folder) == rounds(reference) != []
    assert epsilons(folder, capsys) == epsilons(reference, capsys)


def interrupted(run: Path, folder: Path) -> Path:
    """A copy of a finished run as a crash before the last checkpoint would have left it."""
    shutil.copytree(run, folder)
    for name in ("model.safetensors", "summary.json", "report.html"):
        (folder / name).unlink(missing_ok=True)
    for part in (folder / "checkpoints").glob(f"*{ROUNDS}.*"):
        part.unlink()
    return folder


def bundled(home: Path) -> set[str]:
    """The files that ``flwr run`` sent to its engine, the project's own description aside."""
    (bundle,) = (home / "apps").iterdir()
    files = (path.relative_to(bundle) for path in bundle.rglob("*") if path.is_file())
    return {str(file) for file in files if not {"__pycache__", ".info"} & set(file.parts)} - {
        "pyproject.toml"
    }


def modules() -> set[str]:
    """The modules of the project's packages."""
    packages = {name.partition(".")[0] for name in PROJECT["tool"]["setuptools"]["packages"]}
    return {
        str(path.relative_to(ROOT))
        for package in packages
        for path in (ROOT / package).rglob("*.py")
    }


@pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)}")
class TestEngines:
    """Whole runs, by the commands of docs/flower.md."""

    def test_simulation(self, simulation, settings, reference, capsys):
        log = simulation.run("local", *SIMULATED, **settings, out="results", name="simulated")
        assert_same_run(simulation.home / "results" / "simulated", reference, capsys, log)
        assert (simulation.home / "results" / "simulated" / "report.html").is_file()
        assert bundled(simulation.home) == modules(), (
            "not what fab-include in pyproject.toml is meant to pick"
        )

    @pytest.mark.slow  # `test_a_resumed_run_is_the_same_run` resumes in this process
    def test_resume_in_simulation(self, simulation, reference, capsys):
        folder = interrupted(reference, simulation.home / "interrupted")
        log = simulation.run("local", *SIMULATED, resume=str(folder))
        assert_same_run(folder, reference, capsys, log)

    def test_deployment(self, deployment, settings, tmp_path, capsys, monkeypatch):
        """By a mechanism, a strategy and a partition of the user's own, and Flower's nodes allow
        their module. One node and one round, as nodes start a process for each message; the slow
        `tests/test_deployment.py` has several."""
        monkeypatch.syspath_prepend(str(deployment.home))
        monkeypatch.delitem(sys.modules, "lab", raising=False)
        given = settings | BY_OWN | {"rounds": 1}
        inline = words(given | {"engine": "inline", "groups": 1, "out": str(tmp_path), "name": "a"})
        reference = start.train(parse([*inline, "--quiet"], "", ""))
        log = deployment.run("lab", **given, out=str(deployment.home / "results"), name="deployed")
        assert_same_run(deployment.home / "results" / "deployed", reference, capsys, log)

    @pytest.mark.slow
    def test_a_fault_is_named_in_the_log_and_leaves_nothing(self, deployment):
        """Slow, as `test_a_fault_in_the_run_configuration_leaves_nothing` asks the ServerApp."""
        log = deployment.run("lab", clients=0, out=str(deployment.home / "faulty"))
        assert "ValueError: clients is 0; it must be an integer of at least 1 and at most" in log
        assert not (deployment.home / "faulty").exists()


class LocalGrid(Grid):
    """Flower nodes in this process, by id: a node configuration, or None for a node that is
    registered but gone.

    The client apps take turns, as Flower's simulation hands a node's messages to any of its
    workers.
    """

    def __init__(self, nodes: Mapping[int, dict | None], *clients: ClientApp):
        self.nodes = dict(nodes)
        self._clients = itertools.cycle(clients or [app.client])
        self._replies: dict[str, Message] = {}
        self._names = map(str, itertools.count())
        self._run = Run.create_empty(1)

    def set_run(self, run: Run) -> None:
        self._run = run

    @property
    def run(self) -> Run:
        return self._run

    def create_message(self, content, message_type, dst_node_id, group_id, ttl=None) -> Message:
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> Iterable[int]:
        return list(self.nodes)

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        return [self._push(message) for message in messages]

    def _push(self, message: Message) -> str:
        name, node = next(self._names), message.metadata.dst_node_id
        message.metadata.__dict__["_message_id"] = name  # as Flower's grids do
        if (config := self.nodes[node]) is not None:
            try:
                self._replies[name] = next(self._clients)(
                    message, Context(1, node, config, RecordDict(), {})
                )
            except Exception as fault:
                self._replies[name] = Message(
                    Error(2, f"{type(fault)}:<'{fault}'>"), reply_to=message
                )
        return name

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        return [self._replies.pop(name) for name in set(message_ids) & self._replies.keys()]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Message]:
        return self.pull_messages(self.push_messages(messages))


@pytest.fixture(autouse=True)
def allowed(tmp_path_factory, monkeypatch):
    """The nodes in this process write below the tests' folders."""
    monkeypatch.setenv(policy.FOLDER, str(tmp_path_factory.getbasetemp()))


@pytest.fixture(autouse=True)
def identity():
    """What Flower tells each of its processes, and messages are made of."""
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1


def place(group: int, groups: int = 2) -> dict:
    return {"partition-id": group, "num-partitions": groups}


def serve(grid: Grid, **config: object) -> None:
    context = Context(1, 0, {}, RecordDict(), CONFIG | {app.FLAGS: shlex.join(words(config))})
    app.server(grid=grid, context=context)


def found(grid: Grid) -> list[int]:
    """The nodes' ids by group; none keeps its ledger to itself."""
    hosts = find_groups(grid)
    assert not any(host.keeps for host in hosts)
    return [host.node for host in hosts]


def test_nodes_are_known_by_their_group():
    assert found(LocalGrid({7: place(2, 3), 3: place(0, 3), 5: place(1, 3)})) == [3, 5, 7]


def test_a_second_node_and_a_gone_one_do_no_harm():
    assert found(LocalGrid({9: None, 5: place(0), 6: place(0), 7: place(1)})) == [5, 7]


def test_the_superlinks_word_that_a_node_is_gone_is_no_fault_of_a_node():
    class Telling(LocalGrid):
        def _push(self, message: Message) -> str:
            name = super()._push(message)
            if self.nodes[message.metadata.dst_node_id] is None:
                self._replies[name] = Message(Error(3, "the node is gone"), reply_to=message)
                self._replies[name].metadata.__dict__["_src_node_id"] = 1  # the SuperLink's own
            return name

    assert found(Telling({9: None, 5: place(0), 7: place(1)})) == [5, 7]


def test_nodes_that_come_late_are_waited_for():
    class LateGrid(LocalGrid):
        def get_node_ids(self) -> Iterable[int]:
            self.looks = getattr(self, "looks", 0) + 1
            return list(self.nodes)[: self.looks - 1]

    assert found(LateGrid({5: place(1), 6: place(0)})) == [6, 5]


def test_a_node_is_asked_once_and_its_answer_taken_once():
    """Flower has no message any more that was pulled before."""
    pushed, pulled = [], []

    class Counting(LocalGrid):
        def get_node_ids(self) -> Iterable[int]:
            self.looks = getattr(self, "looks", 0) + 1
            return list(self.nodes)[: self.looks]

        def _push(self, message: Message) -> str:
            pushed.append(message.metadata.dst_node_id)
            return super()._push(message)

        def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
            assert not set(message_ids) & set(pulled)
            replies = super().pull_messages(message_ids)
            pulled.extend(reply.metadata.reply_to_message_id for reply in replies)
            return replies

    assert found(Counting({5: place(1, 3), 6: place(0, 3), 7: place(2, 3)})) == [6, 5, 7]
    assert pushed == [5, 6, 7] and len(pulled) == 3


START_EACH = (
    "start a SuperNode for each group, with --node-config "
    '"partition-id=0 num-partitions=2" and so on$'
)
START_ALL = (
    "partitions: start all SuperNodes with the same num-partitions, and each with a partition-id "
    "from 0 to below it$"
)
START_ONE = (
    "in the node's configuration; it must be an integer: start the SuperNode with, for instance, "
    '--node-config "partition-id=0 num-partitions=2"'
)


@pytest.mark.parametrize(
    ("nodes", "fault", "message"),
    [
        ({}, RuntimeError, f"no Flower node answered within 0 s for any group: {START_EACH}"),
        ({5: place(1), 6: place(1)}, RuntimeError, f"within 0 s for group 0 of 2: {START_EACH}"),
        ({5: place(2, 4)}, RuntimeError, f"within 0 s for group 0, 1, 3 of 4: {START_EACH}"),
        (
            {5: place(2)},
            ValueError,
            f"^a Flower node says partition-id=2 num-partitions=2, but there are 2 {START_ALL}",
        ),
        (
            {5: place(0), 6: place(1, 3)},
            ValueError,
            f"^a Flower node says partition-id=0 num-partitions=2, but there are 3 {START_ALL}",
        ),
        ({5: {}}, RuntimeError, f"^Flower node 5 failed:.*partition-id is None {START_ONE}"),
        (
            {5: {"partition-id": 0, "num-partitions": "2"}},
            RuntimeError,
            f"^Flower node 5 failed:.*num-partitions is '2' {START_ONE}",
        ),
    ],
)
def test_nodes_that_are_amiss_are_named(nodes, fault, message):
    with pytest.raises(fault, match=message):
        find_groups(LocalGrid(nodes), patience=0.0)


def test_both_apps_compute_what_the_inline_engine_computes(tmp_path, settings, reference, capsys):
    serve(LocalGrid({8: place(1), 4: place(0)}), **settings, out=str(tmp_path), name="local")
    assert_same_run(tmp_path / "local", reference, capsys)


SHARING = {
    "strategy": "fedfed",
    "shared-source": "distilled",
    "share-budget": 0.5,
    "distill-rounds": 2,
}


@pytest.mark.parametrize(
    "given",
    [
        {"mechanism": "dpis", "momentum": 0.5, "keep-state": True},
        SHARING | {"standardize": "private"},
    ],
    ids=["kept state", "phases before training"],
)
def test_a_group_may_wander_between_processes(tmp_path, settings, given):
    """What clients keep from round to round (state, and what is left of an allotment) and what all
    of them share are on disk and nowhere else."""
    lasting = settings | {"rounds": 4, "clients": 4} | given
    lasting |= {"out": str(tmp_path), "quiet": True}
    inline = {"engine": "inline", "groups": 2, "name": "inline"}
    start.train(parse(words(lasting | inline), "", ""))
    there = importlib.util.module_from_spec(
        spec := importlib.util.spec_from_file_location("there", app.__file__)
    )
    spec.loader.exec_module(there)
    serve(
        LocalGrid({4: place(0), 8: place(1)}, app.client, app.client, there.client),
        **lasting,
        name="local",
    )
    for path in ("model.safetensors", "ledger/group-0000.jsonl", "ledger/group-0001.jsonl"):
        assert (tmp_path / "local" / path).read_bytes() == (tmp_path / "inline" / path).read_bytes()


def test_nodes_without_a_client_idle(tmp_path, settings):
    serve(
        LocalGrid({n: place(n, 3) for n in range(3)}),
        **settings | {"clients": 2, "rounds": 1},
        out=str(tmp_path),
        name="few",
    )
    assert rounds(tmp_path / "few")[0]["participants"] == 2


def test_a_resumed_run_is_the_same_run(tmp_path, settings, reference, capsys):
    folder = interrupted(reference, tmp_path / "interrupted")
    serve(LocalGrid({4: place(0), 8: place(1)}), resume=str(folder), **settings)
    assert_same_run(folder, reference, capsys)


def test_a_resumed_run_needs_a_node_for_each_group(tmp_path, reference):
    folder = interrupted(reference, tmp_path / "interrupted")
    with pytest.raises(ValueError, match=r"has 2 groups, but only 1 Flower nodes answered"):
        serve(LocalGrid({4: place(0, 1)}), resume=str(folder))


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"resume": "nowhere"}, "nowhere is no run directory"),
        ({"clients": 20.0}, "clients is '20.0'; it must be an integer"),
        ({"clients": "ten"}, "clients is 'ten'; it must be an integer"),
        ({"release": "false"}, "release"),
        ({"workers": 2}, "workers is 2, but Flower decides that: leave workers out"),
        ({"gpus_per_worker": "none"}, "gpus_per_worker is None, but Flower decides that"),
        ({"groups": 2}, "groups is 2, but Flower decides that: leave groups out"),
        ({"engine": "inline"}, "engine is inline, but Flower decides that: leave engine out"),
        ({"ray_address": "x:1"}, "ray_address is x:1, but Flower decides that"),
        ({"cpus_per_worker": 2.0}, "cpus_per_worker is 2.0, but Flower decides that"),
        ({"dpsur_beta": 3}, "dpsur_beta is 3.0, which mechanism = dpsgd does not use"),
        ({"clients": False}, "unknown flag --no-clients"),
        ({"dataset": "digit"}, "dataset = 'digit' is unknown: did you mean 'digits'?"),
        ({"model": "perceptron"}, "perceptron"),
        ({"name": "a/b"}, "name is 'a/b'"),
    ],
)
def test_a_fault_in_the_run_configuration_leaves_nothing(tmp_path, config, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        serve(LocalGrid({4: place(0), 8: place(1)}), out=str(tmp_path), **config)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("given", [{"out": "elsewhere"}, {"data_dir": "elsewhere"}])
def test_what_a_node_refuses_leaves_nothing(tmp_path, monkeypatch, given):
    """It was found out in the first round, and a run directory was left."""
    monkeypatch.setenv(policy.FOLDER, str(tmp_path / "own"))
    (tmp_path / "elsewhere").mkdir()
    paths = {"out": "own"} | given
    paths = {name: str(tmp_path / path) for name, path in paths.items()}
    with pytest.raises(RuntimeError, match=r"^group [01] failed: .* is not below .*own"):
        serve(LocalGrid({4: place(0), 8: place(1)}), **paths, clients=4, rounds=1, name="one")
    assert not [path for path in tmp_path.rglob("*") if path.name not in ("own", "elsewhere")]


def test_files_of_budgets_and_of_dropouts_are_read_by_the_server_alone(tmp_path, monkeypatch):
    """Nodes are sent what is in them: they may have no such file, or not read it."""
    monkeypatch.setenv(policy.FOLDER, str(tmp_path / "own"))
    files = {"budgets": "client,epsilon\n0,2\n1,4\n2,4\n3,4\n"}
    files["dropout_trace"] = "client,first_round,last_round\n1,1,1\n"
    for name, text in files.items():
        (tmp_path / f"{name}.csv").write_text(text)
    given = {name: str(tmp_path / f"{name}.csv") for name in files}
    out = {"out": str(tmp_path / "own"), "name": "one"}
    serve(LocalGrid({4: place(0), 8: place(1)}), **out, **given, clients=4, rounds=1)
    (record,) = map(json.loads, (tmp_path / "own/one/rounds.jsonl").open())
    assert record["metrics"]["answered"] == 0.75


def test_nodes_are_waited_for_as_long_as_their_grid_says(tmp_path, monkeypatch):
    """Ray tells of workers that fail; other grids are given up after a while."""
    monkeypatch.setattr(app, "PATIENCE", 0.125)
    for given in ({}, {"patience": 0.0}):
        grid = LocalGrid({})
        vars(grid).update(given)
        seconds = given.get("patience", 0.125)
        with pytest.raises(RuntimeError, match=f"no Flower node answered within {seconds:g} s"):
            serve(grid, out=str(tmp_path), clients=4)


def test_an_audited_run_is_not_resumed_by_flower(tmp_path, reference):
    """Its canaries are gone: it would go on as a run that it was not."""
    folder = shutil.copytree(reference, tmp_path / "audited")
    entries = sealed_json.loads((folder / "manifest.json").read_bytes()) | {"canaries": 6}
    (folder / "manifest.json").write_bytes(sealed_json.dumps(entries))
    before = contents(folder)
    with pytest.raises(ValueError, match="is of an audit, which would go on without its canaries"):
        serve(LocalGrid({4: place(0), 8: place(1)}), resume=str(folder))
    after = contents(folder)
    assert after == before


def test_nodes_are_told_the_place_of_the_run_directory_whatever_their_own_folder(
    tmp_path, monkeypatch
):
    """They charge in it. Kills a relative path, which another process takes for another place."""
    monkeypatch.chdir(tmp_path)
    told = []

    def ran(job, folder, engine) -> None:
        told.append(folder)

    monkeypatch.setattr(session, "run", ran)
    grid = LocalGrid({4: place(0), 8: place(1)})
    serve(grid, out="runs", name="one", clients=4, rounds=1)
    serve(grid, resume=str(Path("runs") / "one"))
    assert told == [tmp_path.resolve() / "runs" / "one"] * 2


def test_a_node_that_fails_is_named(tmp_path):
    request = TrainRequest(1, 1, "round-1", *(np.zeros(1, np.int64),) * 2, np.zeros(3, np.float32))
    settings = configuration.load(None, {}).model_dump_json()
    run = {"settings": settings, "run_dir": str(tmp_path / "elsewhere")}
    exchange = exchange_over(LocalGrid({4: place(0), 8: place(1)}), [4, 8], run)
    with pytest.raises(
        RuntimeError, match=r"group 1 failed.*elsewhere does not exist for the Flower node of group"
    ):
        list(exchange([request]))


REFUSED = [
    ({"run_dir": "../other"}, "run_dir", "is not below", "DP_FED_NODE_FOLDER"),
    ({"run_dir": "link/run"}, "run_dir", "is not below", "DP_FED_NODE_FOLDER"),
    ({"data_dir": "../data"}, "data_dir", "is not below", "DP_FED_NODE_FOLDER"),
    ({"model": "os:path"}, "model = 'os:path'", "does not import", "DP_FED_NODE_MODULES=os"),
    ({"model": "simulated:Net"}, "'simulated:Net'", "does not import", "DP_FED_NODE_MODULES=sim"),
    ({"model": "lab.nets:Net"}, "'lab.nets:Net'", "does not import", "DP_FED_NODE_MODULES=lab"),
    ({"loss": "lab.nets:loss"}, "loss = 'lab", "does not import", "DP_FED_NODE_MODULES=lab"),
    ({"mechanism": "lab.dp:M"}, "mechanism = 'lab", "does not import", "DP_FED_NODE_MODULES=lab"),
    ({"strategy": "lab.s:one"}, "strategy = 'lab", "does not import", "DP_FED_NODE_MODULES=lab"),
    ({"partition": "lab.p:one"}, "partition = 'lab", "does not import", "DP_FED_NODE_MODULES=lab"),
    ({"features": "lab.f:one"}, "features = 'lab", "does not import", "DP_FED_NODE_MODULES=lab"),
    (
        {"features": "sim.sources.backbones:torchvision"},
        "features = 'sim.sources.backbones:torchvision' needs sim.sources.backbones",
        "does not import",
        "DP_FED_NODE_MODULES=sim.sources.backbones",
    ),
    ({"init_from": "/etc/passwd"}, "init_from = /etc/passwd", "is not below", "DP_FED_NODE_FOLDER"),
    (
        {"dataset": "imdb", "word_vectors": "/etc/words"},
        "word_vectors = /etc/words",
        "is not below",
        "DP_FED_NODE_FOLDER",
    ),
    ({"metric": "lab.nets:one"}, "metric = 'lab", "does not import", "DP_FED_NODE_MODULES=lab"),
    ({"dataset": "lab.sets:all"}, "dataset = 'lab", "does not import", "DP_FED_NODE_MODULES=lab"),
    ({"dataset": "hf:mnist"}, "'hf:mnist'", "does not import", "DP_FED_NODE_MODULES=datasets"),
]


@pytest.mark.parametrize(("asked", "named", "said", "remedy"), REFUSED)
def test_a_node_does_what_its_own_policy_names_and_nothing_else(
    tmp_path, monkeypatch, asked, named, said, remedy
):
    """Whatever the server asks for. It is one line there, and nothing is written or imported."""
    own, other = tmp_path / "own", tmp_path / "other"
    for folder in (own, other):
        (folder / "run").mkdir(parents=True)
    (own / "link").symlink_to(other)
    monkeypatch.setenv(policy.FOLDER, str(own))
    paths = {name: str(own / asked[name]) for name in ("run_dir", "data_dir") if name in asked}
    given = {"data_dir": "", "model": "linear"} | asked | paths
    run_dir = Path(given.pop("run_dir", own / "run"))
    for folder in (own, other):
        (folder / "run" / "config.toml").touch()
    (other / "config.toml").touch()
    config = configuration.load(None, given)
    before = sorted(tmp_path.rglob("*")), set(sys.modules)
    run = {"settings": config.model_dump_json(), "run_dir": str(run_dir)}
    request = TrainRequest(1, 1, "round-1", *(np.zeros(1, np.int64),) * 2, np.zeros(3, np.float32))
    with pytest.raises(RuntimeError, match=r"^group 1 failed: ") as caught:
        list(exchange_over(LocalGrid({4: place(0), 8: place(1)}), [4, 8], run)([request]))
    assert all(word in str(caught.value) for word in (named, said, remedy))
    assert "\n" not in str(caught.value)
    assert (sorted(tmp_path.rglob("*")), set(sys.modules)) == before


def test_a_node_writes_below_runs_and_imports_the_project_unless_told_otherwise(
    tmp_path, monkeypatch
):
    monkeypatch.delenv(policy.FOLDER)
    monkeypatch.chdir(tmp_path)
    own = configuration.load(None, {"model": "sim.models.networks:Own"})
    policy.check(own, tmp_path / "runs" / "a")
    policy.check(own, Path("runs/a"))
    for elsewhere in (tmp_path, tmp_path / "runs-2", Path("/"), Path("runs/../a")):
        with pytest.raises(ValueError, match="is not below"):
            policy.check(own, elsewhere)
    monkeypatch.setenv(policy.MODULES, "torch.nn, lab")
    monkeypatch.setenv("DP_FED_DATA", "/data")
    for model in ("lab:Net", "lab.nets:Net", "torch.nn:Linear", "mlp"):
        named = configuration.load(None, {"model": model, "data_dir": "/data"})
        policy.check(named, Path("runs/a"))
    with pytest.raises(ValueError, match=r"'torch:Net' needs torch, .*sim, torch\.nn, lab\)"):
        policy.check(configuration.load(None, {"model": "torch:Net"}), Path("runs/a"))


def test_settings_that_are_damaged_are_one_line():
    for text in ("", "{", "[]", '{"data": {"clients": 0}}', '{"data": {"unheard": 1}}'):
        with pytest.raises(ValueError, match=r"^settings in a message are damaged") as caught:
            app._settings(text)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("table", "name", "value"),
    [
        ("privacy", "sampling", "shuffled"),
        ("privacy", "sampling", "fixed"),
        ("dpis", "dpis_slack", 3.0),
    ],
)
def test_settings_in_a_message_without_effect_are_refused(table, name, value):
    """A server may not make a node draw by a law that its mechanism does not charge."""
    honest = configuration.load(None, {"mechanism": "dpsur", "release": True}).model_dump_json()
    assert app._settings(honest).value("mechanism") == "dpsur"
    content = json.loads(honest)
    content[table][name] = value
    with pytest.raises(ValueError, match=f"^{name} is {value}, which mechanism = dpsur does not"):
        app._settings(json.dumps(content))


def test_each_group_is_asked_at_its_own_node():
    asked = {}

    class Watching(LocalGrid):
        def _push(self, message: Message) -> str:
            asked[decode_request(message.content).group] = message.metadata.dst_node_id
            return super()._push(message)

    requests = [
        TrainRequest(1, n, "round-1", *(np.zeros(1, np.int64),) * 2, np.zeros(3, np.float32))
        for n in (2, 0, 1)
    ]
    with pytest.raises(RuntimeError, match="3 of 3 groups"):
        list(
            exchange_over(
                Watching({4: None, 8: None, 6: None}), [8, 4, 6], {"settings": "", "run_dir": ""}
            )(requests)
        )
    assert asked == {0: 8, 1: 4, 2: 6}


def test_a_node_that_is_silent_is_missed():
    request = TrainRequest(1, 0, "round-1", *(np.zeros(1, np.int64),) * 2, np.zeros(3, np.float32))
    with pytest.raises(RuntimeError, match="1 of 1 groups sent no reply"):
        list(exchange_over(LocalGrid({4: None}), [4], {})([request]))


def assert_equal(one: object, other: object) -> None:
    for name, value in vars(one).items():
        twin = getattr(other, name)
        assert type(value) is type(twin), name
        if isinstance(value, np.ndarray):
            assert value.dtype == twin.dtype and value.shape == twin.shape
            assert value.tobytes() == twin.tobytes()  # NaN and the sign of zero too
        else:
            assert value == twin, name


@pytest.mark.parametrize("clients", [[], [3], [0, 2, 2**40]])
@pytest.mark.parametrize("params", [[], [0.0, -0.0, 1e-45, np.inf, -np.inf, np.nan]])
def test_a_request_survives_the_journey(clients, params):
    numbers = np.array(clients, np.int64)
    params = np.array(params, np.float32)
    request = TrainRequest(3, 1, "round-3-0a", numbers, numbers + 1, params, "sharing")
    content = encode_request(request, {"settings": "{}", "run_dir": "x"})
    assert_equal(decode_request(content), request)
    assert (content["config"]["settings"], content["config"]["run_dir"]) == ("{}", "x")


def test_a_process_builds_a_run_once_and_another_run_anew(monkeypatch):
    """Kills a node that takes the job of the run before."""
    monkeypatch.setattr(app, "_known", {})
    words = "--dataset=digits --model=linear --clients="
    first, second = (
        parse((words + count).split(), "", "").config.model_dump_json() for count in ("3", "4")
    )
    found = [app._job(settings) for settings in (first, second)]
    assert [len(job.partition.sizes) for job in found] == [3, 4]
    assert app._job(second) is found[1] and app._job(first) is not found[0]


@pytest.mark.parametrize("amiss", [{"group": 7}, {"settings": "{}"}, None])
def test_nothing_is_done_for_a_request_that_is_damaged(amiss):
    """Kills a node that is built before its request is compared: it opens a ledger."""
    built: list[object] = []
    numbers = np.array([1, 5], np.int64)
    request = TrainRequest(3, 1, "round-3", numbers, numbers, np.ones(2, np.float32))
    content = encode_request(request, {"settings": "[]", "run_dir": "x"}) if amiss else RecordDict()
    for name, value in (amiss or {}).items():
        content["config"][name] = value
    asked = Message(content, 1, MessageType.TRAIN)
    with pytest.raises(ValueError, match="a request is damaged"):
        client_app(lambda *given: built.append(given))(asked, Context(1, 1, {}, RecordDict(), {}))
    assert not built


@pytest.mark.parametrize("metrics", [{}, {"kept": (1.5, 3), "of": (0.1, 1)}])
def test_an_upload_survives_the_journey(metrics):
    total = np.array([0, -1, 2**63 - 1, -(2**63)], np.int64)[::-1]
    upload = Upload(2, 0, np.array([1, 5], np.int64), total, 2**40, metrics)
    assert_equal(decode_upload(encode_upload(upload)), upload)


def test_a_message_of_which_anything_is_changed_is_refused():
    numbers = np.array([1, 5], np.int64)
    paid = [(numbers, {Gaussian(0.1): 3})]
    upload = Upload(2, 0, numbers, numbers, 7, {"kept": (1.5, 3)}, paid, {"x": numbers})
    request = TrainRequest(3, 1, "round-3", numbers, numbers, np.ones(2, np.float32))
    for encode, decode in (
        (lambda: encode_upload(upload), decode_upload),
        (lambda: encode_request(request, {"settings": "{}", "run_dir": "x"}), decode_request),
    ):
        decode(encode())
        parts = [(name, key) for name, record in encode().items() for key in record]
        assert len(parts) > 8
        for name, key in parts:
            content = encode()
            old = content[name][key]
            content[name][key] = {int: 9, str: f"{old} "}.get(type(old)) or Array(
                np.array([1, 6], np.int64)
            )
            with pytest.raises(ValueError, match="is damaged"):
                decode(content)
            renamed = encode()
            renamed[name][f"{key}0"] = renamed[name].pop(key)  # in the same place of the order
            with pytest.raises(ValueError, match="is damaged"):
                decode(renamed)
        with pytest.raises(ValueError, match="is damaged"):
            decode(RecordDict({"arrays": encode()["arrays"]}))


def test_what_is_shared_singly_survives_the_journey():
    """Kills records that are released, paid for and lost on the way, and labels of another type."""
    shared = {
        "x": np.arange(6, dtype=np.float32).reshape(3, 2) - 0.25,
        "y": np.array([2, 0, 1], np.int64),
        "client": np.array([4, 4, 7], np.int64),
    }
    numbers = np.array([4, 7], np.int64)
    twin = decode_upload(encode_upload(Upload(0, 1, numbers, numbers, 2, shared=shared))).shared
    assert set(twin) == set(shared)
    for name, array in shared.items():
        assert twin[name].dtype == array.dtype and np.array_equal(twin[name], array)


def test_what_clients_really_paid_survives_the_journey():
    nothing, paid = np.zeros(1, np.int64), {Gaussian(0.1): 3}
    upload = Upload(
        2, 0, nothing, nothing, 1, {}, [(np.array([1, 2, 5], np.int64), paid), (nothing, paid)]
    )
    realized = decode_upload(encode_upload(upload)).realized
    assert [(clients.tolist(), charges) for clients, charges in realized] == [
        ([1, 2, 5], paid),
        ([0], paid),
    ]


def test_every_claim_of_a_client_survives_the_journey():
    """A paper claims two things for each accepted step. Kills the first claim alone."""
    nothing, charges = np.zeros(1, np.int64), {PaperClaim(0.1, 1.0): 3, PaperClaim(0.5, 9.0): 2}
    upload = Upload(2, 0, nothing, nothing, 1, {}, [(nothing, charges)])
    assert merge(*(paid for _, paid in decode_upload(encode_upload(upload)).realized)) == charges


def test_the_run_configuration_is_one_command_line():
    assert CONFIG == {app.FLAGS: ""}
    assert app.flags(CONFIG) == app.flags({}) == []
    line = {app.FLAGS: """--clients 7 --out 'a folder' --name=""" + "''"}
    assert app.flags(line) == ["--clients", "7", "--out", "a folder", "--name="]


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            {"clients": 20},
            """clients = 20 is no key of the run configuration, which is one command line: give """,
        ),
        ({app.FLAGS: "--out 'a folder"}, "is no command line (No closing quotation)"),
    ],
)
def test_what_is_no_command_line_is_refused(config, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        app.flags(CONFIG | config)


def test_the_documented_run_configurations_are_valid():
    lines = re.findall(r"--run-config '([^']*)'", (ROOT / "docs" / "flower.md").read_text())
    assert len(lines) >= 3
    for config in (parse_config_args([text]) for text in lines):
        assert config.keys() == CONFIG.keys()
        resumed, *folder = line = app.flags(config)
        assert (resumed == "--resume" and len(folder) == 1) or parse(line, "", "").given


def test_secure_aggregation_is_refused_where_the_server_would_see_the_sums_of_groups(monkeypatch):
    """The server would see what the noise of a whole round is to hide, at a printed epsilon."""
    flags = "--trust aggregate --clients 20 --name one"
    with pytest.raises(ValueError, match="trust is aggregate, but a Flower node"):
        app._asked({app.FLAGS: flags})
    monkeypatch.delenv(policy.FOLDER, raising=False)
    with pytest.raises(ValueError, match="trust is aggregate, but a Flower node"):
        policy.check(parse(flags.split(), "run", "").config, Path("runs/one"))


def test_released_scores_are_refused_by_nodes_too(monkeypatch):
    """Also where a run is resumed that `python -m sim.run` began."""
    asked = parse(["--evaluation=released", "--clients=20", "--name=one"], "run", "").config
    monkeypatch.delenv(policy.FOLDER, raising=False)
    with pytest.raises(ValueError, match="evaluation is released, but with Flower nodes"):
        policy.check(asked, Path("runs/one"))
