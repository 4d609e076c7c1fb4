"""The best Renyi order is found without looking at all of them."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mechanisms.accounting import accountant, curves
from mechanisms.accounting.accountant import ORDERS
from mechanisms.accounting.events import (
    DpsurStep,
    RandomizedResponse,
    SampledGaussian,
    ScreenedStep,
    TrialCap,
)
from mechanisms.accounting.order_search import least

GRID = np.array(ORDERS)
VISIBLE = DpsurStep(0.1, 1.5, 1.0, 4.0, -1.0, "visible")
SELECTIVE = DpsurStep(0.02, 1.0, 0.05, 1.5, 0.0, "selective")
SCREENED = ScreenedStep(0.05, 2.0, 0.1, 0.7, "clipped")


@given(
    st.lists(st.floats(0.0, 1.0), min_size=len(ORDERS), max_size=len(ORDERS)),
    st.lists(st.floats(-5.0, 5.0), min_size=len(ORDERS), max_size=len(ORDERS)),
    st.integers(0, len(ORDERS)),
    st.floats(1e-3, 1e3),
)
def test_nothing_is_lost_whatever_else_is_paid(steepening, others, finite, scale):
    """Any convex ``(a - 1) rdp(a)``, infinite from some order on, beside any other costs at all."""
    slopes = scale * np.cumsum(steepening)
    prices = np.cumsum(slopes * np.diff(GRID, prepend=1.0)) / (GRID - 1.0)
    prices[finite:] = math.inf
    sums = np.array(others) + prices
    found = least(GRID, np.array(others), lambda k: prices[k])
    assert all(price == prices[k] for k, price in found.items())
    assert min(sums[k] for k in found) <= sums.min() + 1e-9 * (1.0 + scale)


@pytest.mark.parametrize("count", [1, 30, 1_000, 30_000])
@pytest.mark.parametrize("event", [VISIBLE, SELECTIVE, SCREENED], ids=lambda event: event.kind)
def test_epsilon_is_that_of_the_whole_grid_and_few_orders_are_looked_at(event, count):
    for charges in (
        {event: count},
        {event: count, SampledGaussian(0.2, 3.0): 9, RandomizedResponse(1.5): 1},
    ):
        curves.at.cache_clear()
        found = accountant.guarantee(charges, 1e-5, "certified", ORDERS)
        looked_at = curves.at.cache_info().currsize
        scanned = accountant.convert(accountant.rdp(charges, ORDERS, "certified"), ORDERS, 1e-5)
        assert scanned.epsilon <= found.epsilon <= scanned.epsilon * (1 + 1e-5)
        assert 1 <= looked_at <= 30


def test_two_slow_events_add_up_and_a_cap_takes_its_part_of_delta():
    charges = {SELECTIVE: 40, SCREENED: 7, TrialCap(0.5, 30): 40}
    lost = accountant.cap_delta(charges)
    scanned = accountant.convert(accountant.rdp(charges, ORDERS, "certified"), ORDERS, 1e-5 - lost)
    found = accountant.guarantee(charges, 1e-5, "certified", ORDERS)
    assert 0 < lost < 1e-5 and found.order == scanned.order
    assert found.epsilon == pytest.approx(scanned.epsilon + lost / (1 - lost), rel=1e-5)


def test_what_was_looked_at_is_kept_and_nothing_beside_it(monkeypatch):
    """Whatever the grid in which an order stands."""
    curves.at.cache_clear()
    once, price, asked = list(ORDERS[::10]), curves.curve, []

    def counting(event, orders, column):
        asked.extend(orders)
        return price(event, orders, column)

    monkeypatch.setattr(curves, "curve", counting)
    for orders in (once, once[::2], [once[3]]):
        values = [curves.at(VISIBLE, order, "certified") for order in orders]
    assert asked == once and values == [curves.rdp(VISIBLE, [once[3]], "certified")[0]]


@pytest.mark.parametrize("count", [-1, 1.5, True])
def test_counts_of_slow_events_are_checked_too(count):
    with pytest.raises(ValueError, match="count = "):
        accountant.guarantee({VISIBLE: count}, 1e-5, "certified", ORDERS)


def test_none_of_them_and_no_price_at_any_order():
    assert accountant.guarantee({VISIBLE: 0}, 1e-5, "certified", ORDERS) == (0.0, None)
    never = DpsurStep(1.0, 1e-3, 1.0, 1e-3, -1.0, "selective")
    assert accountant.guarantee({never: 1}, 1e-5, "certified", ORDERS) == (math.inf, None)
