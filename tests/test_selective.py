"""Selective and visible release: reference values, closed forms, and attacks that must stay
below."""

import itertools
import math

import numpy as np
import pytest
from flint import arb, ctx
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.special import gammaln

from mechanisms.accounting import sampled_gaussian
from mechanisms.accounting.acceptance import Acceptance
from mechanisms.accounting.selective import _first_largest, selective, simple_bound
from mechanisms.accounting.visible import _Supremum, every_trial, visible
from mechanisms.accounting.worst_pair import divergence, pairs
from sim.verifying.divergences import _bernoulli
from tests.one_dimension import Model, log_sum
from tests.reference_values import REFERENCE

ROWS = REFERENCE["selective_release"]
PRICES = [selective, visible, every_trial]
SETTINGS = st.tuples(
    st.floats(min_value=1e-3, max_value=1.0),  # rate
    st.floats(min_value=0.5, max_value=20.0),  # noise
    st.floats(min_value=1e-3, max_value=1.0),  # test rate
    st.floats(min_value=0.6, max_value=4.0),  # noise of the test
    st.floats(min_value=-1.5, max_value=1.0),  # beta
)


def setting(row):
    test = Acceptance.of_noisy_loss(row["validation_rate"], row["validation_noise"], row["beta"])
    return row["sample_rate"], row["noise_multiplier"], test, [row["alpha"]]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row['sample_rate']},{row['alpha']}")
def test_reference_values(row):
    assert selective(*setting(row)) == pytest.approx([row["certified"]], rel=2.5e-6)
    assert selective(*setting(row))[0] >= row.get("divergence_reached", 0.0)
    assert every_trial(*setting(row)) == pytest.approx([row["every_trial"]], rel=1e-9)
    assert visible(*setting(row)) <= every_trial(*setting(row))
    if "visible" in row:
        assert visible(*setting(row)) == pytest.approx([row["visible"]], rel=5e-5)


@pytest.mark.parametrize("order", [2.0, 4.0, 8.0])
def test_attacks_come_near_the_bounds_but_stay_below_and_refute_the_published_claim(order):
    """One-dimensional integration with explicit acceptance functions; only thresholds, so a little
    is left."""
    rate, noise, test = 0.02, 1.0, Acceptance.of_noisy_loss(0.005, 1.0, -1.0)
    model = Model(rate, noise, 0.005, order, points=3_001)
    claim = sum(float(sampled_gaussian.rdp([q], [1.0], order)[0]) for q in (0.02, 0.005))
    hidden, open_ = (
        model.attack(release, test.lowest, test.highest)
        for release in (model.selective, model.visible)
    )
    assert 1.5 * claim < hidden
    for reached, price in ((hidden, selective), (open_, visible)):
        bound = price(rate, noise, test, [order])[0]
        assert 0.97 * bound < reached <= bound


@pytest.mark.parametrize(
    ("rate", "noise", "test_rate", "test_noise", "beta", "order"),
    [
        (0.02, 1.0, 0.005, 1.0, -1.0, 8.0),
        (
            0.967,
            8.58,
            0.024,
            2.35,
            0.0,
            2.0,
        ),  # here, and in the next two, taking the record away is worse
        (1.0, 2.0, 0.03, 1.0, 0.0, 2.0),
        (1.0, 4.0, 0.01, 1.0, 0.0, 3.0),
        (0.9, 5.0, 0.03, 2.0, 0.0, 2.0),
    ],
)
def test_the_bounds_are_exact(rate, noise, test_rate, test_noise, beta, order):
    """A test moved uphill meets each bound: neither direction, no m and no part of the grid is left
    out."""
    test = Acceptance.of_noisy_loss(test_rate, test_noise, beta)
    model = Model(rate, noise, test_rate, order, points=4_001)
    for release, price in ((model.selective, selective), (model.visible, visible)):
        bound = price(rate, noise, test, [order])[0]
        reached = max(
            model.climb(release, test.lowest, test.highest, added) for added in (True, False)
        )
        assert bound * (1 - 1.2e-5) <= reached <= bound


