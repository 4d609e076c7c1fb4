"""From a configuration to a run's inputs: each part gets its own settings, of its own clients, from
its own stream."""

import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from mechanisms import grid
from mechanisms.accounting.accountant import epsilon
from mechanisms.gradients.routes import Routes
from mechanisms.plan import planned
from mechanisms.randomness import generator, seed_key
from sim.config import configuration as config
from sim.data.partition import partition
from sim.job.job import Job
from sim.models.networks import build as build_model
from sim.phases import build as building
from sim.phases import training
from sim.phases.build import build
from sim.phases.training import evaluate

RECORDS, TESTS = 120, 9
UNLIKE = {"clients": 5, "partition": "quantity", "engine": "inline", "min_records": 7, "seed": 11}
"""Clients of unlike sizes."""


def built(folder: Path, **given: object) -> Job:
    """A job on 120 records of 3 classes, none of which is among its 9 test records."""
    rng = np.random.default_rng(4)
    x, y = (
        rng.normal(size=(RECORDS + TESTS, 4)).astype(np.float32),
        rng.permutation(np.arange(RECORDS + TESTS) % 3),
    )
    folder.mkdir(exist_ok=True)
    np.savez(folder / "records.npz", x=x[TESTS:], y=y[TESTS:], x_test=x[:TESTS], y_test=y[:TESTS])
    return build(
        config.load(
            None, UNLIKE | {"dataset": str(folder / "records.npz")} | given, lenient=config.SETTINGS
        )
    )


def parameters(module: torch.nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in module.parameters()])


# --- who holds what
# ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "given",
    [
        {"partition": "dirichlet", "dirichlet": 0.1},
        {"partition": "quantity", "dirichlet": 9.0},
        {"partition": "quantity", "dirichlet": 0.05, "min_records": 19},
        {"partition": "shards", "shards_per_client": 4},
        {"partition": "iid", "seed": 3},
    ],
)
def test_records_are_dealt_out_as_the_settings_and_the_seed_say(tmp_path, given):
    job = built(tmp_path, **given)
    data, rng = job.config.data, generator(seed_key(job.config.run.seed), "partition")
    options = {
        "alpha": data.dirichlet,
        "shards_per_client": data.shards_per_client,
        "minimum": data.min_records,
    }
    expected = partition(job.dataset.y, 5, data.partition, rng, **options)
    assert np.array_equal(job.partition.indices, expected.indices)
    assert np.array_equal(job.partition.offsets, expected.offsets)


def test_no_two_choices_of_a_job_share_a_stream(tmp_path, monkeypatch):
    """Validation records drawn by the public ones' stream would stand where these stand."""
    names = []

    def named(key: bytes, purpose: str, *rest: int) -> np.random.Generator:
        names.append((key, purpose))
        return generator(key, purpose, *rest)

    monkeypatch.setattr(building, "generator", named)
    built(tmp_path, validation_records=10, public_records=10)
    assert len(names) == len(set(names)) == 5
    assert {key for key, _ in names if key != seed_key(11)} == {seed_key(0)}
    assert {purpose for key, purpose in names if key == seed_key(0)} == {"validation", "public"}


@pytest.mark.parametrize("how", ["validation", "public"])
def test_the_same_records_are_held_out_for_every_seed(tmp_path, how):
    """Else one seed trains on what another is judged by, and the best of both has looked at a
    protected record without noise. Kills a choice by the seed."""
    given = {f"{how}_records": 20, "evaluate_on": "validation" if how == "validation" else "test"}
    jobs = [built(tmp_path, **given, seed=seed) for seed in (0, 1, 12)]
    parts = [job.holdout[0] if how == "public" else job.dataset.x_test for job in jobs]
    assert len(parts[0]) == 20 and all(np.array_equal(part, parts[0]) for part in parts)


