"""Several trials with a public bit, against adversaries that choose each test by what they saw, and
against the second path's own computation."""

import itertools
import math

import numpy as np
import pytest
from flint import arb, ctx

from mechanisms.accounting import accountant, blocks, dominating, loss_distribution
from mechanisms.accounting.acceptance import Acceptance
from mechanisms.accounting.events import DpsurStep, SampledGaussian
from sim.verifying import lattice, laws, proof, trials

MNIST = DpsurStep(0.01707, 1.35, 0.00427, 0.9, -1.0, "visible")
TOLD = DpsurStep(0.05, 1.1, 0.3, 0.5, 0.2, "visible")
"""Tests that say more than proposals do."""
ALL = DpsurStep(1.0, 3.0, 0.02, 0.9, -1.0, "visible")
LOSSES = np.array([-1.0, -0.2, -0.03, 0.0, 0.002, 0.02, 0.1, 0.4, 1.0])


def single(event: DpsurStep):
    (pair,) = dominating.pairs(event)
    return pair


def profile(event: DpsurStep, count: int, losses: np.ndarray, adding: bool = False) -> np.ndarray:
    excess, error = blocks.Block(event, single(event), count).excess(losses, adding)
    return excess + error + np.maximum(0.0, -np.expm1(losses))


def two_trials(event: DpsurStep, x: float, tests: list[tuple[np.ndarray, np.ndarray]]) -> float:
    """The largest hockey stick of two trials over these first tests, where the second one is the
    worst for what the first one released."""
    size = len(tests[0][0])
    y = np.linspace(-10.0, 11.0, size) * event.noise_multiplier
    theirs = np.exp(-0.5 * (y / event.noise_multiplier) ** 2)
    theirs /= theirs.sum()
    q, s = event.sample_rate, event.noise_multiplier
    ours = theirs * (1 - q + q * np.exp((2 * y - 1) / (2 * s * s)))
    found = []
    for a, z in tests:
        within = (1 - event.validation_rate) * a + event.validation_rate * z
        one, two = ours * within, theirs * a
        one, two = np.append(one, 1 - one.sum()), np.append(two, 1 - two.sum())
        losses = math.log(x) + np.log(two) - np.log(one)
        excess, _ = single(event).excess(losses, False)
        found.append(float(one @ (excess + np.maximum(0.0, -np.expm1(losses)))))
    return max(found)


@pytest.mark.parametrize("event", [MNIST, TOLD], ids=["mnist", "told"])
def test_no_test_that_follows_what_was_released_exceeds_the_profile_and_one_reaches_it(event):
    """Random tests, and all that switch at a level of the proposal, before the worst second one."""
    bounds = Acceptance.of_noisy_loss(event.validation_rate, event.validation_noise, event.beta)
    levels, size, rng = (bounds.lowest, bounds.highest), 4_001, np.random.default_rng(0)
    at = np.arange(size)
    tests = [tuple(rng.uniform(*levels, (2, size))) for _ in range(3)]
    for place, (a, b, c, d) in itertools.product(
        range(1_500, 3_000, 50), itertools.product(levels, repeat=4)
    ):
        tests.append((np.where(at < place, a, b), np.where(at < place, c, d)))
    for loss in (-0.05, 0.0, 0.003, 0.03, 0.2):
        most = profile(event, 2, np.array([loss]))[0]
        found = two_trials(event, math.exp(loss), tests)
        assert found <= most * (1 + 1e-6) + 1e-12 and most <= found * 1.05 + 1e-9


@pytest.mark.parametrize("event", [MNIST, TOLD, ALL], ids=["mnist", "told", "all records"])
@pytest.mark.parametrize("count", [2, 16])
@pytest.mark.parametrize("adding", [False, True])
def test_both_paths_have_the_same_worst_tests(event, count, adding):
    with ctx.workprec(proof.BITS):
        ((_, law),) = _bounds(event, count)
        for loss, found in zip(LOSSES, profile(event, count, LOSSES, adding), strict=True):
            at = arb(-loss if adding else loss)
            ours, theirs = (1 - one for one in law.below(at))
            exact = float(ours - at.exp() * theirs)
            if adding:
                exact = 1.0 - math.exp(loss) + math.exp(loss) * exact
            assert found == pytest.approx(exact, rel=0.02, abs=1e-7)


def _bounds(event: DpsurStep, count: int):
    """Each part of the two bounds on so many trials, at most `trials.TOGETHER`."""
    least, most = trials.bounds(event, count)
    return [(one[0], other[0]) for one, other in zip(least, most, strict=True)]