@settings(max_examples=40)
@given(
    SETTINGS,
    st.sampled_from([1.5, 3.0, 12.0]),
    st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1),
    st.booleans(),
)
def test_no_test_function_exceeds_the_bounds(case, order, pattern, added):
    """Acceptance functions that jump between the extreme corners of their square at random
    places."""
    rate, noise, test_rate, test_noise, beta = case
    test = Acceptance.of_noisy_loss(test_rate, test_noise, beta)
    model = Model(rate, noise, test_rate, order)
    corners = np.array(pattern)[
        np.linspace(0, len(pattern), model.x.size, endpoint=False).astype(int)
    ]
    a0, az = np.where(corners, test.highest, test.lowest).T
    for reached, price in ((model.selective, selective), (model.visible, visible)):
        assert reached(a0, az, added) <= price(rate, noise, test, [order])[0] * (1 + 1e-5) + 1e-12


@settings(max_examples=10)
@given(SETTINGS, st.sampled_from([1.25, 2.0, 16.0]))
@example((0.9, 0.7, 1e-3, 1.0, 0.0), 2.0)
@example((0.3, 1.0, 1e-3, 0.6, -1.0), 1.25)
def test_the_supremum_over_m_is_not_missed(case, order):
    """`visible` against a plain scan of m over its whole range, without any of its short cuts."""
    rate, noise, test_rate, test_noise, beta = case
    test = Acceptance.of_noisy_loss(test_rate, test_noise, beta)
    reach = math.log((1 - test.lowest) / (1 - test.highest))
    best = 0.0
    for pair in pairs(rate, noise, test, order):
        gain = np.exp(pair.log_gain + pair.log_scale)[:, None] * pair.basis[0]
        for m in np.exp(np.linspace(-reach, reach, 401)):
            linear, constant = order * m ** (order - 1), (order - 1) * m**order
            corners = gain - linear * pair.numerator[:, None] * pair.basis[1]
            corners += constant * pair.denominator[:, None] * pair.basis[2]
            best = max(best, corners.max(axis=0).sum() + linear - constant - 1)
    found = visible(rate, noise, test, [order])[0]
    assert math.log1p(best) / (order - 1) <= found + 1e-13
    if found < every_trial(rate, noise, test, [order])[0] * (1 - 1e-9):
        assert found <= math.log1p(best) / (order - 1) * 1.05


@settings(max_examples=10)
@given(SETTINGS)
def test_the_bounds_are_ordered_and_rise_with_the_order(case):
    rate, noise, test_rate, test_noise, beta = case
    test = Acceptance.of_noisy_loss(test_rate, test_noise, beta)
    orders = [1.25, 2.0, 5.0, 40.0]
    hidden, open_, public = (price(rate, noise, test, orders) for price in PRICES)
    assert (open_ <= public).all()
    assert (
        public
        <= sampled_gaussian.curve(rate, noise, orders)
        + sampled_gaussian.curve(test_rate, test_noise, orders)
        + 1e-12
    ).all()
    ratio = math.log(test.highest / test.lowest)
    added = ratio + math.log1p(test_rate * math.expm1(ratio)) + ratio / (np.array(orders) - 1)
    assert (hidden <= (sampled_gaussian.curve(rate, noise, orders) + added) * (1 + 3e-6)).all()
    for values in (hidden, open_, public):
        assert (np.diff(values) >= -3e-5 * values[1:]).all()


@pytest.mark.parametrize("accepted", [0.05, 0.5, 0.9])
@pytest.mark.parametrize(("rate", "noise"), [(0.02, 1.0), (0.3, 4.0), (1.0, 2.0)])
def test_a_test_that_ignores_the_data_costs_nothing_and_amplifies_visibly(rate, noise, accepted):
    """With one acceptance probability p: selective is SGM, visible is ``log(1 - p + p A) / (a -
    1)``."""
    orders = np.array([1.5, 3.0, 8.0])
    test = Acceptance(accepted, accepted, 0.1)
    plain = sampled_gaussian.curve(rate, noise, orders)
    assert selective(rate, noise, test, orders) == pytest.approx(plain, rel=3e-6)
    assert every_trial(rate, noise, test, orders) == pytest.approx(plain, rel=1e-12)
    mixture = np.log1p(accepted * np.expm1((orders - 1) * plain)) / (orders - 1)
    assert visible(rate, noise, test, orders) == pytest.approx(mixture, rel=3e-5)


