"""The second path's tested steps: worst tests against tests that are tried, laws against sums."""

import math

import numpy as np
import pytest
from flint import arb, ctx

from mechanisms.accounting import accountant, events
from mechanisms.accounting.events import DpsurStep, SampledGaussian, ScreenedStep
from sim.verifying import covers, lattice, laws, proof, trials
from sim.verifying.fixed_test import FixedTest

MNIST = (0.01707, 1.35, 0.00427, 0.9, -1.0)
VISIBLE, HIDDEN = DpsurStep(*MNIST, "visible"), DpsurStep(*MNIST, "selective")
SCREENED = ScreenedStep(0.05, 2.0, 0.02, 0.4, "clipped")
TOLD = DpsurStep(0.05, 1.1, 0.3, 0.5, 0.2, "visible")
"""Tests that say more than proposals do."""
ALL = DpsurStep(1.0, 3.0, 0.02, 0.9, -1.0, "visible")
NAMES = {"visible": VISIBLE, "hidden": HIDDEN, "screened": SCREENED, "told": TOLD, "all": ALL}
FINE = 4_001


@pytest.fixture(autouse=True)
def balls():
    with ctx.workprec(proof.BITS):
        yield


@pytest.fixture(scope="module")
def found():
    """Of an event: trial, noise, laws S and R."""
    known = {}

    def of(name: str):
        if name not in known:
            trial = trials.tested(NAMES[name])
            deviation = proof._deviation(NAMES[name], trial)
            cover = covers.cover(trial, deviation, 2.0)
            known[name] = trial, deviation, covers.Noise(2.0 * deviation), cover
        return known[name]

    return of


def proposals(trial: trials.Trial, turned: bool) -> tuple[np.ndarray, np.ndarray]:
    """Fine masses of the numerator and of the denominator."""
    q, s = trial.proposal.rate, trial.proposal.noise
    y = np.linspace(-10.0 * s, 1.0 + 10.0 * s, FINE)
    theirs = np.exp(-0.5 * (y / s) ** 2)
    theirs /= theirs.sum()
    ours = theirs * (1 - q + q * np.exp((2 * y - 1) / (2 * s * s)))
    return (theirs, ours) if turned else (ours, theirs)


def corners(trial: trials.Trial, turned: bool) -> list[tuple[float, float]]:
    low, high, share = (float(one) for one in (trial.lowest, trial.highest, trial.share))
    square = [((1 - share) * a + share * z, a) for a in (low, high) for z in (low, high)]
    return [(b, a) for a, b in square] if turned else square


def attained(trial, curve, on: np.ndarray, off: np.ndarray, x: float) -> float:
    """What a test makes of the curve at v = x, with what it accepts of both laws."""
    a, b = on.sum(), off.sum()
    if trial.hidden:
        return float(on @ curve.at(x * off / on * a / b) / a)
    rejected = (1 - a) * curve.at(np.array([x * (1 - b) / (1 - a)]))[0]
    return float(on @ curve.at(x * off / on) + rejected)


def random_tests(trial, turned: bool):
    ours, theirs = proposals(trial, turned)
    low, high, share = (float(one) for one in (trial.lowest, trial.highest, trial.share))
    rng, at = np.random.default_rng(0), np.arange(FINE)
    levels = [rng.uniform(low, high, (2, FINE)) for _ in range(5)]
    for place in range(1_500, 3_000, 100):
        for a, b, c, d in rng.choice((low, high), (6, 4)):
            levels.append((np.where(at < place, a, b), np.where(at < place, c, d)))
    for without, member in levels:
        record = (1 - share) * without + share * member
        a, b = (without, record) if turned else (record, without)
        yield a * ours, b * theirs


