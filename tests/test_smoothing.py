"""Many tested steps behind one little noise, each as a pair that dominates it there."""

import math

import numpy as np
import pytest
import scipy.optimize

from mechanisms.accounting import accountant, curves, dominating, loss_distribution, smoothing
from mechanisms.accounting.events import DpsurStep, SampledGaussian, ScreenedStep, TrialCap
from mechanisms.accounting.finite import Finite
from mechanisms.accounting.tested_step import Before

PAPER = (0.01707, 1.35, 0.00427, 0.9, -1.0)
SEEN, HIDDEN = DpsurStep(*PAPER, "visible"), DpsurStep(*PAPER, "selective")
CLIPPED = ScreenedStep(0.1, 2.0, 0.05, 0.2, "clipped")
RARE = DpsurStep(1e-4, 0.9, 1e-4, 1.0, 0.0, "selective")
"""A few large losses, far away from all others."""
KINDS = {"seen": SEEN, "hidden": HIDDEN, "clipped": CLIPPED, "rare": RARE}


def found(event) -> tuple[Finite, Finite]:
    both = dominating._together(event)
    assert both is not None
    return both


def masses(pair: Finite, adding: bool) -> tuple[np.ndarray, np.ndarray]:
    """Of the numerator and the denominator, also those that the other has nothing of."""
    theirs = np.array(pair.masses)
    ours = theirs * np.exp(pair.losses)
    ours, theirs = np.append(ours, [pair.certain, 0.0]), np.append(theirs, [0.0, pair.certain])
    return (theirs, ours) if adding else (ours, theirs)


def sticks(pairs: list[Finite], x: np.ndarray, adding: bool) -> np.ndarray:
    """Hockey sticks of the pairs, one after the other."""
    ours, theirs = np.ones(1), np.ones(1)
    for one in pairs:
        p, q = masses(one, adding)
        ours, theirs = np.multiply.outer(ours, p).ravel(), np.multiply.outer(theirs, q).ravel()
    return np.array([float(np.maximum(ours - at * theirs, 0.0).sum()) for at in x])


@pytest.mark.parametrize("adding", [False, True])
@pytest.mark.parametrize("event", KINDS.values(), ids=KINDS)
def test_the_pair_dominates_a_step_before_the_noise_at_every_loss(event, adding):
    """Also between the points that were looked at, and beyond the losses of the noise."""
    cover, noise = found(event)
    space, step = noise.losses[1] - noise.losses[0], dominating.repeated(event)
    places = [0.37]
    while space * places[-1] < cover.losses[-1] + 1.0:
        places.append(places[-1] + max(1.0, 0.03 * (places[-1] - len(noise.losses) / 2)))
    x = np.exp(space * np.array(places))
    made = Before(step, noise, adding, space / 2.0).at(x)
    dominating_it, least = sticks([cover, noise], x, adding), sticks([noise], x, adding)
    near = x < math.exp(noise.losses[-1] / 2.0)
    assert (made <= dominating_it + 0.02 * (dominating_it - least) + 1e-13)[near].all()
    assert (made <= 1.1 * dominating_it + 1e-13).all() and (dominating_it >= least).all()


@pytest.mark.parametrize("event", KINDS.values(), ids=KINDS)
def test_both_are_pairs_of_distributions(event):
    for pair in found(event):
        for adding in (False, True):
            ours, theirs = masses(pair, adding)
            assert ours.sum() == pytest.approx(1.0, abs=1e-14)
            assert (ours >= 0.0).all() and theirs.sum() == pytest.approx(1.0, abs=1e-14)


def test_far_away_there_are_losses_only_where_chords_end():
    """Between two of them what a step makes of the noise is below a chord, and so is a bend."""
    for event in (RARE, HIDDEN):
        cover, noise = found(event)
        space, step = noise.losses[1] - noise.losses[0], dominating.repeated(event)
        far = np.array([loss for loss in cover.losses if loss > noise.losses[-1]])
        looked = space * smoothing._Lattice(space, smoothing.FINE[step.hidden]).points(
            step.largest_loss()
        )
        assert len(far) and np.isin(np.round(far / space), np.round(looked / space)).all()


