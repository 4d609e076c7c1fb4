"""Normal draws of a simulation from uniform words: the law, and what a draw depends on."""

import math

import numpy as np
import pytest

from mechanisms import normals as module
from mechanisms.normals import normals
from tests.gaussian import alarms


def words(clients: int, size: int) -> np.ndarray:
    return np.random.Philox(key=3).random_raw((clients, size))


def test_draws_are_radius_and_angle_of_two_uniform_numbers():
    """In float64, from a word's halves as they lie in memory."""
    given = words(3, 1000)
    u, v = np.moveaxis(given.view(np.uint32).reshape(3, 2, 1000).astype(np.float64), 1, 0)
    radius, angle = np.sqrt(-2 * np.log((u + 1) / 2**32)), 2 * math.pi * v / 2**32
    expected = np.concatenate([radius * np.cos(angle), radius * np.sin(angle)], axis=1)
    # a radius near 0 is one of a logarithm near 0, of whose argument float32 has 24 digits
    np.testing.assert_allclose(normals(given), expected, rtol=1e-5, atol=3e-6 + 2**-12)
    assert np.quantile(np.abs(normals(given) - expected), 0.99) < 3e-6


@pytest.mark.parametrize("block", [1, 7, 64, 2**14])
def test_a_row_is_made_from_its_own_words_wherever_it_stands(monkeypatch, block):
    """Nor does it depend on how many words are transformed together."""
    given = words(5, 33)
    alone = np.concatenate([normals(row[None].copy()) for row in given])
    monkeypatch.setattr(module, "BLOCK", block)
    assert np.array_equal(normals(given), alone)


def test_draws_are_standard_normal_and_independent():
    drawn = normals(words(2, 10_000))
    assert drawn.dtype == np.float32 and alarms(drawn, 1.0) == set()
    cosines, sines = np.split(drawn, 2, axis=1)
    # of a word's two draws neither the signs nor the sizes are related; 1e-6 is 4.9 deviations
    for one, other in ((cosines, sines), (np.abs(cosines), np.abs(sines))):
        assert abs(np.corrcoef(one.ravel(), other.ravel())[0, 1]) < 4.9 / 20_000**0.5


def test_the_most_extreme_words_give_finite_draws():
    for word in (0, 2**32 - 1, 2**64 - 2**32, 2**64 - 1):
        drawn = normals(np.full((1, 4), word, dtype=np.uint64))
        assert np.isfinite(drawn).all() and np.abs(drawn).max() < 6.7


def test_nothing_to_draw():
    assert normals(words(0, 3)).shape == (0, 6) and normals(words(2, 0)).shape == (2, 0)
