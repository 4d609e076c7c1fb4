"""Who enters the norm sums of DPIS, coin by coin."""

import dataclasses
import functools
from collections.abc import Callable
from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy import stats

from mechanisms import dpis, importance
from mechanisms.accounting.allotment import Account, cost
from mechanisms.accounting.events import SampledGaussian
from mechanisms.arithmetic import FLOATS, GRID
from mechanisms.randomness import SystemStreams, generator
from mechanisms.registry import MECHANISMS
from mechanisms.sampling import COIN, Batch, CohortData
from tests.small import streams
from tests.test_dpis import NORMS, apart, plan
from tests.test_rates import independent

CLIENTS, RATE = 2_000, 0.5
DPIS = MECHANISMS["dpis"]


@functools.cache
def entered(clip: bool = True, seed: int = 3) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Who of 2,000 clients' only records entered the clip sum and the norm sum; and whose norm was
    looked at.

    A record of norm 1/2 makes either sum 1 at rate 1/2, where noise has deviation 0.02; without it
    there is noise.
    """
    own = plan(0.1, 1e-3, steps=1, records=1, dpis_norm_rate=RATE, dpis_clip=1.0 if clip else None)
    world = dataclasses.replace(
        apart([own] * CLIENTS, np.array([0.5])), streams=streams(range(CLIENTS), seed)
    )
    state = DPIS.step(world, DPIS.start(world, torch.zeros(1)))
    bound, share = (state.memory[name][:, 0].numpy() for name in ("clip_norm", "norm_ratio"))
    return bound > 0.5, share > 0.5, np.isfinite(state.memory["ghat"][:, 0].numpy())


def test_every_record_enters_each_norm_sum_by_a_coin_of_the_charged_rate():
    """Exact binomial tests at level 1e-6; coins at 1.2 times the rate are noticed. Kills a rate of
    its own."""
    own = plan(dpis_norm_rate=RATE, dpis_clip=1.0)
    (event,) = own.norm_sum_charges
    assert event.sample_rate == RATE
    for who in entered()[:2]:
        assert stats.binomtest(int(who.sum()), CLIENTS, event.sample_rate).pvalue > 1e-6
        assert stats.binomtest(int(who.sum()), CLIENTS, 1.2 * RATE).pvalue < 1e-6


def test_the_coins_of_the_two_norm_sums_are_independent():
    """They are charged as two releases. Fisher's exact test at level 1e-6; the same coins for both
    are noticed."""
    clip, norm, seen = entered()
    assert independent(clip, norm) and not independent(clip, clip)
    assert ((clip | norm) == seen).all(), "a record is looked at if and only if it enters a sum"


def test_the_coins_of_a_norm_sum_do_not_depend_on_whether_there_is_a_clip_sum():
    """Every draw has its own name. Kills one stream for both."""
    assert np.array_equal(entered()[1], entered(clip=False)[1])
    assert not np.array_equal(entered()[1], entered(seed=4)[1])


def test_the_noise_of_the_two_norm_sums_is_not_one_noise():
    """Signs of K* and K without a gradient: Fisher's exact test at level 1e-6; one noise for both
    is noticed. K's noise is the same if there is no K*."""

    def positive(clip: float | None, clients: int) -> tuple[np.ndarray, np.ndarray]:
        own = plan(0.001, 1e-3, steps=1, records=1, dpis_clip=clip)
        world = apart([own] * clients, np.array([0.0]))
        memory = DPIS.step(world, DPIS.start(world, torch.zeros(1))).memory
        bounds, shares = (memory[name][:, 0].numpy() for name in ("clip_norm", "norm_ratio"))
        return bounds > 0.5, shares > own.sample_rate

    clip, norm = positive(1e3, CLIENTS)
    assert np.array_equal(norm[:40], positive(None, 40)[1])
    assert independent(clip, norm) and not independent(clip, clip) and 0.4 < clip.mean() < 0.6