@pytest.mark.parametrize("adding", [False, True])
def test_a_pair_of_finitely_many_losses_has_the_hockey_sticks_of_its_masses(adding):
    cover, _ = found(HIDDEN)
    losses = np.linspace(-0.3, 0.9, 61)
    excess, error = cover.excess(losses, adding)
    exact = sticks([cover], np.exp(losses), adding) - np.maximum(0.0, -np.expm1(losses))
    assert (np.abs(excess - exact) <= 1e-13).all() and (error <= 1e-11 * excess).all()
    low, high = cover.span(5.0, adding)
    ours, theirs = masses(cover, adding)
    ours, theirs = (one[one > 0.0] for one in (ours[:-2], theirs[:-2]))
    told = np.log(ours / theirs)
    assert (low, high) == pytest.approx((told.min(), told.max()))
    assert cover.variance(adding) == pytest.approx(float(ours @ told**2))


@pytest.fixture
def off(monkeypatch):
    """Have the solver's masses multiplied by this factor; what was found is forgotten."""
    solve = scipy.optimize.linprog

    def change(factor: float) -> None:
        def changed(*given, **asked):
            solved = solve(*given, **asked)
            solved.x = factor * solved.x
            return solved

        monkeypatch.setattr(scipy.optimize, "linprog", changed)
        smoothing.together.cache_clear()

    yield change
    smoothing.together.cache_clear()


def test_a_solution_that_does_not_dominate_is_none(off):
    """The solver is not trusted."""
    off(0.999)
    assert dominating._together(HIDDEN) is None


def test_a_solution_that_does_not_quite_add_up_is_made_to(off):
    off(1.0 + 1e-9)
    for event in (SEEN, HIDDEN, CLIPPED):
        for both in (masses(found(event)[0], adding) for adding in (False, True)):
            assert [one.sum() for one in both] == pytest.approx([1.0, 1.0], abs=1e-14)


def test_steps_are_taken_together_or_by_themselves():
    cover, noise = found(SEEN)
    (single,) = dominating.pairs(SEEN)
    gaussian = SampledGaussian(0.1, 2.0)
    assert dominating.ways({SEEN: 1}) == [{single: 1}]
    assert dominating.ways({SEEN: 40, gaussian: 2}) == [
        {single: 40, dominating.sampled(0.1, 2.0): 2},
        {cover: 40, noise: 1, dominating.sampled(0.1, 2.0): 2},
    ]
    hidden, behind = found(HIDDEN)
    assert dominating.ways({SEEN: 40, HIDDEN: 1, CLIPPED: 0}) == [
        {single: 40, hidden: 1, behind: 1},
        {cover: 40, noise: 1, hidden: 1, behind: 1},
    ]
    all_seen = DpsurStep(*PAPER, "every-trial")
    assert dominating.ways({all_seen: 40}) == [{dominating.pairs(all_seen)[0]: 40}]
    unproved = ScreenedStep(0.1, 2.0, 0.05, 0.2, "unproved")
    assert dominating.ways({unproved: 1}) == dominating.ways({HIDDEN: 1, unproved: 1}) == []


def test_two_kinds_that_are_the_same_step_have_a_noise_each():
    one, other = (DpsurStep(0.1, 1.0, 0.1, 0.5, beta, "selective") for beta in (50.0, 60.0))
    (steps,) = dominating.ways({one: 3, other: 4})
    cover, noise = found(one)
    assert steps == {cover: 7, noise: 2}


