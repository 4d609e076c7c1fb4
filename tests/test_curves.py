"""Curves of one application: reference values, closed forms, limits and monotonicity."""

import dataclasses
import math

import numpy as np
import pytest
from flint import arb, ctx
from hypothesis import given, settings
from hypothesis import strategies as st

from mechanisms.accounting import curves, sampled_gaussian
from mechanisms.accounting.accountant import ORDERS
from mechanisms.accounting.events import Event, PaperClaim, SampledGaussian, Unprotected
from tests.reference_values import REFERENCE

SOME_ORDERS = (1.25, 1.5, 2.0, 2.75, 3.0, 7.5, 10.75, 16.0, 64.0, 256.0)
RATES = st.floats(min_value=1e-6, max_value=1.0)
NOISES = st.floats(min_value=0.02, max_value=200.0)


@pytest.mark.parametrize(
    "row",
    REFERENCE["sampled_gaussian"],
    ids=lambda row: f"{row['q']},{row['sigma']},{row['alpha']}",
)
@pytest.mark.parametrize("column", curves.COLUMNS)
def test_reference_values(row, column):
    value = curves.rdp(SampledGaussian(row["q"], row["sigma"]), [row["alpha"]], column)
    assert value == pytest.approx([row["rdp"]], rel=1e-9)


@given(NOISES)
def test_without_sampling_the_curve_is_the_gaussian_one(noise):
    expected = np.array(SOME_ORDERS) / (2 * noise**2)
    assert curves.rdp(SampledGaussian(1.0, noise), SOME_ORDERS, "certified") == pytest.approx(
        expected, rel=1e-12
    )
    general = [float(sampled_gaussian.rdp([1.0], [noise], order)[0]) for order in SOME_ORDERS]
    assert general == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("order", [*SOME_ORDERS, 512.0])
def test_likelihood_ratios_near_one_keep_their_digits(order):
    """There ``(1 + u)^a - 1 - a u`` is a small difference of terms near 1. Kills a series that is
    used too far from 0, and a difference that is taken too near to it, by which a bit that tells
    little cost 12 parts in 10^12 too little at the order 1.25."""
    near = np.linspace(0.002, 0.06, 300)
    logs, exact = np.concatenate([-near, near]), []
    with ctx.workprec(200):
        for log in map(arb, logs.tolist()):
            gap = (order * log).expm1() - order * log.expm1()
            exact.append(float(gap.log()))
    with np.errstate(divide="ignore"):  # of the formula that is not taken
        found = sampled_gaussian.log_power_gap(logs, order)
    assert np.abs(found - exact).max() <= 4e-12


@pytest.mark.parametrize("noise", [0.7, 1.0, 5.0, 50.0])
def test_small_rates_keep_their_digits(noise):
    """As q falls, ``rdp -> a q^2 (e^(1/s^2) - 1) / 2``: 1e-15 times smaller than the moment it is
    taken from."""
    rate, orders = 1e-9, (1.25, 1.5, 2.0, 2.75, 4.0)
    limit = np.array(orders) / 2 * rate**2 * math.expm1(noise**-2)
    assert curves.rdp(SampledGaussian(rate, noise), orders, "certified") == pytest.approx(
        limit, rel=1e-6
    )


@settings(max_examples=40)
@given(RATES, NOISES, st.floats(min_value=1.0, max_value=1.5))
def test_more_sampling_and_less_noise_cost_more(rate, noise, factor):
    base = curves.rdp(SampledGaussian(rate, noise), SOME_ORDERS, "certified") * (1 - 1e-9)
    assert (
        curves.rdp(SampledGaussian(min(1.0, rate * factor), noise), SOME_ORDERS, "certified")
        >= base
    ).all()
    assert (
        curves.rdp(SampledGaussian(rate, noise / factor), SOME_ORDERS, "certified") >= base
    ).all()


@settings(max_examples=40)
@given(RATES, NOISES)
def test_the_curve_rises_with_the_order_and_its_moment_is_log_convex(rate, noise):
    values = curves.rdp(SampledGaussian(rate, noise), ORDERS, "certified")
    orders = np.array(ORDERS)
    assert (np.diff(values) >= -1e-9 * values[1:]).all()
    moments = (orders - 1) * values
    slopes = np.diff(moments) / np.diff(orders)
    assert (np.diff(slopes) >= -1e-7 * slopes[1:]).all()


@pytest.mark.parametrize("noise", [0.004, 0.06, 0.15, 0.5, 2.0, 20.0])
@pytest.mark.parametrize("rate", [1e-4, 0.3, 0.5, 0.97])
def test_fractional_orders_join_the_integer_ones(rate, noise):
    """The integral next to an integer order meets the finite sum at it."""
    for order in (2.0, 5.0, 9.0):
        near, at = (
            float(sampled_gaussian.rdp([rate], [noise], value)[0])
            for value in (order + 1e-9, order)
        )
        assert near == pytest.approx(at, rel=1e-8)


