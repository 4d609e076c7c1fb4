"""DPSGD on the client axis: Algorithm 1 of Abadi et al., record by record, noise draw by noise
draw."""

import dataclasses
import functools
import math

import numpy as np
import pytest
import torch
from torch import nn

from mechanisms.accounting.accountant import epsilon
from mechanisms.accounting.events import SampledGaussian, Unprotected
from mechanisms.clipping import CLIPPING
from mechanisms.cohort import Cohort, LocalState
from mechanisms.dpsgd import DpsgdPlan
from mechanisms.mechanism import local_round
from mechanisms.none import NonPrivatePlan
from mechanisms.optimizers import Optimizer, adam, sgd
from mechanisms.plan import Terms, affordable_rounds, planned
from mechanisms.registry import MECHANISMS, plan_table
from mechanisms.settings import Privacy, Screening
from tests.gaussian import SPOILERS, alarms
from tests.small import OWNED, X, Y, cohort, model, plain_gradients, start, streams

PLANS = [
    DpsgdPlan(0.5, 1.0, 0.5, steps=3),
    DpsgdPlan(0.2, 2.0, 3.0, steps=1),
    DpsgdPlan(1.0, 0.1, 1.0, steps=4),
    DpsgdPlan(0.1, 1.0, 0.1, steps=2),
]
"""Everything differs; client 3, with one record, often has an empty batch."""

NEVER = 1e-30
"""A sample rate at which every batch is empty."""

DPSGD = MECHANISMS["dpsgd"]

WITNESS = Optimizer(
    lambda params: (torch.zeros_like(params),), lambda gradient, state: (gradient, (gradient,))
)
"""Plain descent whose state is the last noisy gradient as it came."""


def gradients(
    world: Cohort, steps: int = 1, params: torch.Tensor | None = None
) -> list[torch.Tensor]:
    """The noisy gradients ``[K, P]`` of successive steps, all at the same parameters (the model's,
    by default)."""
    world, params = (
        dataclasses.replace(world, optimizer=WITNESS),
        start(model()) if params is None else params,
    )
    return [DPSGD.step(world, DPSGD.start(world, params)).optimizer[0] for _ in range(steps)]


def by_the_book(
    plan: DpsgdPlan, client: int, drawn: np.ndarray, noise: torch.Tensor, x: torch.Tensor
) -> torch.Tensor:
    """Algorithm 1 for one client and step, in float64, from the record numbers drawn and the
    standard normal draws."""
    total = plan.noise_multiplier * plan.clip_norm * noise.double()
    for gradient in plain_gradients(model(), start(model()), x[drawn], Y[drawn]):
        norm = float(gradient.double().norm())
        if math.isfinite(norm):
            total += gradient.double() * min(1.0, plan.clip_norm / norm)
    return total / (plan.sample_rate * len(OWNED[client]))


@pytest.mark.parametrize(
    "scale", [0.01, 1.0, 100.0], ids=["no record clipped", "some", "nearly all"]
)
def test_a_step_is_that_of_the_book(scale):
    """Kills: no minimum, clipping by layer, noise without C or without s, a divisor other than q n,
    counted padding."""
    got, again = gradients(cohort(PLANS, x=scale * X))[0], streams(range(4))
    noise = again.normal("noise", got.shape[1])
    for client, (plan, stream) in enumerate(zip(PLANS, again.of("batch"), strict=True)):
        own = OWNED[client]
        drawn = own if plan.sample_rate == 1 else own[stream.random(len(own)) < plan.sample_rate]
        expected = by_the_book(plan, client, drawn, noise[client], scale * X)
        torch.testing.assert_close(got[client].double(), expected, rtol=1e-4, atol=1e-4)


def sum_of_clipped(x: torch.Tensor, bound: float, clipping: str = "flat") -> torch.Tensor:
    """The mechanism's own sum over all records of client 0, without noise."""
    plan = DpsgdPlan(1.0, 0.0, bound, 1, clipping)
    return gradients(cohort([plan], x=x))[0][0] * len(OWNED[0])


