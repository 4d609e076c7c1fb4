"""Models that are clients' own: layers that stay with the client, MR-MTL, and records that clients
do not train on. Each is compared with a plain loop in PyTorch."""

import copy
import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors import safe_open

from client.client_state import own_parameters
from client.sums import SCALE
from mechanisms.layout import Layout
from sim.commands.guard import main_guard
from sim.data.holdout import hold_back
from sim.data.partition import by_owners
from sim.job import inputs
from sim.library.result import Result
from sim.models import personal
from sim.phases import evaluation
from sim.run import command
from tests.test_dropout import CLIENTS, LOCAL, SINGLE, World, uploads

MLP = {"model": "mlp", "server_momentum": 0.0}
LAYERS = {"personal_layers": "3"} | MLP
MRMTL = {"strategy": "mrmtl", "proximal_mu": 0.4}
PLAIN = {"mechanism": "none", "sample_rate": 1.0, "steps": 2, "rounds": 3, "lr": 0.7}
UNEQUAL = {name: value for name, value in SINGLE.items() if name != "groups"}


def own_models(world: World, params: np.ndarray) -> dict[int, np.ndarray]:
    layout = world.job.gradients.layout
    return dict(personal.models(world.folder, world.job.config, layout, params))


def trained(world: World, starts: np.ndarray, anchor: np.ndarray, pull: float) -> np.ndarray:
    """Every client's model after a round of plain gradient descent from its row of ``starts``."""
    job, ends = world.job, []
    x, y = torch.from_numpy(job.dataset.x), torch.from_numpy(job.dataset.y)
    layout, module = Layout.of(job.model), copy.deepcopy(job.model)
    towards = torch.from_numpy(anchor.astype(np.float32))
    for client, start in enumerate(starts.astype(np.float32)):
        params, at = torch.from_numpy(start), job.partition.of(client)
        for _ in range(PLAIN["steps"]):
            row = params.clone().requires_grad_()
            logits = torch.func.functional_call(module, layout.unflatten(row), x[at])
            torch.nn.functional.cross_entropy(logits, y[at]).backward()
            params = params - PLAIN["lr"] * (row.grad + pull * (params - towards))
        ends.append(params.numpy())
    return np.stack(ends)


@pytest.mark.parametrize("weighting", ["records", "uniform"])
def test_mr_mtl_is_its_algorithm(tmp_path, weighting):
    """Kills a start from the server's model, a pull to one's own, and a server with momentum."""
    given = UNEQUAL | PLAIN | MRMTL | {"weighting": weighting}
    world = World(tmp_path, {"trust": "local"} | given)
    mean = world.job.gradients.layout.initial(world.job.model).numpy()
    own, sizes = np.tile(mean, (CLIENTS, 1)), world.job.partition.sizes
    weights = sizes / 120 if weighting == "records" else np.full(CLIENTS, 1 / CLIENTS)
    for _ in range(PLAIN["rounds"]):
        own = trained(world, own, mean, MRMTL["proximal_mu"])
        mean = weights @ own
    found = world.run().now.params
    assert found == pytest.approx(mean, abs=1e-5)
    models = own_models(world, found)
    assert np.stack([models[client] for client in range(CLIENTS)]) == pytest.approx(own, abs=1e-5)
    assert np.abs(own - mean).max() > 0.1


def test_personal_layers_are_not_averaged(tmp_path):
    """Kills layers that are sent, that start anew in each round, and that are another client's."""
    world = World(tmp_path, {"trust": "local"} | UNEQUAL | PLAIN | LAYERS)
    layout = world.job.gradients.layout
    mean = initial = layout.initial(world.job.model).numpy()
    mine = personal.below("3", layout)
    assert mine.sum() == 3 * 33 and not mine[: -mine.sum()].any()
    own, weights = np.tile(mean, (CLIENTS, 1)), world.job.partition.sizes / 120
    for _ in range(PLAIN["rounds"]):
        own = trained(world, own, mean, 0.0)
        mean = np.where(mine, initial, weights @ own)
        own = np.where(mine, own, mean)
    found = world.run().now.params
    assert np.array_equal(found[mine], initial[mine])
    assert found == pytest.approx(mean, abs=1e-5)
    models = own_models(world, found)
    assert np.stack([models[client] for client in range(CLIENTS)]) == pytest.approx(own, abs=1e-5)


