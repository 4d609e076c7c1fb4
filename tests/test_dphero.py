"""DP-Hero: the noise has the paper's shape, and a record moves the whitened sum by at most C."""

import dataclasses

import numpy as np
import pytest
import torch
from torch import nn

from mechanisms.accounting.accountant import epsilon
from mechanisms.cohort import LocalState
from mechanisms.dphero import HeroPlan, _look, _maps, guidance
from mechanisms.dpsgd import DpsgdPlan
from mechanisms.metric import transform
from mechanisms.optimizers import Optimizer
from mechanisms.registry import MECHANISMS, local_round
from tests.gaussian import SPOILERS, alarms
from tests.small import OWNED, X, Y, cohort, model, plain_gradients, start

HERO, DPSGD = MECHANISMS["dphero"], MECHANISMS["dpsgd"]
WHITENED, ISOTROPIC = HeroPlan(1.0, 1.0, 0.5, 2), HeroPlan(1.0, 1.0, 0.5, 2, isotropic=True)
WITNESS = Optimizer(lambda params: (torch.zeros_like(params),), lambda gradient, state: (gradient, (gradient,)))
"""Plain descent whose state is the last noisy gradient as it came."""


def identity_model() -> nn.Module:
    """Weights with orthonormal rows, W W^T = I, where v = 1."""
    module = model()
    for layer in (module[0], module[2]):
        layer.weight.data = torch.eye(*layer.weight.shape)
    return module


def test_guidance_is_the_eigendecomposition():
    """Kills: W^T W for W W^T, eigenvalues in another order than their vectors, a norm that is not the paper's."""
    weight = torch.randn(4, 3, 2, 5, 5, generator=torch.Generator().manual_seed(0))  # a convolution of 3 channels
    basis, scale = guidance(weight, torch.full((4,), 1e-9))
    for w, b, v in zip(weight.flatten(2), basis, scale, strict=True):
        torch.testing.assert_close(b.T @ b, torch.eye(3), atol=1e-5, rtol=0)
        values = torch.diag(b.T @ (w @ w.T) @ b)
        torch.testing.assert_close(v, values * 3**0.5 / values.norm(), atol=1e-5, rtol=1e-4)
        torch.testing.assert_close((v**2).mean(), torch.tensor(1.0))


def test_the_scale_is_floored_and_one_for_a_zero_matrix():
    low_rank = torch.zeros(1, 3, 4)
    low_rank[0, 0, 0] = 2.0
    assert guidance(low_rank, torch.tensor([0.2]))[1].sort().values.tolist() == [pytest.approx([0.2, 0.2, 3**0.5])]
    assert guidance(torch.zeros(1, 3, 4), torch.tensor([0.2]))[1].tolist() == [[1.0, 1.0, 1.0]]


@pytest.mark.parametrize("plan", [WHITENED, ISOTROPIC], ids=["whitened", "isotropic"])
def test_without_shape_it_is_dpsgd(plan):
    """v = 1: whitening is a rotation, which no norm sees; the noise is rotated, so it is taken away for equality."""
    still = dataclasses.replace(plan, noise_multiplier=1e-12, steps=1)
    plain = DpsgdPlan(1.0, 1e-12, 0.5, 1)
    module = identity_model()
    hero = local_round(HERO, cohort([still] * 4, module=module), start(module))
    book = local_round(DPSGD, cohort([plain] * 4, module=module), start(module))
    torch.testing.assert_close(hero.params, book.params, rtol=0, atol=1e-6)


def noisy_gradient(plan: HeroPlan, seed: int) -> np.ndarray:
    """The noisy gradient ``[P]`` of one step of client 0 under a seed of its own."""
    world = dataclasses.replace(cohort([plan], seed=seed), optimizer=WITNESS)
    return HERO.step(world, HERO.start(world, start(model()))).optimizer[0][0].double().numpy()


def whitened_noise(plan: HeroPlan) -> np.ndarray:
    """Many draws of the released noise, mapped by ``diag(v)^-1 B^T`` and scaled so that it should be N(0, I)."""
    world = cohort([plan])
    draws = np.stack([noisy_gradient(plan, seed) for seed in range(1_000, 1_150)])
    silent = noisy_gradient(dataclasses.replace(plan, noise_multiplier=1e-12), seed=1)
    noise = torch.from_numpy((draws - silent) * len(OWNED[0]) / plan.sum_multiplier(1) / plan.clip_norm).float()
    rows = start(model()).expand(len(noise), -1)
    memory = _look(dataclasses.replace(world, plans=[plan] * len(noise)), rows)
    return transform(_maps(memory)[0], world.gradients.layout, noise).double().numpy()


@pytest.mark.parametrize("plan", [WHITENED, ISOTROPIC], ids=["whitened", "isotropic"])
def test_the_noise_has_covariance_b_v_squared_bt(plan):
    """Kills: no way back, B^T for B, v for its inverse, whitening forgotten. False alarms: 1e-6 each."""
    noise = whitened_noise(plan)
    assert not alarms(noise, 1.0)
    assert all(alarms(spoil(noise.ravel(), 1.0), 1.0) for spoil in SPOILERS.values())
    coordinates = np.abs((noise**2).mean(axis=0) - 1) * np.sqrt(len(noise) / 2)
    assert coordinates.max() < 6.0, "a coordinate's variance is off"