def test_a_test_without_a_lowest_or_with_a_certain_acceptance():
    assert np.isinf(selective(0.1, 1.0, Acceptance(0.0, 0.5, 0.1), [2.0, 8.0])).all()
    for test in (Acceptance(0.0, 0.5, 0.1), Acceptance(0.2, 1.0, 0.1)):
        assert visible(0.1, 1.0, test, [2.0, 8.0]) == pytest.approx(
            every_trial(0.1, 1.0, test, [2.0, 8.0])
        )
    certain = selective(0.1, 1.0, Acceptance(0.2, 1.0, 0.1), [2.0])
    assert (
        selective(0.1, 1.0, Acceptance(0.2, 0.9, 0.1), [2.0])
        < certain
        < selective(0.1, 1.0, Acceptance(0.1, 1.0, 0.1), [2.0])
    )


def of_a_gaussian(rate, noise, order):
    """Renyi divergence of a sampled Gaussian at a whole order, by the binomial sum of Mironov,
    Talwar and Zhang."""
    j = np.arange(order + 1)
    logs = gammaln(order + 1) - gammaln(j + 1) - gammaln(order - j + 1) + j * math.log(rate)
    logs += (order - j) * math.log1p(-rate) + j * (j - 1) / (2 * noise**2)
    return log_sum(logs) / (order - 1)


def closed_form(rate, noise, test, order):
    """The proposal's divergence, and a / (a - 1) times what ratios of acceptance add at most."""
    ratio = test.highest / test.lowest
    return of_a_gaussian(rate, noise, order) + order / (order - 1) * math.log(
        ratio * (1 + test.rate * (ratio - 1))
    )


def test_the_simple_bound_is_its_closed_form():
    """Numbers by hand for a plain Gaussian: D = a / 2, a ratio of 4, and log(4 (1 + 3 / 2)) = log
    10."""
    test = Acceptance(0.2, 0.8, 0.5)
    for order in (1.25, 2.0, 3.0):
        by_hand = order / 2 + order / (order - 1) * math.log(10)
        assert simple_bound(1.0, 1.0, test, order) == pytest.approx(by_hand, rel=1e-12)
    for order in (2, 5, 30):
        assert simple_bound(0.3, 2.0, test, order) == pytest.approx(
            closed_form(0.3, 2.0, test, order), rel=1e-9
        )
    assert simple_bound(1.0, 1.0, Acceptance(0.0, 0.8, 0.5), 2.0) == math.inf


@pytest.mark.parametrize(("noise", "order"), [(0.2, 1.25), (0.1, 1.1), (0.1, 1.5)])
def test_the_simple_bound_holds_where_the_sum_of_both_costs_does_not(noise, order):
    """Where loud proposals are kept, they cost more than the proposal and the greatest ratio of
    acceptance together."""
    test = Acceptance(0.02, 0.98, 1e-3)
    model = Model(1.0, noise, test.rate, order)
    reached = model.attack(model.selective, test.lowest, test.highest, thresholds=50)
    ratio = test.highest / test.lowest
    assert order / (2 * noise**2) + math.log(ratio * (1 + test.rate * (ratio - 1))) < reached
    assert reached <= simple_bound(1.0, noise, test, order)


