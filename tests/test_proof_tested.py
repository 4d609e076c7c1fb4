"""The second path's bounds on tested steps: the worst tests before a little noise, and laws that
dominate them."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from flint import arb, ctx

from mechanisms.accounting import accountant, dominating
from mechanisms.accounting.events import (
    DpsurStep,
    Event,
    Gaussian,
    SampledGaussian,
    ScreenedStep,
    TrialCap,
)
from sim.verifying import lattice, laws, proof
from sim.verifying.together import covers, trials
from sim.verifying.together.least import FixedTest
from tests.test_tested_step import EVENTS, Smooth, World

PAPER = (0.01707, 1.35, 0.00427, 0.9, -1.0)
SEEN, HIDDEN = DpsurStep(*PAPER, "visible"), DpsurStep(*PAPER, "selective")
ALL = DpsurStep(1.0, 3.0, 0.02, 0.9, -1.0, "visible")
TOLD = DpsurStep(0.05, 1.1, 0.3, 0.5, 0.2, "visible")


@pytest.fixture(autouse=True)
def precise():
    with ctx.workprec(proof.BITS):
        yield


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("name", ["paper", "paper, hidden", "all records", "clipped"])
def test_no_test_makes_more_of_a_curve_and_one_makes_as_much(name, turned):
    event = EVENTS[name]
    smooth, world = Smooth(event), World(dominating.repeated(event), turned)
    curve = trials.Curve(
        np.append(0.0, smooth.bends),
        np.append(1.0, np.maximum(smooth.values, 1.0 - smooth.bends)),
        smooth.bends * smooth.pair.masses,
    )
    trial = trials.tested(event)
    assert trial is not None
    worst = trials.Worst(trial, smooth.spread / 2.0, turned)
    losses = smooth.space * np.array([0, 60])
    for x, most in zip(np.exp(losses), worst.before(curve, losses), strict=True):
        released = (world.released(*one) for one in world.tests(smooth, x))
        found = max(float(smooth(ours, x * theirs).sum()) for ours, theirs in released)
        least = float(smooth(np.ones(1), np.full(1, x))[0])
        assert least <= found <= most * (1 + 1e-4)
        assert most - least < 1.08 * (found - least)


@pytest.mark.slow
def test_laws_of_a_cover_are_whole_and_hold_what_is_asked():
    trial = trials.tested(HIDDEN)
    assert trial is not None
    found = covers.cover(trial, 0.0229, 2.0)
    assert found is not None
    for law in found:
        low, high = law.ends()
        assert low < 0.0 < high
        ours, theirs = law.below(arb(high))
        assert 1 - 1e-12 < float(ours) <= 1.0 and float(theirs) == pytest.approx(1.0, abs=1e-12)


def test_hidden_steps_pay_for_a_noise_beside_them():
    """Steps of which most are accepted: their laws are found in a fraction of the time."""
    event = DpsurStep(1.0, 1.5, 0.3, 1.5, 1.0, "selective")
    trial = trials.tested(event)
    assert trial is not None
    laws_of_them = next(proof._ways({event: trial}, {event: 5}))
    assert [count for _, count in laws_of_them] == [5, 1]


def test_a_law_that_is_less_does_not_hold():
    trial = trials.tested(SEEN)
    assert trial is not None
    noise = covers.Noise(0.023)
    demand = covers._demand(trials.Worst(trial, 0.0115, False), noise, False)
    assert demand is not None
    turned = covers._demand(trials.Worst(trial, 0.0115, True), noise, True)
    assert turned is not None
    law = covers._proposed(noise, [demand, turned], covers._losses(noise, [demand, turned]), 1e-6)
    assert law is not None and covers.holds(law, noise, demand) and covers.holds(law, noise, turned)
    more = demand._replace(values=[value * (1 + 1e-5) for value in demand.values])
    assert not covers.holds(law, noise, more)


def far_away(noise, times, turned):
    """A law with losses so many times as far away as the noise's last one; what it has of infinite
    losses."""
    far = times * noise.last
    law = covers.Atoms(noise.spacing, [-far, 0, far], [arb("0.1"), arb("0.85"), arb("0.01")])
    return law, float(law.rests[int(turned)])


@pytest.mark.parametrize("turned", [False, True])
def test_beyond_the_last_point_infinite_losses_alone_count(turned):
    """A law's larger loss gives enough at that point, and less at others further out."""
    noise = covers.Noise(0.1)
    law, rest = far_away(noise, 3, turned)
    demand = covers.Demand(turned, [2 * noise.last], [0.99 * rest])
    assert covers.holds(law, noise, demand)
    assert not covers.holds(law, noise, demand._replace(values=[1.01 * rest]))


