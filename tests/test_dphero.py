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
from mechanisms.mechanism import local_round
from mechanisms.metric import transform
from mechanisms.optimizers import Optimizer
from mechanisms.plan import Terms
from mechanisms.registry import MECHANISMS
from mechanisms.settings import DpHero, Privacy
from tests.gaussian import SPOILERS, alarms
from tests.small import OWNED, X, cohort, model, start, twins

HERO, DPSGD = MECHANISMS["dphero"], MECHANISMS["dpsgd"]
WHITENED, ISOTROPIC = HeroPlan(1.0, 1.0, 0.5, 2), HeroPlan(1.0, 1.0, 0.5, 2, isotropic=True)
WITNESS = Optimizer(
    lambda params: (torch.zeros_like(params),), lambda gradient, state: (gradient, (gradient,))
)
"""Plain descent whose state is the last noisy gradient as it came."""


def identity_model() -> nn.Module:
    """Weights with orthonormal rows, W W^T = I, where v = 1."""
    module = model()
    for layer in (module[0], module[2]):
        layer.weight.data = torch.eye(*layer.weight.shape)
    return module


def test_guidance_is_the_eigendecomposition():
    """Kills: W^T W for W W^T, eigenvalues in another order than their vectors, a norm that is not
    the paper's."""
    weight = torch.randn(
        4, 3, 2, 5, 5, generator=torch.Generator().manual_seed(0)
    )  # a convolution of 3 channels
    basis, scale = guidance(weight, torch.full((4,), 1e-9))
    for w, b, v in zip(weight.flatten(2), basis, scale, strict=True):
        torch.testing.assert_close(b.T @ b, torch.eye(3), atol=1e-5, rtol=0)
        values = torch.diag(b.T @ (w @ w.T) @ b)
        torch.testing.assert_close(v, values * 3**0.5 / values.norm(), atol=1e-5, rtol=1e-4)
        torch.testing.assert_close((v**2).mean(), torch.tensor(1.0))


def test_the_scale_is_floored_and_one_for_a_zero_matrix():
    low_rank = torch.zeros(1, 3, 4)
    low_rank[0, 0, 0] = 2.0
    assert guidance(low_rank, torch.tensor([0.2]))[1].sort().values.tolist() == [
        pytest.approx([0.2, 0.2, 3**0.5])
    ]
    assert guidance(torch.zeros(1, 3, 4), torch.tensor([0.2]))[1].tolist() == [[1.0, 1.0, 1.0]]


@pytest.mark.parametrize("plan", [WHITENED, ISOTROPIC], ids=["whitened", "isotropic"])
def test_without_shape_it_is_dpsgd(plan):
    """v = 1: whitening is a rotation, which no norm sees; the noise is rotated, so it is taken away
    for equality."""
    still = dataclasses.replace(plan, noise_multiplier=1e-12, steps=1)
    plain = DpsgdPlan(1.0, 1e-12, 0.5, 1)
    module = identity_model()
    hero = local_round(HERO, cohort([still] * 4, module=module), start(module))
    book = local_round(DPSGD, cohort([plain] * 4, module=module), start(module))
    torch.testing.assert_close(hero.params, book.params, rtol=0, atol=1e-6)


@pytest.mark.parametrize("plan", [WHITENED, ISOTROPIC], ids=["whitened", "isotropic"])
def test_without_clipping_and_noise_its_shape_does_not_matter(plan):
    """What is mapped there is mapped back; kills clipped sums of another geometry than the
    noise."""
    loose = dataclasses.replace(plan, clip_norm=1e3, noise_multiplier=1e-12, steps=1)
    hero = local_round(HERO, cohort([loose] * 4), start(model())).params
    book = local_round(DPSGD, cohort([DpsgdPlan(1.0, 1e-12, 1e3, 1)] * 4), start(model())).params
    torch.testing.assert_close(hero, book, rtol=0, atol=1e-5)
    assert (book - start(model())).abs().max() > 0.1


