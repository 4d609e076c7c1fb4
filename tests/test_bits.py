"""What the last bits of a release tell, and whether its noise is what was charged: for every
release that there is."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from scipy import stats

from mechanisms.accounting.allotment import Allotment
from mechanisms.accounting.events import KINDS, GaussianAllotment
from mechanisms.arithmetic import FLOATS, GRID, of_seed
from mechanisms.importance import propose
from mechanisms.mechanism import local_round
from mechanisms.randomness import Streams, SystemStreams, seed_key
from mechanisms.registry import MECHANISMS
from tests import releases, small
from tests.gaussian import SPOILERS, alarms
from tests.releases import NOISE, RELEASES, watch

pytestmark = pytest.mark.usefixtures("no_report")
CLIENTS, SEEDS = 200, 2
ATTACKED = [name for name in RELEASES if name != "single records"]
"""Those whose float noise is float32: the attack looks for draws of that type."""


@pytest.mark.parametrize("name", RELEASES)
def test_last_bits_tell_nothing_in_a_release(name):
    """No better than guessing in 400 trials, or 62 % would be right. Kills float noise, and a
    grid that depends on data. False alarm: 1e-6.
    """
    right = sum(releases.successes(RELEASES[name], GRID, CLIENTS, seed) for seed in range(SEEDS))
    assert stats.binomtest(right, SEEDS * CLIENTS).pvalue > 1e-6


@pytest.mark.parametrize("name", ATTACKED)
def test_last_bits_tell_everything_in_a_simulation(name):
    """The negative control: the same attack on the same releases in floats."""
    assert releases.successes(RELEASES[name], FLOATS, CLIENTS, 0) >= 0.95 * CLIENTS


def noise_of(name: str, arithmetic) -> list[tuple[str, np.ndarray, float]]:
    """By purpose, the noise of each release in units of the bound of a part, and its deviation as
    it was asked for."""
    found, ratios = {}, {}
    for seed in range(3):
        for one in watch(RELEASES[name], np.ones(CLIENTS, dtype=bool), arithmetic, seed).seen:
            noise = (one.released.double() - one.real().double()) / one.bound[:, None].double()
            ratios[one.purpose] = float((one.std.double() / one.bound.double())[0])
            found.setdefault(one.purpose, []).append(noise.numpy().ravel())
    return [
        (purpose, np.concatenate(parts)[:20_000], ratios[purpose])
        for purpose, parts in found.items()
    ]


@pytest.mark.parametrize("arithmetic", [FLOATS, GRID], ids=["simulation", "release"])
@pytest.mark.parametrize("name", RELEASES)
def test_the_noise_of_every_release_is_gaussian_with_the_scale_that_is_charged(name, arithmetic):
    """Noise over sensitivity, taken from what was drawn, is the multiplier in the events. False
    alarm: 1e-6 each.

    Kills a release without noise or with another one, and a charge of another one.
    """
    drawn = noise_of(name, arithmetic)
    for _, sample, ratio in drawn:
        assert alarms(sample, ratio) == set()
        if len(sample) >= 5_000:
            assert all(alarms(spoil(sample, ratio), ratio) for spoil in SPOILERS.values())
        assert alarms(1.5 * sample, ratio) and alarms(0.67 * sample, ratio)
    ratios = {purpose: ratio for purpose, _, ratio in drawn}
    if name == "dpis, moving clip bound":  # its norm sum is an event of its own
        (event,) = releases.MOVING.norm_sum_charges
        assert ratios.pop("") == pytest.approx(event.noise_multiplier * event.sample_rate, rel=1e-4)
    charged = NOISE * math.exp(-0.6) if name == "dpsgd, falling noise" else NOISE
    assert sum(ratio**-2 for ratio in ratios.values()) ** -0.5 == pytest.approx(charged, rel=1e-4)


@pytest.mark.parametrize("arithmetic", [FLOATS, GRID], ids=["simulation", "release"])
@pytest.mark.parametrize("name", RELEASES)
def test_a_record_moves_what_is_noised_by_the_bound_that_its_noise_is_for(name, arithmetic):
    """One that is there or not, after the same releases. Kills parts in another unit than noise;
    `test_quantile.py` has the count, in which a record without a number takes part.
    """
    held = watch(RELEASES[name], np.ones(2, dtype=bool), arithmetic, 0).seen
    released = [one.released for one in held]
    without = watch(RELEASES[name], np.zeros(2, dtype=bool), arithmetic, 0, released).seen
    for one, other in zip(held, without, strict=True):
        moved = (one.real() - other.real()).double().norm(dim=1) / one.bound.double()
        assert one.purpose == "count" or 0.5 <= moved.max() <= 1 + 1e-6


def test_every_kind_of_gaussian_event_has_a_release_in_the_table():
    """A mechanism of the registry without a row here, or an event with noise that no row charges,
    fails."""
    trained = {name.split(",")[0] for name in RELEASES}
    assert {name for name, row in MECHANISMS.items() if row.private} <= trained
    charged = {type(event).kind for row in RELEASES.values() for event in row.charges}
    noisy = {"sampled_gaussian", "gaussian", "dpsur_step", "screened_step", "visible_choice"}
    assert noisy <= charged and noisy <= set(KINDS)
    assert any(
        isinstance(event, Allotment | GaussianAllotment) for event in RELEASES["dpis"].charges
    )


def test_without_noise_a_release_and_a_simulation_agree():
    """The same batches, 20 steps at rates of 1 and 0.4: parameters to 1e-6. Kills a unit or a
    divisor of its own."""
    for rate in (1.0, 0.4):
        plan = dataclasses.replace(
            releases._DPSGD, noise_multiplier=0.0, sample_rate=rate, steps=20
        )
        ends = []
        for arithmetic in (FLOATS, GRID):
            world = dataclasses.replace(small.cohort([plan] * 3), arithmetic=arithmetic)
            ends.append(local_round(MECHANISMS["dpsgd"], world, small.start(small.model())).params)
        assert (ends[0] - ends[1]).abs().max() <= 1e-6


def test_who_is_gathered_in_a_release_depends_on_coins_alone():
    """Other estimates, the same records at the same places; who of them is proposed follows the
    estimates.

    Kills batches of importance sampling in which one record's norm moves the others.
    """
    world = dataclasses.replace(small.cohort([releases._DPSGD] * 3), arithmetic=GRID)
    rates, batches, masks = torch.tensor([0.5, 0.4, 0.7]).double(), [], []
    for level in (1.0, 0.3):
        streams = small.streams(range(3))
        proposals = propose(
            dataclasses.replace(world, streams=streams),
            rates,
            torch.full((3, 39), level, dtype=torch.float64),
        )
        batches.append(proposals.batch.x)
        masks.append(proposals.batch.mask)
    assert (
        torch.equal(*batches)
        and masks[1].sum() < masks[0].sum()
        and not (masks[1] & ~masks[0]).any()
    )


def test_proposals_have_the_same_law_in_both_arithmetics():
    """The same coins propose the same records; kills a mask that is not made, and proposals by the
    bound alone."""
    rates, estimates = (
        torch.full((3,), 0.6).double(),
        torch.rand(3, 39, dtype=torch.float64) * 0.9 + 0.1,
    )
    shown = []
    for arithmetic in (FLOATS, GRID):
        world = dataclasses.replace(small.cohort([releases._DPSGD] * 3), arithmetic=arithmetic)
        batch = propose(world, rates, estimates).batch
        shown.append([row[mask] for row, mask in zip(batch.x, batch.mask, strict=True)])
    assert all(torch.equal(a, b) for a, b in zip(*shown, strict=True))


@pytest.mark.parametrize("mechanism", [name for name, row in MECHANISMS.items() if row.private])
def test_a_release_trains_on_the_grid(tmp_path, mechanism):
    """End to end, with the system's entropy, whose float noise is refused: every mechanism has
    exact sums alone."""
    from sim.commands.flags import parse
    from sim.engines.start import train

    flags = (
        "--release --clients 3 --rounds 2 --steps 2 --sample-rate 0.5 --engine inline --quiet "
        f"--mechanism {mechanism} --noise-multiplier 5 --epsilon none"
    )
    folder = train(parse([*flags.split(), "--out", str(tmp_path)], "run", ""))
    assert (folder / "model.safetensors").exists()
    assert of_seed(None) is GRID and of_seed(0) is FLOATS


def test_isotropic_noise_has_no_exact_sum():
    world = dataclasses.replace(
        small.cohort([releases.HeroPlan(1.0, 1.0, 0.5, 1, isotropic=True)]),
        arithmetic=GRID,
        streams=SystemStreams(1, small.CPU),
    )
    with pytest.raises(ValueError, match="whitened"):
        local_round(MECHANISMS["dphero"], world, small.start(small.model()))


def test_seeded_draws_on_the_grid_are_those_of_their_names():
    """Twin runs with the same noise, for attacks and audits: same seed, same draws, whoever
    computes them."""
    one, two = (
        Streams(seed_key(1), 2, clients, small.CPU).rounded("noise", 7) for clients in ([3, 5], [5])
    )
    assert torch.equal(one[1:], two) and not torch.equal(one[0], one[1])
