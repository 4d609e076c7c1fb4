"""Normal draws of a simulation from uniform words: the law, and what a draw depends on."""

import math

import numpy as np
import pytest

from mechanisms import normals as module
from mechanisms.normals import Words, normals
from tests.gaussian import alarms


def sources(count: int) -> list[Words]:
    return [np.random.Philox(key=3 + k).random_raw for k in range(count)]


def test_draws_are_radius_and_angle_of_two_uniform_numbers():
    """In float64, from a word's halves."""
    words = np.stack([source(1000) for source in sources(3)])
    u, v = (words & (2**32 - 1)).astype(np.float64), (words >> 32).astype(np.float64)
    radius, angle = np.sqrt(-2 * np.log((u + 1) / 2**32)), 2 * math.pi * v / 2**32
    expected = np.concatenate([radius * np.cos(angle), radius * np.sin(angle)], axis=1)
    errors = np.abs(normals(sources(3), 2000) - expected)
    # a small radius is that of a u near 1, of which float32 has 24 digits
    assert errors.max() < 2**-11 and np.quantile(errors, 0.99) < 3e-6


@pytest.mark.parametrize("block", [1, 7, 64, 2**14])
@pytest.mark.parametrize("size", [65, 66])
def test_a_row_is_made_from_its_own_source_wherever_it_stands(monkeypatch, block, size):
    """Nor does it depend on how many words are transformed together."""
    alone = np.concatenate([normals([source], size) for source in sources(5)])
    monkeypatch.setattr(module, "BLOCK", block)
    assert np.array_equal(normals(sources(5), size), alone) and alone.shape == (5, size)


def test_draws_are_standard_normal_and_independent():
    drawn = normals(sources(2), 20_000)
    assert drawn.dtype == np.float32 and alarms(drawn, 1.0) == set()
    cosines, sines = np.split(drawn, 2, axis=1)
    # of a word's two draws neither the signs nor the sizes are related; 1e-6 is 4.9 deviations
    for one, other in ((cosines, sines), (np.abs(cosines), np.abs(sines))):
        assert abs(np.corrcoef(one.ravel(), other.ravel())[0, 1]) < 4.9 / 20_000**0.5


def test_the_most_extreme_words_give_finite_draws():
    for word in (0, 2**32 - 1, 2**64 - 2**32, 2**64 - 1):
        drawn = normals([lambda n, word=word: np.full(n, word, dtype=np.uint64)], 8)
        assert np.isfinite(drawn).all() and np.abs(drawn).max() < 6.7


def test_nothing_to_draw():
    assert normals([], 3).shape == (0, 3) and normals(sources(2), 0).shape == (2, 0)
