"""Noise screening: annealed acceptance, on public records with forced steps, on own ones with a
bound that is exact."""

import dataclasses
import json
import math

import numpy as np
import pytest
import torch

from mechanisms.accounting.accountant import epsilon, rdp
from mechanisms.accounting.events import ClassicClaim, SampledGaussian, ScreenedStep, TrialCap
from mechanisms.dpsgd import DpsgdPlan
from mechanisms.mechanism import local_round
from mechanisms.optimizers import adam, sgd
from mechanisms.plan import Terms, planned
from mechanisms.randomness import generator, seed_key
from mechanisms.registry import MECHANISMS, plan_table
from mechanisms.screening import ScreeningPlan
from mechanisms.settings import Privacy, Screening
from sim import account
from sim.commands.guard import main_guard
from sim.config.configuration import load
from sim.data.dataset import Dataset
from sim.data.holdout import set_aside
from sim.phases.build import build
from sim.run import command
from tests.small import OWNED, X, Y, cohort, model, start
from tests.trials import accepted, alarms, crowd

SCREENING, DPSGD = MECHANISMS["screening"], MECHANISMS["dpsgd"]
OWN = ScreeningPlan(
    0.5,
    1.0,
    0.5,
    steps=4,
    most_rejections=60,
    gain=40.0,
    stage=2,
    planned=8,
    test_rate=0.5,
    clip=0.05,
    forced_after=3,
    accounting="clipped",
)
OPEN = dataclasses.replace(OWN, most_rejections=0, clip=math.inf, accounting="public-test")

CLEAR = dataclasses.replace(
    OWN, sample_rate=1.0, noise_multiplier=1e-3, clip=1e-6, gain=4e6, test_rate=1.0, steps=2
)
"""Every change of the loss is beyond the clip; in the first stage, c Q0 tau = 1."""


def alter(plan: ScreeningPlan, **changes) -> ScreeningPlan:
    return dataclasses.replace(plan, **changes)


def seeing(public, plans, **options):
    """A cohort that has public records."""
    return dataclasses.replace(cohort(plans, **options), holdout=public)


def plan_of(steps: int = 2, rounds: int = 5, epsilon: float | None = None, **own) -> ScreeningPlan:
    terms = Terms(
        Privacy(epsilon=epsilon, noise_multiplier=3.0, sample_rate=0.1),
        Screening(**own),
        steps,
        rounds,
        9,
    )
    return ScreeningPlan.of(terms, 3.0)


@pytest.mark.parametrize("plan", [OWN, OPEN], ids=["own", "public"])
@pytest.mark.parametrize("optimizer", [sgd(0.9), adam()], ids=["momentum", "adam"])
def test_at_temperature_0_it_is_dpsgd(plan, optimizer):
    """Every proposal is accepted: in every bit."""
    world = seeing((X, Y), [alter(plan, gain=0.0)] * 4, optimizer=optimizer)
    ours = local_round(SCREENING, world, start(model()))
    book = local_round(
        DPSGD, cohort([DpsgdPlan(0.5, 1.0, 0.5, 4)] * 4, optimizer=optimizer), start(model())
    )
    assert torch.equal(ours.params, book.params) and torch.equal(ours.taken, book.taken)
    assert all(torch.equal(a, b) for a, b in zip(ours.optimizer, book.optimizer, strict=True))


@pytest.mark.parametrize("plan", [OWN, OPEN], ids=["own", "public"])
def test_a_cohort_is_its_clients_one_by_one(plan):
    plans = [
        alter(plan, steps=steps, gain=gain)
        for steps, gain in ((3, 20.0), (1, 5.0), (5, 40.0), (2, 10.0))
    ]
    together = local_round(SCREENING, seeing((X, Y), plans, optimizer=sgd(0.9)), start(model()))
    for client, one in enumerate(plans):
        world = seeing((X, Y), [one], clients=[client], optimizer=sgd(0.9))
        alone = local_round(SCREENING, world, start(model()))
        torch.testing.assert_close(together.params[client], alone.params[0], rtol=1e-4, atol=1e-5)
        assert together.taken[client] == alone.taken[0]
    counted = together.taken if plan is OWN else together.memory["tried"]
    assert counted.tolist() == [3, 1, 5, 2]