def test_public_and_validation_records_are_in_nobodys_hands_and_keep_their_labels(tmp_path):
    whole = built(tmp_path).dataset
    job = built(tmp_path, public_records=30, validation_records=20, evaluate_on="validation")
    label = {row.tobytes(): y for row, y in zip(whole.x, whole.y, strict=True)}
    parts = (job.holdout, (job.dataset.x_test, job.dataset.y_test), (job.dataset.x, job.dataset.y))
    rows = [[row.tobytes() for row in x] for x, _ in parts]
    assert [len(one) for one in rows] == [30, 20, 70] and set().union(*rows) == set(label)
    assert all(label[row.tobytes()] == y for x, ys in parts for row, y in zip(x, ys, strict=True))
    assert job.partition.sizes.sum() == 70
    for held, first in ((rows[0], 50), (rows[1], 20)):
        assert not set(held) <= {row.tobytes() for row in whole.x[:first]}
    tested = built(tmp_path, validation_records=20).dataset
    assert np.array_equal(tested.x_test, whole.x_test) and np.array_equal(
        tested.y_test, whole.y_test
    )


# --- the model
# --------------------------------------------------------------------------------------------------


def test_the_first_model_is_that_of_its_name_its_activation_and_the_seed(tmp_path):
    job = built(tmp_path, model="mlp", activation="relu")
    seed = int(generator(seed_key(11), "model").integers(2**63))
    expected = build_model("mlp", (4,), 3, seed, "relu")
    assert [type(layer) for layer in job.model] == [type(layer) for layer in expected]
    assert torch.equal(parameters(job.model), parameters(expected))
    assert torch.equal(
        torch.from_numpy(training.federation(job, tmp_path).initial), parameters(expected)
    )
    assert not torch.equal(
        parameters(built(tmp_path, model="mlp", seed=12).model), parameters(expected)
    )


def test_passes_are_as_large_as_the_settings_allow(tmp_path):
    job = built(tmp_path, memory_limit=3, max_records=2)
    x = torch.from_numpy(job.dataset.x)[None]
    assert job.gradients._passes.held(x) == 3 * 2**20 // 4
    assert {b.stop - b.start for _, b in job.gradients._passes.cut(x, 1, alone=True)} == {2}


def test_a_model_is_tried_once(tmp_path, monkeypatch):
    """Before the run; kills a trial that the first round makes again."""
    job = built(tmp_path)
    x, y = torch.from_numpy(job.dataset.x[None]), torch.from_numpy(job.dataset.y[None])
    monkeypatch.setattr(Routes, "_find", lambda self, x, y: pytest.fail("tried again"))
    job.gradients.norms(parameters(job.model)[None], x, y)


# --- what each client plans
# ----------------------------------------------------------------------------------------


