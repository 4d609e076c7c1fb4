"""The clip bound that follows a quantile: what it releases, and where it goes."""

import dataclasses

import pytest
import torch

from mechanisms import dpsgd, quantile
from mechanisms.arithmetic import FLOATS, GRID
from mechanisms.dpsgd import DpsgdPlan
from mechanisms.registry import MECHANISMS
from mechanisms.sampling import Batch, CohortData
from tests.gaussian import alarms
from tests.releases import Watched
from tests.small import OWNED, X, Y, cohort, model, plain_gradients, start, twins

PLAN = DpsgdPlan(1.0, 1.0, 1.0, 1, clip_quantile=0.5)
DPSGD = MECHANISMS["dpsgd"]
ONE = torch.ones(1)


@pytest.mark.parametrize("multiplier", [0.3, 1.0, 7.0])
def test_sum_and_count_together_cost_the_planned_gaussian(multiplier):
    """1/s^2 = 1/s_g^2 + 1/s_b^2; kills a count that is free, or a sum with the whole budget."""
    total, count = quantile.split(multiplier)
    assert total**-2 + count**-2 == pytest.approx(multiplier**-2)
    assert total > multiplier and count > multiplier


def test_the_plan_charges_what_it_charges_without_the_count():
    assert PLAN.round_charges(1) == dataclasses.replace(PLAN, clip_quantile=None).round_charges(1)
    assert PLAN.sum_multiplier(1) == quantile.split(1.0)[0]


def next_bounds(noise: float = 0.0) -> torch.Tensor:
    norms = torch.tensor([[0.1, 0.2, 5.0, float("inf"), 0.1]])
    batch = Batch(norms, norms, torch.tensor([[True, True, True, True, False]]))
    within = 0.5 + (quantile.votes(norms, torch.tensor([1.0]), batch).sum(dim=1) + noise) / 4.0
    return quantile.adapt(torch.tensor([1.0]), ONE, torch.tensor([0.5]), within)


def test_the_bound_stays_at_its_quantile_and_follows_the_count():
    """2 of 4 within: no move. Padding does not count, a record without a norm counts as above."""
    assert next_bounds() == pytest.approx(1.0)
    assert next_bounds(noise=2.0) == pytest.approx(torch.exp(torch.tensor(-0.2 * 0.5)).item())


def test_a_record_moves_the_count_by_half():
    """Adjacency: a null record adds to no sum, so the count changes by 1/2 whichever side the
    record is on."""
    counts = []
    for drawn in (torch.tensor([[True, True]]), torch.tensor([[True, False]])):
        norms = torch.tensor([[0.5, 3.0]])
        counts.append(quantile.votes(norms, ONE, Batch(norms, norms, drawn)).sum())
    assert abs(counts[0] - counts[1]).item() == 0.5


def test_a_norm_at_the_bound_is_within_it_and_one_without_a_number_is_above():
    """Many records have the same norm where a model saturates; kills a count that leaves them
    out, so that their bound keeps rising."""
    norms = torch.tensor([[1.0, 0.9, 1.1, torch.inf, torch.nan, 1.0]])
    mask = torch.tensor([[True] * 5 + [False]])
    assert quantile.votes(norms, ONE, Batch(norms, norms, mask)).tolist() == [
        [0.5, 0.5, -0.5, -0.5, -0.5, 0.0]
    ]


@pytest.mark.parametrize("arithmetic", [FLOATS, GRID], ids=["simulation", "release"])
def test_a_record_moves_the_count_by_the_bound_that_its_noise_is_for(arithmetic):
    """Kills votes in another unit than noise, which a release alone has."""
    seen = []
    for own in (OWNED[0], OWNED[0][1:]):
        watched, data = Watched(arithmetic), CohortData(X, Y, [own])
        world = dataclasses.replace(cohort([PLAN]), data=data, arithmetic=watched)
        DPSGD.step(world, DPSGD.start(world, start(model())))
        seen.append(watched.seen[-1])
    assert [one.purpose for one in seen] == ["count", "count"]
    assert (seen[0].real() - seen[1].real()).abs().item() == seen[0].bound.item() == 0.5


def test_the_released_count_has_the_planned_noise():
    """The moved bound, taken apart: N(0, (s_b / 2)^2) on the count. False alarm: 1e-6."""
    params = start(model())
    norms = [float(g.norm()) for g in plain_gradients(model(), params, X[OWNED[0]], Y[OWNED[0]])]
    within = sum(n <= 1.0 for n in norms)
    world = twins(PLAN, 1_000)
    bounds = DPSGD.step(world, DPSGD.start(world, params)).memory["clip_norm"]
    released = len(norms) * (0.5 - bounds.double().log().numpy() / quantile.RATE) - within
    std = quantile.split(1.0)[1] / 2
    assert not alarms(released, std)
    assert alarms(released * 0.67, std)


def test_the_share_within_the_bound_is_of_the_expected_batch():
    """Never of the drawn one, whose size is a secret. Nearly without noise."""
    plan = DpsgdPlan(0.5, 1e-9, 1e6, 1, clip_quantile=0.5)
    world, drawn = twins(plan, 20), dpsgd.draw(twins(plan, 20)).mask.sum(dim=1)
    bounds = DPSGD.step(world, DPSGD.start(world, start(model()))).memory["clip_norm"]
    share = 0.5 - (bounds.double() / 1e6).log() / quantile.RATE
    expected = 0.5 + drawn / 2 / (0.5 * world.data.sizes())
    torch.testing.assert_close(share, expected, rtol=0, atol=1e-4)
    assert len(set(drawn.tolist())) > 1


def test_over_many_steps_the_bound_finds_the_median():
    world = cohort([DpsgdPlan(1.0, 1e-3, 50.0, 60, clip_quantile=0.5)] * 3)
    still = dataclasses.replace(world, learning_rate=lambda taken: torch.zeros_like(taken))
    params = start(model())
    state = DPSGD.start(still, params)
    for _ in range(60):
        state = DPSGD.step(still, state)
    for client in range(3):
        norms = torch.stack(
            [g.norm() for g in plain_gradients(model(), params, X[OWNED[client]], Y[OWNED[client]])]
        )
        inside = (norms <= state.memory["clip_norm"][client]).float().mean()
        assert 0.3 <= inside <= 0.7


def test_the_bound_does_not_fall_to_where_norms_have_no_digits():
    """Records without a gradient draw it down by a factor in each step; kills a bound of 1e-40."""
    bound = configured = torch.tensor([2.0, 1e-6])
    for _ in range(100):
        bound = quantile.adapt(bound, configured, torch.tensor([0.5, 0.5]), torch.ones(2))
    torch.testing.assert_close(bound, quantile.MIN_BOUND * configured)
    assert bound.min() >= 1e-9


def test_in_training_the_bound_stays_above_a_share_of_the_configured_one():
    """Kills a share of what the bound is already."""
    world = cohort([DpsgdPlan(1.0, 1e-3, 1e9, 100, clip_quantile=0.5)])
    still = dataclasses.replace(world, learning_rate=lambda taken: torch.zeros_like(taken))
    state = DPSGD.start(still, start(model()))
    for _ in range(100):
        state = DPSGD.step(still, state)
    assert state.memory["clip_norm"].tolist() == pytest.approx([1e9 * quantile.MIN_BOUND])
