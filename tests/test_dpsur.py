"""DPSUR: the test is that of the paper, a rejected trial leaves no trace, and every trial is paid
for."""

import dataclasses
import itertools
import math

import numpy as np
import pytest
import torch
from scipy.stats import norm

from mechanisms import trials
from mechanisms.dpsgd import DpsgdPlan
from mechanisms.dpsur import DpsurPlan
from mechanisms.mechanism import local_round
from mechanisms.optimizers import adam, sgd
from mechanisms.registry import MECHANISMS
from mechanisms.sampling import poisson
from tests.small import OWNED, X, Y, cohort, model, start
from tests.trials import CROWD, TRIALS, accepted, alarms, crowd, same, with_changed_noise

DPSUR, DPSGD = MECHANISMS["dpsur"], MECHANISMS["dpsgd"]
PLAN = DpsurPlan(
    0.5,
    1.0,
    0.5,
    steps=4,
    most_rejections=0,
    validation_rate=0.5,
    validation_noise=0.75,
    loss_clip=0.01,
    beta=-0.5,
    accounting="visible",
)
HIDDEN = dataclasses.replace(PLAN, accounting="selective", most_rejections=40)
NEVER, ALWAYS = -1e9, 1e9
"""Thresholds."""

CLEAR = dataclasses.replace(PLAN, sample_rate=1.0, noise_multiplier=1e-3, loss_clip=1e-9)
"""Every change of the loss is beyond the clip."""


AT_THE_ENDS = {
    side: norm.cdf((CLEAR.beta + side) / (2 * CLEAR.validation_noise)) for side in (1, -1)
}
"""Probability of acceptance where the loss falls (1) and where it rises (-1)."""


def alter(plan: DpsurPlan, **changes) -> DpsurPlan:
    return dataclasses.replace(plan, **changes)


def mean_loss(params: torch.Tensor, records: np.ndarray) -> float:
    named = dict(
        zip(dict(model().named_parameters()), torch.split(params, [30, 5, 15, 3]), strict=True)
    )
    shaped = {name: named[name].view(p.shape).double() for name, p in model().named_parameters()}
    logits = torch.func.functional_call(model().double(), shaped, (X[records].double(),))
    return float(torch.nn.functional.cross_entropy(logits, Y[records]))


def test_a_trial_is_that_of_the_book():
    """Kills: another batch for one of the models, an old loss, the training batch, a sum for a
    mean, no clip, the threshold's sign, the noise without its factor 2."""
    world, again = crowd(PLAN, 0.5, clients=120), crowd(PLAN, 0.5, clients=120)
    before = DPSUR.start(world, start(model()))
    proposed, got = DPSGD.step(again, before).params, DPSUR.step(world, before)
    noise = again.streams.normal("validation noise", 1)[:, 0].double()
    verdicts, seen = [], set()
    for client, stream in enumerate(again.streams.of("validation")):
        own = again.data.records[client]
        drawn = own[stream.random(len(own)) < PLAN.validation_rate]
        change = (
            mean_loss(proposed[client], drawn) - mean_loss(start(model()), drawn)
            if len(drawn)
            else 0.0
        )
        clipped = max(-0.01, min(0.01, change))
        seen.add("inside" if abs(change) < 0.01 else "above" if change > 0 else "below")
        verdicts.append(clipped + 2 * 0.01 * 0.75 * float(noise[client]) < -0.5 * 0.01)
    assert got.taken.bool().tolist() == verdicts and 20 < sum(verdicts) < 100 and len(seen) == 3
    kept = torch.tensor(verdicts)[:, None]
    assert torch.equal(got.params, torch.where(kept, proposed, before.params))


def test_the_test_batch_is_fresh_in_every_trial():
    world, again = crowd(PLAN, clients=5), crowd(PLAN, clients=5)
    seen = []
    gradients = world.gradients
    losses = gradients.losses
    gradients.losses = lambda params, x, y: seen.append((x, y)) or losses(params, x, y)
    state = DPSUR.start(world, start(model()))
    for _ in range(3):
        state = DPSUR.step(world, state)
    batches = [poisson(again.data, [0.5] * 5, again.streams.of("validation")) for _ in range(3)]
    assert len(seen) == 6
    for trial, batch in enumerate(batches):
        for x, y in seen[2 * trial : 2 * trial + 2]:
            assert torch.equal(x, batch.x) and torch.equal(y, batch.y)