@pytest.mark.parametrize("given", [LAYERS, MRMTL | MLP], ids=["layers", "mrmtl"])
def test_own_parameters_are_trained_by_the_noisy_steps_that_are_charged(tmp_path, given):
    """Of the first round: what is sent and what stays are together the update of FedAvg's client,
    which is clipped and noised as a whole, and both pay the same. Kills own parameters with less
    noise or a clip norm of their own, and a private part that is sent."""
    common = LOCAL | SINGLE | MLP | {"steps": 1}
    plain, world = World(tmp_path / "a", common), World(tmp_path / "b", common | given)
    whole, sent, layout = uploads(plain), uploads(world), world.job.gradients.layout
    own = personal.mask(world.job.config, layout)
    stays = own if "personal_layers" in given else np.zeros_like(own)
    initial = layout.initial(world.job.model).numpy()
    for one, other in zip(sent, whole, strict=True):
        assert np.array_equal(one.total, np.where(stays, 0, other.total)) and other.total.all()
        (kept,) = own_parameters(personal.folder(world.folder, one.group)).values()
        moved = (kept.astype(float) - initial[own]) * one.weight * SCALE
        assert moved == pytest.approx(other.total[own], rel=1e-3, abs=1e-6 * SCALE * one.weight)
    assert world.paid == plain.paid and len(world.paid) == CLIENTS


@pytest.mark.parametrize("given", [LAYERS, MRMTL | {"dropout": 0.3}], ids=["layers", "mrmtl"])
def test_groups_and_resumption_change_no_bit(tmp_path, given):
    given = LOCAL | {"fraction": 0.5} | given
    ways = {"whole": {}, "one": {"groups": 1, "chunk_clients": 4}, "died": {}}
    ways["two"] = {"groups": 2, "chunk_clients": 4}
    found = {}
    for name, more in ways.items():
        world = World(tmp_path / name, given | more)
        if name == "died":
            world.crashed(3, 1)
        params = world.run().now.params
        found[name] = {-1: params} | own_models(world, params)
    for one, other in (("one", "two"), ("whole", "died")):
        assert found[one].keys() == found[other].keys() and len(found[one]) > 6
        assert all(np.array_equal(found[one][n], found[other][n]) for n in found[one])


def test_only_what_is_a_client_s_own_is_kept(tmp_path):
    """Kills optimizer states that last though nobody asked."""
    for keeps, names in ((False, {"params"}), (True, {"params", "optimizer.0", "clip_norm"})):
        world = World(
            tmp_path / str(keeps), LOCAL | LAYERS | {"keep_state": keeps, "momentum": 0.5}
        )
        world.run()
        newest = max((world.folder / "clients" / "group-0000").iterdir())
        with safe_open(newest, "numpy") as file:
            assert set(file.keys()) - {"clients"} == names
        assert newest.stat().st_mode & 0o777 == 0o600


def test_layers_are_named_by_what_their_parameters_begin_with(tmp_path):
    layout = World(tmp_path, LOCAL | MLP).job.gradients.layout
    sizes = {"1.weight": 128, "1.bias": 32, "1": 160, "3.bias,1.bias": 35, "3 , 1.bias": 131}
    assert {name: personal.below(name, layout).sum() for name in sizes} == sizes
    for wrong in ("2", "", "1.weigh", "1,"):
        with pytest.raises(ValueError, match=r"no layer .*choose among 1\.weight, 1\.bias, 3"):
            personal.below(wrong, layout)
    with pytest.raises(ValueError, match=r"are all parameters .*leave one layer"):
        personal.below("1,3", layout)


def test_what_is_held_back_is_a_share_of_each_client(tmp_path):
    """Every record is in one of both parts, with its label and its client; one always stays."""
    dataset = World(tmp_path, LOCAL).job.dataset
    owner = np.repeat(np.arange(5), (1, 2, 7, 50, 60))[np.random.default_rng(1).permutation(120)]
    parts = by_owners(owner)

    def of(share: float, seed: int = 3):
        return hold_back(dataset, parts, share, np.random.default_rng(seed))

    rest, kept, held = of(0.3)
    assert held.partition.sizes.tolist() == [0, 1, 3, 15, 18]
    assert (kept.sizes + held.partition.sizes).tolist() == [1, 2, 7, 50, 60]
    for client in range(5):
        there = {tuple(row) for row in dataset.x[parts.of(client)]}
        first = {tuple(row) for row in rest.x[kept.of(client)]}
        second = {tuple(row) for row in held.x[held.partition.of(client)]}
        assert first | second == there and len(first) + len(second) == len(there)
    known = {tuple(row): label for row, label in zip(dataset.x, dataset.y, strict=True)}
    for x, y in ((rest.x, rest.y), (held.x, held.y)):
        assert all(known[tuple(row)] == label for row, label in zip(x, y, strict=True))
    assert np.array_equal(of(0.3)[2].x, held.x) and not np.array_equal(of(0.3, 4)[2].x, held.x)
    assert of(0.14)[2].partition.sizes.tolist() == [0, 1, 1, 7, 9]  # 0.14 * 50 is above 7
    assert of(0.0) == (dataset, parts, None) and of(0.999)[1].sizes.min() == 1


