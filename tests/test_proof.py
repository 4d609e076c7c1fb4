"""Bounds in ball arithmetic: they hold the exact epsilon, and what the accountant says is above."""

import math

import numpy as np
import pytest
from flint import arb, ctx
from scipy.optimize import brentq
from scipy.stats import norm

from mechanisms.accounting import accountant, curves, dominating, events
from mechanisms.accounting.acceptance import Acceptance
from sim.verifying import divergences, lattice, laws, proof, selection
from sim.verifying.laws import Sampled
from sim.verifying.moments import Ratio
from tests.reference_values import REFERENCE
from tests.steps import exact_delta

DELTA = 1e-5
EVENTS = {
    "sampled_gaussian": events.SampledGaussian(0.0171, 1.35),
    "fixed_batch_gaussian": events.FixedBatchGaussian(3, 40, 1.35),
    "gaussian": events.Gaussian(2.0),
    "paper_claim": events.PaperClaim(0.1, 1.0),
    "classic_claim": events.ClassicClaim(0.1, 1.0),
    "unprotected": events.Unprotected(0.1),
    "unproved": events.Unproved("a search"),
    "importance_sampled_gaussian": events.ImportanceSampledGaussian(10, 1.0, 30.0, 600.0, 1.2),
    "noisy_norm_sum": events.NoisyNormSum(0.1, 20.0),
    "heterogeneous_gaussian": events.HeterogeneousGaussian(0.2, 2.0, 0.7),
    "visible_choice": events.VisibleChoice(0.3, 2.0),
    "partial_pass": events.PartialPass(0.3, 2.0),
    "randomized_response": events.RandomizedResponse(0.5),
    "public_labels": events.PublicLabels(),
    "dpsur_step": events.DpsurStep(0.1, 1.5, 0.05, 0.9, -1.0, "visible"),
    "screened_step": events.ScreenedStep(0.1, 2.0, 0.04, 0.5, "clipped"),
    "trial_cap": events.TrialCap(0.1, 100),
    "summed_shares": events.SummedShares(1e-9),
    "allotment": events.Allotment(8.0, 0.01, 3),
    "covered": events.Covered(events.Gaussian(2.0), 8.0),
    "gaussian_allotment": events.GaussianAllotment(2.0, 3),
}
"""One of each kind."""
OTHERS = {
    "dpsur every trial": events.DpsurStep(0.1, 1.5, 0.05, 0.9, -1.0, "every-trial"),
    "dpsur mostly accepted": events.DpsurStep(0.1, 1.5, 0.05, 0.9, 1.0, "every-trial"),
    "dpsur selective": events.DpsurStep(0.1, 1.5, 0.05, 0.9, -1.0, "selective"),
    "a batch of all records": events.FixedBatchGaussian(4, 4, 2.0),
    "dpsur of all records": events.DpsurStep(1.0, 3.0, 1.0, 2.0, -1.0, "visible"),
    "screening by public data": events.ScreenedStep(0.1, 2.0, 1.0, 0.5, "public-test"),
    "screening unproved": events.ScreenedStep(0.1, 2.0, 1.0, 0.5, "unproved"),
}


def test_records_of_different_scales_are_proved_at_the_smallest_noise():
    (law,) = laws.laws(events.HeterogeneousGaussian(0.2, 2.0, 0.7))
    assert law.rate == 0.2 and 1.4 * (1 - 1e-15) <= law.noise <= 1.4


def ball(event: events.Event, order: float) -> tuple[float, float]:
    with ctx.workprec(proof.BITS):
        found = divergences.divergence(event, arb(order))
        return proof.outward(found, found)


@pytest.mark.parametrize("name", [*EVENTS, *OTHERS])
def test_no_curve_is_below_its_exact_divergence(name):
    """But for rounding, for which epsilons have a margin. Curves that are searched for have one
    part in 10^5 more."""
    event = (EVENTS | OTHERS)[name]
    low, high = ball(event, 8.0)
    (charged,) = curves.rdp(event, [8.0], "certified")
    assert charged * (1.0 + accountant.ROUNDING) >= high
    assert charged <= low * (1.0 + 1e-5) or charged == high