@pytest.mark.parametrize("clipping", CLIPPING)
@pytest.mark.parametrize("bound", [0.01, 1.0, 30.0])
@pytest.mark.parametrize("scale", [1.0, 1000.0])
def test_one_record_moves_the_sum_by_at_most_the_clip_norm(bound, scale, clipping):
    """Whatever the record holds. In the place of the null record is one without a finite gradient,
    which adds 0."""
    largest, whole = 0.0, sum_of_clipped(scale * X, bound, clipping)
    for record in OWNED[0]:
        without = scale * X
        without[record] = math.nan
        largest = max(largest, float((whole - sum_of_clipped(without, bound, clipping)).norm()))
    assert largest <= bound * (1 + 1e-4) + 1e-4


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf])
def test_a_record_that_is_not_finite_contributes_zero(wrong):
    """And the rest of its batch is as if it were not there, with the same divisor."""
    x = X.clone()
    x[OWNED[0][3]] = wrong
    others, no_noise = np.delete(OWNED[0], 3), torch.zeros_like(start(model()))
    expected = by_the_book(DpsgdPlan(1.0, 0.0, 1.0, 1), 0, others, no_noise, X) * len(OWNED[0])
    torch.testing.assert_close(sum_of_clipped(x, 1.0).double(), expected, rtol=1e-4, atol=1e-5)


@functools.cache
def noise_of_two_steps(rate: float, nth: int = 1) -> tuple[np.ndarray, float]:
    """What two steps of a client add to its sums of clipped gradients, and the deviation that its
    ledger says."""
    module = nn.Sequential(nn.Linear(6, 2000), nn.Tanh(), nn.Linear(2000, 3))
    plans = [DpsgdPlan(rate, s, 2.0, 2, noise_decay=0.2) for s in (1.5, 0.0)]
    worlds = [cohort([plan], [2], module=module, nth=nth) for plan in plans]
    pairs = zip(*(gradients(world, 2, start(module)) for world in worlds), strict=True)
    noise = torch.cat([noisy - plain for noisy, plain in pairs]).double() * rate * len(OWNED[2])
    (event,) = plans[0].round_charges(nth)
    return noise.numpy().ravel(), event.noise_multiplier * plans[0].clip_norm


@pytest.mark.parametrize(("rate", "nth"), [(1.0, 1), (0.3, 1), (0.3, 4), (NEVER, 1)])
def test_the_noise_is_gaussian_with_the_charged_scale_and_new_in_every_step(rate, nth):
    """False alarm below 4e-6 in all. Kills a dropped s or C, the drawn divisor, noise that the
    ledger does not know, noise reused between steps, no noise when the batch is empty."""
    sample, std = noise_of_two_steps(rate, nth)
    assert sample.size > 30_000 and alarms(sample, std) == set()


@pytest.mark.parametrize("spoil", SPOILERS.values(), ids=SPOILERS)
def test_any_other_noise_would_be_noticed(spoil):
    sample, std = noise_of_two_steps(0.3)
    assert std == 3.0 and alarms(spoil(sample, std), std) != set()


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16, torch.float64])
def test_a_default_type_moves_no_bit(kind):
    """As a module of the user's may set it. Kills a noise multiplier that is rounded to eight
    digits after it was charged."""
    plans = [dataclasses.replace(plan, noise_multiplier=1.1132, clip_norm=0.1) for plan in PLANS]
    quantiles = [dataclasses.replace(plan, clip_quantile=0.5) for plan in plans]
    for some in (plans, quantiles):
        worlds, params = [cohort(some), cohort(some)], start(model())
        expected = gradients(worlds[0], 2, params)
        torch.set_default_dtype(kind)
        try:
            got = gradients(worlds[1], 2, params)
        finally:
            torch.set_default_dtype(torch.float32)
        assert all(torch.equal(a, b) for a, b in zip(got, expected, strict=True))


def test_an_empty_batch_moves_the_model_and_is_charged():
    plan = DpsgdPlan(NEVER, 1.0, 1.0, 2)
    end = local_round(DPSGD, cohort([plan]), start(model()))
    assert (end.params != start(model())).all() and end.taken.tolist() == [2]
    assert plan.round_charges(1) == {SampledGaussian(NEVER, 1.0): 2}


