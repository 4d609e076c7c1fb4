"""Canaries stand among the records as they should, and what is scored is what the mechanism
released."""

import dataclasses

import numpy as np
import pytest
import torch

from mechanisms.dpsgd import DpsgdPlan
from mechanisms.gradients.record_gradients import RecordGradients
from mechanisms.mechanism import local_round
from mechanisms.metric import transform
from mechanisms.randomness import generator, seed_key
from mechanisms.registry import MECHANISMS, plan_table
from mechanisms.sampling import fixed, poisson, shuffled
from mechanisms.settings import Dpsur, Privacy
from sim.auditing.bounds import one_run_epsilon
from sim.auditing.canaries import CanaryGradients, ZeroedOut
from sim.auditing.one_run import SHARES, Canaries, Watched, by_client, guess, losses, plant
from tests.small import CPU, OWNED, X, Y, cohort, model, start

CLASSES, SIZE = 3, 7.0
COORDINATES = torch.tensor([4, 31, 50])
"""In the first layer's weights, its bias, and the last layer's bias."""
KEY = seed_key(0)


def crafted() -> CanaryGradients:
    return CanaryGradients(RecordGradients(model()), CLASSES, COORDINATES, SIZE)


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    """Two clients with five records, of which the client's second and fifth are canaries."""
    x, y = torch.stack([X[:5], X[5:10]]), torch.stack([Y[:5], Y[5:10]]).clone()
    y[:, 1], y[0, 4], y[1, 4] = CLASSES + 1, CLASSES, CLASSES + 2
    return x, y


def clip(norms: torch.Tensor) -> torch.Tensor:
    return (1.5 / norms).clamp(max=1.0)


def test_the_sum_is_that_of_the_others_outside_the_coordinates_and_of_the_canaries_in_them():
    x, y = batch()
    params = start(model()).repeat(2, 1)
    total, norms = crafted().scaled_sum(params, x, y, clip)
    others = [0, 2, 3]
    plain, plain_norms = RecordGradients(model()).scaled_sum(
        params, x[:, others], y[:, others], clip
    )
    expected = plain.clone()
    expected[:, COORDINATES] = 0.0
    expected[:, COORDINATES[1]] -= 1.5
    expected[0, COORDINATES[0]] -= 1.5
    expected[1, COORDINATES[2]] -= 1.5
    torch.testing.assert_close(total, expected)
    torch.testing.assert_close(norms[:, others], plain_norms)
    assert norms[:, [1, 4]].eq(SIZE).all()
    torch.testing.assert_close(crafted().norms(params, x, y), norms)


def test_under_a_metric_a_canary_is_measured_and_clipped_in_it():
    x, y = batch()
    params, layout = start(model()).repeat(2, 1), crafted().layout
    rng = torch.Generator().manual_seed(0)
    metric = {"0": torch.eye(5) + 0.1 * torch.randn(2, 5, 5, generator=rng)}
    alone = torch.full_like(y, CLASSES)
    total, norms = crafted().scaled_sum(params, x, alone, clip, metric)
    row = torch.zeros(2, layout.size)
    row[:, COORDINATES[0]] = -SIZE
    mapped = transform(metric, layout, row)
    length = mapped.norm(dim=1)
    torch.testing.assert_close(norms, length[:, None].expand(2, 5))
    torch.testing.assert_close(total, 5 * 1.5 * mapped / length[:, None])
    mixed, _ = crafted().scaled_sum(params, x[:, [0, 2]], y[:, [0, 2]], clip, metric)
    inverse = {"0": torch.linalg.inv(metric["0"])}
    others, _ = RecordGradients(model()).scaled_sum(
        params, x[:, [0, 2]], y[:, [0, 2]], clip, metric
    )
    expected = transform(inverse, layout, others)
    expected[:, COORDINATES] = 0.0
    torch.testing.assert_close(transform(inverse, layout, mixed), expected, rtol=1e-4, atol=1e-5)


def test_canaries_that_do_not_fit_at_once_are_taken_in_turn(monkeypatch):
    x, y = batch()
    params = start(model()).repeat(2, 1)
    together = crafted().scaled_sum(params, x, y, clip)
    monkeypatch.setattr("sim.auditing.canaries.CANARY_ENTRIES", 1)
    torch.testing.assert_close(crafted().scaled_sum(params, x, y, clip), together)