def test_a_corner_that_is_the_best_between_two_points_of_the_grid_is_found():
    """Of a hidden step, where another corner takes its place soon. Kills a search for two corners
    that looks at these alone, after which no bound is proved."""
    event = events.DpsurStep(0.1, 3.0, 0.05, 3.0, -1.0, "selective")
    low, high = ball(event, 20.0)
    (charged,) = curves.rdp(event, [20.0], "certified")
    assert high * (1.0 - 1e-9) <= low and high <= charged <= high * (1.0 + 1e-5)


def test_a_ball_without_a_number_is_anything_from_0_to_infinity():
    """Kills bounds that are compared and are none."""
    unknown = arb(1).union(arb("inf")).log()
    assert unknown.is_nan() and proof.outward(unknown, unknown) == (0.0, math.inf)
    assert proof.outward(arb(1), unknown) == (0.0, math.inf)


@pytest.mark.parametrize("number", ["0.1", "0.3"])
def test_bounds_are_floats_on_their_own_side(number):
    """The nearest floats are above 0.1, and below 0.3."""
    with ctx.workprec(proof.BITS):
        low, high = proof.outward(arb(number), arb(number))
        assert arb(low) < arb(number) < arb(high) and high == math.nextafter(low, math.inf)


def test_what_may_be_overdrawn_is_not_proved(monkeypatch):
    """Kills a release that counts as paid for, as nothing tells that it is not."""
    charges = {events.Allotment(8.0, 1.0, 1): 1, events.Covered(events.Gaussian(2.0), 8.0): 1}
    found = []
    for most in (0.9, 1.1):
        monkeypatch.setattr(proof, "divergence", lambda *given, most=most: arb(0.5).union(most))
        found.append(proof.interval(charges, "1e-5", 8.0, 9.0)[1])
    assert found[0] < found[1] == math.inf


def test_every_kind_of_event_has_a_bound_of_its_own():
    assert EVENTS.keys() == events.KINDS.keys()
    assert all(event.kind == kind for kind, event in EVENTS.items())


def test_balls_of_tested_steps_hold_the_reference():
    row = next(row for row in REFERENCE["selective_release"] if row["alpha"] == 8)
    names = ("sample_rate", "noise_multiplier", "validation_rate", "validation_noise", "beta")
    fields = [row[name] for name in names]
    for accounting, column in {"visible": "visible", "selective": "certified"}.items():
        low, high = ball(events.DpsurStep(*fields, accounting), 8.0)
        assert high - low <= 1e-6 * low
        assert row[column] == pytest.approx(high, rel=1e-5)


def exact_epsilon(q: float, s: float, steps: int) -> float:
    """Of one or two steps, by an integral over the first one."""
    x = np.linspace(-9 * s, 1 + 9 * s, 4001)
    loss = np.log(1 - q + q * np.exp((2 * x - 1) / (2 * s**2)))

    def excess(eps: float, adding: bool) -> float:
        if steps == 1:
            return exact_delta(q, s, eps, adding) - DELTA
        density = norm.pdf(x, scale=s) * (1.0 if adding else np.exp(loss))
        rest = exact_delta(q, s, eps + (loss if adding else -loss), adding)
        return float(np.trapezoid(density * rest, x)) - DELTA

    return max(brentq(excess, 1e-9, 60.0, args=(adding,)) for adding in (False, True))


@pytest.mark.parametrize(("q", "s", "steps"), [(0.1, 1.0, 1), (0.6, 0.7, 2), (0.1, 0.6, 2)])
def test_the_bounds_of_sampled_steps_hold_their_exact_epsilon(q, s, steps):
    with ctx.workprec(proof.BITS):
        low, high = proof.outward(*lattice.epsilon([(Sampled(q, s), steps)], arb(DELTA), 0.03))
    assert low <= exact_epsilon(q, s, steps) <= high <= low * 1.002


@pytest.mark.parametrize(
    ("rate", "noise"), [(1e-179, 0.039), (1e-181, 0.039), (1e-200, 1e6), (5e-324, 0.005)]
)
def test_steps_that_hardly_look_at_any_record_cost_nothing(rate, noise):
    """Their losses are too rare for a lattice: it had a billion points, or none."""
    assert proof.interval({events.SampledGaussian(rate, noise): 1}, "1e-5", None, 8.0) == (0.0, 0.0)