def responses(trial, turned: bool, curve, x: float, reach: float):
    """Tests that are the best ones for lines: of a rejection, or of y = x A / A'."""
    ours, theirs = proposals(trial, turned)
    square, line = corners(trial, turned), np.arange(FINE)
    places = x * np.exp(np.linspace(-1.0, 1.0, 15) * math.log(reach))
    plain = [float(ours @ curve.at(y * theirs / ours)) for y in (places * 0.999, places * 1.001)]
    plain = [
        np.array([ours @ curve.at(y * theirs / ours) for y in places * side])
        for side in (0.999, 1.001)
    ]
    slopes = (plain[0] - plain[1]) / (0.002 * places)
    if not trial.hidden:
        slopes = (curve.at(places * 0.999) - curve.at(places * 1.001)) / (0.002 * places)
    for y in places if trial.hidden else [x]:
        on, off = (np.array([c[side] * p for c in square]) for side, p in ((0, ours), (1, theirs)))
        gains = on * curve.at(y * off / on)
        for k, g in enumerate(slopes):
            b = curve.at(places[k : k + 1])[0] + g * places[k]
            for _ in range(6 if trial.hidden else 1):
                values = gains - b * on + g * y * off
                best = values.argmax(axis=0)
                a, c = on[best, line], off[best, line]
                b += values.max(axis=0).sum() / a.sum()
            yield a, c


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("name", ["visible", "hidden", "screened", "told", "all"])
def test_no_test_exceeds_the_worst_one_and_one_comes_close(name, turned, found):
    """Kills a wrong corner, a range of A / A' that is too narrow, and bounds that are loose."""
    trial, deviation, noise, _ = found(name)
    worst = trials.Worst(trial, deviation, turned)
    losses = np.array([0, 12, 48, 144]) * noise.spacing
    most = worst.before(noise.curve, losses)
    for loss, value in zip(losses, most, strict=True):
        x = math.exp(loss)
        for on, off in random_tests(trial, turned):
            assert attained(trial, noise.curve, on, off, x) <= value * (1 + 1e-9)
        best = max(
            attained(trial, noise.curve, on, off, x)
            for on, off in responses(trial, turned, noise.curve, x, min(worst.reach, 3.0))
        )
        assert best <= value * (1 + 1e-9) and value <= 1.01 * best


def test_outcomes_keep_the_mass_and_lower_no_convex_mean():
    """Mass is moved to both neighbours. Kills masses that are left out beyond the last one."""
    for event in (VISIBLE, TOLD, ALL):
        ours, theirs = trials.outcomes(trials.tested(event).proposal, 0.02)
        assert ours.sum() == pytest.approx(1.0, abs=1e-13) == theirs.sum()
        fine = proposals(trials.tested(event), False)
        for bend in (0.99, 1.0, 1.2, 3.0):
            exact = np.maximum(fine[0] - bend * fine[1], 0.0).sum()
            merged = np.maximum(ours - bend * theirs, 0.0).sum()
            assert exact <= merged + 1e-6 and merged <= exact * 1.01 + 1e-6


def smoothed(law: covers.Atoms, noise: covers.Noise, losses: np.ndarray, turned: bool):
    """S R W at losses, by a sum over both laws' losses."""
    z = np.array(law.places) * noise.spacing
    w = np.array(noise.law.places) * noise.spacing
    mine, theirs = (np.array([float(m) for m in one.theirs]) for one in (law, noise.law))
    q = (mine[:, None] * theirs).ravel()
    p = q * np.exp(z[:, None] + w).ravel()
    rest = float(law.rests[1 if turned else 0])
    on, off = (q, p) if turned else (p, q)
    return np.array([np.maximum(on - math.exp(loss) * off, 0.0).sum() + rest for loss in losses])


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("name", ["visible", "hidden", "told"])
def test_the_laws_together_are_above_the_worst_test_between_points_too(name, turned, found):
    """Kills a law for one direction alone, and losses of S off the lattice."""
    trial, deviation, noise, (step, _) = found(name)
    losses = np.sort(np.random.default_rng(1).uniform(0.0, 9.0, 60)) * 2.0 * deviation
    most = trials.Worst(trial, deviation, turned).before(noise.curve, losses)
    bound = smoothed(step, noise, losses, turned)
    assert (most <= bound * (1 + (2e-3 if trial.hidden else 1e-7)) + 1e-12).all()
    assert (bound[losses < 2 * deviation] <= 1.01 * most[losses < 2 * deviation]).all()


