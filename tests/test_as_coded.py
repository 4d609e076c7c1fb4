"""The habits of DPSUR's public code: each changes what it says, and nothing is taken for proved."""

import dataclasses
import json
import math

import pytest
import torch

from mechanisms import as_coded, dpsgd
from mechanisms.accounting.accountant import epsilon
from mechanisms.as_coded import DPSUR, Plan
from mechanisms.cohort import Cohort, LocalState
from mechanisms.mechanism import local_round
from mechanisms.optimizers import sgd
from mechanisms.registry import MECHANISMS
from mechanisms.sampling import poisson
from sim import central
from tests.small import model
from tests.small import start as first_of
from tests.test_dpsur import HIDDEN
from tests.trials import crowd

HABITS = ("stale_loss", "kept_momentum", "drawn_divisor")


def plan(**habits: bool) -> Plan:
    return Plan(**dataclasses.asdict(HIDDEN), **dict.fromkeys(HABITS, False) | habits)


def world(**habits: bool) -> Cohort:
    return dataclasses.replace(crowd(plan(**habits), 0.5, clients=60), optimizer=sgd(0.9))


def stepped(trials: int, **habits: bool) -> list[LocalState]:
    cohort = world(**habits)
    states = [DPSUR.start(cohort, first_of(model()))]
    for _ in range(trials):
        states.append(DPSUR.step(cohort, states[-1]))
    return states


def test_without_a_habit_it_is_dpsur():
    ours = local_round(DPSUR, world(), first_of(model()))
    theirs = local_round(MECHANISMS["dpsur"], world(), first_of(model()))
    assert torch.equal(ours.params, theirs.params) and (ours.taken == 4).all()


def test_momentum_is_kept_over_a_rejection_and_nothing_else_is():
    before, after, late = stepped(2, kept_momentum=True)
    plain = stepped(1)[1]
    refused = after.taken == 0
    assert 5 < refused.sum() < 55
    assert torch.equal(after.params, plain.params) and torch.equal(after.taken, plain.taken)
    assert torch.equal(after.params[refused], before.params[refused])
    proposal = dpsgd.step(world(), before)
    assert torch.equal(after.optimizer[0], proposal.optimizer[0])
    assert (plain.optimizer[0][refused] == 0).all()
    assert not torch.equal(late.params, stepped(2)[2].params)


def test_a_sum_is_divided_by_the_drawn_size():
    before = DPSUR.start(world(), first_of(model()))
    one, other = (as_coded._proposed(world(), before, drawn) for drawn in (True, False))
    cohort = world()
    drawn = poisson(cohort.data, [0.5] * 60, cohort.streams.of("batch")).mask.sum(1, keepdim=True)
    expected = 0.5 * cohort.data.sizes()[:, None]
    moves = [(before.params - after.params).double() for after in (one, other)]
    assert torch.allclose(moves[0] * drawn.clamp(min=1), moves[1] * expected, rtol=1e-4, atol=1e-5)
    assert (drawn == 0).any()


def test_a_trial_is_compared_with_the_loss_on_an_old_batch():
    cohort = world(stale_loss=True)
    before, first, second = stepped(2, stale_loss=True)
    again, rates = world(), [0.5] * 60
    batches = [poisson(again.data, rates, again.streams.of("validation")) for _ in range(2)]
    noise = [again.streams.normal("validation noise", 1)[:, 0].double() for _ in range(2)]

    def mean(params: torch.Tensor, k: int) -> torch.Tensor:
        batch = batches[k]
        found = cohort.losses(params, batch, rates).double() * batch.mask
        return found.sum(1) / batch.mask.sum(1)

    full, took = batches[0].mask.any(1) & batches[1].mask.any(1), first.taken == 1
    assert full.sum() > 50 and torch.equal(took, -0.01 + 0.015 * noise[0] < -0.005)
    found = torch.where(took, mean(first.params, 0), 1e5)
    assert torch.allclose(first.memory["loss"][full], found[full])
    proposal = dpsgd.step(_after_one_draw(), first)
    change = (mean(proposal.params, 1) - first.memory["loss"]).clamp(-0.01, 0.01)
    accept = change + 2 * 0.01 * 0.75 * noise[1] < -0.5 * 0.01
    assert torch.equal((second.taken > first.taken)[full], accept[full])
    assert 5 < (accept & took).sum() < 55
    kept = torch.where(accept, mean(proposal.params, 1), first.memory["loss"])
    assert torch.allclose(second.memory["loss"][full], kept[full])
    assert (before.memory["loss"] == 1e5).all()


def _after_one_draw() -> Cohort:
    cohort = world()
    dpsgd.step(cohort, DPSUR.start(cohort, first_of(model())))
    return cohort


def test_an_empty_test_leaves_the_loss_as_it_was():
    rare = dataclasses.replace(plan(stale_loss=True), validation_rate=0.05)
    cohort, again = (dataclasses.replace(world(), plans=[rare] * 60) for _ in range(2))
    after = DPSUR.step(cohort, DPSUR.start(cohort, first_of(model())))
    empty = ~poisson(again.data, [0.05] * 60, again.streams.of("validation")).mask.any(1)
    assert empty.any() and (after.memory["loss"][empty] == 1e5).all()
    assert after.taken[empty].any() and after.memory["loss"].isfinite().all()


@pytest.mark.parametrize("habit", ["", *HABITS])
def test_nothing_is_proved_and_the_claim_is_the_papers(habit):
    charges = plan(**{habit: True} if habit else {}).round_charges(1)
    found = epsilon(charges, 1e-5)
    assert math.isinf(found.epsilon)
    assert epsilon(charges, 1e-5, "published").epsilon == pytest.approx(
        epsilon(HIDDEN.claims(4, 1), 1e-5, "published").epsilon
    )


def test_a_run_ends_when_its_claim_does_and_says_that_nothing_is_proved(tmp_path):
    own = "stale_loss = true, dpsur_validation_noise = 2.5, dpsur_validation_rate = 0.1"
    flags = f"--epsilon=3 --budget=published --rounds=40 --noise-multiplier=3 --out={tmp_path}"
    words = [*flags.split(), "--mechanism=mechanisms.as_coded:DPSUR", "--name=habits", "--quiet"]
    central.command([*words, "--mechanism-settings", own])
    summary = json.loads((tmp_path / "habits" / "summary.json").read_text())
    assert summary["epsilon_certified"] == [None] and 2 < summary["epsilon_published"][0] <= 3
    assert 0 < summary["rounds"] < 40 and "weighted by its probability" in summary["note"]


@pytest.mark.parametrize("unused", ['dpsur_accounting = "visible"', "dpsur_cap_share = 0.2"])
def test_what_has_no_effect_is_refused(tmp_path, unused):
    words = ["--mechanism=mechanisms.as_coded:DPSUR", "--mechanism-settings", unused]
    with pytest.raises(ValueError, match="has no effect on DPSUR as coded"):
        central.command([*words, "--noise-multiplier=3", f"--out={tmp_path}"])
    assert list(tmp_path.iterdir()) == []