@pytest.mark.parametrize(
    ("steps", "free"),
    [
        ([(Sampled(0.1, 1.0), 1)], 0.0383),
        ([(Sampled(0.1, 1.0), 1), (Sampled(1.0, 1.0), 1)], 0.0383 + 0.3829),
        ([(Sampled(1.0, 4.0), 6)], 6 * 0.0995),
    ],
)
def test_steps_cost_nothing_up_to_a_delta_of_their_total_variations(steps, free):
    """Kills one step's variation for that of all, and a law that is forgotten: of half of it no
    bound is 0 here."""
    with ctx.workprec(proof.BITS):
        bounds = [
            proof.outward(*lattice.epsilon(steps, arb(part * free), 0.03)) for part in (1.01, 0.4)
        ]
    assert bounds[0] == (0.0, 0.0) and bounds[1][0] > 0.0


def test_the_bounds_of_different_steps_hold_their_exact_epsilon():
    """Gaussians compose to one, whose epsilon has a closed form."""
    steps = [(Sampled(1.0, 3.0), 4), (Sampled(1.0, 5.0), 2)]
    mean = math.sqrt(sum(n / law.noise**2 for law, n in steps))
    exact = brentq(lambda eps: exact_delta(1.0, 1 / mean, eps, False) - DELTA, 0.1, 60.0)
    with ctx.workprec(proof.BITS):
        low, high = proof.outward(*lattice.epsilon(steps, arb(DELTA), 0.03))
    assert low <= exact <= high <= low * 1.002


@pytest.mark.parametrize(
    "charges",
    [
        {EVENTS["sampled_gaussian"]: 3},
        {events.NoisyNormSum(0.1, 20.0): 2, events.VisibleChoice(0.3, 2.0): 1},
        {OTHERS["dpsur selective"]: 3, events.TrialCap(0.1, 160): 3},
        {OTHERS["dpsur every trial"]: 5},
        {EVENTS["sampled_gaussian"]: 3, events.SummedShares(1e-7): 3},
        {EVENTS["allotment"]: 2, events.Covered(events.Gaussian(30.0), 8.0): 2},
    ],
    ids=["dpsgd", "dpis", "dpsur", "every trial", "shares", "allotment"],
)
@pytest.mark.parametrize("order", [1.5, 8.0])
def test_an_epsilon_by_a_renyi_order_is_above_the_exact_one(charges, order):
    """Kills an epsilon that is rounded to the nearest float, a cap that is not paid for, and a
    share of it that is taken from nothing."""
    found = accountant.epsilon(charges, DELTA, orders=(order,)).epsilon
    low, high = proof.interval(charges, str(DELTA), order, found)
    assert high <= found and (found <= low * (1 + 1e-5) or found == math.inf)


@pytest.mark.parametrize(("rate", "noise"), [(0.00328, 0.1596), (0.00647, 0.1687), (0.02, 0.185)])
def test_a_bend_between_two_points_of_an_integral_counts(rate, noise):
    """Where noise is small, the likelihood ratio bends within less than a deviation; what one step
    loses there, many lose many times. Kills points that only deviations are told by."""
    event, order = events.SampledGaussian(rate, noise), 1.25
    low, _ = ball(event, order)
    assert curves.rdp(event, [order], "certified")[0] == pytest.approx(low, rel=4e-12)
    found = accountant.epsilon({event: 1000}, DELTA, orders=(order,)).epsilon
    assert proof.interval({event: 1000}, str(DELTA), order, found)[1] <= found


@pytest.mark.parametrize("beta", [-18.0, -9.0, -3.0, -1.5, 0.0, 1.5])
def test_probabilities_of_acceptance_are_rounded_outward(beta):
    """Far from the middle what floats lose grows. Kills one part in 10^15 everywhere."""
    for noise in np.linspace(0.25, 0.8, 200).tolist():
        found = Acceptance.of_noisy_loss(0.1, noise, beta)
        with ctx.workprec(proof.BITS):
            low, high = divergences.acceptance(
                events.DpsurStep(0.1, 1.0, 0.1, noise, beta, "every-trial")
            )
            assert found.lowest <= low and found.highest >= high
        assert found.lowest == pytest.approx(float(low), rel=3e-12)
        assert found.highest == pytest.approx(float(high), rel=1e-12)


