"""Mechanisms, strategies and partitions of the user's own, by ``package.module:NAME``."""

import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file

from mechanisms import dpsgd
from mechanisms.accounting.events import Event
from mechanisms.mechanism import Mechanism
from mechanisms.registry import MECHANISMS
from sim.commands.flags import parse
from sim.commands.guard import main_guard
from sim.config.caveats import OWN_MECHANISM, OWN_STRATEGY, caveats
from sim.config.configuration import load
from sim.engines import policy
from sim.engines.start import train
from sim.phases.build import split
from sim.run import command
from strategies.fedavg import WEIGHTS, fedavg
from strategies.strategy import Strategy

pytestmark = pytest.mark.usefixtures("no_report")
ME = __name__
SMALL = [
    "--clients=4",
    "--rounds=2",
    "--sample-rate=0.5",
    "--engine=inline",
    "--quiet",
    "--epsilon=4",
]


class Unknown(Event):
    """An event that no ledger knows."""

    kind = "gaussian"


class Free(dpsgd.DpsgdPlan):
    def round_charges(self, nth: int) -> dict:
        return {}


class Uncharted(dpsgd.DpsgdPlan):
    def round_charges(self, nth: int) -> dict:
        return {Unknown(): 1}


def descend(cohort, state):
    return MECHANISMS["dpsgd"].step(cohort, state)


OWN = Mechanism(dpsgd.DpsgdPlan.of, descend, start=dpsgd.start)
OPEN = MECHANISMS["none"]
GRATIS = replace(OWN, plan=lambda terms, noise: Free(**vars(dpsgd.DpsgdPlan.of(terms, noise))))
STRANGE = replace(
    OWN, plan=lambda terms, noise: Uncharted(**vars(dpsgd.DpsgdPlan.of(terms, noise)))
)
NUMBER = 3


def half(settings):
    """FedAvg without momentum, at half of the server's rate."""

    def aggregate(state, params, update):
        return state, (params + 0.5 * settings.server_lr * update).astype(np.float32)

    return Strategy(WEIGHTS[settings.weighting], lambda params: {}, aggregate)


def turns(labels, clients, rng):
    return np.arange(len(labels)) % clients


def drawn(labels, clients, rng):
    return np.concatenate([np.arange(clients), rng.integers(0, clients, len(labels) - clients)])


def vain(labels, clients, rng):
    return np.zeros(len(labels), dtype=int)


def halves(labels, clients, rng):
    return np.arange(len(labels)) / 2


def spoils(labels, clients, rng):
    labels[:] = 0
    raise SystemExit(3)


def run(folder: Path, *words: str) -> Path:
    return train(parse([*SMALL, f"--out={folder}", *words], "run", ""))


def test_a_mechanism_a_strategy_and_a_partition_of_ones_own_are_what_trains(tmp_path):
    """The same steps under another name give the same bits; the strategy and the partition differ
    as they should. Kills a name that is accepted and ignored."""
    models = {
        name: load_file(run(tmp_path, f"--name={name}", *words) / "model.safetensors")
        for name, words in {
            "plain": ["--partition=iid", "--server-lr=0.5", "--server-momentum=0"],
            "own": [
                f"--mechanism={ME}:OWN",
                f"--strategy={ME}:half",
                "--partition=iid",
                "--server-lr=1",
            ],
            "turns": [f"--partition={ME}:turns", "--server-lr=0.5", "--server-momentum=0"],
        }.items()
    }
    for name, tensor in models["plain"].items():
        assert tensor.equal(models["own"][name])
        assert not tensor.equal(models["turns"][name])


def test_a_partition_of_ones_own_is_the_functions(tmp_path):
    """Kills a generator that is another's, or none."""
    config = parse([*SMALL, f"--partition={ME}:turns"], "run", "").config
    dataset, parts, _ = split(config)
    assert all((parts.of(k) == np.arange(k, len(dataset.y), 4)).all() for k in range(4))
    owners = []
    for seed in (1, 1, 2):
        words = [*SMALL, f"--partition={ME}:drawn", f"--seed={seed}"]
        owners.append(split(parse(words, "run", "").config)[1].indices.tolist())
    assert owners[0] == owners[1] != owners[2]


def shuffles(labels, clients, rng):
    labels[:] = 0
    return turns(labels, clients, rng)