def test_a_canary_has_the_loss_of_its_gradient():
    x, y = batch()
    params = start(model()).repeat(2, 1)
    step = torch.zeros_like(params)
    step[:, COORDINATES[1]] = torch.tensor([0.25, 0.75])
    before, after = (crafted().losses(p, x, y) for p in (params, params + step))
    torch.testing.assert_close((after - before)[:, 1], torch.tensor([-0.25 * SIZE, -0.75 * SIZE]))
    torch.testing.assert_close(
        before[:, 2], RecordGradients(model()).losses(params, x, y.clamp(max=2))[:, 2]
    )


def test_null_records_count_and_are_never_drawn():
    data = ZeroedOut(X, Y, [np.array([1, 4]), np.array([], dtype=np.int64)], (3, 2))
    assert data.sizes().tolist() == [3.0, 2.0]
    drawn = poisson(data, [1.0, 1.0], [np.random.default_rng(0)] * 2)
    assert drawn.mask.tolist() == [[True, True], [False, False]] and torch.equal(
        drawn.x[0], X[[1, 4]]
    )


@pytest.mark.parametrize("sampling", ["fixed", "shuffled"])
def test_a_null_record_has_its_place_in_batches_of_a_fixed_size(sampling):
    """So that a canary is drawn as often as is charged: five of ten records are null, and each
    other one is in every second batch of five. Kills a batch of all records that are there."""
    data = ZeroedOut(X, Y, [np.arange(5)], (10,))
    source, unseen, seen = [np.random.default_rng(0)], {}, []
    for _ in range(200):
        batch = (
            fixed(data, [5], source) if sampling == "fixed" else shuffled(data, [5], source, unseen)
        )
        seen.append(int(batch.mask.sum()))
    assert np.mean(seen) == pytest.approx(2.5, abs=0.4)  # 7 standard deviations
    if sampling == "shuffled":
        assert {one + other for one, other in zip(seen[::2], seen[1::2], strict=True)} == {5}


def canaries(count: int = 30, size: float = SIZE) -> Canaries:
    return plant(Y.numpy(), CLASSES, OWNED, 53, count, KEY, size, CPU)


def test_canaries_are_planted_among_the_records_of_all():
    found = canaries()
    planted = found.planted
    assert len(set(found.records.tolist())) == 30 and 0 < found.included.sum() < 30
    assert sorted(found.records[~found.included]) == np.flatnonzero(planted.absent).tolist()
    others = np.setdiff1d(np.arange(60), found.records)
    assert (
        torch.equal(planted.labels[others], Y[others])
        and int(planted.labels[found.records].min()) == CLASSES
    )
    for own in OWNED:
        ranks = planted.labels[found.records[found.places(own)]] - CLASSES
        assert len(set(ranks.tolist())) == len(ranks)
    assert (
        len(set(planted.coordinates.tolist()))
        == len(planted.coordinates)
        > int(planted.labels.max()) - CLASSES
    )
    wrong = canaries(size=0.0).planted
    assert not len(wrong.coordinates) and (wrong.labels[found.records] != Y[found.records]).all()
    assert int(wrong.labels.max()) < CLASSES


def test_coins_are_fair_and_named_by_the_key():
    coins = np.concatenate(
        [
            plant(Y.numpy(), CLASSES, OWNED, 53, 60, seed_key(n), 0.0, CPU).included
            for n in range(200)
        ]
    )
    assert abs(coins.mean() - 0.5) < 5 * 0.5 / len(coins) ** 0.5  # false alarm below 1e-6
    assert np.array_equal(canaries().included, canaries().included)
    assert np.array_equal(canaries().included, generator(KEY, "canary coins").random(30) < 0.5)
    assert np.array_equal(canaries().included, canaries(size=0.0).included)
    assert not np.array_equal(
        canaries().included,
        plant(Y.numpy(), CLASSES, OWNED, 53, 30, b"another", SIZE, CPU).included,
    )


@pytest.mark.parametrize(("count", "parameters"), [(0, 53), (61, 53), (60, 20), (60, 38)])
def test_canaries_that_do_not_fit_are_refused(count, parameters):
    with pytest.raises(ValueError, match=rf"canaries = {count} "):
        plant(Y.numpy(), CLASSES, OWNED, parameters, count, KEY, SIZE, CPU)
    assert len(plant(Y.numpy(), CLASSES, OWNED, 39, 60, KEY, SIZE, CPU).planted.coordinates) == 39


def test_scores_are_how_far_each_client_moved_along_its_canaries():
    """Two rounds of all mechanisms' parts but noise: each canary that is in moves its coordinate by
    clip and rate."""
    found = canaries()
    plan = DpsgdPlan(1.0, 1e-9, 0.5, 2)
    watched = Watched(MECHANISMS["dpsgd"], found)
    world = dataclasses.replace(
        cohort([plan] * 4),
        learning_rate=lambda taken: torch.full_like(taken, 0.1),
        gradients=RecordGradients(model()),
    )
    for _ in range(2):
        end = local_round(watched.mechanism, world, start(model()))
        watched.mechanism.realized(world, end)
    np.testing.assert_allclose(watched.scores, 2 * 2 * 0.5 * found.included, atol=1e-4)


