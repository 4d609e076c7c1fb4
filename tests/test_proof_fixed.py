"""The second path's bounds on many batches of a fixed size."""

import numpy as np
import pytest
from flint import arb, ctx

from mechanisms.accounting import accountant, dominating, fixed_step
from mechanisms.accounting.events import FixedBatchGaussian, SampledGaussian
from mechanisms.accounting.fixed_step import Before
from sim.verifying import proof
from sim.verifying.fixed_batch import Opposite
from sim.verifying.together import covers, replaced
from tests.brute_force import least_epsilon
from tests.test_fixed_step import CLIENTS, EVENTS, made
from tests.test_smoothing import sticks


@pytest.fixture(autouse=True)
def precise():
    with ctx.workprec(proof.BITS):
        yield


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("event", EVENTS.values(), ids=EVENTS)
def test_no_client_makes_more_of_a_curve_and_the_first_path_is_not_below(event, turned):
    step, (_, noise) = dominating.repeated(event), dominating._together(event)
    losses, weights = np.array(noise.losses), np.exp(noise.losses) * noise.masses
    bends = np.append(0.0, np.exp(losses))
    curve = replaced.Curve(bends, sticks([noise], bends, False), weights)
    second = covers.repeated(event)
    assert second is not None and not second.hidden
    at = (losses[1] - losses[0]) * np.array([0, 1, 20, 60, 100, 130, 200])
    most = second.worst(0.1, turned).before(curve, at)
    first = Before(step, noise, turned).at(np.exp(at))
    least = sticks([noise], np.exp(at), turned)
    assert (most <= first * (1.0 + 1e-5) + 1e-15).all()
    assert (first - least <= 1.05 * (most - least) + 1e-9).all()
    for client in CLIENTS:
        found = made(step, client, noise, np.exp(at), turned)
        assert (found <= most * (1.0 + 1e-4) + 1e-12).all()


@pytest.mark.parametrize("loss", [-0.4, -0.006, -0.002, 0.0, 0.02, 0.5, 2.0])
def test_a_client_whose_other_records_are_opposite_is_a_law_of_its_outcomes(loss):
    q, s = dominating.repeated(EVENTS["told"])
    y = np.linspace(-1.0 - 8.0 * s, 1.0 + 8.0 * s, 100_001)
    other, absent, present = (np.exp(-0.5 * ((y - mean) / s) ** 2) for mean in (-1.0, 0.0, 1.0))
    ours, theirs = ((1.0 - q) * other + q * one for one in (present, absent))
    losses = np.log(ours / theirs)
    ours, theirs = ours / ours.sum(), theirs / theirs.sum()
    found = Opposite(q, s).below(arb(loss))
    for mass, ball in zip((ours, theirs), found, strict=True):
        assert float(ball.mid()) == pytest.approx(mass[losses <= loss].sum(), abs=1e-4)


def test_merged_outcomes_cost_more_however_few_they_are(monkeypatch):
    step, k = replaced.Replaced(0.2, 1.0), np.exp(np.linspace(0.0, 2.0, 21))
    for cells in (3, 5, 160):
        monkeypatch.setattr(replaced, "CELLS", cells)
        for distance in (0.0, 0.7, 1.9):
            exact = fixed_step._alike(step, distance, k)
            assert (replaced._alike(step, distance, k) >= exact * (1.0 - 1e-6)).all()


@pytest.mark.parametrize(
    ("event", "count"),
    [
        pytest.param(
            FixedBatchGaussian(210.0, 2_000.0, 3.4136796297843546), 1_000, marks=pytest.mark.slow
        ),
        (FixedBatchGaussian(32.0, 100.0, 3.0), 60),
    ],
)
def test_many_steps_are_proved_and_somebody_reaches_nearly_as_much(event, count):
    charges = {event: count, SampledGaussian(0.1, 4.0): 3}
    printed = accountant.epsilon(charges, 1e-5).epsilon
    low, high = proof.interval(charges, "0.995e-5", None, printed)
    assert 0.94 * printed < low < high <= printed
    single = least_epsilon(event, count, 0.995e-5)
    assert 0.99 * single <= low


def test_a_batch_of_all_records_is_a_gaussian():
    event = FixedBatchGaussian(50.0, 50.0, 4.0)
    assert replaced.replaced(event) is None
    printed = accountant.epsilon({event: 9}, 1e-5).epsilon
    low, high = proof.interval({event: 9}, "0.995e-5", None, printed)
    assert 0.999 * printed < low < high <= printed
