"""The nodes of each phase: whose records they hold, by which settings they train or release, where
they write."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from client.tensors import sealed
from mechanisms.layout import Layout
from mechanisms.randomness import generator, seed_key
from mechanisms.registry import MECHANISMS
from mechanisms.sharing import ClassSums, SingleRecords
from sim.engines.inline import inline_exchange
from sim.job.job import TRAIN, Job
from sim.models.networks import initialise
from sim.phases import course, training
from sim.phases.course import Host, before_training
from sim.phases.generator import distiller, trained
from sim.phases.sharing import release as release_of
from sim.phases.statistics import FILE
from sim.showing.sharing import SHARED_FILE
from strategies.distillation import CODE_WEIGHT
from tests.test_job import built

DISTILLED = {
    "strategy": "fedfed",
    "shared_source": "distilled",
    "share_budget": 0.5,
    "distill_latent": 3,
    "distill_lr": 0.07,
    "distill_penalty": 2.5,
    "distill_rounds": 2,
}


def test_the_generator_descends_by_its_own_settings(tmp_path):
    """Two rounds without noise, as plain autograd: each client one step, then the mean by numbers
    of records."""
    job = built(
        tmp_path,
        mechanism="none",
        server_momentum=0.0,
        lr=9.0,
        groups=2,
        chunk_clients=2,
        **DISTILLED,
    )
    module = distiller(job)
    layout, x, y = (
        Layout.of(module),
        torch.from_numpy(job.dataset.x),
        torch.from_numpy(job.dataset.y),
    )
    row = layout.initial(module)
    for _ in range(2):
        after, sizes = [], []
        for client in range(5):
            module.load_state_dict(layout.unflatten(row))
            own = job.partition.of(client)
            output = module(x[own])
            loss = F.cross_entropy(output[:, :-2], y[own]) + 2.5 * output[:, -2].mean()
            loss = loss + CODE_WEIGHT * output[:, -1].mean()
            gradient = torch.cat(
                [g.flatten() for g in torch.autograd.grad(loss, list(module.parameters()))]
            )
            after.append(row - 0.07 * gradient)
            sizes.append(float(len(own)))
        row = (torch.tensor(sizes) / sum(sizes)) @ torch.stack(after)
    (tmp_path / "run" / "ledger").mkdir(parents=True)
    before_training(job, tmp_path / "run", inline_exchange(job, tmp_path / "run"))
    found = trained(job, tmp_path / "run")
    np.testing.assert_allclose(found, row, atol=1e-5)
    assert np.abs(found - layout.initial(distiller(job)).numpy()).max() > 1e-3


def test_the_generator_has_the_code_that_was_asked_for_and_its_weights_follow_the_seed(tmp_path):
    first, other = (distiller(built(tmp_path, seed=seed, **DISTILLED)) for seed in (11, 12))
    assert first.splitter.encoder[-1].out_features == first.splitter.decoder[0].in_features == 3
    assert not torch.equal(first.splitter.encoder[1].weight, other.splitter.encoder[1].weight)
    layers, rng = (
        [m for m in first.modules() if isinstance(m, torch.nn.Linear)],
        generator(seed_key(11), "generator"),
    )
    before = [layer.weight.detach().clone() for layer in layers]
    for layer in layers:
        initialise(layer, rng)
    assert all(torch.equal(a, b.weight) for a, b in zip(before, layers, strict=True))


def test_a_generator_is_made_without_the_callers_random_numbers(tmp_path):
    """Neither drawn from them nor moving them."""
    job, state = built(tmp_path, **DISTILLED), torch.get_rng_state()
    distiller(job)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("source", ["prototypes", "distilled"])
def test_what_is_released_are_the_parts_of_records_that_the_trained_generator_leaves(
    tmp_path, source
):
    given = DISTILLED | {"shared_source": source, "prototype_features": "distilled"}
    job = built(tmp_path, **given)
    module, x = distiller(job), torch.from_numpy(job.dataset.x[:6])
    layout = Layout.of(module)
    row = layout.initial(module) + 0.3 * torch.randn(
        layout.size, generator=torch.Generator().manual_seed(0)
    )
    module.load_state_dict(layout.unflatten(row))
    found = release_of(job, row.numpy())
    torch.testing.assert_close(found.features(x), module.splitter(x)[0].detach())
    assert isinstance(found, ClassSums if source == "prototypes" else SingleRecords)
    assert found.plan is job.plans_of["share"].plans[0] and found.classes == 3
    plain = release_of(built(tmp_path, strategy="fedfed"), np.zeros(0, np.float32))
    assert torch.equal(plain.features(x), x) and plain.width == 4


@pytest.mark.parametrize("release", [False, True])
def test_every_phase_of_a_group_has_its_clients_its_seed_one_ledger_and_uploads_of_its_own(
    tmp_path, release
):
    job = built(
        tmp_path,
        groups=2,
        chunk_clients=2,
        standardize="private",
        evaluation="released",
        release=release,
        **DISTILLED,
    )
    host, seen = Host(job, tmp_path), set()
    for phase in (phase.name for phase in course.PHASES):
        for group in (0, 1):
            node = host.node(group, phase)
            assert node is host.node(group, phase)
            assert node._data.chunks == job.groups[group]
            assert node._purse.seed == (None if release else 11)
            assert not hasattr(node, "_training") or node._training.seed == (
                None if release else 11
            )
            assert node._purse.ledger.path == tmp_path / "ledger" / f"group-{group:04d}.jsonl"
            seen.add(node._uploads._folder)
    assert len(seen) == 5


@pytest.mark.parametrize("name", MECHANISMS)
def test_clients_train_by_the_mechanism_that_was_asked_for_and_keep_what_lasts_by_group(
    tmp_path, name
):
    job = built(tmp_path, mechanism=name, groups=2, chunk_clients=2, keep_state=True)
    own = [training.node(job, group, tmp_path) for group in (0, 1)]
    assert all(node._training.mechanism is MECHANISMS[name] for node in own)
    assert (
        training.node(job, 0, tmp_path, MECHANISMS["none"])._training.mechanism
        is MECHANISMS["none"]
    )
    folders = [node._client_state._folder for node in own]
    assert folders == [tmp_path / "clients" / f"group-{group:04d}" for group in (0, 1)]
    assert own[0]._client_state._lasting == MECHANISMS[name].lasting
    forgetful = built(tmp_path, mechanism=name, keep_state=False)
    assert training.node(forgetful, 0, tmp_path)._client_state is None


def test_records_are_standardized_from_the_next_phase_on(tmp_path):
    job = built(tmp_path, standardize="private")
    host = Host(job, tmp_path)
    before = host.node(0, "statistics")._data.x.numpy().copy()
    shift, scale = np.arange(4, dtype=np.float32), np.array([1.0, 2.0, 4.0, 0.5], np.float32)
    (tmp_path / FILE).write_bytes(sealed({"mean": shift, "scale": scale}, {}))
    assert np.array_equal(host.node(0, "statistics")._data.x, before)
    np.testing.assert_allclose(host.node(0, "train")._data.x, (before - shift) / scale, rtol=1e-6)
    statistics = host.node(0, "statistics")._release_of(np.zeros(0, np.float32))
    assert statistics.size == 8 and statistics.plan is job.plans_of["statistics"].plans[0]


def shared(folder: Path, job: Job) -> list | None:
    found = Host(job, folder).node(0, TRAIN)._data.shared
    return None if found is None else [part.tolist() for part in found]


def test_clients_train_beside_what_their_settings_share_and_nothing_else(tmp_path):
    x, y = np.ones((2, 4), np.float32), np.array([2, 0])
    fedfed, run = {"strategy": "fedfed", "public_records": 15}, tmp_path / "run"
    run.mkdir()
    made = built(tmp_path, **fedfed)
    assert shared(run, made) is None
    (run / SHARED_FILE).write_bytes(sealed({"x": x, "y": y}, {}))
    assert shared(run, made) == [x.tolist(), y.tolist()]
    public = built(tmp_path, shared_source="public", **fedfed)
    assert shared(run, public) == [part.tolist() for part in public.holdout]
    assert [part.tolist() for part in training.node(public, 0, run)._data.holdout] == shared(
        run, public
    )
    assert shared(run, built(tmp_path, shared_source="none", **fedfed)) is None
    assert shared(run, built(tmp_path, public_records=15)) is None