@pytest.mark.parametrize("optimizer", [sgd(), sgd(0.9), adam()], ids=["sgd", "momentum", "adam"])
def test_a_cohort_is_its_clients_one_by_one(optimizer):
    """Different rates, noises, clip norms, sizes and steps in one cohort: a client that is done
    idles."""
    together = local_round(DPSGD, cohort(PLANS, optimizer=optimizer), start(model()))
    assert together.taken.tolist() == [plan.steps for plan in PLANS]
    for client, plan in enumerate(PLANS):
        alone = local_round(DPSGD, cohort([plan], [client], optimizer=optimizer), start(model()))
        torch.testing.assert_close(together.params[client], alone.params[0], rtol=1e-4, atol=1e-5)


def test_another_seed_gives_another_round():
    ends = [local_round(DPSGD, cohort(PLANS, seed=seed), start(model())).params for seed in (3, 4)]
    assert (ends[0] != ends[1]).all()


OPTIMIZERS = {
    "sgd": (sgd(), torch.optim.SGD),
    "momentum": (sgd(0.9), functools.partial(torch.optim.SGD, momentum=0.9)),
    "adam": (adam(), torch.optim.Adam),
}


@pytest.mark.parametrize(
    ("name", "plan"), [("dpsgd", DpsgdPlan(1.0, 0.0, 1e9, 5)), ("none", NonPrivatePlan(1.0, 5))]
)
@pytest.mark.parametrize(("ours", "reference"), OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_without_noise_and_clipping_it_is_plain_training(name, plan, ours, reference):
    """Full batches of each client's mean loss, by torch's own optimizers, with the cohort's rates
    0.5 / (1 + step)."""
    end = local_round(MECHANISMS[name], cohort([plan] * 3, optimizer=ours), start(model()))
    for client in range(3):
        module = model()
        theirs = reference(module.parameters(), lr=1.0)
        for step in range(5):
            theirs.param_groups[0]["lr"] = 0.5 / (1 + step)
            theirs.zero_grad()
            nn.functional.cross_entropy(module(X[OWNED[client]]), Y[OWNED[client]]).backward()
            theirs.step()
        torch.testing.assert_close(end.params[client], start(module), rtol=1e-3, atol=1e-4)


def test_without_privacy_a_round_is_dpsgd_s_without_noise_and_clipping():
    """The same batches over their expected size, and a charge for each."""
    plans = {"dpsgd": DpsgdPlan(0.5, 0.0, 1e9, 3), "none": NonPrivatePlan(0.5, 3)}
    ends = [
        local_round(MECHANISMS[name], cohort([plan] * 4), start(model())).params
        for name, plan in plans.items()
    ]
    torch.testing.assert_close(*ends)
    assert plans["none"].round_charges(2) == {Unprotected(0.5): 3}


def test_the_plan_without_privacy_is_charged_an_infinite_epsilon():
    table = plan_table(Privacy(mechanism="none", sample_rate=0.5), None, 3, 10, np.array([4, 5]))
    assert table.of(1).round_charges(1) == {Unprotected(0.5): 3}
    assert epsilon(table.of(1).round_charges(1), 1e-5).epsilon == math.inf


BUDGETS = [
    Privacy(epsilon=e, delta=1e-5, sample_rate=q) for e, q in ((0.5, 0.05), (3.0, 1.0), (8.0, 0.3))
]


@pytest.mark.parametrize(
    "privacy", BUDGETS, ids=lambda p: f"epsilon {p.epsilon:g} rate {p.sample_rate:g}"
)
def test_a_calibrated_plan_meets_its_target_and_one_more_round_would_overspend(privacy):
    """Kills calibration to the wrong side, to one round, or with other steps than are charged."""
    plan = plan_table(privacy, None, 4, 7, np.array([10, 30])).of(1)
    spent = [epsilon(planned(plan, rounds), privacy.delta).epsilon for rounds in (7, 8)]
    assert 0.995 * privacy.epsilon < spent[0] <= privacy.epsilon < spent[1]
    assert planned(plan, 7) == {SampledGaussian(privacy.sample_rate, plan.noise_multiplier): 28}
    assert affordable_rounds(plan, Terms(privacy, None, 4, 7, 10), at_most=100) == 7


def test_clients_of_all_sizes_share_one_plan():
    """The rate is the same, so the curve is the same."""
    table = plan_table(Privacy(), None, 1, 5, np.array([1, 50, 3, 50]))
    assert len(table.plans) == 1 and table.which.tolist() == [0, 0, 0, 0]


def test_a_given_noise_multiplier_is_used_as_it_is_or_refused():
    given = Privacy(epsilon=1.0, noise_multiplier=40.0)
    assert plan_table(given, None, 2, 5, np.array([9])).of(0) == DpsgdPlan(1.0, 40.0, 1.0, 2)
    with pytest.raises(
        ValueError, match=r"epsilon = 1 is too small for a single round, .* raise --epsilon"
    ):
        plan_table(Privacy(epsilon=1.0, noise_multiplier=0.5), None, 2, 5, np.array([9]))


def test_a_given_noise_multiplier_is_refused_where_it_is_too_small_for_one_of_the_clients():
    """It pays for one step and not for many. Kills a look at the first of the plans alone."""
    with pytest.raises(ValueError, match="too small for a single round"):
        plan_table(Privacy(noise_multiplier=2.0), None, np.array([1, 400]), 1, np.array([9, 9]))


def test_a_given_noise_multiplier_is_held_against_the_figure_that_the_budget_bounds():
    """Noise screening as published has no proved figure. Kills refusing a round whose claim is paid
    for."""
    own = Screening(screening_clip=None, allow_unproved=True)
    privacy = Privacy(mechanism="screening", epsilon=8.0, noise_multiplier=3.0, budget="published")
    assert plan_table(privacy, own, 2, 3, np.array([9])).of(0).noise_multiplier == 3.0
    with pytest.raises(ValueError, match="too small for a single round"):
        plan_table(privacy.model_copy(update={"epsilon": 0.5}), own, 2, 3, np.array([9]))


def test_the_price_of_a_round_is_that_of_the_figure_that_the_budget_bounds():
    """Kills the certified price, which is lower, beside a budget for the published figure."""
    plan, own = DpsgdPlan(1.0, 0.5, 1.0, 2), Privacy(epsilon=1.0, noise_multiplier=0.5)
    costs = set()
    for column in ("certified", "published"):
        cost = epsilon(plan.round_charges(1), own.delta, column).epsilon
        costs.add(f"{cost:.4g}")
        with pytest.raises(ValueError, match=rf"single round, which costs {cost:.4g} at"):
            plan_table(own.model_copy(update={"budget": column}), None, 2, 5, np.array([9]))
    assert len(costs) == 2


def tensors(of: LocalState) -> list[torch.Tensor]:
    """All of them, whatever the fields are called."""
    values = [getattr(of, f.name) for f in dataclasses.fields(of)]
    nested = [
        v.values() if isinstance(v, dict) else v if isinstance(v, tuple) else [v] for v in values
    ]
    return [tensor for part in nested for tensor in part]


def test_a_rejected_step_leaves_no_trace():
    """Kills a state of which some part (momentum, step counters, memory) outlives the rejection."""
    world = cohort([dataclasses.replace(PLANS[0], clip_quantile=0.5)] * 3, optimizer=adam())
    before = DPSGD.start(world, start(model())).remember(
        seen=torch.zeros(3, 2), best=torch.zeros(3)
    )
    after = DPSGD.step(world, before).remember(seen=torch.ones(3, 2), best=torch.ones(3))
    mixed = after.where(torch.tensor([True, False, True]), before)
    parts = list(zip(tensors(mixed), tensors(after), tensors(before), strict=True))
    assert len(parts) == 8 and all((new[1] != old[1]).any() for _, new, old in parts)
    assert all(
        torch.equal(got[1], old[1]) and torch.equal(got[::2], new[::2]) for got, new, old in parts
    )