def test_covered_releases_are_paid_for_by_allotments():
    charges = {EVENTS["allotment"]: 2, events.Covered(events.Gaussian(10.0), 8.0): 1}
    assert proof.interval(charges, str(DELTA), 8.0, 1.0)[0] == math.inf


@pytest.mark.parametrize(
    "event",
    [
        EVENTS["dpsur_step"],
        OTHERS["dpsur every trial"],
        OTHERS["dpsur of all records"],
        EVENTS["fixed_batch_gaussian"],
        EVENTS["visible_choice"],
        EVENTS["randomized_response"],
    ],
    ids=["visible", "every trial", "all records", "fixed batch", "shared", "answered"],
)
@pytest.mark.parametrize("adding", [False, True])
def test_both_paths_have_the_same_worst_case(event, adding):
    """At each loss: the profile of the first one, the masses beyond it of the second one."""
    (pair,), (law,) = dominating.pairs(event), laws.laws(event)
    with ctx.workprec(proof.BITS):
        for loss in (-0.3, -0.004, 0.0, 0.002, 0.01, 0.05, 0.7):
            ours, theirs = (1 - one for one in law.below(arb(-loss if adding else loss)))
            exact = float(ours - arb(-loss if adding else loss).exp() * theirs)
            if adding:  # the same pair, turned round
                exact = 1.0 - math.exp(loss) + math.exp(loss) * exact
            found = pair.excess(np.array([loss]), adding)[0][0]
            assert found + max(0.0, -math.expm1(loss)) == pytest.approx(exact, rel=1e-9, abs=1e-13)


@pytest.mark.parametrize("name", [*EVENTS, *OTHERS])
def test_both_paths_know_pairs_of_the_same_events(name):
    event = (EVENTS | OTHERS)[name]
    charges = {EVENTS["gaussian"]: 1, event: 1}
    assert proof.dominated(charges) == bool(dominating.ways(charges))


@pytest.mark.parametrize("name", ["sampled_gaussian", "fixed_batch_gaussian"])
def test_a_ball_of_losses_has_the_masses_of_each_loss_in_it(name):
    """Also where the worst case changes, at a loss of 0."""
    (law,) = laws.laws(EVENTS[name])
    with ctx.workprec(proof.BITS):
        wide = law.below(arb(0, 1e-3))
        for loss in (-1e-3, 0.0, 1e-3):
            here = law.below(arb(loss))
            assert all(one.contains(exact) for one, exact in zip(wide, here, strict=True))


def test_of_cases_that_balls_do_not_tell_apart_the_worse_one_may_be_the_worst(monkeypatch):
    with ctx.workprec(proof.BITS):
        (law,) = laws.laws(EVENTS["dpsur_step"])
        found = iter([(arb("0.5"), arb("0.2")), (arb("0.5", "0.1"), arb("0.2"))])
        monkeypatch.setattr(law, "_above", lambda case, loss: next(found))
        assert law.below(arb(0))[0].contains(arb("0.41"))


def test_an_allotment_has_a_divergence_at_its_own_order_alone():
    assert ball(EVENTS["allotment"], 4.0) == (math.inf, math.inf)


def test_the_bounds_of_many_steps_stay_close():
    """Kills numbers with too few bits, whose balls grow with every step."""
    step, steps = events.SampledGaussian(0.1, 1.0), 300
    with ctx.workprec(proof.BITS):
        low, high = proof.outward(*lattice.epsilon([(Sampled(0.1, 1.0), steps)], arb(DELTA), 0.2))
    assert low <= accountant.epsilon({step: steps}, DELTA).epsilon and high <= low * 1.03


@pytest.mark.parametrize("everywhere", [False, True])
def test_masses_that_balls_leave_open_prove_nothing(everywhere):
    """Kills an upper bound of 0 where no comparison can be made."""

    class Open(Sampled):
        def below(self, loss):
            wide = arb(0, 0.4 if everywhere or loss.contains(0) else 0.0)
            return tuple(one + wide for one in super().below(loss))

    with ctx.workprec(proof.BITS):
        low, high = proof.outward(*lattice.epsilon([(Open(1.0, 2.0), 1)], arb(DELTA), 0.05))
    exact = brentq(lambda eps: exact_delta(1.0, 2.0, eps, False) - DELTA, 0.1, 60.0)
    assert not low > exact and not high < exact


