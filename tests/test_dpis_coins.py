"""Who enters the norm sums of DPIS, coin by coin."""

import dataclasses
import functools

import numpy as np
import pytest
import torch
from scipy import stats

from mechanisms.accounting.allotment import Account, cost
from mechanisms.registry import MECHANISMS
from tests.small import streams
from tests.test_dpis import apart, plan
from tests.test_rates import independent

CLIENTS, RATE = 2_000, 0.5
DPIS = MECHANISMS["dpis"]


@functools.cache
def entered(clip: bool = True, seed: int = 3) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Who of 2,000 clients' only records entered the clip sum and the norm sum; and whose norm was looked at.

    A record of norm 1/2 makes either sum 1 at rate 1/2, where noise has deviation 0.02; without it there is noise.
    """
    own = plan(0.1, 1e-3, steps=1, records=1, dpis_norm_rate=RATE, dpis_clip=1.0 if clip else None)
    world = dataclasses.replace(apart([own] * CLIENTS, np.array([0.5])), streams=streams(range(CLIENTS), seed))
    state = DPIS.step(world, DPIS.start(world, torch.zeros(1)))
    bound, share = (state.memory[name][:, 0].numpy() for name in ("clip_norm", "share"))
    return bound > 0.5, share > 0.5, np.isfinite(state.memory["ghat"][:, 0].numpy())


def test_every_record_enters_each_norm_sum_by_a_coin_of_the_charged_rate():
    """Exact binomial tests at level 1e-6; coins at 1.2 times the rate are noticed. Kills a rate of its own."""
    own = plan(dpis_norm_rate=RATE, dpis_clip=1.0)
    (event,) = own.norm_sum_charges
    assert event.sample_rate == RATE
    for who in entered()[:2]:
        assert stats.binomtest(int(who.sum()), CLIENTS, event.sample_rate).pvalue > 1e-6
        assert stats.binomtest(int(who.sum()), CLIENTS, 1.2 * RATE).pvalue < 1e-6


def test_the_coins_of_the_two_norm_sums_are_independent():
    """They are charged as two releases. Fisher's exact test at level 1e-6; the same coins for both are noticed."""
    clip, norm, seen = entered()
    assert independent(clip, norm) and not independent(clip, clip)
    assert ((clip | norm) == seen).all(), "a record is looked at if and only if it enters a sum"


def test_the_coins_of_a_norm_sum_do_not_depend_on_whether_there_is_a_clip_sum():
    """Every draw has its own name. Kills one stream for both."""
    assert np.array_equal(entered()[1], entered(clip=False)[1])
    assert not np.array_equal(entered()[1], entered(seed=4)[1])


def test_the_noise_of_the_two_norm_sums_is_not_one_noise():
    """Signs of K* and K without a gradient: Fisher's exact test at level 1e-6; one noise for both is noticed."""
    own = plan(0.001, 1e-3, steps=1, records=1, dpis_clip=1e3)
    world = apart([own] * CLIENTS, np.array([0.0]))
    memory = DPIS.step(world, DPIS.start(world, torch.zeros(1))).memory
    clip, norm = memory["clip_norm"][:, 0].numpy() > 0.5, memory["share"][:, 0].numpy() > own.sample_rate
    assert independent(clip, norm) and not independent(clip, clip) and 0.4 < clip.mean() < 0.6


def test_k_is_measured_in_units_of_the_clip_bound_in_use():
    """Norms of 0.3 under a bound that follows them: K / (N C) is 1, up to noise of 0.02. Kills the configured bound."""
    own = plan(0.1, 1e-3, steps=1, records=40, dpis_clip=0.9)
    world = apart([own] * 20, np.full(40, 0.3))
    memory = DPIS.step(world, DPIS.start(world, torch.zeros(40))).memory
    clip, share = memory["clip_norm"][:, 0].numpy(), memory["share"][:, 0].numpy()
    assert np.abs(clip - 0.27).max() < 0.12 and np.median(share) > 0.95 and share.min() > 0.85


@pytest.mark.parametrize("epoch", [0, 1, 2])
@pytest.mark.parametrize("spent", [0.0, 0.5, 0.9])
def test_a_step_never_gets_more_than_its_round_and_its_run_have_left(epoch, spent):
    """Whatever was spent. Kills a round that lives on what later ones have, and norm sums that are not set aside."""
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