@pytest.mark.parametrize("rate", [1e-300, 0.5, 1.0])
@pytest.mark.parametrize("order", [1.5, 2.0, 64.5])
def test_more_noise_never_costs_more_from_almost_none_to_beyond_measure(rate, order):
    """Kills sums of which all terms vanish and that are taken for infinite ones."""
    noises = np.geomspace(1e-300, 1e100, 60)
    costs = sampled_gaussian.rdp([rate] * 60, noises, order)
    assert costs[-1] < 1e-30 and (costs[1:] <= costs[:-1]).all()


@pytest.mark.parametrize("block", [sampled_gaussian.BLOCK, 3_000, 1])
def test_rows_are_computed_alike_alone_and_together(monkeypatch, block):
    """However many grid points are evaluated at once."""
    monkeypatch.setattr(sampled_gaussian, "BLOCK", block)
    rates, noises = np.array([1e-3, 0.2, 1.0, 0.5, 0.4]), np.array([1.0, 0.02, 3.0, 0.3, 40.0])
    for order in (2.5, 6.0):
        alone = [
            float(sampled_gaussian.rdp([q], [s], order)[0])
            for q, s in zip(rates, noises, strict=True)
        ]
        assert sampled_gaussian.rdp(rates, noises, order) == pytest.approx(alone, rel=1e-12)


@pytest.mark.parametrize("noise", [1e-300, 1e-150, 1e-3, 1e150, 1e300])
@pytest.mark.parametrize("rate", [5e-324, 1e-200, 0.5, 1 - 2**-53, 1.0])
def test_extremes_give_infinity_or_zero_but_never_nan(rate, noise):
    values = curves.rdp(SampledGaussian(rate, noise), ORDERS, "certified")
    assert (values >= 0).all()


def test_a_step_without_noise_is_infinite_in_both_columns():
    for column in curves.COLUMNS:
        assert np.isinf(curves.rdp(Unprotected(0.1), SOME_ORDERS, column)).all()


def test_curves_are_cached_and_cannot_be_changed():
    first = curves.rdp(SampledGaussian(0.1, 1.0), [2, 3], "certified")
    assert curves.rdp(SampledGaussian(0.1, 1.0), (2.0, 3.0), "certified") is first
    with pytest.raises(ValueError, match="read-only"):
        first[0] = 0.0


def test_a_curve_that_fails_costs_infinitely_much():
    @dataclasses.dataclass(frozen=True)
    class Broken(Event):
        kind = "broken"

    curves.curve.register(Broken, lambda event, orders, column: orders * np.nan)
    assert np.isinf(curves.rdp(Broken(), SOME_ORDERS, "certified")).all()


def test_what_has_no_curve_is_refused():
    with pytest.raises(ValueError, match="column = 'proved'"):
        curves.rdp(SampledGaussian(0.1, 1.0), [2], "proved")
    with pytest.raises(ValueError, match="above 1"):
        curves.rdp(SampledGaussian(0.1, 1.0), [1, 2], "certified")
    assert np.isfinite(curves.rdp(SampledGaussian(0.1, 1.0), [1.01, 2], "certified")).all()
    with pytest.raises(ValueError, match="has no curve"):
        curves.rdp(Event(), [2], "certified")


def test_curves_computed_together_are_those_of_each_event_alone(monkeypatch):
    """To the last digits but a few; also where rates, noises and kinds are mixed. Kills rows that
    are swapped."""
    monkeypatch.setattr(curves, "_KEPT", {})
    rng = np.random.default_rng(3)
    rates, noises = 10 ** rng.uniform(-4, -0.1, 150), rng.uniform(0.4, 9, 150)
    many = [SampledGaussian(*pair) for pair in zip(rates, noises, strict=True)]
    orders = (1.25, 3.0, 7.5, 64.0)
    curves.precompute([*many, SampledGaussian(1.0, 2.0)], orders, "certified")
    together = [curves.rdp(event, orders, "certified") for event in many]
    assert len(curves._KEPT) == 150
    monkeypatch.setattr(curves, "_KEPT", {})
    curves.precompute(many[: curves.MANY - 1], orders, "certified")
    assert not curves._KEPT  # few are computed one by one
    np.testing.assert_allclose(
        together, [curves.rdp(event, orders, "certified") for event in many], rtol=1e-9
    )


def test_claims_are_computed_together_in_the_column_that_they_stand_in(monkeypatch):
    monkeypatch.setattr(curves, "_KEPT", {})
    claims = [PaperClaim(0.001 * n, 2.0) for n in range(1, 1 + curves.MANY)]
    curves.precompute(claims, (2.0, 5.0), "certified")
    assert not curves._KEPT  # they cost nothing
    curves.precompute(claims, (2.0, 5.0), "published")
    assert len(curves._KEPT) == curves.MANY
    for claim in claims[::9]:
        alone = curves.rdp(SampledGaussian(claim.sample_rate, 2.0), (2.0, 5.0), "certified")
        assert curves.rdp(claim, (2.0, 5.0), "published") == pytest.approx(alone, rel=1e-12)
        assert not curves.rdp(claim, (2.0, 5.0), "certified").any()