@pytest.mark.parametrize("nth", [1, 2])
def test_worse_proposals_are_accepted_with_the_probability_that_is_charged(nth):
    """False alarm below 2e-6 in all. Kills: no clip, another temperature than the ledger's, a noisy
    or shared coin."""
    (screened,) = [event for event in CLEAR.round_charges(nth) if isinstance(event, ScreenedStep)]
    assert screened.lowest_acceptance == pytest.approx(math.exp(-nth))
    assert (
        alarms(accepted(SCREENING, crowd(CLEAR, -0.1, nth=nth)), screened.lowest_acceptance)
        == set()
    )


@pytest.mark.parametrize("change", [{"clip": 1.3e-6}, {"gain": 2.8e6}, {"stage": 1}], ids=str)
def test_another_probability_would_be_noticed(change):
    assert "frequency" in alarms(
        accepted(SCREENING, crowd(alter(CLEAR, **change), -0.1)), math.exp(-1)
    )


def test_better_proposals_are_always_accepted():
    assert accepted(SCREENING, crowd(CLEAR, 0.1)).all()


def test_the_temperature_falls_in_stages_and_is_the_one_that_is_charged():
    """Ten steps in stages of four, which end within rounds of five; the last ends with the run."""
    plan = plan_of(steps=5, rounds=2, screening_gain=5.0, screening_stages=3, screening_clip=0.1)
    inverse = [plan.inverse_temperature(nth, taken) for nth in (1, 2) for taken in range(5)]
    assert inverse == pytest.approx([2.0] * 4 + [4.0] * 4 + [5.0] * 2)
    charged = [e for nth in (1, 2) for e, n in plan.round_charges(nth).items() for _ in range(n)]
    lowest = [e.lowest_acceptance for e in charged if isinstance(e, ScreenedStep)]
    assert lowest == pytest.approx([math.exp(-0.1 * one) for one in inverse])
    caps = [e for e in charged if isinstance(e, TrialCap)]
    assert [e.lowest_acceptance for e in caps] == lowest and {e.most_rejections for e in caps} == {
        plan.most_rejections
    }
    assert sum((1 - e.lowest_acceptance) ** plan.most_rejections for e in caps) <= 0.1 * 1e-5


def test_a_step_is_forced_after_enough_rejections():
    """Every proposal is far worse: three rejections, one forced step, and so on."""
    worse = alter(OPEN, gain=1e9, sample_rate=1.0, noise_multiplier=1e-3, steps=9, planned=9)
    world = seeing((X[OWNED[0]], Y[OWNED[0]]), [worse])
    world = dataclasses.replace(world, learning_rate=lambda taken: torch.full_like(taken, -1.0))
    state, taken = SCREENING.start(world, start(model())), []
    while SCREENING.active(world, state).any():
        state = SCREENING.step(world, state)
        taken.append(state.taken[0].item())
    assert taken == [0, 0, 0, 1, 1, 1, 1, 2, 2]


def test_on_own_records_nothing_is_forced_and_the_cap_ends_the_round():
    worse = alter(OWN, gain=1e9, clip=1.0, sample_rate=1.0, test_rate=1.0, noise_multiplier=1e-3)
    world = cohort([alter(worse, most_rejections=6, forced_after=2)] * 3)
    world = dataclasses.replace(world, learning_rate=lambda taken: torch.full_like(taken, -1.0))
    state = SCREENING.start(world, start(model()))
    for _ in range(20):
        state = SCREENING.step(world, state).where(SCREENING.active(world, state), state)
    assert state.memory["tried"].tolist() == [6] * 3 and state.taken.tolist() == [0] * 3
    assert torch.equal(state.params, start(model()).expand(3, -1))