def test_k_is_measured_in_units_of_the_clip_bound_in_use():
    """Norms of 0.3 under a bound that follows them: K / (N C) is 1, up to noise of 0.02. Kills the
    configured bound."""
    own = plan(0.1, 1e-3, steps=1, records=40, dpis_clip=0.9)
    world = apart([own] * 20, np.full(40, 0.3))
    memory = DPIS.step(world, DPIS.start(world, torch.zeros(40))).memory
    clip, share = memory["clip_norm"][:, 0].numpy(), memory["norm_ratio"][:, 0].numpy()
    assert np.abs(clip - 0.27).max() < 0.12 and np.median(share) > 0.95 and share.min() > 0.85


@pytest.mark.parametrize("epoch", [0, 1, 2])
@pytest.mark.parametrize("spent", [0.0, 0.5, 0.9])
def test_a_step_never_gets_more_than_its_round_and_its_run_have_left(epoch, spent):
    """Whatever was spent. Kills a round that lives on what later ones have, and norm sums that are
    not set aside."""
    own = plan(0.25, 2.0, steps=12, records=50, rounds=4, dpis_norm_share=0.2)
    (event, count), rdp = *own.norm_sum_charges.items(), own.allotment.rdp
    account = Account(own.allotment.order, rdp, spent * rdp)
    norm_sums, steps = count * cost(event, account.order), own.steps - epoch * own.epoch_steps
    for nth in (1, 3, 4, 6):
        limit = own.step_limit(nth, epoch, account)
        assert limit * steps + (own.epochs - epoch - 1) * norm_sums <= account.left * (1 + 1e-12)
    rich = Account(own.allotment.order, 3 * rdp, 0.0)
    whole = own.step_limit(3, 0, rich) * (12 + 12) + (2 * own.epochs - 1) * norm_sums
    assert whole == pytest.approx(3 * rdp + rdp)


def counted(takes: Callable[[np.ndarray], np.ndarray], records: int) -> list[int]:
    """How many of all coins, multiples of 2^-53, are taken for each record: the lower ones, up to
    some coin."""
    low, high = np.zeros(records, dtype=np.int64), np.full(records, 2**53)
    while (open_ := low < high).any():
        middle = (low + high) // 2
        taken = takes(middle * COIN)
        low, high = np.where(open_ & taken, middle + 1, low), np.where(open_ & ~taken, middle, high)
    return low.tolist()


def test_no_record_enters_with_more_than_the_charged_probability():
    """rate |g| / C, in whole numbers. Kills proposals without room for the rounding of products of
    floats."""
    records, rate = 200, 0.37
    estimates, parts = np.random.default_rng(0).uniform(0.05, 1.0, (2, records))
    norms, one = estimates * parts, torch.ones(1, dtype=torch.float64)
    x, y = torch.arange(records)[:, None], torch.zeros(records, dtype=torch.int64)
    world = dataclasses.replace(
        apart([plan()], np.ones(records)), data=CohortData(x, y, [np.arange(records)])
    )

    def proposed(coins: np.ndarray) -> np.ndarray:
        source = SimpleNamespace(random=lambda size: coins[:size])
        here = dataclasses.replace(world, streams=SimpleNamespace(of=lambda purpose: [source]))
        batch = importance.propose(here, rate * one, torch.from_numpy(estimates)[None]).batch
        return np.isin(np.arange(records), batch.x[batch.mask].numpy())

    def accepted(coins: np.ndarray) -> np.ndarray:
        batch = Batch(x[None], y[None], torch.ones(1, records, dtype=torch.bool))
        own, drawn, found = (torch.from_numpy(values)[None] for values in (estimates, coins, norms))
        return importance.Proposals(batch, own, drawn).accepted(found, one)[0].numpy()

    for first, second, norm in zip(
        counted(proposed, records), counted(accepted, records), norms.tolist(), strict=True
    ):
        assert 0.999 * rate * norm < first * second * COIN**2
        assert Fraction(first * second, 2**106) <= Fraction(rate) * Fraction(norm)


def test_neither_a_zero_gradient_nor_padding_is_accepted_at_the_least_coin():
    batch = Batch(torch.zeros(1, 3), torch.zeros(1, 3), torch.tensor([[True, True, False]]))
    proposals = importance.Proposals(batch, torch.tensor([[0.5, 0.5, 0.0]]), torch.zeros(1, 3))
    accepted = proposals.accepted(torch.tensor([[0.0, 0.3, 0.3]]), torch.ones(1))
    assert accepted.tolist() == [[False, True, False]]