@pytest.mark.parametrize("scale", [0.1, 1.0, 100.0])
def test_a_record_moves_the_whitened_sum_by_at_most_c(scale):
    """The sensitivity of what is released, on neighbouring batches; Euclidean clipping would not bound it."""
    world = cohort([dataclasses.replace(WHITENED, noise_multiplier=1e-12)], x=scale * X)
    params = start(model())
    state = HERO.start(world, params)
    forth = _maps(state.memory)[0]
    layout, worst, euclidean = world.gradients.layout, 0.0, 0.0
    for g in plain_gradients(model(), params, scale * X[:8], Y[:8]):
        h = transform(forth, layout, g[None])[0]
        clipped = h * min(1.0, 0.5 / float(h.norm()))
        worst = max(worst, float(clipped.norm()))
        euclidean = max(euclidean, float(transform(forth, layout, (g * min(1.0, 0.5 / float(g.norm())))[None]).norm()))
    sums = torch.stack([_whitened_total(world, params, forth, n) for n in range(9)])
    assert torch.diff(sums, dim=0).norm(dim=1).max() <= 0.5 * (1 + 1e-5)
    assert worst <= 0.5 * (1 + 1e-5)
    if scale == 100.0:
        assert euclidean > 0.5 * 1.5


def _whitened_total(world, params, forth, records):
    """The released sum over the first records of client 0, in the whitened geometry."""
    if records == 0:
        return torch.zeros(len(params))
    data = dataclasses.replace(world.data, records=[OWNED[0][:records]])
    part = dataclasses.replace(world, data=data, optimizer=WITNESS)
    gradient = HERO.step(part, HERO.start(part, params)).optimizer[0] * records
    return transform(forth, world.gradients.layout, gradient)[0]


def test_a_model_that_diverged_is_no_error_here():
    basis, scale = guidance(torch.full((2, 3, 4), 1e30), torch.tensor([0.1, 0.1]))
    assert basis.isfinite().all() and torch.equal(scale, torch.ones(2, 3))


@pytest.mark.filterwarnings("ignore:.*an end of the grid")
def test_costs():
    """Whitened is DPSGD's cost; isotropic is the cost at the floor, far above its published one."""
    hero, plain = WHITENED.round_charges(1), DpsgdPlan(1.0, 1.0, 0.5, 2).round_charges(1)
    assert hero == plain
    honest, claimed = (
        epsilon(ISOTROPIC.round_charges(1), 1e-5, column).epsilon for column in ("certified", "published")
    )
    assert honest > 20 * claimed
    assert claimed == pytest.approx(epsilon(plain, 1e-5, "published").epsilon)
    floor = DpsgdPlan(1.0, ISOTROPIC.floor, 0.5, 2)
    assert honest == pytest.approx(epsilon(floor.round_charges(1), 1e-5).epsilon)


@pytest.mark.parametrize("plan", [WHITENED, ISOTROPIC], ids=["whitened", "isotropic"])
def test_a_cohort_is_its_clients_one_by_one(plan):
    plans = [dataclasses.replace(plan, steps=s, sample_rate=q) for s, q in ((1, 1.0), (3, 0.5), (2, 0.3), (3, 1.0))]
    together = local_round(HERO, cohort(plans), start(model())).params
    for client, own in enumerate(plans):
        alone = local_round(HERO, cohort([own], [client]), start(model())).params[0]
        torch.testing.assert_close(together[client], alone, rtol=1e-4, atol=1e-4)


def test_guidance_is_refreshed_when_due():
    """Refreshed after every second step only; the memory follows the model of that moment."""
    world = cohort([dataclasses.replace(WHITENED, steps=3, refresh=2)])
    states = [HERO.start(world, start(model()))]
    for _ in range(3):
        states.append(HERO.step(world, states[-1]))
    seen = [state.memory["0|v"] for state in states]
    assert torch.equal(seen[0], seen[1]) and not torch.equal(seen[1], seen[2]) and torch.equal(seen[2], seen[3])
    torch.testing.assert_close(seen[2], _look(world, states[2].params)["0|v"])


def test_memory_is_restored_with_the_rest():
    world = cohort([WHITENED] * 4)
    before = HERO.start(world, start(model()))
    after = HERO.step(world, before)
    mixed = after.where(torch.tensor([True, False, True, False]), before)
    assert isinstance(mixed, LocalState)
    assert torch.equal(mixed.memory["0|B"][1], before.memory["0|B"][1])
    assert torch.equal(mixed.memory["0|B"][0], after.memory["0|B"][0])


def test_the_least_and_the_largest_scale_are_told_client_by_client():
    world = cohort([WHITENED] * 3)
    end = local_round(HERO, world, start(model()))
    scales = [torch.cat([end.memory[f"{layer}|v"][k] for layer in ("0", "2")]) for k in range(3)]
    told = HERO.report(world, end)
    assert told["hero_least_scale"].tolist() == [float(v.min()) for v in scales]
    assert told["hero_largest_scale"].tolist() == [float(v.max()) for v in scales]
    assert (told["hero_least_scale"] < 1).all() and (told["hero_largest_scale"] > 1).all()