@pytest.mark.parametrize("turned", [False, True])
def test_beyond_the_losses_of_the_noise_a_law_has_none_of_its_smoothness(turned):
    """R could move no loss so far: a law's loss at a point gives nothing there."""
    noise = covers.Noise(0.1)
    law, rest = far_away(noise, 2, turned)
    demand = covers.Demand(turned, [2 * noise.last, 4 * noise.last], [0.99 * rest, 0.5 * rest])
    assert covers.holds(law, noise, demand)
    assert not covers.holds(law, noise, demand._replace(values=[1.01 * rest, 0.5 * rest]))


def test_a_law_counts_what_has_infinite_losses_and_has_no_negative_masses():
    """On either side: what the denominator alone has is below each loss. A proposal whose masses
    could only be negative is dropped."""
    law = covers.Atoms(0.1, [-10, 0, 10], [arb("0.1"), arb("0.8"), arb("0.05")])
    ours, theirs = law.rests
    low, high = law.below(arb(-100)), law.below(arb(100))
    assert [float(one) for one in (*low, *high)] == pytest.approx(
        [0.0, float(theirs), 1.0 - float(ours), 1.0]
    )
    assert covers._whole(0.1, [-10, 0, 10], [0.1, 0.8, 0.1]) is not None
    assert covers._whole(0.1, [-10, 0, 10], [0.1, 1.2, 0.1]) is None


@pytest.mark.parametrize("reach", [0.5, 8.5])
def test_outcomes_have_all_of_both_distributions(reach, monkeypatch):
    """Kills what lies beyond the outcomes that are told apart, and counts nowhere."""
    monkeypatch.setattr(trials, "OUTCOME_REACH", reach)
    found = trials.outcomes(laws.Sampled(0.2, 1.0), 0.2)
    assert [side.sum() for side in found] == pytest.approx([1.0, 1.0], abs=1e-9)


@pytest.mark.parametrize("accounting", ["visible", "selective"])
def test_no_test_moves_the_mean_of_acceptance_by_more_than_is_looked_at(accounting):
    """One that looks at its own batch alone: of a rejection if it is seen, else of acceptance."""
    trial = trials.tested(replace(TOLD, accounting=accounting))
    assert trial is not None
    worst = trials.Worst(trial, 0.05, False)
    means = worst.corners[:, :, 0]
    kept = means if trial.hidden else 1.0 - means
    assert 1.0 < max((kept[0] / kept[1]).max(), (kept[1] / kept[0]).max()) <= worst.reach


@pytest.mark.parametrize("turned", [False, True])
def test_a_cover_holds_in_both_directions(turned, monkeypatch):
    """Whatever was proposed. Kills a law that is checked in one of them."""
    step = SimpleNamespace(worst=lambda deviation, turned: None)
    monkeypatch.setattr(covers, "_demand", lambda *given: covers.Demand(given[-1], [], []))
    monkeypatch.setattr(covers, "_losses", lambda *given: [])
    monkeypatch.setattr(covers, "_proposed", lambda *given: given)
    monkeypatch.setattr(covers, "holds", lambda law, noise, demand: demand.turned is turned)
    assert covers.cover(step, 0.02, 2.0) is None
    monkeypatch.setattr(covers, "holds", lambda *given: True)
    assert covers.cover(step, 0.02, 2.0) is not None


def proved(charges: dict[Event, int], least: float) -> bool:
    """Whether what is printed is, and one test in all steps costs this share of it at least."""
    printed = accountant.epsilon(charges, 1e-5)
    low, high = proof.interval(charges, "0.995e-5", None, printed.epsilon)
    return printed.order is None and least * printed.epsilon < low < high <= printed.epsilon


@pytest.mark.slow
@pytest.mark.parametrize(
    "charges",
    [
        {ALL: 40},
        {ALL: 20, SampledGaussian(0.05, 2.0): 10},
        {DpsurStep(1.0, 8.0, 0.02, 0.9, -1.0, "selective"): 40, SampledGaussian(0.05, 2.0): 10},
        {ScreenedStep(1.0, 9.0, 0.01, 0.3, "clipped"): 40, ALL: 2},
    ],
    ids=["seen", "beside others", "hidden beside others", "two kinds"],
)
def test_what_is_printed_for_tested_steps_is_proved(charges):
    assert proved(charges, 0.65)


