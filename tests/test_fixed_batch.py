"""Batches of a fixed size against every batch of small clients, and against any gradients."""

import itertools
import math

import mpmath
import numpy as np
import pytest
from flint import arb, ctx
from scipy.stats import norm

from mechanisms.accounting import accountant, fixed_batch
from mechanisms.accounting.dominating import pairs
from mechanisms.accounting.events import FixedBatchGaussian, Gaussian, SampledGaussian
from sim.verifying import proof
from sim.verifying.fixed_batch import divergence

LOSSES = [-2.0, -0.3, -1e-4, 0.0, 1e-4, 0.02, 0.3, 2.0]


def hockey_stick(event: FixedBatchGaussian, losses: list[float], adding: bool) -> np.ndarray:
    (pair,) = pairs(event)
    at = np.array(losses)
    return pair.excess(at, adding)[0] + np.maximum(-np.expm1(at), 0.0)


def exact(q: float, s: float, loss: float, adding: bool) -> mpmath.mpf:
    """``E max(0, P - u Q)`` of the worst pair, with 60 digits: P and u Q are equal at a point that
    bisection finds."""
    with mpmath.workdps(60):
        q, s, u = mpmath.mpf(q), mpmath.mpf(s), mpmath.exp(mpmath.mpf(loss))
        other = 1 if adding == (u >= 1) else -1
        with_it, without = [(other, 1 - q), (1, q)], [(other, 1 - q), (0, q)]
        p, r = (without, with_it) if adding else (with_it, without)

        def gain(x: mpmath.mpf, law) -> mpmath.mpf:
            return sum(w * law(x, m) for m, w in p) - u * sum(w * law(x, m) for m, w in r)

        def tail(x: mpmath.mpf, mean: int) -> mpmath.mpf:
            return mpmath.ncdf((x - mean) / s if adding else (mean - x) / s)

        def ratio(x: mpmath.mpf, mean: int) -> mpmath.mpf:
            return mpmath.exp((2 * x * mean - mean**2) / (2 * s**2))

        low, high = -(mpmath.mpf(10) ** 15), mpmath.mpf(10) ** 15
        for _ in range(160):
            middle = (low + high) / 2
            low, high = (middle, high) if (gain(middle, ratio) > 0) == adding else (low, middle)
        return gain(low, tail)


@pytest.mark.parametrize(("b", "n", "s"), [(1, 4, 0.3), (1, 1000, 3.0), (3, 7, 1e5)])
@pytest.mark.parametrize("adding", [False, True])
def test_a_batch_has_the_exact_profile_of_its_worst_pair(b, n, s, adding):
    """Within the stated error, at losses on both sides of 0. Kills the pair of the other side."""
    (pair,) = pairs(FixedBatchGaussian(b, n, s))
    found, error = pair.excess(np.array(LOSSES), adding)
    for loss, one, wrong in zip(LOSSES, found, error, strict=True):
        with mpmath.workdps(60):
            true = exact(b / n, s, loss, adding) - max(0, 1 - mpmath.exp(mpmath.mpf(loss)))
            assert abs(one - true) <= wrong + 1e-50


def released(gradients: np.ndarray, size: int, s: float, x: np.ndarray) -> np.ndarray:
    """The density of a client's noisy sum over all batches of a size, on a grid."""
    batches = list(itertools.combinations(gradients, size))
    return np.mean([norm.pdf(x, sum(batch), s) for batch in batches], axis=0)


def sticks(gradients: list[float], size: int, s: float, adding: bool) -> list[float]:
    """The hockey sticks of a client whose first record is there or not."""
    x = np.linspace(-len(gradients) - 9 * s, len(gradients) + 9 * s, 20_001)
    p, q = (released(np.array([one, *gradients[1:]]), size, s, x) for one in (gradients[0], 0.0))
    p, q = (q, p) if adding else (p, q)
    return [float(np.trapezoid(np.maximum(p - math.exp(u) * q, 0.0), x)) for u in LOSSES]


@pytest.mark.parametrize(("size", "records"), [(1, 3), (2, 5), (4, 5)])
@pytest.mark.parametrize("adding", [False, True])
def test_all_batches_of_a_client_stay_below_the_profile_and_the_worst_client_reaches_it(
    size, records, adding
):
    """Random gradients; and all others opposite to the record's, or along it, which are the worst
    ones at losses above and below 0."""
    most = hockey_stick(FixedBatchGaussian(size, records, 0.8), LOSSES, adding)
    rng = np.random.default_rng(0)
    for _ in range(10):
        clients = sticks(rng.uniform(-1, 1, records).tolist(), size, 0.8, adding)
        assert (clients <= most + 1e-7).all()
    worst = [sticks([1.0, *[other] * (records - 1)], size, 0.8, adding) for other in (-1.0, 1.0)]
    assert np.max(worst, axis=0) == pytest.approx(most, abs=2e-7)