def test_where_the_grid_fails_closed_forms_hold():
    """Tiny noise at a high order, and hardly ever accepting: finite, and not below the grid's
    answer nearby."""
    test = Acceptance.of_noisy_loss(0.01, 1.0, -1.0)
    assert pairs(0.1, 0.05, test, 200.0) is None
    assert selective(0.1, 0.05, test, [200.0]) == pytest.approx(
        [closed_form(0.1, 0.05, test, 200)], rel=1e-9
    )
    assert visible(0.1, 0.05, test, [200.0]) == every_trial(0.1, 0.05, test, [200.0])
    uneven = [Acceptance(0.5 / ratio, 0.5, 0.01) for ratio in (0.9e6, 1.1e6)]
    within, beyond = (selective(0.1, 1.0, test, [4.0])[0] for test in uneven)
    assert within < beyond == pytest.approx(closed_form(0.1, 1.0, uneven[1], 4), rel=1e-9)


@pytest.mark.parametrize("order", [1.25, 2.0, 7.0])
@pytest.mark.parametrize(
    "test", [Acceptance(0.1, 0.6, rate) for rate in (0.05, 0.6, 1.0)], ids=lambda t: str(t.rate)
)
def test_the_closed_form_stays_above_what_acceptance_can_add_to_a_proposal(test, order):
    """The moment's integrand is ``p^a p'^(1-a)`` times ``a^a a'^(1-a)``, over the same of the means
    A and A'. That factor over all corners, by brute force. Kills a closed form without a/(a-1), or
    without one of its logarithms."""
    corners = np.array(list(itertools.product((test.lowest, test.highest), repeat=2)))
    within = (1 - test.rate) * corners[:, 0] + test.rate * corners[:, 1]
    plain = float(sampled_gaussian.curve(1.0, 3.0, [order])[0])
    assert plain == pytest.approx(order / 18, rel=1e-12)
    for one, other in ((within, corners[:, 0]), (corners[:, 0], within)):
        logs = order * np.log(one) + (1 - order) * np.log(other)
        most = plain + (logs.max() - logs.min()) / (order - 1)
        assert most <= simple_bound(1.0, 3.0, test, order)
    if test.rate == 1.0:  # there the two are as near as they can be
        assert most > plain + (simple_bound(1.0, 3.0, test, order) - plain) * (1 - 0.51 / order)


@pytest.mark.parametrize(
    ("rate", "noise", "test_rate"), [(0.9, 0.7, 1e-3), (0.01, 2.0, 0.5), (0.2, 1.0, 0.1)]
)
def test_the_range_of_m_holds_every_test_and_no_more(rate, noise, test_rate):
    """``|A - A'| <= eta`` for tests that jump where the likelihood ratio crosses 1; the worst of
    them attains it."""
    test = Acceptance.of_noisy_loss(test_rate, 1.0, 0.0)
    for pair in pairs(rate, noise, test, 2.0):
        more = pair.basis[1] > pair.basis[2]
        widest = 0.0
        for above, below in itertools.product(range(4), repeat=2):
            corner = np.where(more, above, below)
            accepted = (
                pair.numerator[corner] @ pair.basis[1] - pair.denominator[corner] @ pair.basis[2]
            )
            widest = max(widest, abs(accepted))
        eta = _Supremum(pair, test).eta
        assert 0.75 * eta <= widest <= eta * (1 + 1e-9)


@pytest.mark.parametrize("order", [1.5, 4.0, 32.0])
def test_between_two_values_of_m_nothing_exceeds_the_bound_of_the_cell(order):
    test = Acceptance.of_noisy_loss(0.1, 1.0, -0.5)
    for pair in pairs(0.3, 1.5, test, order):
        search = _Supremum(pair, test)
        nodes = np.linspace(-search.reach, search.reach, 5)
        ends = search.excess(nodes)
        bounds = search.cell_bounds(np.stack([nodes[:-1], nodes[1:], ends[:-1], ends[1:]]))
        for left, right, bound in zip(nodes[:-1], nodes[1:], bounds, strict=True):
            assert (search.excess(np.linspace(left, right, 33)) <= bound + 1e-12).all()


def test_the_first_of_the_largest_rows_is_taken():
    """Ties included: the order of the corners decides there, so that a curve is the same wherever
    it is computed."""
    terms = np.array(list(itertools.product((0.0, 1.0, 2.0), repeat=4))).T
    assert _first_largest(terms).tolist() == terms.argmax(axis=0).tolist()