def test_a_cap_adds_what_it_may_fail_with():
    cap, steps = TrialCap(0.13, 70), {Gaussian(4.0): 3}
    lost = 10 * float(proof.failure(cap))
    alone = proof.interval(steps, repr(1e-2 - lost), None, 9.0)
    capped = proof.interval({**steps, cap: 10}, "1e-2", None, 9.0)
    assert proof.dominated({**steps, cap: 10})
    assert np.subtract(capped, alone) == pytest.approx(lost / (1.0 - lost), rel=1e-6)


@pytest.mark.parametrize("event", [TOLD, HIDDEN], ids=["seen", "hidden"])
def test_one_test_in_all_steps_is_a_law_of_its_outcomes(event):
    trial = trials.tested(event)
    assert trial is not None
    law = FixedTest(trial)
    low, high = (float(one) for one in laws.acceptance(event))
    y = np.linspace(-12.0, 13.0, 400_001) * event.noise_multiplier
    theirs = np.exp(-0.5 * (y / event.noise_multiplier) ** 2)
    theirs /= theirs.sum()
    q, s, share = event.sample_rate, event.noise_multiplier, event.validation_rate
    ratios = 1 - q + q * np.exp((2 * y - 1) / (2 * s * s))
    speaks = np.log(ratios) > float(law.threshold)
    if trial.hidden:
        accepted = np.where(speaks, high, low)
        one, two = ratios * theirs * accepted, theirs * accepted
        one, two = one / one.sum(), two / two.sum()
    else:
        one = ratios * theirs * np.where(speaks, high, (1 - share) * high + share * low)
        two = theirs * high
        one, two = np.append(one, 1 - one.sum()), np.append(two, 1 - two.sum())
    losses = np.log(one / two)
    for loss in (-0.4, -0.1, -0.01, 0.0, 0.01, 0.1, 0.3, 1.0):
        found = [float(side) for side in law.below(arb(loss))]
        exact = [float(side[losses <= loss].sum()) for side in (one, two)]
        assert found == pytest.approx(exact, abs=2e-5)


def test_masses_of_next_to_nothing_leave_a_window():
    """Most cells of a table hold none, and large tilts would multiply what their balls leave
    open."""
    empty = [arb(0, 1e-50)] * 1_000
    losses = lattice.Losses(arb(-1), [*empty, arb(1), *empty], arb(0), arb(0))
    _, points, outside = lattice._window([(losses, 1)], arb("1e-5"))
    assert outside < 1e-9 and points <= 2**11


@pytest.mark.parametrize("accounting", ["visible", "selective"])
@pytest.mark.parametrize(
    "fields",
    [
        (0.001, 10.0, 0.3, 0.5, 0.2),
        (1e-4, 100.0, 0.3, 0.5, 0.2),
        (1.0, 3.0, 0.02, 0.02, -1.0),
        (0.1, 1.0, 0.1, 0.5, -50.0),
        (0.1, 1.0, 0.1, 0.5, 50.0),
        (0.1, 0.12, 0.01, 0.9, -1.0),
    ],
)
@pytest.mark.filterwarnings("error")
def test_at_the_ends_of_all_ranges_there_are_curves_or_none(fields, accounting):
    """What the worst test makes of a curve is no less than what is left without a step."""
    trial = trials.tested(DpsurStep(*fields, accounting))
    assert trial is not None
    if trial.lowest > covers.MIN_ACCEPTANCE:
        noise = covers.Noise(0.4)
        most = trials.Worst(trial, 0.2, False).before(noise.curve, 0.01 * np.arange(20))
        least = noise.curve.at(np.exp(0.01 * np.arange(20)))
        assert (most >= least * (1 - 1e-9)).all() and (most <= 1.0 + 1e-9).all()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("event", "count", "least"), [(SEEN, 2_000, 2.144), (HIDDEN, 1_475, 3.898)]
)
def test_many_steps_at_the_papers_settings_are_proved(event, count, least):
    printed = accountant.epsilon({event: count}, 1e-5).epsilon
    low, high = proof.interval({event: count}, "0.995e-5", None, printed)
    assert low < least < high <= printed


def test_a_test_that_never_accepts_says_nothing():
    (law,) = laws.laws(DpsurStep(0.1, 1.0, 0.1, 0.5, -50.0, "visible"))
    low, high = law.ends()
    for loss, mass in ((low, 0.0), (-1e-9, 0.0), (1e-9, 1.0), (high, 1.0)):
        assert [float(one) for one in law.below(arb(loss))] == [mass, mass]