def test_of_many_kinds_of_steps_the_most_frequent_are_taken_together():
    """As in a run whose noise changes from round to round."""
    kinds = [DpsurStep(*PAPER[:-1], -1.0 + k / 100, "visible") for k in range(6)]
    alone, together = dominating.ways({event: 10 + k for k, event in enumerate(kinds)})
    assert len(alone) == 6
    assert {single for event in kinds[:2] for single in dominating.pairs(event)} <= set(together)
    assert sum(isinstance(pair, Finite) for pair in together) == 2 * dominating.MAX_TOGETHER
    hidden = [DpsurStep(*PAPER[:-1], -1.0 + k / 100, "selective") for k in range(5)]
    assert dominating.ways(dict.fromkeys(hidden, 10)) == []
    assert accountant.epsilon(dict.fromkeys(hidden, 10), 1e-5).method == "Renyi"


def test_epsilon_rises_with_the_steps_and_is_that_of_the_cheapest_way():
    for event in (SEEN, HIDDEN):
        found = [accountant.epsilon({event: n}, 1e-5).epsilon for n in (1, 2, 3, 30, 300, 301)]
        assert found == sorted(found)
    single = loss_distribution.epsilon({dominating.pairs(SEEN)[0]: 20}, 0.995 * 1e-5)
    assert accountant.epsilon({SEEN: 20}, 1e-5).epsilon == single
    many = loss_distribution.epsilon({dominating.pairs(SEEN)[0]: 300}, 0.995 * 1e-5)
    assert accountant.epsilon({SEEN: 300}, 1e-5).epsilon < 0.99 * many
    by_order = accountant.by_renyi({HIDDEN: 300}, 1e-5).epsilon
    assert accountant.epsilon({HIDDEN: 300}, 1e-5).epsilon < 0.95 * by_order


def test_hidden_steps_without_a_pair_and_those_whose_order_costs_less_are_paid_by_the_order():
    far = DpsurStep(0.9, 0.7, 0.01, 0.9, -1.0, "selective")
    assert dominating._together(far) is None
    assert accountant.epsilon({far: 1}, 1e-5).method == "Renyi"
    few = DpsurStep(0.02, 2.0, 0.2, 0.9, -1.0, "selective")
    guarantee = accountant.epsilon({few: 1}, 1e-5)
    by_order = accountant.epsilon({few: 1}, 0.995 * 1e-5, orders=accountant.ORDERS)
    assert guarantee == min(
        by_order,
        accountant.Guarantee(accountant.composed({few: 1}, 0.995 * 1e-5, dominating.ways), None),
        key=lambda one: one.epsilon,
    )


def test_a_cap_adds_what_it_may_fail_with_to_delta_and_to_epsilon():
    cap = TrialCap(0.13, 70)
    lost = 10 * curves.failure(cap)
    assert 1e-4 < lost < 1e-3
    alone = accountant.composed({HIDDEN: 10}, 1e-2 - lost, dominating.ways)
    capped = accountant.composed({HIDDEN: 10, cap: 10}, 1e-2, dominating.ways)
    assert capped == pytest.approx(alone + lost / (1.0 - lost), rel=1e-12)


@pytest.mark.parametrize("accounting", ["visible", "selective"])
@pytest.mark.parametrize(
    "fields",
    [
        (0.001, 10.0, 0.3, 0.5, 0.2),
        (1e-4, 100.0, 0.3, 0.5, 0.2),
        (1e-300, 1.0, 1e-300, 0.9, -1.0),
        (1.0, 3.0, 0.02, 0.02, -1.0),
        (0.1, 1.0, 0.1, 0.5, -50.0),
        (0.1, 1.0, 0.1, 0.5, 50.0),
        (0.001, 1e4, 0.001, 1.0, 0.0),
        (0.1, 0.12, 0.01, 0.9, -1.0),
        (0.00159, 5.6, 0.0541, 0.385, -0.373),
    ],
)
@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_at_the_ends_of_all_ranges_there_is_a_figure(fields, accounting):
    event = DpsurStep(*fields, accounting)
    for count in (2, 60):
        found = accountant.epsilon({event: count}, 1e-5).epsilon
        by_order = accountant.epsilon({event: count}, 1e-5, orders=accountant.ORDERS).epsilon
        assert 0.0 <= found <= 1.05 * by_order + 1e-9
