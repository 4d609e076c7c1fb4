"""DPIS: records enter by their norm and add vectors of equal length; what that costs is paid before
it is released."""

import dataclasses
import functools
import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import nn

from mechanisms import dpis
from mechanisms.accounting import ledger
from mechanisms.accounting.accountant import ORDERS, epsilon, rdp
from mechanisms.accounting.allotment import Account, cost, overdrawn
from mechanisms.accounting.events import (
    Allotment,
    Covered,
    ImportanceSampledGaussian,
    NoisyNormSum,
    PaperClaim,
    SampledGaussian,
)
from mechanisms.arithmetic import FLOATS
from mechanisms.cohort import Cohort
from mechanisms.dpis_plan import DpisPlan, Epoch, allocate
from mechanisms.dpsgd import DpsgdPlan
from mechanisms.gradients.record_gradients import RecordGradients
from mechanisms.mechanism import local_round
from mechanisms.optimizers import Optimizer, sgd
from mechanisms.plan import Terms, planned
from mechanisms.registry import MECHANISMS, plan_table
from mechanisms.sampling import CohortData
from mechanisms.settings import Dpis, Privacy
from sim.account import command as account
from sim.commands.flags import parse
from sim.commands.guard import main_guard
from sim.engines.start import train
from tests.devices import Noted
from tests.gaussian import SPOILERS, alarms
from tests.small import OWNED, X, cohort, model, start, streams
from tests.test_loop import World, outcome

DPIS, DPSGD, DELTA = MECHANISMS["dpis"], MECHANISMS["dpsgd"], 1e-5
WITNESS = Optimizer(
    lambda params: (torch.zeros_like(params),), lambda gradient, state: (gradient, (gradient,))
)
"""Plain descent whose state is the last noisy gradient as it came."""

NORMS = np.array(
    [0.0, 1e-3, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.7, 50.0]
)
"""Of the records of the worlds below; the clip norm is 1."""
CLIPPED = np.minimum(NORMS, 1.0)


def plan(rate=0.2, noise=2.0, clip=1.0, steps=6, records=8, rounds=1, **own) -> DpisPlan:
    return DpisPlan(rate, noise, clip, steps, rounds, DELTA, records, Dpis(**own))


def funded(world: Cohort, nth: int = 1) -> Cohort:
    """With an account for each client, as if it had taken part in ``nth - 1`` rounds without
    spending."""
    allotments = [p.allotment for p in world.plans]
    return dataclasses.replace(world, accounts=[Account(a.order, nth * a.rdp) for a in allotments])


def apart(plans: list[DpisPlan], norms: np.ndarray, optimizer: Optimizer = WITNESS) -> Cohort:
    """Clients whose record i has, at any model, the gradient ``norms[i]`` along axis i."""
    module = nn.Linear(len(norms), 1, bias=False)
    records = [np.arange(len(norms))] * len(plans)
    data = CohortData(
        torch.diag(torch.tensor(norms, dtype=torch.float32)), torch.zeros(len(norms)), records
    )
    clients = range(len(plans))
    return funded(
        Cohort(
            gradients=RecordGradients(module, lambda output, _: output[:, 0]),
            data=data,
            plans=plans,
            streams=streams(clients),
            optimizer=optimizer,
            learning_rate=lambda taken: torch.ones_like(taken),
            nth=[1] * len(plans),
        )
    )