def noisy_gradients(plan: HeroPlan, count: int) -> torch.Tensor:
    """The noisy gradients ``[count, P]`` of one step of clients that hold the same records."""
    world = dataclasses.replace(twins(plan, count), optimizer=WITNESS)
    return HERO.step(world, HERO.start(world, start(model()))).optimizer[0].double()


def whitened_noise(plan: HeroPlan) -> np.ndarray:
    """Many draws of the released noise, mapped by ``diag(v)^-1 B^T`` and scaled so that it should
    be N(0, I)."""
    draws = noisy_gradients(plan, 150) - noisy_gradients(
        dataclasses.replace(plan, noise_multiplier=1e-12), 1
    )
    noise = (draws * len(OWNED[0]) / plan.sum_multiplier(1) / plan.clip_norm).float()
    return whitened(plan, noise).double().numpy()


def whitened(plan: HeroPlan, rows: torch.Tensor) -> torch.Tensor:
    """``diag(v)^-1 B^T`` of the first model, on vectors ``[n, P]``."""
    world = twins(plan, len(rows))
    memory = _look(world, start(model()).expand(len(rows), -1))
    return transform(_maps(memory)[0], world.gradients.layout, rows)


@pytest.mark.parametrize("plan", [WHITENED, ISOTROPIC], ids=["whitened", "isotropic"])
def test_the_noise_has_covariance_b_v_squared_bt(plan):
    """Kills: no way back, B^T for B, v for its inverse, whitening forgotten. False alarms: 1e-6
    each."""
    noise = whitened_noise(plan)
    assert not alarms(noise, 1.0)
    assert all(alarms(spoil(noise.ravel(), 1.0), 1.0) for spoil in SPOILERS.values())
    coordinates = np.abs((noise**2).mean(axis=0) - 1) * np.sqrt(len(noise) / 2)
    assert coordinates.max() < 6.0, "a coordinate's variance is off"


def whitened_moves(plan: HeroPlan, scale: float) -> torch.Tensor:
    """How far each of client 0's records moves the sum that is released, in the whitened geometry,
    ``[8]``."""
    plan = dataclasses.replace(plan, noise_multiplier=1e-12)
    world = dataclasses.replace(cohort([plan], x=scale * X), optimizer=WITNESS)
    first = HERO.start(world, start(model()))
    sums = [torch.zeros_like(first.params)]
    for records in range(1, 9):
        data = dataclasses.replace(world.data, records=[OWNED[0][:records]])
        sums.append(HERO.step(dataclasses.replace(world, data=data), first).optimizer[0] * records)
    return torch.diff(whitened(plan, torch.cat(sums)), dim=0).norm(dim=1)


@pytest.mark.parametrize(("scale", "least"), [(0.1, 0.0), (1.0, 0.1), (100.0, 0.5 * (1 - 1e-3))])
def test_a_record_moves_the_whitened_sum_by_at_most_c(scale, least):
    """The sensitivity of what is released, on neighbouring batches; large records meet the
    bound."""
    moves = whitened_moves(WHITENED, scale)
    assert least < moves.max() <= 0.5 * (1 + 1e-5)


def test_the_papers_clipping_does_not_bound_the_whitened_sum():
    """Negative control of the test above, and the reason why isotropic clipping is charged at the
    floor."""
    assert whitened_moves(ISOTROPIC, 100.0).max() > 1.5 * 0.5


def test_a_model_that_diverged_is_no_error_here():
    """And it leaves the guidance of the other clients as it is."""
    floors = torch.tensor([0.1, 0.1])
    basis, scale = guidance(torch.full((2, 3, 4), 1e30), floors)
    assert basis.isfinite().all() and torch.equal(scale, torch.ones(2, 3))
    sound = torch.randn(1, 3, 4, generator=torch.Generator().manual_seed(0))
    beside = guidance(torch.cat([torch.full_like(sound, 1e30), sound]), floors)
    for found, alone in zip(beside, guidance(sound, floors[:1]), strict=True):
        torch.testing.assert_close(found[1], alone[0])