def test_every_client_plans_by_its_own_size(tmp_path):
    job = built(tmp_path, batch_size=6, epochs=2.0)
    sizes = [len(job.partition.of(client)) for client in range(5)]
    assert len(set(sizes)) == 5
    plans = [job.plans.of(client) for client in range(5)]
    assert [plan.sample_rate for plan in plans] == [6 / size for size in sizes]
    assert [plan.steps for plan in plans] == [-(-2 * size // 6) for size in sizes]
    assert job.plans.plans != job.plans.plans[::-1]


@pytest.mark.parametrize(
    ("given", "rounds"),
    [
        ({"rounds": 7, "fraction": 0.3}, 3),
        ({"rounds": 10, "fraction": 0.3}, 3),
        ({"rounds": 7, "fraction": 0.3, "max_participations": 2}, 2),
        ({"rounds": 4, "max_participations": 6}, 4),
    ],
)
def test_the_budget_is_planned_for_the_rounds_that_a_client_takes_part_in(tmp_path, given, rounds):
    plan = built(tmp_path, epsilon=3.0, delta=1e-4, **given).plans.of(0)
    assert (
        2.98
        < epsilon(planned(plan, rounds), 1e-4).epsilon
        <= 3.0
        < epsilon(planned(plan, rounds + 1), 1e-4).epsilon
    )


@pytest.mark.parametrize(
    ("mechanism", "given", "found"),
    [
        (
            "dpsur",
            {"dpsur_beta": -2.5, "dpsur_validation_rate": 0.3},
            lambda plan: (plan.beta, plan.validation_rate) == (-2.5, 0.3),
        ),
        ("dpis", {"dpis_slack": 3.5, "sample_rate": 0.5}, lambda plan: plan.own.dpis_slack == 3.5),
        ("dphero", {"hero_floor": 0.7}, lambda plan: plan.floor == 0.7),
        ("screening", {"screening_gain": 0.4}, lambda plan: plan.gain == 0.4),
        ("dpagd", {"agd_candidates": 7}, lambda plan: plan.own.agd_candidates == 7),
    ],
)
def test_a_mechanism_plans_by_its_own_settings(tmp_path, mechanism, given, found):
    plans = built(tmp_path, mechanism=mechanism, rounds=2, **given).plans.plans
    assert plans and all(map(found, plans))


def test_without_privacy_there_is_no_budget_and_no_noise_on_statistics(tmp_path):
    bare = built(tmp_path, mechanism="none", standardize="private")
    assert (
        bare.config.target == np.inf and bare.plans_of["statistics"].of(0).noise_multiplier == 0.0
    )
    bound = built(tmp_path, epsilon=2.5, standardize="private", standardize_noise=6.0)
    assert bound.config.target == 2.5 and bound.plans_of["statistics"].of(0).noise_multiplier == 6.0


# --- what is refused or said
# ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("strict", [False, True])
def test_a_delta_is_large_from_one_over_all_clients_records_on(tmp_path, strict):
    """All 120, neither those of one client alone nor the test part's as well."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        built(tmp_path, delta=1 / 121, strict_delta=strict)
        built(tmp_path, delta=0.5, mechanism="none", strict_delta=strict)
    said = r"1 / 120 records = 0\.0083.*lower --delta"
    with pytest.raises(ValueError, match=said) if strict else pytest.warns(UserWarning, match=said):
        built(tmp_path, delta=1 / 120, strict_delta=strict)


def test_a_release_is_not_begun_with_more_noise_than_the_grid_takes(tmp_path):
    """It would be refused when it is drawn, which is after the charge."""
    given = {"epsilon": None, "noise_multiplier": 1e8}
    with pytest.raises(ValueError, match=r"^noise_multiplier = 1e\+08 is too large for a release"):
        built(tmp_path, release=True, **given)
    assert built(tmp_path, **given).plans.plans[0].noise_multiplier == 1e8


def test_a_release_is_not_begun_with_a_client_whose_sums_may_overflow(tmp_path, monkeypatch):
    sizes = built(tmp_path).partition.sizes
    monkeypatch.setattr(grid, "MAX_RECORDS", int(sizes.max()))
    assert built(tmp_path).partition.sizes.max() == sizes.max()
    with pytest.raises(ValueError, match=f"a client holds {sizes.max()} records"):
        built(tmp_path, release=True)


# --- the server's end
# ----------------------------------------------------------------------------------------------


def test_the_server_is_given_what_the_configuration_says(tmp_path):
    given = {
        "rounds": 9,
        "fraction": 0.4,
        "epsilon": 2.5,
        "delta": 3e-5,
        "evaluate_every": 4,
        "groups": 3,
    }
    job = built(tmp_path, **given, chunk_clients=1, budget="published", server_momentum=0.25)
    server = training.federation(job, tmp_path)
    assert (server.rounds, server.fraction, server.delta) == (9, 0.4, 3e-5)
    assert server.target.tolist() == [2.5] * 5
    assert (server.column, server.seed, server.evaluate_every, server.clients) == (
        "published",
        11,
        4,
        5,
    )
    assert server.plans is job.plans and (server.before, server.phase) == (0, "train")
    _, after = server.strategy.aggregate({"velocity": np.ones(1)}, np.zeros(1), np.zeros(1))
    assert after.tolist() == [0.25]
    release = built(tmp_path, release=True)
    assert training.federation(release, tmp_path).seed is None and release.seed is None


def test_every_client_is_asked_through_the_group_that_computes_it(tmp_path):
    job = built(tmp_path, clients=9, groups=3, chunk_clients=2, min_records=2)
    found = training.federation(job, tmp_path).group_of
    assert len(job.groups) == 3 and sorted(
        np.concatenate([c for g in job.groups for c in g])
    ) == list(range(9))
    for number, chunks in enumerate(job.groups):
        assert set(np.flatnonzero(found == number)) == set(np.concatenate(chunks))


@pytest.mark.parametrize("batch", [1, 4, 9, 100])
def test_a_model_is_measured_on_all_test_records_and_no_others(tmp_path, monkeypatch, batch):
    monkeypatch.setattr(training, "EVALUATION_BATCH", batch)
    job = built(tmp_path)
    params = np.random.default_rng(5).normal(size=15).astype(np.float32)
    scores = job.dataset.x_test @ params[:12].reshape(3, 4).T + params[12:]
    logs = scores - np.log(np.exp(scores).sum(axis=1, keepdims=True))
    accuracy, loss = evaluate(job, params)
    assert accuracy == (scores.argmax(axis=1) == job.dataset.y_test).mean()
    assert loss == pytest.approx(-logs[np.arange(TESTS), job.dataset.y_test].mean(), rel=1e-5)


@pytest.mark.parametrize("broken", [np.nan, np.inf])
def test_a_model_without_a_loss_is_told_of(tmp_path, broken):
    """It has an accuracy, that of a guess. Kills a run to the end without a word."""
    params = np.full(15, broken, np.float32)
    with pytest.warns(UserWarning, match="the mean loss on the test part is nan: look for"):
        evaluate(built(tmp_path), params)


# --- the clients' end
# ----------------------------------------------------------------------------------------------


def test_a_group_computes_its_own_clients_with_everybodys_public_weights(tmp_path):
    job = built(tmp_path, groups=2, chunk_clients=2)
    sizes = [len(job.partition.of(client)) for client in range(5)]
    for weighting, expected in (("records", sizes), ("uniform", [1] * 5)):
        own = job.config.strategy.model_copy(update={"weighting": weighting})
        job = replace(job, config=job.config.model_copy(update={"strategy": own}))
        for group in range(2):
            data = training.node(job, group, tmp_path)._data
            assert [chunk.tolist() for chunk in data.chunks] == [
                chunk.tolist() for chunk in job.groups[group]
            ]
            assert data.weights.tolist() == expected
            assert [data.records(client).tolist() for client in range(5)] == [
                job.partition.of(client).tolist() for client in range(5)
            ]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"optimizer": "sgd", "momentum": 0.0}, [3.0, 3.0]),
        ({"optimizer": "sgd", "momentum": 0.5}, [3.0, 4.5]),
        ({"optimizer": "adam"}, [1.0, 1.0]),
    ],
)
def test_clients_step_by_the_optimizer_that_was_asked_for(tmp_path, given, expected):
    """Along two equal gradients of 3: momentum adds the first one again, Adam's steps have length
    1."""
    optimizer = training.node(built(tmp_path, **given), 0, tmp_path)._training.optimizer
    gradient, found = torch.full((1, 2), 3.0), []
    state = optimizer.init(gradient)
    for _ in range(2):
        direction, state = optimizer.update(gradient, state)
        found.append(float(direction[0, 0]))
    assert found == pytest.approx(expected, rel=1e-4)


def test_more_groups_than_clients_are_refused(tmp_path):
    assert len(built(tmp_path, clients=4, groups=4).groups) == 4
    with pytest.raises(ValueError, match=r"^groups is 5, but there are 4 clients .* --groups 4, "):
        built(tmp_path, clients=4, groups=5)