def test_clients_are_judged_by_their_own_models_on_records_that_they_held_back(tmp_path):
    given = LOCAL | MRMTL | {"evaluation": "clients", "client_holdout": 0.3, "steps": 4}
    world = World(tmp_path, given)
    params = world.run().now.params
    job, models = world.job, own_models(world, params)
    assert len(job.dataset.y) == 84 and len(job.held.y) == 36
    found = evaluation.evaluate(job, params, world.folder)
    layout, expected = job.gradients.layout, []
    for client in range(CLIENTS):
        at = job.held.partition.of(client)
        named = layout.unflatten(torch.from_numpy(models[client]))
        x = torch.from_numpy(job.held.x[at])
        logits = torch.func.functional_call(job.model, named, x)
        expected.append(float((logits.argmax(1).numpy() == job.held.y[at]).mean()))
    assert found.accuracy_by_client == pytest.approx(expected) and found.clients_on == "held-out"
    assert found.client_worst == min(expected) < max(expected)
    inputs.write(world.folder, job)
    inputs.check(world.folder, job)
    for name, array in (("x", job.held.x), ("y", job.held.y)):
        other = replace(job, held=replace(job.held, **{name: array[::-1].copy()}))
        with pytest.raises(ValueError, match=r"is not what .* began with"):
            inputs.check(world.folder, other)


def test_clients_without_a_record_count_in_no_mean():
    found = evaluation.by_client(np.array([1.0, 0.0, 1.0]), np.array([2, 0, 1]))
    accuracy = found["accuracy_by_client"]
    assert (accuracy[0], accuracy[2]) == (0.5, 1.0) and np.isnan(accuracy[1])
    assert found["client_mean"] == 0.75 and found["client_worst_tenth"] == 0.5


def test_a_release_has_personal_models_that_are_read_by_client(tmp_path, no_report):
    """At the epsilon of FedAvg, and from its run directory."""
    flags = "--clients=10 --rounds=2 --engine=inline --quiet --release --name=run"
    for name, more in (("a", []), ("b", ["--strategy=mrmtl"])):
        command([*flags.split(), f"--out={tmp_path / name}", *more])
    plain, result = Result(tmp_path / "a/run"), Result(tmp_path / "b/run")
    assert result.epsilon == plain.epsilon
    models = [Layout.of(m := result.model(client)).initial(m) for client in (0, 9)]
    shared = Layout.of(m := result.model()).initial(m)
    assert all(not torch.equal(*pair) for pair in itertools.combinations([*models, shared], 2))
    for run, client in ((plain, 0), (result, 10)):
        with pytest.raises(ValueError, match=f"client = {client} has no model of its own"):
            run.model(client)


def test_a_client_s_model_is_the_one_that_the_run_ended_with(tmp_path, no_report):
    """The newest state was lost, and the one of a round before was taken."""
    flags = "--clients=10 --rounds=2 --engine=inline --quiet --name=run --strategy=mrmtl"
    command([*flags.split(), f"--out={tmp_path}"])
    result = Result(tmp_path / "run")
    result.model(3)
    (newest,) = (tmp_path / "run").glob("clients/group-0000/round-000002.safetensors")
    newest.unlink()
    with pytest.raises(ValueError, match=r"group-0000/round-000002\.safetensors is missing"):
        result.model(3)


REFUSED = {
    "--personal-layers=1 --strategy=fedprox": "personal_layers is '1', but strategy = fedprox",
    "--personal-layers=1 --strategy=mrmtl": "personal_layers is '1', but strategy = mrmtl",
    "--personal-layers=1.bias --mechanism=dphero": "personal_layers is '1.bias', but mechanism = ",
    "--strategy=mrmtl --mechanism=dphero": "strategy is mrmtl, but mechanism = dphero",
    "--strategy=mrmtl --mechanism=dpagd": "strategy is mrmtl, but dpagd chooses",
    "--strategy=mrmtl --server-lr=2": "server_lr is 2.0, which strategy = mrmtl",
    "--strategy=mrmtl --evaluation=clients": "strategy is mrmtl and evaluation is clients",
    "--personal-layers=5": "personal_layers is '5', but the model has no layer '5'",
    "--client-holdout=0.2": "client_holdout is 0.2, which evaluation = basic",
}


@pytest.mark.parametrize("flags", REFUSED)
def test_what_does_not_go_with_personal_models_is_refused_in_one_line(flags, tmp_path, capsys):
    assert main_guard(command, [*flags.split(), f"--out={tmp_path / 'runs'}"]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"error: {REFUSED[flags]}") and said.count("\n") == 1
    assert not list(tmp_path.glob("runs/*"))