@pytest.mark.parametrize("steps", [1, 4])
def test_what_lies_beyond_all_points_counts(steps, monkeypatch):
    """In the upper bound as an infinite loss, of each step."""
    monkeypatch.setattr(laws, "REACH", 3.0)
    step = Sampled(1.0, 2.0 * math.sqrt(steps))
    with ctx.workprec(proof.BITS):
        low, high = proof.outward(*lattice.epsilon([(step, steps)], arb(0.01), 0.05))
    exact = brentq(lambda eps: exact_delta(1.0, 2.0, eps, False) - 0.01, 0.1, 60.0)
    assert low <= exact <= high and high - low > 1e-2 * steps


def test_a_moment_holds_what_is_outside_of_its_integral(monkeypatch):
    """Of a Gaussian, whose moment has a closed form, over a range that is too narrow."""
    ratio = Ratio(arb(1), arb(2))
    monkeypatch.setattr(Ratio, "range", lambda self, power: (-1.0, 6.0))
    with ctx.workprec(proof.BITS):
        assert ratio.moment(arb(3)).contains((arb(6) / 8).exp())


@pytest.mark.parametrize(("noise", "beta"), [(0.3, -1.0), (3.0, 0.5), (40.0, -30.0)])
def test_the_acceptance_that_is_charged_holds_the_exact_one(noise, beta):
    """Rounded outward by little. Kills the ends of a range in the wrong order."""
    charged = Acceptance.of_noisy_loss(0.5, noise, beta)
    with ctx.workprec(proof.BITS):
        low, high = laws.acceptance(events.DpsurStep(0.1, 1.0, 0.5, noise, beta, "visible"))
        assert charged.lowest < low < high < charged.highest
        assert low < charged.lowest * (1 + 1e-9) and high > charged.highest * (1 - 1e-9)


def test_a_bad_test_is_no_bound(monkeypatch):
    """The bound for all tests counts the corners that a test should have taken."""
    with ctx.workprec(proof.BITS):
        lows = arb("0.2"), arb("0.9"), arb("0.1"), arb(4)
        pair = selection._Pair(Ratio(arb("0.3"), arb(2)), *lows, True)
        best = pair.response(arb(-4), arb(3))
        everywhere = [(2, arb(pair.points[0]), arb(pair.points[-1]))]
        monkeypatch.setattr(pair, "_runs", lambda terms: everywhere)
        bad = pair.response(arb(-4), arb(3))
        assert bad.moment - 4 * bad.accepted + 3 * bad.otherwise < best.bound <= bad.bound


@pytest.mark.parametrize("gain", [-4, 4])
def test_the_largest_value_between_two_points_is_above_all_between_them(gain):
    with ctx.workprec(proof.BITS):
        lows = arb("0.2"), arb("0.9"), arb("0.1"), arb(4)
        pair = selection._Pair(Ratio(arb("0.3"), arb(2)), *lows, True)
        term = arb(gain), arb(-2 * gain), arb(1)
        low, high = arb(-6), arb(8)
        most = pair._largest(term, low, high)
        for x in np.linspace(-6.0, 8.0, 57).tolist():
            u = pair.ratio.at(arb(x))
            assert not term[0] * u**pair.power + term[1] * u + term[2] > most


def test_the_ratios_that_are_tried_of_rejections_hold_those_of_every_test(monkeypatch):
    tried = []
    monkeypatch.setattr(
        selection, "_seen", lambda pair, order, reach: tried.append((pair, reach)) or (arb(1),) * 2
    )
    with ctx.workprec(proof.BITS):
        lows = arb("0.2"), arb("0.9"), arb("0.1"), arb(4)
        selection.visible(Ratio(arb("0.3"), arb(2)), *lows)
        for pair, reach in tried:
            for on, off in ((-100, 100), (100, -100)):
                test = pair.response(arb(on), arb(off))
                ratio = (1 - test.accepted) / (1 - test.otherwise)
                assert 1 / reach < ratio < reach
