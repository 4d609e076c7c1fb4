"""Many steps with a batch of a fixed size, against explicit clients."""

import math

import numpy as np
import pytest

from mechanisms.accounting import accountant, dominating, fixed_step, loss_distribution, smoothing
from mechanisms.accounting.events import FixedBatchGaussian
from mechanisms.accounting.fixed_step import Before, FixedStep
from tests.brute_force import least_epsilon
from tests.test_smoothing import sticks

EVENTS = {
    "seldom": FixedBatchGaussian(64.0, 6_400.0, 2.2),
    "often": FixedBatchGaussian(210.0, 2_000.0, 3.4),
    "most": FixedBatchGaussian(60.0, 100.0, 4.0),
    "told": FixedBatchGaussian(10.0, 1_000.0, 0.9),
}
OPPOSITE, ALIKE = ((-1.0, 0.0), (1.0, 0.0)), ((1.0, 0.0), (1.0, 0.0))
CLIENTS = [
    OPPOSITE,
    ALIKE,
    ((0.0, 0.0), (1.0, 0.0)),
    ((0.0, 1.0), (1.0, 0.0)),
    ((-0.8, 0.6), (1.0, 0.0)),
    ((0.6, -0.8), (1.0, 0.0)),
    ((-1.0, 0.0), (0.3, 0.0)),
    ((-0.3, 0.1), (0.7, 0.6)),
]
"""Where another record moves a batch, and where the record does."""