@pytest.mark.parametrize("adding", [False, True])
def test_a_block_dominates_fewer_trials_and_is_dominated_by_as_many_alone(adding):
    profiles = [profile(MNIST, n, LOSSES, adding) for n in range(1, blocks.TRIALS + 1)]
    assert (np.diff(profiles, axis=0) >= 0.0).all()
    alone = loss_distribution.epsilon({single(MNIST): 320}, 1e-5)
    together = loss_distribution.epsilon(blocks.split(MNIST, single(MNIST), 320), 1e-5)
    assert 0.98 * alone < together < 0.99 * alone


def test_outcomes_keep_the_mass_and_the_mean_of_both_laws():
    """Mass is moved to both neighbours, so that no convex mean falls."""
    for event in (MNIST, TOLD, ALL):
        found = blocks._outcomes(event, 1e-4)
        assert found.weights.sum() == pytest.approx(1.0, rel=1e-9)
        assert found.weights @ found.ratios + found.beyond == pytest.approx(1.0, rel=1e-9)
        assert found.ratios[0] == 1.0 - event.sample_rate and (np.diff(found.ratios) > 0.0).all()
        y = np.linspace(-12.0, 13.0, 200_001) * event.noise_multiplier
        law = np.exp(-0.5 * (y / event.noise_multiplier) ** 2)
        q, s = event.sample_rate, event.noise_multiplier
        ratios = 1 - q + q * np.exp((2 * y - 1) / (2 * s * s))
        for bend in (0.99, 1.0, 1.2, 3.0):
            true = float(law @ np.maximum(ratios - bend, 0.0) / law.sum())
            assert true <= float(found.weights @ np.maximum(found.ratios - bend, 0.0)) + 1e-12


def test_trials_are_split_into_whole_blocks_and_a_rest():
    counts = {
        n: [(b.trials, k) for b, k in blocks.split(MNIST, single(MNIST), n).items()]
        for n in (5, 16, 37)
    }
    assert counts == {5: [(5, 1)], 16: [(16, 1)], 37: [(16, 2), (5, 1)]}


def test_of_two_kinds_of_trials_those_of_one_are_taken_together():
    """The others depend on nothing, whatever lies between them (Theorem 28)."""
    few = DpsurStep(0.02, 1.35, 0.00427, 0.9, -1.0, "visible")
    gaussian = SampledGaussian(0.1, 2.0)
    alone, together = dominating.ways({few: 3, MNIST: 40, gaussian: 2})
    assert alone == {
        single(few): 3,
        single(MNIST): 40,
        dominating.sampled(0.1, 2.0): 2,
    }
    assert together == {
        single(few): 3,
        dominating.sampled(0.1, 2.0): 2,
        **blocks.split(MNIST, single(MNIST), 40),
    }
    assert dominating.ways({few: 1, gaussian: 2}) == [
        {single(few): 1, dominating.sampled(0.1, 2.0): 2}
    ]
    seen = DpsurStep(0.02, 1.35, 0.00427, 0.9, -1.0, "every-trial")
    assert dominating.ways({seen: 40}) == [{single(seen): 40}]


def test_epsilon_rises_with_the_trials_and_is_that_of_the_cheaper_way():
    found = [accountant.epsilon({MNIST: n}, 1e-5).epsilon for n in (1, 2, 15, 16, 17, 31, 32, 33)]
    assert found == sorted(found)
    alone = [loss_distribution.epsilon({single(MNIST): n}, 0.98e-5) for n in (1, 2, 300)]
    least = [accountant.epsilon({MNIST: n}, 1e-5).epsilon for n in (1, 2, 300)]
    assert least[0] == alone[0] and least[1] <= alone[1] and least[2] < 0.985 * alone[2]


def test_the_second_path_bounds_many_trials_from_both_sides():
    """One test in all trials from below; also beside other steps."""
    for charges in ({ALL: 40}, {ALL: 20, SampledGaussian(0.05, 2.0): 10}):
        printed = accountant.epsilon(charges, 1e-5).epsilon
        low, high = proof.interval(charges, "0.98e-5", None, printed)
        assert 0.9 * printed < low < high <= printed < 1.005 * high


def test_a_ball_across_a_point_of_the_second_path_holds_both_sides():
    with ctx.workprec(proof.BITS):
        ((_, law),) = _bounds(MNIST, 2)
        place = len(law.points) // 2
        at = arb(law.points[place]).log()
        wide = law.below(at + arb(0, 1e-9))
        for moved in (-1e-10, 1e-10):
            sides = zip(wide, law.below(at + moved), strict=True)
            assert all(one.contains(exact) for one, exact in sides)