def test_a_partition_of_ones_own_does_not_change_the_labels():
    plain, own = (
        split(parse([*SMALL, f"--partition={ME}:{name}"], "run", "").config)[0]
        for name in ("turns", "shuffles")
    )
    assert np.array_equal(plain.y, own.y) and len(np.unique(plain.y)) == 10


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (f"--mechanism={ME}:OPEN", "is without privacy, but its run would count as private"),
        (f"--mechanism={ME}:GRATIS", "charges nothing for a round"),
        (f"--mechanism={ME}:STRANGE", "Unknown is not in mechanisms.accounting.events.KINDS"),
        (f"--mechanism={ME}:NUMBER", "is of type int, not an object of mechanisms.mechanism"),
        (f"--mechanism={ME}:ABSENT", "has no 'ABSENT'"),
        ("--mechanism=absent:X", "cannot be imported"),
        ("--mechanism=dpsdg", "or package.module:NAME; did you mean dpsgd?"),
        (f"--mechanism={ME}:OWN --sampling=fixed", "sampling is fixed, which mechanism"),
        (f"--mechanism={ME}:OWN --trust=server", "use --mechanism dpsgd, or --trust local"),
        (f"--strategy={ME}:turns", "failed (TypeError: turns() missing"),
        (f"--strategy={ME}:NUMBER", "gives an object of type int"),
        ("--strategy=fedavgg", "or package.module:NAME; did you mean fedavg?"),
        (f"--partition={ME}:vain", "gives 1 owners from 0 to 0, but each of 0 .. 3"),
        (f"--partition={ME}:halves", "gives float64 of shape"),
        (f"--partition={ME}:spoils", "failed (SystemExit: 3)"),
        (f"--partition={ME}:NUMBER", "is of type int"),
        (f"--partition={ME}:turns --dirichlet=1", "has no effect with --partition"),
    ],
)
def test_what_is_no_such_object_is_refused_in_one_line(tmp_path, capsys, words, said):
    assert main_guard(command, [*SMALL, f"--out={tmp_path}", *words.split()]) == 2
    line = capsys.readouterr().err
    assert said in line and line.count("\n") == 1 and not list(tmp_path.iterdir())


def test_a_run_says_that_it_relies_on_code_of_the_users_own():
    plain = load(None, {"mechanism": "dpsgd"})
    own = load(None, {"mechanism": f"{ME}:OWN", "strategy": f"{ME}:half"})
    texts = {OWN_MECHANISM, OWN_STRATEGY}
    assert texts & set(caveats(plain)) == set() and texts <= set(caveats(own))


def test_a_run_is_not_resumed_with_changed_code(tmp_path, monkeypatch):
    """Nor priced by another: the module's digest is in the manifest. Kills a digest of the name."""
    head, rest = (
        "def turn(labels, clients, rng):",
        "    return [n % clients for n in range(len(labels))]",
    )
    source = f"{head}\n{rest}\n"
    module = tmp_path / "turning.py"
    module.write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    folder = run(tmp_path, "--name=run", "--partition=turning:turn", "--rounds=1")
    entries = json.loads((folder / "manifest.json").read_text())
    assert entries["plug-ins"].keys() == {"partition"}
    (folder / "summary.json").unlink()
    train(parse(["--resume", str(folder), "--quiet"], "run", ""))
    (folder / "summary.json").unlink()
    module.write_text("# other\n" + source)
    sys.modules.pop("turning")
    with pytest.raises(ValueError, match="plug-ins = "):
        train(parse(["--resume", str(folder), "--quiet"], "run", ""))
    sys.modules.pop("turning")


@pytest.mark.parametrize("setting", ["mechanism", "strategy", "partition"])
def test_a_node_imports_only_what_it_lists(tmp_path, monkeypatch, setting):
    monkeypatch.setenv(policy.FOLDER, str(tmp_path))
    monkeypatch.delenv(policy.MODULES, raising=False)
    name = {"mechanism": "OWN", "strategy": "half", "partition": "turns"}[setting]
    config = load(None, {setting: f"{ME}:{name}"})
    with pytest.raises(ValueError, match=re.escape(f"{setting} = '{ME}:{name}' needs {ME}")):
        policy.check(config, tmp_path / "run")
    monkeypatch.setenv(policy.MODULES, ME)
    policy.check(config, tmp_path / "run")


def test_the_table_still_names_the_projects_own():
    """FedAvg by the name of its function is FedAvg."""
    config = load(None, {"strategy": "strategies.fedavg:fedavg"})
    assert config.strategy.strategy == f"{fedavg.__module__}:fedavg"