def law(
    step: FixedStep, client: tuple[tuple[float, float], ...], adding: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Masses of an output in the plane: of the numerator, and of the denominator."""
    q, s = step
    at = np.stack(np.meshgrid(*2 * [np.arange(-1.0 - 7.0 * s, 1.0 + 7.0 * s, 0.05 * s)]), axis=-1)

    def masses(mean: tuple[float, float]) -> np.ndarray:
        density = np.exp(-0.5 * (((at - mean) / s) ** 2).sum(axis=-1)).ravel()
        return density / density.sum()

    other, present, absent = map(masses, (*client, (0.0, 0.0)))
    both = (1.0 - q) * other + q * present, (1.0 - q) * other + q * absent
    return both[::-1] if adding else both


def made(step, client, noise, x: np.ndarray, adding: bool) -> np.ndarray:
    """What a client makes of the hockey sticks of the noise after a step."""
    ours, theirs = law(step, client, adding)
    losses = np.array(noise.losses)
    weights = np.exp(losses) * noise.masses
    bends, values = np.exp(losses), np.array(sticks([noise], np.exp(losses), False))
    ratio = x[:, None] * theirs / ours
    smooth = np.interp(ratio, bends, values, right=0.0)
    return np.where(ratio < bends[0], weights.sum() - ratio, smooth) @ ours


@pytest.mark.parametrize("adding", [False, True])
@pytest.mark.parametrize("event", EVENTS.values(), ids=EVENTS)
def test_no_client_makes_more_of_a_function_and_one_makes_nearly_as_much(event, adding):
    step, (_, noise) = dominating.repeated(event), dominating._together(event)
    space = noise.losses[1] - noise.losses[0]
    x = np.exp(space * np.array([0, 1, 20, 60, 100]))
    most, least = Before(step, noise, adding).at(x), sticks([noise], x, adding)
    of_clients = [made(step, client, noise, x, adding) for client in CLIENTS]
    found = np.max(of_clients, axis=0)
    assert (found <= most * (1.0 + 1e-4) + 1e-12).all()
    assert (most - least <= 1.25 * (found - least) + 1e-9).all()
    # far away, and near the middle of all losses, the worst clients differ
    assert np.argmax([one[-1] for one in of_clients]) == (1 if adding else 0)


@pytest.mark.parametrize("adding", [False, True])
@pytest.mark.parametrize("event", EVENTS.values(), ids=EVENTS)
def test_the_pair_dominates_each_client_before_the_noise_at_every_loss(event, adding):
    """Also between the lattice's points, and beyond the noise."""
    step, (cover, noise) = dominating.repeated(event), dominating._together(event)
    space = noise.losses[1] - noise.losses[0]
    x = np.exp(space * np.array([0.4, 7.7, 33.3, 80.2, 130.6, 180.5]))
    allowed = sticks([cover, noise], x, adding)
    for client in CLIENTS:
        assert (made(step, client, noise, x, adding) <= allowed * (1.0 + 1e-6) + 1e-12).all()


@pytest.mark.parametrize("distance", [0.0, 0.5, 1.6, 1.98])
def test_both_hockey_sticks_are_those_of_clients_at_a_distance(distance):
    step, u = FixedStep(0.2, 2.0), np.array([1.0, 1.1, 1.4])
    angle = math.asin(distance / 2.0)
    unit = (math.cos(angle), math.sin(angle)), (math.cos(angle), -math.sin(angle))
    line = (1.0 - distance, 0.0), (1.0, 0.0)
    for bound, client, adding in (
        (fixed_step._alike, unit, True),
        (fixed_step._apart, line, False),
    ):
        if distance or adding:
            ours, theirs = law(step, client, adding)
            exact = [float(np.maximum(ours - k * theirs, 0.0).sum()) for k in u]
            assert bound(step, distance, u) == pytest.approx(exact, rel=3e-3)


@pytest.mark.parametrize("noise", [0.15, 0.4, 1.0, 5.0])
@pytest.mark.parametrize("rate", [0.01, 0.5, 0.9])
def test_an_integral_has_enough_points(rate, noise, monkeypatch):
    step = FixedStep(rate, noise)
    u = np.exp(np.linspace(0.01, 0.9, 7) * step.largest_loss())
    distances = (0.5, 1.2, 1.66, 1.848, 1.99)
    found = [fixed_step._alike(step, distance, u) for distance in distances]
    monkeypatch.setattr(fixed_step, "COARSEST", 1e-3)
    exact = [fixed_step._alike(step, distance, u) for distance in distances]
    assert np.array(found) == pytest.approx(np.array(exact), rel=2e-7, abs=1e-16)


def test_where_clients_are_further_apart_one_direction_costs_more_and_the_other_less():
    step, u = FixedStep(0.1, 1.5), np.exp(np.linspace(0.0, 3.0, 31))
    apart = np.array([fixed_step._apart(step, d, u) for d in np.linspace(0.1, 2.0, 20)])
    alike = np.array([fixed_step._alike(step, d, u) for d in np.linspace(0.0, 1.99, 20)])
    assert (np.diff(apart, axis=0) >= -1e-15).all() and (np.diff(alike, axis=0) <= 1e-9).all()
    assert (np.diff(apart[:, 5]) > 0.0).all() and (np.diff(alike[:, 5]) < 0.0).all()


@pytest.mark.parametrize(
    ("event", "count", "delta", "saved"),
    [
        (FixedBatchGaussian(210.0, 2_000.0, 3.4136796297843546), 1_000, 3.5e-5, 0.06),
        (FixedBatchGaussian(64.0, 6_400.0, 2.2), 1_000, 1e-5, 0.045),
    ],
)
def test_many_steps_cost_little_more_than_somebody_reaches(event, count, delta, saved):
    charged = accountant.epsilon({event: count}, delta).epsilon
    least = least_epsilon(event, count, delta)
    (single,) = dominating.pairs(event)
    alone = loss_distribution.epsilon({single: count}, 0.995 * delta)
    assert least <= charged <= 1.05 * least and charged < (1.0 - saved) * alone


def test_few_steps_are_charged_by_themselves_and_all_records_are_a_gaussian():
    event = FixedBatchGaussian(50.0, 100.0, 4.0)
    (single,) = dominating.pairs(event)
    assert dominating.ways({event: 1}) == [{single: 1}]
    alone = loss_distribution.epsilon({single: 3}, 0.995 * 1e-5)
    assert accountant.epsilon({event: 3}, 1e-5).epsilon == alone
    assert dominating.repeated(FixedBatchGaussian(100.0, 100.0, 4.0)) is None


@pytest.mark.parametrize("rate", [1e-6, 1e-3, 0.5, 0.999])
@pytest.mark.parametrize("noise", [0.1, 0.6, 3.0, 1e3])
@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_at_the_ends_of_all_ranges_there_is_a_figure(rate, noise):
    event = FixedBatchGaussian(1e6 * rate, 1e6, noise)
    by_order = accountant.epsilon({event: 50}, 1e-5, orders=accountant.ORDERS).epsilon
    assert 0.0 <= accountant.epsilon({event: 50}, 1e-5).epsilon <= 1.01 * by_order + 1e-9


def test_a_step_that_no_pair_dominates_together_keeps_the_one_it_has(monkeypatch):
    monkeypatch.setattr(FixedStep, "largest_loss", lambda step: math.inf)
    smoothing.together.cache_clear()
    event = FixedBatchGaussian(11.0, 100.0, 3.0)
    (single,) = dominating.pairs(event)
    assert dominating.ways({event: 40}) == 2 * [{single: 40}]