def test_one_test_in_all_trials_is_a_law_of_its_outcomes():
    """Accepted proposals that speak for the record, those that do not, and the bit."""
    with ctx.workprec(proof.BITS):
        ((law, _),) = _bounds(TOLD, 2)
        low, high = (float(one) for one in laws.acceptance(TOLD))
        y = np.linspace(-12.0, 13.0, 400_001) * TOLD.noise_multiplier
        theirs = np.exp(-0.5 * (y / TOLD.noise_multiplier) ** 2)
        theirs /= theirs.sum()
        q, s, share = TOLD.sample_rate, TOLD.noise_multiplier, TOLD.validation_rate
        ratios = 1 - q + q * np.exp((2 * y - 1) / (2 * s * s))
        accepted = np.where(ratios > 1.0, high, (1 - share) * high + share * low)
        one, two = ratios * theirs * accepted, theirs * high
        one, two = np.append(one, 1 - one.sum()), np.append(two, 1 - two.sum())
        losses = np.log(one / two)
        for loss in (-0.4, -0.1, -0.01, 0.0, 0.01, 0.1, 0.3, 1.0):
            found = [float(side) for side in law.below(arb(loss))]
            exact = [float(side[losses <= loss].sum()) for side in (one, two)]
            assert found == pytest.approx(exact, abs=2e-5)


def test_what_rounding_bends_does_not_grow():
    """Lines of a profile that is not convex reach above it where they are continued, the further
    the more a rejection tells."""
    event = DpsurStep(0.004, 6.886, 0.012, 0.404, -0.43, "visible")
    grid = blocks._grid(single(event))
    x, found = np.exp(grid), blocks._induction(event, single(event))[-1]
    for side in (grid <= 0.0, grid >= 0.0):
        slopes = np.diff(found[side]) / np.diff(x[side])
        assert (np.diff(slopes) >= -1e-9).all()


def test_masses_of_next_to_nothing_leave_a_window():
    """Most cells of a table hold none, and large tilts would multiply what their balls leave
    open."""
    with ctx.workprec(proof.BITS):
        empty = [arb(0, 1e-50)] * 1_000
        losses = lattice.Losses(arb(-1), [*empty, arb(1), *empty], arb(0), arb(0))
        _, points, outside = lattice._window([(losses, 1)], arb("0.001"), arb("1e-5"))
    assert outside < 1e-9 and points <= 2**11


SILENT = DpsurStep(0.00159, 5.6, 0.0541, 0.385, -0.373, "visible")
"""Proposals that say much less than tests."""
OFTEN = DpsurStep(0.1, 1.0, 0.1, 0.5, 50.0, "visible")
"""Nothing is ever rejected, as far as floats tell."""


@pytest.mark.parametrize(
    "fields",
    [
        (0.001, 10.0, 0.3, 0.5, 0.2),
        (1e-4, 100.0, 0.3, 0.5, 0.2),
        (1e-300, 1.0, 1e-300, 0.9, -1.0),
        (1.0, 3.0, 0.02, 0.02, -1.0),
        (0.1, 1.0, 0.1, 0.5, -50.0),
        (0.001, 1e4, 0.001, 1.0, 0.0),
        (0.1, 0.12, 0.01, 0.9, -1.0),
    ],
    ids=["silent", "more silent", "none", "never", "never accepted", "small", "large"],
)
@pytest.mark.filterwarnings("error")
def test_trials_at_the_ends_of_all_ranges_cost_no_more_together(fields):
    event = DpsurStep(*fields, "visible")
    for count in (2, 60):
        alone = loss_distribution.epsilon({single(event): count}, 0.98e-5)
        together = loss_distribution.epsilon(blocks.split(event, single(event), count), 0.98e-5)
        assert together <= 1.1 * alone + 1e-9


@pytest.mark.parametrize("event", [SILENT, OFTEN], ids=["silent", "often"])
@pytest.mark.filterwarnings("error")
def test_both_paths_have_the_same_worst_tests_where_one_part_says_little(event):
    with ctx.workprec(proof.BITS):
        ((_, law),) = _bounds(event, 3)
        losses = np.array([-0.3, 0.0, 0.1, 1.0])
        for loss, found in zip(losses, profile(event, 3, losses), strict=True):
            ours, theirs = (1 - one for one in law.below(arb(loss)))
            assert found == pytest.approx(float(ours - arb(loss).exp() * theirs), rel=0.03)