@pytest.mark.filterwarnings("ignore:.*an end of the grid")
def test_costs():
    """Whitened is DPSGD's cost; isotropic is the cost at the floor, far above its published one."""
    hero, plain = WHITENED.round_charges(1), DpsgdPlan(1.0, 1.0, 0.5, 2).round_charges(1)
    assert hero == plain
    honest, claimed = (
        epsilon(ISOTROPIC.round_charges(1), 1e-5, column).epsilon
        for column in ("certified", "published")
    )
    assert honest > 20 * claimed
    assert claimed == pytest.approx(epsilon(plain, 1e-5, "published").epsilon)
    floor = DpsgdPlan(1.0, ISOTROPIC.floor, 0.5, 2)
    assert honest == pytest.approx(epsilon(floor.round_charges(1), 1e-5).epsilon)


@pytest.mark.parametrize("plan", [WHITENED, ISOTROPIC], ids=["whitened", "isotropic"])
def test_a_cohort_is_its_clients_one_by_one(plan):
    plans = [
        dataclasses.replace(plan, steps=s, sample_rate=q)
        for s, q in ((1, 1.0), (3, 0.5), (2, 0.3), (3, 1.0))
    ]
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
    assert (
        torch.equal(seen[0], seen[1])
        and not torch.equal(seen[1], seen[2])
        and torch.equal(seen[2], seen[3])
    )
    torch.testing.assert_close(seen[2], _look(world, states[2].params)["0|v"])


def test_guidance_is_refreshed_for_those_whose_turn_it_is():
    """Plans of one cohort may differ: of two clients one looks at its model after each step, the
    other one never."""
    plans = [
        dataclasses.replace(WHITENED, steps=2, refresh=1),
        dataclasses.replace(WHITENED, steps=2, refresh=3),
    ]
    world = cohort(plans)
    first = HERO.start(world, start(model()))
    after = HERO.step(world, first).memory["0|v"] - first.memory["0|v"]
    assert after[0].abs().max() > 0 and not after[1].any()


def test_a_plan_has_the_settings_of_its_table():
    own = DpHero(hero_clipping="isotropic", hero_floor=0.3, hero_refresh=4)
    plan = HeroPlan.of(Terms(Privacy(mechanism="dphero"), own, 2, 3, 10), 1.5)
    assert (plan.isotropic, plan.floor, plan.refresh) == (True, 0.3, 4)
    assert not HeroPlan.of(Terms(Privacy(mechanism="dphero"), DpHero(), 2, 3, 10), 1.5).isotropic
    with pytest.raises(ValueError, match="give its table"):
        HeroPlan.of(Terms(Privacy(mechanism="dphero"), None, 2, 3, 10), 1.5)


def test_the_report_has_the_least_and_the_largest_scale_of_all_layers():
    world = cohort([WHITENED] * 2)
    state = HERO.start(world, start(model()))
    scales = torch.cat([state.memory["0|v"], state.memory["2|v"]], dim=1)
    found = HERO.metrics(world, state)
    assert found["hero_least_scale"].tolist() == scales.amin(dim=1).tolist()
    assert found["hero_largest_scale"].tolist() == scales.amax(dim=1).tolist()
    assert (found["hero_least_scale"] < 1).all() and (found["hero_largest_scale"] > 1).all()


@pytest.mark.parametrize(("most", "guided"), [(5, {"0", "2"}), (4, {"2"}), (3, {"2"}), (2, set())])
def test_layers_of_too_many_rows_have_no_guidance(monkeypatch, most, guided):
    """Of five and three rows. A model without guidance trains, and tells no scales."""
    monkeypatch.setattr("mechanisms.dphero.MAX_ROWS", most)
    world = cohort([WHITENED] * 2)
    end = local_round(HERO, world, start(model()))
    assert {name.partition("|")[0] for name in end.memory if "|" in name} == guided
    assert bool(HERO.metrics(world, end)) == bool(guided)


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
    told = HERO.metrics(world, end)
    assert told["hero_least_scale"].tolist() == [float(v.min()) for v in scales]
    assert told["hero_largest_scale"].tolist() == [float(v.max()) for v in scales]
    assert (told["hero_least_scale"] < 1).all() and (told["hero_largest_scale"] > 1).all()