@pytest.mark.parametrize("turned", [False, True])
def test_a_law_that_does_not_dominate_is_refused(turned, found):
    trial, deviation, noise, (step, _) = found("visible")
    demand = covers._demand(trials.Worst(trial, deviation, turned), noise, turned)
    assert covers.holds(step, noise, demand)
    for place in (0, noise.last // 2, noise.last + 1, len(demand.places) - 1):
        values = [v * (1.02 if k == place else 1.0) for k, v in enumerate(demand.values)]
        values[place] += covers.CERTAIN * (place == len(values) - 1)
        assert not covers.holds(step, noise, demand._replace(values=values))
    less = [mass * arb("0.999") for mass in step.theirs]
    less[step.places.index(min(step.places, key=abs))] += arb("0.001") * sum(step.theirs)
    assert not covers.holds(covers.Atoms(noise.spacing, step.places, less), noise, demand)
    whole = covers.Atoms(noise.spacing, [0], [arb(1)])
    assert not covers.holds(whole, noise, demand._replace(values=[0.0] * len(demand.values)))


def test_what_masses_lack_of_1_is_at_an_infinite_loss():
    law = covers.Atoms(0.5, [-1, 0, 2], [arb("0.2"), arb("0.3"), arb("0.1")])
    ours = 0.2 * math.exp(-0.5) + 0.3 + 0.1 * math.e
    assert [float(one) for one in law.below(arb(5))] == pytest.approx([ours, 1.0])
    assert [float(one) for one in law.below(arb("-0.6"))] == pytest.approx([0.0, 0.4])
    assert [float(one) for one in law.below(arb(0))] == pytest.approx([ours - 0.1 * math.e, 0.9])
    assert law.ends() == (-0.5, 1.0)
    wide = law.below(arb(1, 1e-9))
    for loss in (1.0, 1.0 - 1e-12):
        assert all(one.contains(b) for one, b in zip(wide, law.below(arb(loss)), strict=True))


def test_the_noise_is_a_pair_that_is_its_own_reverse(found):
    """So that one table holds for both directions."""
    _, deviation, noise, _ = found("visible")
    law = noise.law
    assert all(rest.contains(0) for rest in law.rests)
    assert all(a.overlaps(b) for a, b in zip(law.ours, law.theirs[::-1], strict=True))
    assert math.sqrt(law.variance()) == pytest.approx(2.0 * deviation, rel=1e-6)
    for place in (-noise.last - 3, -40, -1, 0, 1, 40, noise.last, noise.last + 3):
        x = math.exp(place * noise.spacing)
        exact = sum(
            max(0.0, float(p) - x * float(q)) for p, q in zip(law.ours, law.theirs, strict=True)
        )
        assert float(noise.exact(place, True)) == pytest.approx(exact, abs=1e-15)
        assert noise.smooth(np.array([place]))[0] == pytest.approx(exact, abs=1e-15)
        assert float(noise.exact(place, False)) == pytest.approx(max(0.0, 1.0 - x), abs=1e-15)


@pytest.mark.parametrize("name", ["told", "hidden", "screened"])
def test_one_test_in_all_steps_is_a_law_of_its_outcomes(name):
    """Accepted proposals above the threshold, those below it, and a bit that is public."""
    trial = trials.tested(NAMES[name])
    law = FixedTest(trial)
    low, high, share = (float(one) for one in (trial.lowest, trial.highest, trial.share))
    q, s = trial.proposal.rate, trial.proposal.noise
    y = np.linspace(-12.0, 13.0, 400_001) * s
    theirs = np.exp(-0.5 * (y / s) ** 2)
    theirs /= theirs.sum()
    ratios = 1 - q + q * np.exp((2 * y - 1) / (2 * s * s))
    above = np.log(ratios) > float(law.threshold)
    if trial.hidden:
        one, two = (p * np.where(above, high, low) for p in (ratios * theirs, theirs))
        one, two = one / one.sum(), two / two.sum()
        assert law.threshold > 0
    else:
        one, two = ratios * theirs * high, theirs * high
        one = np.where(above, one, one * (1 - share + share * low / high))
        one, two = np.append(one, 1 - one.sum()), np.append(two, 1 - two.sum())
    losses = np.log(one / two)
    for loss in (-0.4, -0.1, -0.01, 0.0, 0.01, 0.03, 0.1, 0.3, 1.0):
        below = [float(side) for side in law.below(arb(loss))]
        exact = [float(side[losses <= loss].sum()) for side in (one, two)]
        assert below == pytest.approx(exact, abs=3e-5)
    assert 0.3 < law.variance() / np.cov(losses, aweights=one, ddof=0) < 3.0


def test_a_rejection_that_cannot_be_told_is_anything():
    law = FixedTest(trials.tested(TOLD))
    told = (law.rejected[0] / law.rejected[1]).log()
    assert [float(law._rejection(told + shift)) for shift in (-1e-9, 1e-9)] == [0.0, 1.0]
    assert law._rejection(told).contains(0) and law._rejection(told).contains(1)


def test_which_events_are_tested_steps_and_what_bounds_their_tests():
    assert trials.tested(HIDDEN).hidden and not trials.tested(VISIBLE).hidden
    screened = trials.tested(SCREENED)
    assert screened.hidden and (screened.lowest, screened.highest) == (arb(0.4), arb(1))
    assert screened.share == arb(0.02) and screened.proposal == (0.05, 2.0)
    others = (
        DpsurStep(*MNIST, "every-trial"),
        ScreenedStep(0.05, 2.0, 0.02, 0.0, "clipped"),
        ScreenedStep(0.05, 2.0, 0.02, 0.4, "public-test"),
        ScreenedStep(0.05, 2.0, 0.02, 0.4, "unproved"),
        SampledGaussian(0.05, 2.0),
    )
    assert not any(trials.tested(event) for event in others)
    assert proof.dominated({HIDDEN: 2, SCREENED: 1, events.TrialCap(0.1, 5): 2})
    assert not proof.dominated({HIDDEN: 2, others[1]: 1})


@pytest.mark.parametrize(
    "fields",
    [
        (1e-300, 1.0, 1e-300, 0.9, -1.0, "visible"),
        (0.1, 1.0, 0.1, 0.5, -50.0, "selective"),
        (0.001, 1e4, 0.001, 1.0, 0.0, "visible"),
        (0.1, 0.12, 0.01, 0.9, -1.0, "visible"),
        (0.1, 1.0, 0.1, 0.5, 50.0, "visible"),
        (0.2, 1.0, 0.5, 0.2, -1.0, "selective"),
    ],
    ids=["none", "never accepted", "silent", "large", "never rejected", "telling"],
)
@pytest.mark.filterwarnings("error")
def test_at_the_ends_of_all_ranges_there_are_laws_that_dominate_or_none(fields):
    trial = trials.tested(DpsurStep(*fields))
    for deviation in (1e-12, 0.05, 0.5, 10.0):
        cover = covers.cover(trial, deviation, 2.0)
        assert cover is None or all(rest >= 0 for rest in cover[0].rests)
        assert cover is None or 1e-9 < deviation < 3.0


def test_hidden_kinds_have_laws_of_their_own_and_visible_ones_where_it_pays(monkeypatch):
    """Each with noise of its own; a kind of few trials is the first to stand by itself."""
    other = DpsurStep(0.02, *MNIST[1:], "visible")
    several = {HIDDEN: trials.tested(HIDDEN), VISIBLE: trials.tested(VISIBLE)}
    several |= {other: trials.tested(other), SCREENED: trials.tested(SCREENED)}
    charges = {HIDDEN: 5, VISIBLE: 7, other: 9, SCREENED: 3, SampledGaussian(0.1, 2.0): 2}
    monkeypatch.setattr(proof, "_deviation", lambda event, trial: 1.0)
    monkeypatch.setattr(proof, "cover", lambda trial, deviation, width: (trial, (trial, width)))
    monkeypatch.setattr(proof, "laws", lambda event: [event])
    hidden, screened, first, second = (several[e] for e in (HIDDEN, SCREENED, other, VISIBLE))

    def both(trial, count, width):
        return [(trial, count), ((trial, width), 1)]

    always = [[*both(hidden, 5, width), *both(screened, 3, width)] for width in proof.WIDTHS]
    expected = [
        [*kept, *both(first, 9, width), *both(second, 7, width)]
        for kept, width in zip(always, proof.WIDTHS, strict=True)
    ]
    expected += [
        [(VISIBLE, 7), *kept, *both(first, 9, width)]
        for kept, width in zip(always, proof.WIDTHS, strict=True)
    ]
    expected += [[(other, 9), (VISIBLE, 7), *kept] for kept in always]
    assert list(proof._ways(several, charges)) == expected
    del several[HIDDEN], several[SCREENED]
    assert list(proof._ways(several, charges))[-1] == [(other, 9), (VISIBLE, 7)]
    assert len(list(proof._ways(several, charges))) == 2 * len(proof.WIDTHS) + 1
    monkeypatch.setattr(proof, "cover", lambda trial, deviation, width: None)
    assert list(proof._ways(several, charges)) == [[(other, 9), (VISIBLE, 7)]]
    assert list(proof._ways({HIDDEN: hidden}, charges)) == []


def test_smaller_spacings_are_tried_of_ways_that_are_close(monkeypatch):
    """And of none once what is printed is above."""
    tried = []

    def epsilon(steps, left, fineness):
        tried.append((steps, fineness))
        return arb(steps) - 1, arb(steps) + arb(fineness)

    monkeypatch.setattr(lattice, "epsilon", epsilon)
    assert proof._tried([90.0, 100.0, 103.0], arb(1), 100.001)[1] == 90.0125 and len(tried) == 1
    tried.clear()
    found = proof._tried([100.0, 103.0, 102.5], arb(1), 100.005)
    assert found[1] == pytest.approx(100.003) and [steps for steps, _ in tried] == [
        100.0,
        103.0,
        102.5,
        100.0,
        100.0,
    ]
    assert proof._tried([], arb(1), 5.0)[1] == math.inf


@pytest.mark.parametrize(
    "charges",
    [
        {ALL: 20, SampledGaussian(0.05, 2.0): 10},
        {HIDDEN: 30, VISIBLE: 1},
        {HIDDEN: 5, SCREENED: 5},
    ],
    ids=["visible", "hidden", "two kinds"],
)
def test_the_bounds_hold_what_is_printed_from_both_sides(charges):
    printed = accountant.epsilon(charges, 1e-5).epsilon
    low, high = proof.interval(charges, "0.98e-5", None, printed)
    assert 0.75 * printed < low < high <= printed < 1.015 * high


def test_a_cap_costs_a_part_of_delta_and_its_share_of_epsilon():
    """Theorem 11. What sums may fail by is a part of delta alone."""
    plain = proof.interval({SCREENED: 20}, "1e-5", None, math.inf)
    cap, shares = events.TrialCap(0.5, 10), events.SummedShares(0.0009765625)
    lost = 20 / 2**10
    capped = proof.interval({SCREENED: 20, cap: 20}, "0.01954125", None, math.inf)
    both = proof.interval({SCREENED: 20, cap: 20, shares: 1}, "0.0205178125", None, math.inf)
    assert capped == pytest.approx([one + lost / (1 - lost) for one in plain], rel=1e-12)
    assert both == pytest.approx(capped, rel=1e-12)
    assert proof.interval({SCREENED: 20, cap: 20}, "0.0195", None, 1.0) == (math.inf, math.inf)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("event", "count", "printed", "above", "below"),
    [(VISIBLE, 2_000, 2.156, 2.144, 2.156), (HIDDEN, 1_475, 4.02, 3.898, 4.02)],
    ids=["visible", "hidden"],
)
def test_what_runs_of_the_length_of_the_papers_cost(event, count, printed, above, below):
    low, high = proof.interval({event: count}, "0.98e-5", None, printed)
    assert 0.9 * high < low < high and above < high < below


def test_masses_of_next_to_nothing_leave_a_window():
    """Most cells of a table hold none, and large tilts would multiply what their balls leave
    open."""
    empty = [arb(0, 1e-50)] * 1_000
    losses = lattice.Losses(arb(-1), [*empty, arb(1), *empty], arb(0), arb(0))
    _, points, outside = lattice._window([(losses, 1)], arb("0.001"), arb("1e-5"))
    assert outside < 1e-9 and points <= 2**11


def test_many_trials_cost_less_together_than_by_themselves():
    (alone,) = laws.laws(VISIBLE)
    trial = trials.tested(VISIBLE)
    step, noise = covers.cover(trial, proof._deviation(VISIBLE, trial), 2.0)
    by_one, together = (
        proof.outward(*lattice.epsilon(steps, arb("0.98e-5"), 0.05))[1]
        for steps in ([(alone, 320)], [(step, 320), (noise, 1)])
    )
    assert together < 0.995 * by_one