def test_gradients_of_any_direction_stay_below_the_profile():
    """In the plane, where the record's and the other's gradients are at any angle."""
    q, s = 0.3, 0.9
    x, y = np.meshgrid(*[np.linspace(-7, 7, 281)] * 2)
    area = (14 / 280) ** 2

    def density(at: complex) -> np.ndarray:
        return np.exp(-((x - at.real) ** 2 + (y - at.imag) ** 2) / (2 * s**2)) / (2 * np.pi * s**2)

    most = [hockey_stick(FixedBatchGaussian(3, 10, s), LOSSES, adding) for adding in (False, True)]
    for length, angle in itertools.product((0.4, 1.0), np.linspace(0.0, np.pi, 5)):
        other = density(length * np.exp(1j * angle))
        p, r = ((1 - q) * other + q * density(at) for at in (1 + 0j, 0j))
        for adding, (one, two) in enumerate([(p, r), (r, p)]):
            for loss, bound in zip(LOSSES, most[adding], strict=True):
                assert np.maximum(one - math.exp(loss) * two, 0).sum() * area <= bound + 3e-5


@pytest.mark.parametrize(
    ("q", "s", "order"),
    [(0.02, 0.6, 1.25), (0.02, 0.6, 7.5), (0.1, 2.0, 2.0), (0.7, 4.0, 7.5)],
)
def test_the_renyi_curve_is_the_integral_of_the_profile(q, s, order):
    """``E_Q (P/Q)^a - 1`` is that of ``a (a - 1) u^(a - 2)`` times the hockey stick less that of
    equal distributions, and the larger one of both directions."""
    losses = np.linspace(-9.0 - 25.0 / s, 9.0 + 25.0 / s, 50_001)
    (pair,) = pairs(FixedBatchGaussian(q * 1000, 1000, s))
    moments = []
    for adding in (False, True):
        at, _ = pair.excess(losses, adding)
        moments.append(
            np.trapezoid(order * (order - 1) * np.exp((order - 1) * losses) * at, losses)
        )
    (found,) = fixed_batch.curve(q, s, np.array([order]))
    assert moments[1] < moments[0]
    assert math.expm1((order - 1) * found) == pytest.approx(moments[0], rel=1e-4)


@pytest.mark.parametrize(
    ("q", "s", "order"),
    [(0.07, 24.8, 512.0), (1e-4, 9.5, 512.0), (2e-4, 0.21, 512.0), (1e-5, 2.0, 64.0)],
)
def test_the_renyi_curve_is_right_at_large_orders(q, s, order):
    """And at least what balls hold. Kills an integral that ends at the order, and a series for
    small ones."""
    with ctx.workprec(proof.BITS):
        low, high = proof.outward(*[divergence(arb(q), arb(s), arb(order))] * 2)
    (found,) = fixed_batch.curve(q, s, np.array([order]))
    assert high * (1 - 1e-11) <= found <= low * (1 + 1e-5)


@pytest.mark.parametrize(
    ("q", "s", "order"), [(0.02, 0.6, 1.25), (0.1, 2.0, 2.0), (1e-4, 9.5, 2.0)]
)
def test_the_renyi_curve_has_room_for_what_its_integrals_lose(q, s, order):
    """They are right to 1e-8. Kills a curve without its margin."""
    with ctx.workprec(proof.BITS):
        low, high = proof.outward(*[divergence(arb(q), arb(s), arb(order))] * 2)
    (found,) = fixed_batch.curve(q, s, np.array([order]))
    above, below = (
        math.expm1((order - 1) * found) / math.expm1((order - 1) * x) for x in (high, low)
    )
    assert 1 + 9e-7 < above <= below < 1 + 1.1e-6


def test_extreme_noise_has_a_finite_curve_above_that_of_a_poisson_batch():
    orders = np.array([2.0, 512.0])
    for q, s in ((0.3, 1e-3), (1e-6, 0.04), (0.5, 1e6)):
        poisson = accountant.curves.rdp(SampledGaussian(q, s), orders, "certified")
        found = fixed_batch.curve(q, s, orders)
        assert (found >= poisson * (1 - 1e-9)).all() and np.isfinite(found).all()


@pytest.mark.parametrize("count", [1, 40])
def test_a_fixed_batch_costs_more_than_coins_and_less_than_replacing_a_record(count):
    """Poisson batches with the same noise; and with half of it, as if all were moved twice."""
    for b, n, s in ((10, 100, 2.0), (3, 50, 1.1)):
        coins, fixed, replaced = (
            accountant.epsilon({event: count}, 1e-5).epsilon
            for event in (
                SampledGaussian(b / n, s),
                FixedBatchGaussian(b, n, s),
                SampledGaussian(b / n, s / 2),
            )
        )
        assert 1.2 * coins < fixed < 0.95 * replaced


def test_a_batch_of_all_records_is_one_gaussian():
    charges = [{FixedBatchGaussian(9, 9, 3.0): 5}, {Gaussian(3.0): 5}]
    for orders in (None, accountant.ORDERS):
        one, two = (accountant.epsilon(each, 1e-5, orders=orders).epsilon for each in charges)
        assert one == pytest.approx(two, rel=1e-9)


def test_a_batch_larger_than_its_client_is_refused():
    with pytest.raises(ValueError, match="records = 3 must be at least batch_size = 4; draw fewer"):
        FixedBatchGaussian(4, 3, 1.0)