def sums(
    own: DpisPlan, norms: np.ndarray, clients: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The noiseless sums ``[steps, clients, n]`` of a round, and K / (N C) and C at each step
    ``[steps, clients]``."""
    own = dataclasses.replace(own, records=len(norms))
    world, noise = apart([own] * clients, norms), streams(range(clients))
    state, found = DPIS.start(world, torch.zeros(len(norms))), []
    for number in range(own.steps):
        state = DPIS.step(world, state)
        share, clip, multiplier = (
            state.memory[name][:, number // own.epoch_steps]
            for name in ("norm_ratio", "clip_norm", "multiplier")
        )
        size, draws = own.sample_rate * len(norms), noise.normal("noise", len(norms))
        total = state.optimizer[0] * size - (multiplier * clip).float()[:, None] * draws
        found.append((total.double().numpy(), share.numpy(), clip.numpy()))
    return tuple(np.stack(part) for part in zip(*found, strict=True))


@functools.cache
def sampled(**own) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Some four thousand steps of clients with NORMS, in epochs of ten."""
    return sums(plan(rate=0.1, noise=3.0, steps=60, dpis_first_phase=1.0, **own), NORMS, 70)


def unlikely(counts: np.ndarray, chances: np.ndarray) -> set[int]:
    """The records that did not enter as often as they should; false alarms below 1e-6 in all.

    The counts' variance is at most that of draws with the mean chance.
    """
    trials, mean = len(chances), chances.mean(axis=0)
    p_values = 2 * np.minimum(
        stats.binom.cdf(counts, trials, mean), stats.binom.sf(counts - 1, trials, mean)
    )
    return set(np.flatnonzero(p_values < 1e-6 / len(counts)).tolist())


@pytest.mark.parametrize(
    "own", [{}, {"dpis_norm_rate": 0.4}, {"dpis_floor": 1.0}, {"dpis_slack": 1.0}], ids=str
)
def test_records_enter_with_probability_b_norm_over_k(own):
    """Whatever their estimates are. Kills proposals that are not decided on, and estimates below
    the norm."""
    total, share, _ = sampled(**own)
    entered = (total.reshape(-1, len(NORMS)) > 1e-3).sum(axis=0)
    chances = 0.1 * CLIPPED / share.reshape(-1, 1)
    assert unlikely(entered, chances) == set() and entered[0] == 0


SPOILED = {
    "chances x 0.9": lambda chances, ghat: 0.9 * chances,
    "chances x 1.1": lambda chances, ghat: 1.1 * chances,
    "uniform": lambda chances, ghat: np.full_like(chances, 0.1),
    "all proposals": lambda chances, ghat: 0.1 * ghat,
    "by the square": lambda chances, ghat: chances**2 / 0.1,
}


@pytest.mark.parametrize("spoil", SPOILED.values(), ids=SPOILED)
def test_any_other_sampling_would_be_noticed(spoil):
    _, share, _ = sampled()
    chances = 0.1 * CLIPPED / share.reshape(-1, 1)
    wrong = spoil(chances, np.clip(2 * NORMS, 0.05, 1.0) / share.reshape(-1, 1))
    entered = (np.random.default_rng(1).random(chances.shape) < wrong).sum(axis=0)
    assert unlikely(entered, chances) != set()


def test_a_record_whose_norm_has_grown_counts_as_one_of_its_estimate():
    """The cap of the acceptance probability; a slack of one half stands for norms that have
    doubled."""
    total, share, _ = sampled(dpis_slack=0.5)
    entered = (total.reshape(-1, len(NORMS)) > 1e-3).sum(axis=0)
    held = np.minimum(CLIPPED, np.maximum(0.5 * NORMS, 0.05))
    assert unlikely(entered, 0.1 * held / share.reshape(-1, 1)) == set()


@pytest.mark.parametrize("own", [{}, {"dpis_norm_rate": 0.4}, {"dpis_clip": 1.5}], ids=str)
def test_whoever_enters_adds_a_vector_of_norm_k_over_n(own):
    """Of a step's sum, before it is divided by b: however small or large its gradient, and whatever
    its chance was.

    Kills dividing by the probability of the proposal, or by one that was cut off.
    """
    total, share, clip = sampled(**own)
    length = (share * clip)[:, :, None]
    entered = total > 0.5 * length
    assert np.abs(np.where(entered, total - length, total)).max() < 1e-5 and entered.sum() > 5_000
    assert (length <= clip[:, :, None]).all()


def test_the_weighted_sum_is_unbiased():
    """Its mean is the mean of the clipped gradients; that of the unclipped ones lies outside the
    error allowed."""
    total, _, _ = sampled()
    drawn = total.reshape(-1, len(NORMS)) / (0.1 * len(NORMS))
    error = drawn.std(axis=0) / len(drawn) ** 0.5
    wanted = CLIPPED / len(NORMS)
    assert (np.abs(drawn.mean(axis=0) - wanted) <= 6 * error + 1e-6).all()
    assert (np.abs(drawn.mean(axis=0) - NORMS / len(NORMS)) > 6 * error + 1e-6)[-2:].all()


def test_only_proposed_records_are_computed():
    """About k b gradients in a step, of 400 records of equal norm: 2 x 8 with slack 2, where a
    uniform batch has 8."""
    own = plan(rate=0.02, noise=3.0, steps=50, records=400, dpis_norm_share=0.5)
    world, sizes = apart([own], np.full(400, 0.3)), []
    whole = world.gradients.scaled_sum

    def counted(params, x, *rest):
        sizes.append(x.shape[1])
        return whole(params, x, *rest)

    world.gradients.scaled_sum = counted
    state = local_round(DPIS, world, torch.zeros(400))
    expected = 0.02 * 0.6 * 400 / float(state.memory["norm_ratio"][0, 0])
    assert abs(np.mean(sizes) - expected) < 6 * (expected / 50) ** 0.5


@functools.cache
def noise_of_a_round(phase: float) -> tuple[np.ndarray, float]:
    """What the steps of one client add to a sum over records without a gradient, over the
    deviations in its ledger."""
    own = plan(rate=0.3, noise=1.5, clip=0.5, steps=12, records=3000, dpis_first_phase=phase)
    world, state = apart([own], np.zeros(3000)), None
    state, drawn = DPIS.start(world, torch.zeros(3000)), []
    for _ in range(own.steps):
        state = DPIS.step(world, state)
        drawn.append(state.optimizer[0][0].double().numpy() * own.sample_rate * own.records)
    (charges,) = DPIS.realized(world, state)
    events = [
        (e.event, n) for e, n in charges.items() if isinstance(e.event, ImportanceSampledGaussian)
    ]
    stds = np.concatenate([np.full(n, e.noise_multiplier * e.clip_norm) for e, n in events])
    assert len(stds) == own.steps and (len(set(stds)) > 1) == (phase < 1)
    return np.concatenate([noise / std for noise, std in zip(drawn, stds, strict=True)])


@pytest.mark.parametrize("phase", [1.0, 0.0])
def test_the_noise_is_gaussian_with_the_charged_scale(phase):
    """False alarm below 2e-6. Kills a dropped s or C, noise by K, the planned noise where less was
    charged."""
    sample = noise_of_a_round(phase)
    assert sample.size == 36_000 and alarms(sample, 1.0) == set()


@pytest.mark.parametrize("spoil", SPOILERS.values(), ids=SPOILERS)
def test_any_other_noise_would_be_noticed(spoil):
    assert alarms(spoil(noise_of_a_round(0.0), 1.0), 1.0)


@pytest.mark.parametrize("rate", [1.0, 0.25])
def test_a_norm_sum_has_noise_outside_the_factor_one_over_p(rate):
    """Eq. (11): the deviation is s_K C whatever p, and the event says so. False alarm below 3e-6.

    Kills noise within 1/p that is charged as the paper does, and a sum that is not divided by p.
    """
    own = plan(records=200, dpis_norm_rate=rate)
    stream = np.random.default_rng(0)
    norms = np.array([0.2, 3.0, math.inf, math.nan, 0.0])
    drawn = np.array([dpis.noisy_norm_sum(own, norms, 0.5, stream, FLOATS) for _ in range(3_000)])
    (event,) = own.norm_sum_charges
    assert alarms(drawn - 0.7 / rate, event.noise_multiplier * 0.5) == set()
    assert cost(event, 4.0) == pytest.approx(
        cost(SampledGaussian(rate, event.noise_multiplier * rate), 4.0)
    )


@settings(max_examples=100)
@given(
    st.lists(st.floats(0, 1e6) | st.sampled_from([math.inf, math.nan]), max_size=20),
    st.floats(0.01, 1.0),
    st.floats(1e-3, 1e3),
    st.integers(0, 2**32),
)
def test_k_is_above_b_c_and_the_clip_bound_above_its_floor(norms, rate, clip, seed):
    """Whatever the norms and the noise: K in [b C, N C], C in its bounds, so no step is charged a
    rate above 1.

    Kills the maximum with b C, and taking it before the minimum.
    """
    own = plan(rate=rate, clip=clip, records=max(1, len(norms)), dpis_clip=1.0)
    bound = dpis._clip_norm(own, np.array(norms), np.random.default_rng(seed), FLOATS)
    assert dpis.MIN_CLIP * clip <= bound <= clip
    share = dpis._norm_ratio(own, np.array(norms), bound, np.random.default_rng(seed + 1), FLOATS)
    assert own.sample_rate <= share <= 1.0
    event = own.step_event(share, bound, 1.0)
    assert event.norm_sum >= event.batch_size * event.clip_norm
    assert event.norm_sum <= own.records * bound * (1 + 1e-12)


def test_the_least_k_is_charged_however_it_is_rounded():
    """One product in six is an ulp below b C. Kills a run that ends because of it."""
    rng = np.random.default_rng(0)
    for rate, clip, records in zip(rng.random(60), rng.random(60), range(1, 600, 10), strict=True):
        event = plan(rate=rate, clip=clip, records=records).step_event(rate, clip, 1.0)
        assert event.norm_sum == pytest.approx(rate * records * clip)


def test_estimates_stay_within_the_clip_bound_when_it_moves():
    """With norms that are looked at now and then only, so that old estimates meet new bounds. Kills
    the clamp."""
    own = plan(
        0.25,
        0.5,
        steps=40,
        records=len(NORMS),
        dpis_norm_rate=0.3,
        dpis_clip=0.7,
        dpis_norm_share=0.9,
    )
    world = apart([own] * 5, NORMS)
    state, clips = DPIS.start(world, torch.zeros(len(NORMS))), set()
    for _ in range(own.steps):
        state = DPIS.step(world, state)
        rate, ghat, clip, share, _ = dpis._now(world, state)
        assert (ghat >= own.own.dpis_floor).all() and (ghat <= 1).all()
        assert ((rate / share)[:, None] * ghat <= 1).all()
        clips.update(clip.tolist())
    assert len(clips) > 10 and max(clips) > 1.5 * min(clips)


def mixed() -> list[DpisPlan]:
    """A plan for each of the four small clients; epochs, phases, samplings and bounds differ."""
    return [
        plan(0.5, 1.5, 0.5, steps=5, records=8, rounds=2, dpis_first_phase=0.0),
        plan(0.2, 2.0, 3.0, steps=1, records=12, dpis_clip=1.0),
        plan(
            0.3, 1.0, 1.0, steps=7, records=39, rounds=3, dpis_norm_rate=0.5, dpis_first_phase=0.3
        ),
        plan(1.0, 1.0, 0.1, steps=2, records=1, dpis_sampling="uniform"),
    ]


def test_a_cohort_is_its_clients_one_by_one():
    world = funded(cohort(mixed()), 2)
    together = local_round(DPIS, world, start(model()))
    figures = DPIS.metrics(world, together)
    for client, own in enumerate(mixed()):
        here = funded(cohort([own], [client]), 2)
        alone = local_round(DPIS, here, start(model()))
        for name, figure in DPIS.metrics(here, alone).items():
            torch.testing.assert_close(figures[name][client], figure[0], rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(together.params[client], alone.params[0], rtol=1e-4, atol=1e-4)
        for name in ("norm_ratio", "clip_norm", "multiplier", "ghat"):
            kept = alone.memory[name][0]
            torch.testing.assert_close(
                together.memory[name][client, : len(kept)], kept, rtol=1e-3, atol=1e-3
            )


@pytest.mark.parametrize("rate", [1.0, 0.5, 0.25])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_with_uniform_sampling_it_is_dpsgd_bit_for_bit(rate, momentum):
    bounds = (0.1, 1.0, 3.0, 9.0)
    plans = [
        plan(rate, 1.3, c, 6, len(own), dpis_sampling="uniform")
        for own, c in zip(OWNED, bounds, strict=True)
    ]
    plain = [DpsgdPlan(rate, 1.3, p.clip_norm, 6) for p in plans]
    mine = local_round(DPIS, funded(cohort(plans, optimizer=sgd(momentum))), start(model()))
    book = local_round(DPSGD, cohort(plain, optimizer=sgd(momentum)), start(model()))
    assert torch.equal(mine.params, book.params)


def test_what_is_released_is_what_was_paid_for():
    """Every release of the round, with the numbers in use, within the allotment; the figures are
    public ones."""
    plans = mixed()
    world = funded(cohort(plans))
    end = local_round(DPIS, world, start(model()))
    figures = DPIS.metrics(world, end)
    for k, (own, charges) in enumerate(zip(plans, DPIS.realized(world, end), strict=True)):
        assert all(
            isinstance(event, Covered) and event.order == own.allotment.order for event in charges
        )
        steps = {
            e.event: n for e, n in charges.items() if isinstance(e.event, ImportanceSampledGaussian)
        }
        sums_ = {e.event: n for e, n in charges.items() if isinstance(e.event, NoisyNormSum)}
        assert (
            sum(steps.values()) == own.steps and sum(sums_.values()) == own.epochs * own.norm_sums
        )
        used = {round(float(e.norm_sum / (e.clip_norm * own.records)), 9) for e in steps}
        assert used == {round(float(s), 9) for s in end.memory["norm_ratio"][k, : own.epochs]}
        assert not overdrawn({**charges, own.allotment: 1})
        spent = sum(n * cost(e.event, e.order) for e, n in charges.items())
        assert float(end.memory["spent"][k]) == pytest.approx(spent)
        assert figures["dpis_epsilon_spent"][k] <= epsilon({own.allotment: 1}, DELTA).epsilon


def test_charges_are_read_at_once():
    """A number of a client's would each make the host wait for a GPU."""
    world, seen = funded(cohort(mixed())), []
    end = DPIS.start(world, start(model()))
    with Noted(seen.append):
        DPIS.realized(world, end)
    assert seen.count(torch.Tensor.tolist) == 3 and torch.Tensor.__getitem__ not in seen


def test_clients_whose_accounts_have_several_orders_get_the_noise_that_each_gets_alone():
    plans = [plan(noise=noise, steps=10, dpis_first_phase=0.0) for noise in (0.8, 1.5, 6.0)]
    epochs = [
        Epoch(own, 1, 0, Account(own.allotment.order, own.allotment.rdp), 0.5, 1.0) for own in plans
    ]
    assert len({epoch.account.order for epoch in epochs}) == 3
    assert allocate(epochs) == [allocate([epoch])[0] for epoch in epochs]


def test_the_norm_sum_n_c_costs_most():
    """What the first phase takes for granted, at every order of the grid."""
    shares = np.geomspace(0.05, 1.0, 12)
    for noise in (0.5, 1.0, 4.0):
        events = [plan(0.05, noise).step_event(share, 1.0, noise) for share in shares]
        costs = [rdp({event: 1}, (1.25, 2.0, 2.5, 7.75, 64.0), "certified") for event in events]
        assert (np.diff(costs, axis=0) >= -1e-12).all()


def test_a_plan_charges_what_it_was_calibrated_for():
    """An allotment a round, at the one order; and what the paper claims: its steps, norm sums, and
    N once."""
    privacy = Privacy(mechanism="dpis", epsilon=3.0, sample_rate=0.2)
    table = plan_table(privacy, Dpis(dpis_clip=1.0), 10, 7, np.array([14, 500, 14]))
    assert len(table.plans) == 2
    for own in table.plans:
        charges = planned(own, 7)
        assert charges[own.allotment] == 7 and own.allotment.shares == 7
        assert 0.999 * 3.0 < epsilon(charges, DELTA).epsilon <= 3.0
        worst = {event: 7 * n for event, n in own.worst_round().items()}
        least = epsilon(worst, DELTA, orders=ORDERS)
        assert epsilon(charges, DELTA) == pytest.approx(least, rel=1e-6)
        assert (
            charges[PaperClaim(1.0, 0.02 * own.records)] == 1
            and charges[PaperClaim(0.2, own.noise_multiplier)] == 70
        )
        assert charges[PaperClaim(1.0, own.norm_noise)] == 2 * 2 * 7
        assert set(charges) - {own.allotment} == {
            event for event in charges if isinstance(event, PaperClaim)
        }
    small, large = table.plans
    assert small.allotment == large.allotment and small.noise_multiplier == large.noise_multiplier
    assert small.norm_noise > 0.02 * 14 and large.norm_noise >= 0.02 * 500


def test_many_sizes_are_planned_at_once():
    privacy = Privacy(mechanism="dpis", epsilon=3.0, sample_rate=0.2)
    assert len(plan_table(privacy, Dpis(), 10, 7, np.arange(1, 2_001)).plans) == 2_000


def test_clients_of_other_sizes_meet_a_published_budget_as_each_does_alone():
    privacy = Privacy(mechanism="dpis", epsilon=3.0, sample_rate=0.2, budget="published")
    sizes = np.array([400, 5_000])
    plans = plan_table(privacy, Dpis(), 10, 7, sizes).plans
    alone = [plan_table(privacy, Dpis(), 10, 7, sizes[[k]]).plans[0] for k in (0, 1)]
    assert list(plans) == alone and plans[0].noise_multiplier != plans[1].noise_multiplier


def test_a_budget_too_small_is_refused_and_so_are_options_without_a_meaning():
    with pytest.raises(ValueError, match="budget too small"):
        plan_table(Privacy(mechanism="dpis", epsilon=1e-9), Dpis(), 1, 1, np.array([5]))
    with pytest.raises(ValueError, match="is too small for a single round"):
        plan_table(
            Privacy(mechanism="dpis", epsilon=0.1, noise_multiplier=1.0),
            Dpis(),
            5,
            1,
            np.array([5]),
        )
    terms = Terms(Privacy(mechanism="dpis"), Dpis(), 1, 1, 5)
    with pytest.raises(ValueError, match="too small for any guarantee"):
        _ = DpisPlan.of(terms, 1e-200).allotment
    for name, value in (("clipping", "auto"), ("noise_decay", 0.1), ("clip_quantile", 0.5)):
        other = Terms(Privacy(mechanism="dpis", **{name: value}), Dpis(), 1, 1, 5)
        with pytest.raises(ValueError, match=f"{name} = {value} must be .* with dpis"):
            DpisPlan.of(other, 1.0)


def test_clients_without_accounts_cannot_release_anything():
    plans = mixed()
    with pytest.raises(ValueError) as error:
        DPIS.start(cohort(plans), start(model()))
    assert str(error.value) == (
        f"{len(plans)} clients have {len(plans)} plans of type DpisPlan and 0 accounts; give each "
        "client one of both"
    )


@pytest.mark.parametrize("wrong", [math.nan, math.inf])
def test_a_record_that_is_not_finite_adds_nothing(wrong):
    """Neither to a norm sum nor to a step, and the others' draws are as ever."""
    broken = X.clone()
    broken[3] = wrong
    own = plan(0.5, steps=4, records=8)
    end = local_round(DPIS, funded(cohort([own], x=broken)), start(model()))
    assert end.params.isfinite().all() and end.memory["norm_ratio"].isfinite().all()
    assert end.memory["ghat"][0, 3] == math.inf


def test_one_record_and_less_than_one_expected():
    own = plan(0.1, steps=25, records=1)
    world = funded(cohort([own], [3]))
    end = local_round(DPIS, world, start(model()))
    assert end.params.isfinite().all() and end.taken.tolist() == [25]


SMALL = {
    "mechanism": "dpis",
    "sample_rate": 0.3,
    "steps": 5,
    "dpis_first_phase": 0.3,
    "epsilon": 6.0,
}


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    """A whole run, and what came of it."""
    world = World(tmp_path_factory.mktemp("straight"), SMALL)
    return world, world.run()


@pytest.mark.parametrize("crash", [(1, 1), (3, 2), (5, 1)])
def test_an_interrupted_run_goes_on_to_the_same_result(uninterrupted, tmp_path, crash):
    """After groups of the round have released, and written down what: a replay sees only the rounds
    before."""
    (straight, expected), broken = uninterrupted, World(tmp_path / "b", SMALL)
    assert outcome(broken.crashed(*crash).run()) == outcome(expected)
    assert ledger.read(broken.folder / "ledger") == ledger.read(straight.folder / "ledger")
    noise = [record.metrics["dpis_noise_multiplier"] for record in expected.records]
    assert noise[-1] < noise[0] == pytest.approx(straight.job.plans.of(0).noise_multiplier)


def test_a_release_counts_every_attempt(tmp_path):
    """Uploads of the last round are lost, in which clients have spent what they had saved: they
    cannot do so twice."""
    unlimited = {"release": True, "epsilon": None, "noise_multiplier": 1.5, "dpis_first_phase": 0.6}
    world = World(tmp_path, SMALL | unlimited).crashed(5, 2)
    for lost in (tmp_path / "uploads").iterdir():
        lost.unlink()
    standing = world.run()
    paid = ledger.read(tmp_path / "ledger")
    assert not any(overdrawn(charges) for charges in paid.values())
    allotted = {
        sum(n for e, n in charges.items() if isinstance(e, Allotment)) for charges in paid.values()
    }
    assert allotted == {5, 6} and np.isfinite(standing.budgets.epsilons("certified")).all()


def test_a_release_that_dies_keeps_its_target(tmp_path):
    """A lost round is paid for a second time, so its clients retire a round early."""
    world = World(tmp_path, SMALL | {"release": True}).crashed(2, 2)
    for lost in (tmp_path / "uploads").iterdir():
        lost.unlink()
    certified = world.run().budgets.epsilons("certified")
    assert 0.999 * 6.0 < certified.max() <= 6.0


@pytest.mark.usefixtures("no_report")
def test_the_printed_epsilon_is_the_target_and_the_ledger_confirms_it(tmp_path, capsys):
    """End to end: the certified epsilon is the allotments', what was spent is a figure and lies
    below it."""
    flags = (
        "--mechanism dpis --engine inline --rounds 3 --clients 8 --steps 8 --sample-rate 0.2 "
        "--epsilon 5 --quiet"
    )
    folder = train(parse([*flags.split(), "--out", str(tmp_path), "--name", "a"], "run", ""))
    summary = json.loads((folder / "summary.json").read_text())
    last = json.loads((folder / "rounds.jsonl").read_text().splitlines()[-1])
    assert main_guard(account, ["--ledger", str(folder), "--json"]) == 0
    clients = json.loads(capsys.readouterr().out)["clients"]
    assert [c["epsilon_certified"] for c in clients] == pytest.approx(
        summary["epsilon_certified"], rel=1e-12
    )
    assert [c["epsilon_published"] for c in clients] == pytest.approx(
        summary["epsilon_published"], rel=1e-12
    )
    assert 0.999 * 5 < max(summary["epsilon_certified"]) <= 5
    assert 0.99 * 5 < last["metrics"]["dpis_epsilon_spent"] <= max(summary["epsilon_certified"])
    kinds = {event["kind"] for c in clients for event in c["events"]}
    assert kinds == {"allotment", "covered", "paper_claim"}