@pytest.mark.parametrize(("rate", "side"), [(0.1, 1), (-0.1, -1)], ids=["loss falls", "loss rises"])
def test_acceptance_has_its_probability_at_both_ends(rate, side):
    """False alarm below 2e-6 in all."""
    assert alarms(accepted(DPSUR, crowd(CLEAR, rate)), AT_THE_ENDS[side]) == set()


SPOILED = {
    "noise without its factor 2": {"validation_noise": 0.375},
    "noise x 1.5": {"validation_noise": 1.125},
    "threshold of the other sign": {"beta": 0.5},
    "threshold at 0": {"beta": 0.0},
}


@pytest.mark.parametrize("changes", SPOILED.values(), ids=SPOILED)
def test_another_probability_would_be_noticed(changes):
    assert "frequency" in alarms(
        accepted(DPSUR, crowd(alter(CLEAR, **changes), -0.1)), AT_THE_ENDS[-1]
    )


def test_coins_that_clients_or_trials_share_would_be_noticed():
    coins = np.random.default_rng(0).random((TRIALS, CROWD)) < 0.4
    assert alarms(coins, 0.4) == set()
    assert "a client's trials" in alarms(np.tile(coins[:1], (TRIALS, 1)), 0.4)
    assert "a trial's clients" in alarms(np.repeat(coins[:, :10], CROWD // 10, axis=1), 0.4)


@pytest.mark.parametrize("hides", [False, True])
@pytest.mark.parametrize("optimizer", [sgd(0.9), adam()], ids=["momentum", "adam"])
def test_accepting_always_is_dpsgd(optimizer, hides):
    """In every bit."""
    plan = alter(HIDDEN if hides else PLAN, beta=ALWAYS)
    plain = DpsgdPlan(0.5, 1.0, 0.5, 4)
    ours, book = (
        local_round(mechanism, cohort([one] * 4, optimizer=optimizer), start(model()))
        for mechanism, one in ((DPSUR, plan), (DPSGD, plain))
    )
    assert torch.equal(ours.params, book.params) and torch.equal(ours.taken, book.taken)
    assert all(torch.equal(a, b) for a, b in zip(ours.optimizer, book.optimizer, strict=True))


@pytest.mark.parametrize("plan", [PLAN, HIDDEN], ids=["public", "hidden"])
@pytest.mark.parametrize("optimizer", [sgd(0.9), adam()], ids=["momentum", "adam"])
def test_a_cohort_is_its_clients_one_by_one(plan, optimizer):
    """Clients accept on their own, and one that is done idles."""
    plans = [
        alter(plan, steps=steps, beta=beta)
        for steps, beta in ((3, -0.5), (1, 0.0), (5, -1.0), (2, 1.0))
    ]
    together = local_round(DPSUR, cohort(plans, optimizer=optimizer), start(model()))
    for client, one in enumerate(plans):
        alone = local_round(DPSUR, cohort([one], [client], optimizer=optimizer), start(model()))
        torch.testing.assert_close(together.params[client], alone.params[0], rtol=1e-4, atol=1e-5)
        assert together.taken[client] == alone.taken[0]
        assert together.memory["tried"][client] == alone.memory["tried"][0]
    counted = together.taken if plan is HIDDEN else together.memory["tried"]
    assert counted.tolist() == [3, 1, 5, 2]


@pytest.mark.parametrize("plan", [PLAN, HIDDEN], ids=["public", "hidden"])
@pytest.mark.parametrize("optimizer", [sgd(0.9), adam()], ids=["momentum", "adam"])
def test_a_rejected_trial_leaves_no_trace(plan, optimizer):
    """Two rounds that differ in the proposals of rejected trials only end in the same state, in
    every bit.

    The test's noise is so large that it alone decides. Kills a state of which some part outlives a
    rejection.
    """
    blind = alter(plan, steps=8, beta=0.0, validation_noise=1e9, clip_quantile=0.5)
    world = cohort([blind] * 4, optimizer=optimizer)
    state, rejected = DPSUR.start(world, start(model())), []
    while (going := DPSUR.active(world, state)).any():
        after = DPSUR.step(world, state).where(going, state)
        rejected.append((after.taken == state.taken).numpy())
        state = after
    where = np.array(rejected)
    assert (where.any(axis=0) & ~where.all(axis=0)).all()
    changed = with_changed_noise(cohort([blind] * 4, optimizer=optimizer), where)
    assert same(local_round(DPSUR, changed, start(model())), state)
    one_accepted = where.copy()
    one_accepted[np.flatnonzero(~where[:, 2])[0], 2] = True
    changed = with_changed_noise(cohort([blind] * 4, optimizer=optimizer), one_accepted)
    assert not torch.equal(local_round(DPSUR, changed, start(model())).params, state.params)


def test_the_learning_rate_follows_accepted_steps():
    asked = []
    world = cohort([alter(PLAN, beta=0.0, steps=12)] * 3)
    world = dataclasses.replace(
        world, learning_rate=lambda taken: asked.append(taken.tolist()) or 0.1 + 0 * taken
    )
    end = local_round(DPSUR, world, start(model()))
    assert len(asked) == 12 and end.taken.min() > 0 and end.taken.max() < 12
    assert (
        all(np.diff([row[k] for row in asked]).max() <= 1 for k in range(3)) and max(asked[-1]) < 11
    )


@pytest.mark.parametrize("wrong", [math.nan, math.inf])
def test_a_loss_that_is_not_finite_counts_as_the_largest_change(wrong):
    """It is accepted above a threshold of 1, and by enough noise: never refused for certain."""
    x = X.clone()
    x[OWNED[0][3]] = wrong
    quiet = alter(PLAN, validation_rate=1.0, validation_noise=1e-6, steps=1)
    for beta, taken in ((1.1, 1), (0.9, 0)):
        assert (
            local_round(DPSUR, cohort([alter(quiet, beta=beta)], x=x), start(model())).taken
            == taken
        )


def test_changes_are_clipped_and_made_finite():
    change = torch.tensor([-5.0, -0.2, 0.0, 0.2, 5.0, math.nan, math.inf, -math.inf])
    expected = torch.tensor([-0.5, -0.2, 0.0, 0.2, 0.5, 0.5, 0.5, 0.5])
    assert torch.equal(trials.clipped(change, torch.tensor(0.5)), expected)


@pytest.mark.parametrize("clients", [1, 2], ids=["batch of no width", "one of two"])
def test_an_empty_test_batch_changes_nothing(clients):
    quiet = alter(PLAN, validation_noise=1e-6, steps=1)
    empty, full = alter(quiet, validation_rate=1e-30), alter(quiet, validation_rate=1.0)
    for beta, taken in ((0.01, 1), (-0.01, 0)):
        plans = [alter(empty, beta=beta), full][:clients]
        assert local_round(DPSUR, cohort(plans), start(model())).taken[0] == taken


def test_a_client_gives_up_after_the_cap_and_begins_to_count_again_when_it_accepts():
    capped = alter(HIDDEN, most_rejections=5)
    world, state = cohort([alter(capped, beta=NEVER), alter(capped, beta=0.0)]), None
    state = DPSUR.start(world, start(model()))
    history = []
    for _ in range(60):
        going = DPSUR.active(world, state)
        state = DPSUR.step(world, state).where(going, state)
        history.append((state.taken[1].item(), state.memory["refused"][1].item()))
    assert not DPSUR.active(world, state).any()
    assert (
        state.memory["tried"][0] == 5
        and state.taken[0] == 0
        and torch.equal(state.params[0], start(model()))
    )
    assert state.taken[1] == 4 and any(refused > 0 for _, refused in history)
    assert all(b[1] == 0 for a, b in itertools.pairwise(history) if b[0] > a[0])