def test_the_watched_mechanism_is_the_mechanism():
    """With no canary left out and wrong labels that are right, every bit is that of the mechanism
    itself."""
    found = canaries(size=0.0)
    planted = dataclasses.replace(found.planted, labels=Y, absent=np.zeros(60, dtype=bool))
    watched = Watched(MECHANISMS["dpsgd"], dataclasses.replace(found, planted=planted))
    plans = [DpsgdPlan(0.5, 1.0, 1.0, 3)] * 4
    ends = [
        local_round(row, cohort(plans), start(model()))
        for row in (watched.mechanism, MECHANISMS["dpsgd"])
    ]
    assert torch.equal(ends[0].params, ends[1].params)


def test_every_part_of_the_mechanism_sees_the_records_with_their_canaries():
    """Else what it releases would be of other records than those whose uploads are scored."""
    found, seen = canaries(), {}

    def noting(name, part):
        def noted(world, *others):
            seen[name] = world
            return part(world, *others)

        return noted

    parts = ("start", "step", "active", "metrics", "realized")
    row = MECHANISMS["dpsur"]
    row = dataclasses.replace(row, **{name: noting(name, getattr(row, name)) for name in parts})
    watched = Watched(row, found).mechanism
    plans = plan_table(
        Privacy(mechanism="dpsur", noise_multiplier=2.0, epsilon=None),
        Dpsur(),
        2,
        1,
        np.array([8] * 4),
    )
    world = cohort([plans.of(0)] * 4)
    end = local_round(watched, world, start(model()))
    watched.metrics(world, end)
    watched.realized(world, end)
    assert seen.keys() == set(parts)
    for one in seen.values():
        assert isinstance(one.gradients, CanaryGradients) and torch.equal(
            one.data.y, found.planted.labels
        )
        assert one.data.sizes().tolist() == [len(own) for own in OWNED]
        held = np.sort(np.concatenate(one.data.records))
        assert np.array_equal(held, np.setdiff1d(np.arange(60), found.records[~found.included]))


def test_guesses_are_of_the_highest_and_the_lowest_scores():
    rng = np.random.default_rng(0)
    included = rng.random(100) < 0.5
    perfect = guess(included + 0.1 * rng.random(100), included, 1e-5, 0.95)
    assert perfect.right == perfect.guesses >= 50 and perfect.epsilon > 2
    assert guess(-1.0 * included, included, 1e-5, 0.95).epsilon == 0
    informed = np.where(np.arange(100) < 20, included * 2.0 - 1.0, 0.0) + 1e-3 * rng.random(100)
    assert guess(informed, included, 1e-5, 0.95).guesses <= 20


def test_the_error_is_shared_by_the_choices():
    """All coins guessed rightly: the bound is that of one choice among `SHARES`, at its part of the
    error."""
    included = np.arange(200) % 2 == 0
    found = guess(1.0 * included, included, 0.0, 0.95)
    assert found.epsilon == one_run_epsilon(200, 200, 200, 0.0, 1 - 0.05 / len(SHARES))


def test_a_client_s_bound_is_from_its_own_canaries():
    found = canaries(60)
    scores = np.where(np.isin(found.records, OWNED[2]), found.included, 0.0)
    each = by_client(found, scores, OWNED, 1e-5, 0.9)
    assert {client: one.coins for client, one in each.items()} == {0: 8, 1: 12, 2: 39, 3: 1}
    assert each[2].epsilon > 1 > max(each[0].epsilon, each[1].epsilon, each[3].epsilon)
    mine = np.isin(found.records, OWNED[2])
    assert each[2] == guess(scores[mine], found.included[mine], 1e-5, 0.9)


def test_a_wrong_label_is_scored_by_the_fall_of_its_loss():
    found, params = canaries(size=0.0), start(model())
    scores = losses(RecordGradients(model()), found, X, params, 1.1 * params)
    wrong, where = found.planted.labels, torch.from_numpy(found.records)
    named = RecordGradients(model()).losses(
        torch.stack([params, 1.1 * params]), X[where].repeat(2, 1, 1), wrong[where].repeat(2, 1)
    )
    np.testing.assert_allclose(scores, (named[0] - named[1]).numpy(), rtol=1e-5, atol=1e-6)
