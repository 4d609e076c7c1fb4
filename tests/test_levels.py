"""Noise that changes from round to round, or from epoch to epoch: what is drawn is what is charged,
level by level."""

import dataclasses
import itertools
import math

import numpy as np
import pytest
import torch

from mechanisms import dpagd, dpagd_plan, dpis_plan
from mechanisms.accounting.events import ImportanceSampledGaussian, PaperClaim, TrialCap
from mechanisms.arithmetic import FLOATS, GRID
from mechanisms.plan import Terms, most
from mechanisms.registry import MECHANISMS
from mechanisms.settings import Dpagd, Dpis, Privacy
from tests import releases, small
from tests.gaussian import alarms
from tests.releases import PLANS, VARIANTS, Watched, watch
from tests.test_dpis import apart, plan

DECAY, ROUNDS = 0.4, (1, 2, 4)
"""The noise of these rounds is 1, 0.67 and 0.3 times the first."""
SOURCES = {"simulation": FLOATS, "release": GRID}
DECAYING = {name: one for name, one in (PLANS | VARIANTS).items() if hasattr(one, "noise_decay")}


def drawn(name: str, nth: int, arithmetic) -> tuple[np.ndarray, float]:
    """What a step of the ``nth`` round adds to a sum, over the bound of a part; and the multiplier
    that it costs."""
    row = releases.row(
        name.split(",")[0], dataclasses.replace(DECAYING[name], noise_decay=DECAY), nth
    )
    seen = watch(row, np.ones(20, dtype=bool), arithmetic, nth).seen
    costs = [
        float((one.std / one.bound)[0]) ** -2 for one in {one.purpose: one for one in seen}.values()
    ]
    first = seen[0]
    noise = (first.released.double() - first.real().double()) / first.bound[:, None].double()
    own = float((first.std / first.bound)[0])
    return noise.numpy().ravel()[:20_000] / own, sum(costs) ** -0.5


@pytest.mark.parametrize("nth", ROUNDS)
@pytest.mark.parametrize(("name", "source"), [*itertools.product(DECAYING, SOURCES)][:-1])
def test_noise_that_falls_is_charged_as_it_falls(name, source, nth):
    """Every mechanism with a decay, in its 1st, 2nd and 4th round: levels a third apart. False
    alarm: 1e-6 each.

    The last in the table, isotropic noise, has no exact sum and no release.

    Kills noise, a charge or a paper's claim of another round.
    """
    sample, multiplier = drawn(name, nth, SOURCES[source])
    assert alarms(sample, 1.0) == set() and alarms(sample, 1.4) and alarms(sample, 0.7)
    planned = dataclasses.replace(DECAYING[name], noise_decay=DECAY)
    charges = most(planned, nth)
    (level,) = {
        event.noise_multiplier for event in charges if not isinstance(event, PaperClaim | TrialCap)
    }
    assert level == pytest.approx(releases.NOISE * math.exp(-DECAY * (nth - 1)), rel=1e-6)
    assert multiplier == pytest.approx(level, rel=1e-4)
    claims = {event.noise_multiplier for event in charges if isinstance(event, PaperClaim)} - {
        releases.TEST_NOISE
    }
    assert all(claim == pytest.approx(level, rel=1e-6) for claim in claims)


def test_every_mechanism_has_its_levels_looked_at():
    """By decay here, or by epochs and levels of a budget below; a new mechanism without a row
    fails."""
    private = {name for name, one in MECHANISMS.items() if one.private}
    assert private == {name.split(",")[0] for name in DECAYING} | {"dpis", "dpagd"}
    refusing = {"dpis": dpis_plan.DpisPlan, "dpagd": dpagd_plan.DpagdPlan}
    for name, kind in refusing.items():
        own = {"dpis": Dpis(), "dpagd": Dpagd()}[name]
        with pytest.raises(ValueError, match=r"noise_decay = 0\.4 must be 0"):
            kind.of(Terms(Privacy(mechanism=name, noise_decay=DECAY), own, 1, 1, 9), 1.0)


def test_every_epoch_of_dpis_has_the_noise_that_is_charged_for_it():
    """The first half of the run is noised for the worst K; after it, K is a quarter of that, and so
    is the noise.

    Kills the noise of another epoch, and a charge of it. False alarm: 1e-6 for each step.
    """
    records = 2_000
    own = plan(
        rate=0.25, noise=3.0, steps=16, records=records, dpis_first_phase=0.5, dpis_norm_share=0.5
    )
    norms = np.where(np.arange(records) % 20 == 0, 0.9, 0.0)
    world = apart([own], norms)
    state, size = MECHANISMS["dpis"].start(world, torch.zeros(records)), own.sample_rate * records
    levels = []
    for number in range(own.steps):
        state = MECHANISMS["dpis"].step(world, state)
        epoch = number // own.epoch_steps
        clip, multiplier = (
            float(state.memory[name][0, epoch]) for name in ("clip_norm", "multiplier")
        )
        noise = state.optimizer[0][0].double().numpy()[norms == 0] * size / clip
        assert alarms(noise, multiplier) == set()
        levels.append(multiplier)
    assert own.epochs == 4 and max(levels[8:]) < 0.7 * min(levels[:8])
    (charges,) = MECHANISMS["dpis"].realized(world, state)
    paid = {
        e.event.noise_multiplier: n
        for e, n in charges.items()
        if isinstance(e.event, ImportanceSampledGaussian)
    }
    assert sum(paid.values()) == own.steps and set(paid) == set(levels)


@pytest.mark.parametrize(
    ("kind", "level"), [("fresh", 0), ("fresh", 1), ("fresh", 2), ("further", 1), ("further", 2)]
)
def test_every_measurement_of_dpagd_has_the_noise_of_its_level(kind, level):
    """Each level of the budget has half the variance of the one before. False alarm: 1e-6."""
    own = dataclasses.replace(PLANS["dpagd"], own=Dpagd(agd_growth=1.0, agd_raises=2))
    row = MECHANISMS["dpagd"]
    watched, holders = Watched(FLOATS), releases.owned(np.ones(40, dtype=bool))
    world = releases.cohort(own, holders, small.streams(range(40)), watched)
    state = row.start(world, torch.zeros(world.gradients.layout.size))
    place = state.memory["level"]
    state = dpagd._measure(
        world, state.remember(level=place + level, measured=place + (kind == "further"))
    )
    (seen,) = watched.seen
    noise = (seen.released.double() - seen.real().double()).numpy().ravel()[:20_000] / own.clip_norm
    counts = state.memory["counts"][0].numpy()
    (charged,) = [
        event.noise_multiplier
        for event in own.releases(counts)
        if event.noise_multiplier != own.search_multiplier
    ]
    assert (
        alarms(noise, charged) == set()
        and alarms(noise, 1.4 * charged)
        and alarms(noise, 0.7 * charged)
    )