def test_the_public_test_looks_at_public_records_alone():
    """Of two cohorts with the same proposals, that with mirrored public labels decides otherwise;
    own records are not looked at, and without public ones there is no test."""
    plan = alter(OPEN, noise_multiplier=1e-3, sample_rate=1.0, gain=1e4, steps=1)
    own = OWNED[0]
    like, unlike = (X[own], Y[own]), (X[own], (Y[own] + 1) % 3)
    ends = [
        local_round(SCREENING, seeing(public, [plan]), start(model())) for public in (like, unlike)
    ]
    assert [end.taken.item() for end in ends] == [1, 0]
    with pytest.raises(ValueError, match="give --public-records"):
        local_round(SCREENING, cohort([plan]), start(model()))
    seen = seeing(like, [plan])
    seen.streams.of = lambda purpose, of=seen.streams.of: (
        of(purpose) if purpose != "validation" else pytest.fail()
    )
    local_round(SCREENING, seen, start(model()))


@pytest.mark.parametrize("wrong", [math.nan, math.inf])
def test_a_loss_that_is_not_finite_is_the_worst_change(wrong):
    """On public records it is refused; on own ones it is accepted as often as a change by the
    clip."""
    x = X.clone()
    x[OWNED[0][3]] = wrong
    open_ = local_round(SCREENING, seeing((x, Y), [alter(OPEN, steps=1)]), start(model()))
    assert open_.taken == 0
    mild = alter(OWN, test_rate=1.0, clip=1e-12, steps=1)
    assert local_round(SCREENING, cohort([mild], x=x), start(model())).memory["tried"] == 1


def test_an_empty_test_batch_accepts():
    end = local_round(
        SCREENING, cohort([alter(OWN, test_rate=1e-30, gain=1e9)] * 3), start(model())
    )
    assert end.memory["tried"].tolist() == [4] * 3


def test_on_public_records_every_trial_is_paid_like_dpsgd():
    plan = plan_of(steps=6, screening_data="public")
    (step,) = plan.round_charges(1)
    assert plan.round_charges(1) == {step: 6} and step.accounting == "public-test"
    orders = [1.5, 2.0, 16.0]
    expected = rdp({SampledGaussian(0.1, 3.0): 6}, orders, "certified")
    assert rdp(plan.round_charges(1), orders, "certified").tolist() == expected.tolist()
    world = seeing((X, Y), [alter(plan, gain=50.0)] * 3)
    end = local_round(SCREENING, world, start(model()))
    claims = [{ClassicClaim(0.1, 3.0): n} if n else {} for n in end.taken.tolist()]
    assert SCREENING.realized(world, end) == claims
    assert SCREENING.metrics(world, end)["acceptance_rate"].tolist() == (end.taken / 6).tolist()


def test_the_papers_q0_is_what_the_inverse_temperature_grows_by_in_a_step():
    """With as many stages as steps it is Q0 tau, tau from 1; without Q0 it ends at the gain."""
    plan = plan_of(
        steps=4, rounds=3, screening_data="public", screening_q0=10.0, screening_stages=12
    )
    taken = [plan.inverse_temperature(nth, n) for nth in (1, 2, 3) for n in range(4)]
    assert taken == pytest.approx([10.0 * tau for tau in range(1, 13)]) and plan.gain == 120.0
    assert plan_of(steps=4, rounds=3, screening_data="public", screening_gain=7.0).gain == 7.0


def test_q0_is_charged_by_the_least_acceptance_that_it_leads_to():
    capped = plan_of(steps=4, rounds=3, screening_q0=0.5, screening_clip=0.3, screening_stages=12)
    same = plan_of(steps=4, rounds=3, screening_gain=6.0, screening_clip=0.3, screening_stages=12)
    assert capped == same and capped.most_rejections > plan_of(steps=4, rounds=3).most_rejections


