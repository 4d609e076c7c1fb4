"""FedAvg: the weighted mean, and heavy-ball momentum at the server."""

import numpy as np
import pytest

from strategies.fedavg import fedavg
from strategies.registry import STRATEGIES
from strategies.settings import Aggregation

SIZES = np.array([3, 1, 40])
UPDATES = np.random.default_rng(0).normal(size=(5, 4))
"""Rounds, parameters."""


def path(**settings: float) -> np.ndarray:
    """The models after each round of ``UPDATES``, from zero."""
    strategy, params, models = fedavg(Aggregation(**settings)), np.zeros(4, np.float32), []
    state = strategy.init(params)
    for update in UPDATES:
        state, params = strategy.aggregate(state, params, update)
        models.append(params)
    return np.array(models)


def test_without_momentum_a_round_adds_the_mean_update():
    np.testing.assert_allclose(path(server_momentum=0.0), UPDATES.cumsum(axis=0), rtol=1e-6)
    np.testing.assert_allclose(
        path(server_momentum=0.0, server_lr=0.5), UPDATES.cumsum(axis=0) / 2, rtol=1e-6
    )


def test_momentum_repeats_earlier_updates_with_decay():
    """The velocity of round t is sum over s <= t of momentum^(t - s) update_s."""
    decay = np.tril(0.7 ** np.subtract.outer(np.arange(5.0), np.arange(5.0)))
    expected = 0.3 * (decay @ UPDATES).cumsum(axis=0)
    np.testing.assert_allclose(path(server_momentum=0.7, server_lr=0.3), expected, rtol=1e-5)


def test_models_stay_float32_and_the_state_is_not_written_into():
    strategy, params = fedavg(Aggregation()), np.zeros(4, np.float32)
    state = strategy.init(params)
    after, model = strategy.aggregate(state, params, UPDATES[0])
    assert model.dtype == np.float32 and not params.any() and not state["velocity"].any()
    assert {name: value.shape for name, value in after.items()} == {"velocity": (4,)}


@pytest.mark.parametrize(
    ("weighting", "expected"), [("records", [3, 1, 40]), ("uniform", [1, 1, 1])]
)
def test_weights_are_whole_numbers_of_public_counts(weighting, expected):
    weights = STRATEGIES["fedavg"](Aggregation(weighting=weighting)).weights(SIZES)
    assert weights.tolist() == expected and weights.dtype == np.int64