def test_a_norm_that_is_not_finite_adds_nothing_to_a_sum():
    """Kills one that counts as the clip bound, so that a broken record moves K."""
    own, source = plan(records=4), functools.partial(generator, b"key", "norm sum")
    sound, broken = (
        dpis.noisy_norm_sum(own, np.array(norms), 1.0, source(), FLOATS)
        for norms in ([0.5, 2.0], [0.5, np.inf, 2.0, np.nan])
    )
    assert broken == pytest.approx(sound)


def test_an_epoch_has_one_step_more_only_where_the_rate_does_not_divide_one():
    """1 / (1 / 49) is above 49 in floats. Kills an epoch of 50 steps."""
    for steps in (3, 49, 103, 197):
        assert plan(1.0 / steps, steps=2 * steps).epoch_steps == steps
    assert plan(0.3, steps=8).epoch_steps == 4


def test_every_client_is_in_its_own_round():
    """One in the first phase, with the noise for the worst K, and one beyond it. Kills the count of
    rounds of another client."""
    own = plan(0.5, steps=4, rounds=4, dpis_first_phase=0.5)
    for nth in ([1, 4], [4, 1]):
        account = own.allotment
        world = dataclasses.replace(
            apart([own] * 2, np.array([0.2, 0.5])),
            nth=nth,
            accounts=[Account(account.order, n * account.rdp) for n in nth],
        )
        memory = DPIS.step(world, DPIS.start(world, torch.zeros(2))).memory
        early = memory["multiplier"][:, 0] == own.noise_multiplier
        assert early.tolist() == [n == 1 for n in nth]


def test_norms_that_are_looked_up_in_stretches_are_those_of_all_records(monkeypatch):
    """Of clients with a list of their own each. Kills a stretch that begins with the first record
    again, and one that leaves its last record out."""
    world, params = apart([plan()] * 3, NORMS), torch.zeros(3, len(NORMS))
    places = [np.arange(len(NORMS)), np.array([9, 2, 14, 3]), np.empty(0, dtype=np.int64)]
    monkeypatch.setattr(importance, "LOOKED_AT", 3)
    for norms, at in zip(importance.look(world, params, places, [1.0] * 3), places, strict=True):
        np.testing.assert_allclose(norms, NORMS[at], rtol=1e-6, atol=1e-9)


def test_estimates_are_in_units_of_the_clip_bound():
    """A record is proposed by k |g| / C. Kills one that is proposed as if C were 1."""
    for bound in (0.5, 4.0):
        world = apart([plan(clip=bound)], NORMS)
        state = dpis._begin(world, DPIS.start(world, torch.zeros(len(NORMS))))
        estimates = dpis._now(world, state)[1][0].numpy()
        np.testing.assert_allclose(estimates, np.clip(2.0 * NORMS / bound, 0.05, 1.0), rtol=1e-6)


def test_the_norm_sums_of_an_epoch_cost_their_share_of_its_steps():
    """Whether there are one or two. Kills noise that is as for one of them."""
    for clip, number in ((None, 1), (1.0, 2)):
        own = plan(0.01, 10.0, records=1, dpis_clip=clip)
        assert own.norm_sums == number
        sums = sum(count * cost(event, 8.0) for event, count in own.norm_sum_charges.items())
        steps = own.epoch_steps * cost(SampledGaussian(0.01, 10.0), 8.0)
        assert sums == pytest.approx(own.own.dpis_norm_share * steps, rel=0.02)


def test_both_norm_sums_of_a_release_have_noise_on_the_grid():
    """Float noise is refused where draws are the system's. Kills a sum that takes it all the
    same."""
    here = apart([plan(dpis_clip=1.0)], NORMS)
    world = dataclasses.replace(
        here, streams=SystemStreams(1, torch.device("cpu")), arithmetic=GRID
    )
    memory = DPIS.step(world, DPIS.start(world, torch.zeros(len(NORMS)))).memory
    assert memory["norm_ratio"].isfinite().all() and memory["clip_norm"].isfinite().all()