def test_on_own_records_nothing_tells_rejections():
    plan = plan_of(steps=6, screening_gain=5.0)
    assert plan.round_charges(1)[ClassicClaim(0.1, 3.0)] == 6
    world = cohort([alter(plan, gain=50.0)] * 3)
    end = local_round(SCREENING, world, start(model()))
    assert len(set(end.memory["tried"].tolist())) > 1
    assert SCREENING.metrics(world, end) == {} and SCREENING.realized(world, end) == [{}] * 3


def test_what_is_not_proved_is_refused_unless_asked_for_and_then_infinite():
    with pytest.raises(ValueError, match="say --allow-unproved"):
        plan_of(screening_clip=None)
    with pytest.raises(ValueError, match="give --epsilon none"):
        plan_of(screening_clip=None, allow_unproved=True, epsilon=8.0)
    plan = plan_of(screening_clip=None, allow_unproved=True)
    assert plan.accounting == "unproved" and plan.most_rejections == 0
    charges = {**plan.round_charges(1), **plan.claims(2, 1)}
    assert (
        epsilon(charges, 1e-5).epsilon == math.inf
        and 0 < epsilon(charges, 1e-5, "published").epsilon < 8
    )
    with pytest.raises(ValueError, match="test more gently"):
        plan_of(screening_gain=500.0)


def test_a_calibrated_plan_meets_its_target():
    privacy = Privacy(mechanism="screening", epsilon=4.0, sample_rate=0.5)
    plan = plan_table(
        privacy, Screening(screening_stages=1, screening_rate=0.5), 1, 3, np.array([9])
    ).of(0)
    assert 0.99 * 4.0 < epsilon(planned(plan, 3), 1e-5).epsilon <= 4.0


def test_public_records_are_taken_out_of_the_training_records():
    x = np.arange(50, dtype=np.float32)[:, None]
    dataset = Dataset("d", x, np.arange(50), x, np.arange(50), 50)
    rest, (public_x, public_y) = set_aside(dataset, 20, generator(seed_key(0), "public"))
    assert sorted([*rest.y, *public_y]) == list(range(50)) and len(public_y) == 20
    assert (rest.x[:, 0] == rest.y).all() and (public_x[:, 0] == public_y).all()
    again = set_aside(dataset, 20, generator(seed_key(1), "public"))[1]
    assert (again[1] != public_y).any() and set_aside(
        dataset, 0, generator(seed_key(0), "public")
    ) == (dataset, None)
    with pytest.raises(ValueError, match="lower --public-records"):
        set_aside(dataset, 50, generator(seed_key(0), "public"))


def test_a_run_that_needs_public_records_says_so():
    with pytest.raises(ValueError, match="give --public-records"):
        build(load(None, {"mechanism": "screening", "screening_data": "public"}))


RUNS = {
    "own": "--epsilon 8 --sample-rate 0.2 --screening-rate 0.2 --screening-stages 1",
    "public": "--epsilon 8 --screening-data public --public-records 100",
    "unproved": "--epsilon none --screening-clip none --allow-unproved",
}


@pytest.mark.parametrize("words", RUNS.values(), ids=RUNS)
def test_a_run_and_its_ledger_agree(words, tmp_path, capsys):
    common = (
        "--mechanism screening --engine inline --rounds 3 --clients 8 --steps 2 "
        "--noise-multiplier 5 --quiet"
    )
    command([*common.split(), *words.split(), "--name", "run", "--out", str(tmp_path)])
    capsys.readouterr()
    assert main_guard(account.command, ["--ledger", str(tmp_path / "run"), "--json"]) == 0
    clients = json.loads(capsys.readouterr().out)["clients"]
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    for column in ("certified", "published"):
        assert [one[f"epsilon_{column}"] for one in clients] == summary[f"epsilon_{column}"]
    assert (None in summary["epsilon_certified"]) == ("unproved" in words) and min(
        summary["epsilon_published"]
    ) > 0
    page = (tmp_path / "run" / "report.html").read_text()
    assert ("were taken out as public" in page) == ("public" in words)