@pytest.mark.parametrize(
    ("low", "high", "rate"),
    itertools.product((1e-23, 0.1, 0.49), (0.5, 1 - 1e-12), (1e-6, 2e-3, 0.3, 0.9, 1.0)),
)
def test_the_bit_costs_what_bernoullis_do(low, high, rate):
    orders = np.array([1.25, 2.0, 7.0, 64.0, 512.0])
    found = Acceptance(low, high, rate).bit_cost(orders)
    brute = np.zeros(orders.size)
    for p, pz in ((low, high), (high, low)):
        x = (1 - rate) * p + rate * pz
        for f, g in ((p, x), (x, p)):
            logs = np.logaddexp(
                orders * np.log(f) + (1 - orders) * np.log(g),
                orders * np.log1p(-f) + (1 - orders) * np.log1p(-g),
            )
            brute = np.maximum(brute, logs / (orders - 1))
    assert found == pytest.approx(brute, rel=1e-6, abs=1e-13)


def test_a_bit_that_is_nearly_always_the_same_keeps_its_digits():
    """Of a test that nearly always accepts. Kills a probability of rejection that is what is left
    of 1, by which the bit cost one part in 10^9 too little."""
    test = Acceptance(0.999, 1.0 - 1e-12, 6.3e-5)
    for order in (1.5, 8.0, 512.0):
        exact = arb(0)
        with ctx.workprec(200):
            corners = arb(test.lowest), arb(test.highest)
            for one, two in (corners, corners[::-1]):
                mixed = (1 - arb(test.rate)) * one + arb(test.rate) * two
                for pair in ((one, mixed), (mixed, one)):
                    exact = exact.max(_bernoulli(*pair, arb(order)))
        assert test.bit_cost([order])[0] == pytest.approx(float(exact), rel=4e-12, abs=0.0)


@pytest.mark.parametrize("beta", [-1.5, -0.3, 0.0, 0.7])
@pytest.mark.parametrize("noise", [0.1, 0.6, 1.0, 8.0])
def test_probabilities_of_acceptance_are_rounded_outward(noise, beta):
    """The exact ones lie between those that steps are charged for."""
    test = Acceptance.of_noisy_loss(0.1, noise, beta)
    with ctx.workprec(200):
        least, most = (
            (-(arb(beta) + change) / (2 * arb(noise)) / arb(2).sqrt()).erfc() / 2
            for change in (-1, 1)
        )
        assert arb(test.lowest) <= least and most <= arb(test.highest)


@pytest.mark.parametrize(
    "test", [Acceptance(0.0, 0.5, 0.3), Acceptance(0.5, 1.0, 0.3)], ids=["accept", "reject"]
)
def test_a_bit_that_one_of_two_data_sets_never_gives_costs_infinitely(test):
    assert np.isinf(test.bit_cost([1.25, 2.0, 64.0])).all()


def test_where_the_scaled_sums_underflow_the_price_is_still_one():
    """A test that all but decides, at large orders; no price there is below that of an order before
    it."""
    test = Acceptance.of_noisy_loss(1e-4, 0.18266, 0.5)
    prices = visible(1.0, 45.378, test, [96.0, 128.0, 256.0, 512.0])
    assert (np.diff(prices) > 0).all() and (
        prices <= every_trial(1.0, 45.378, test, [96.0, 128.0, 256.0, 512.0])
    ).all()


@pytest.mark.parametrize("log_moment", [0.0, 1e-9, 0.3, 200.0])
@pytest.mark.parametrize("order", [1.25, 8.0, 512.0])
def test_a_price_covers_the_errors_of_its_grid_and_of_rounding(log_moment, order):
    """A millionth of the moment's logarithm, and some units in its last place. Kills a price as
    computed."""
    least = log_moment * (1.0 + 0.9e-6) + 3e-15 * order
    assert least <= divergence(log_moment, order) * (order - 1.0) <= least * 1.5
