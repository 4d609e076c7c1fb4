"""Uniform draws from the operating system's entropy: exact laws, checked by counting words."""

import itertools
import os
from collections import Counter
from collections.abc import Iterable

import numpy as np
import pytest

from mechanisms.entropy import SystemEntropy


def fed(words: Iterable[int]) -> SystemEntropy:
    """Draws from these words, and from no others."""
    left = iter(words)

    def source(n: int) -> bytes:
        taken = list(itertools.islice(left, n // 8))
        assert len(taken) * 8 == n, "more words are drawn than are needed"
        return np.array(taken, dtype=np.uint64).tobytes()

    return SystemEntropy(source)


def test_words_are_the_sources():
    words = [0, 1, 2**63, 2**64 - 1]
    drawn = fed(words).words(4)
    assert drawn.tolist() == words and drawn.dtype == np.uint64
    assert SystemEntropy().words(0).shape == (0,)


def test_uniform_numbers_are_the_first_53_digits():
    """2,048 words for each multiple of 2^-53. Kills rounding to the nearest, which would give 1 and
    halve 0."""
    numbers = [0, 1, 2**52, 2**53 - 1]
    for rest in (0, 1023, 1024, 2047):
        drawn = fed(n * 2048 + rest for n in numbers).random(4)
        assert drawn.dtype == np.float64 and (drawn * 2.0**53).tolist() == numbers


@pytest.mark.parametrize("width", [1, 2, 6, 10, 1000, 2**32 + 1])
def test_integers_are_equally_likely(width):
    """The last words and the first ones: every remainder has as many. Kills a modulus without
    rejection."""
    full = 2**64 // width
    last, first = range(max((full - 2) * width, 2**64 - 4000), 2**64), range(min(4 * width, 4000))
    words = [*last, *first]
    kept = [w for w in words if w < full * width]
    drawn = fed(words).integers(-3, width - 3, len(kept))
    assert drawn.dtype == np.int64 and drawn.tolist() == [w % width - 3 for w in kept]
    if width <= 1000:
        assert len({*Counter(drawn.tolist()).values()}) == 1


def test_integers_of_the_widest_ranges():
    ends = [0, 2**63, 2**64 - 1]
    assert fed(ends).integers(-(2**63), 2**63, 3).tolist() == [-(2**63), 0, 2**63 - 1]
    assert fed([2**63 + 1, 2**63]).integers(-1, 2**63, 1).tolist() == [2**63 - 1]
    drawn = SystemEntropy().integers(2, 5, 200)
    assert drawn.shape == (200,) and {*drawn.tolist()} == {2, 3, 4}  # misses: 3 (2/3)^200 < 1e-34


@pytest.mark.parametrize(("low", "high"), [(3, 3), (4, 3), (0, 2**63 + 1), (-(2**63) - 1, 0)])
def test_empty_ranges_and_those_beyond_int64_are_refused(low, high):
    with pytest.raises(ValueError, match="low < high"):
        SystemEntropy().integers(low, high, 1)


def test_every_choice_is_equally_likely():
    """All orders of 4 words: each of the 12 sequences of 2 comes twice."""
    chosen = Counter(
        tuple(fed(order).choice(4, 2).tolist())
        for order in itertools.permutations([5, 7, 2**63, 9])
    )
    assert len(chosen) == 12 and {*chosen.values()} == {2}


def test_words_that_agree_choose_nothing():
    assert fed([8, 1, 8, 9, 2, 4]).choice(3, 3).tolist() == [1, 2, 0]


def test_choices_at_the_ends():
    draws = SystemEntropy()
    assert draws.choice(5, 0).shape == draws.choice(0, 0).shape == (0,)
    assert sorted(draws.choice(60, 60).tolist()) == [*range(60)]
    with pytest.raises(ValueError, match="n = 3 without replacement; it is 4"):
        draws.choice(3, 4)


def test_no_two_objects_share_a_draw():
    one, other = SystemEntropy(), SystemEntropy()
    words = np.concatenate([one.words(100), other.words(100), one.words(100)])
    assert len({*words.tolist()}) == 300


def test_a_forked_child_draws_other_words():
    draws = SystemEntropy()
    draws.words(3)
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.write(writing, draws.words(8).tobytes())
        os._exit(0)
    own = draws.words(8)
    assert os.waitpid(child, 0)[1] == 0
    childs = np.frombuffer(os.read(reading, 64), dtype=np.uint64)
    os.close(reading)
    os.close(writing)
    assert not {*own.tolist()} & {*childs.tolist()}


def test_global_random_state_is_neither_read_nor_written():
    def state() -> bytes:
        return np.random.get_state()[1].tobytes()  # noqa: NPY002

    before, first = state(), SystemEntropy().words(4)
    assert state() == before and not (SystemEntropy().words(4) == first).any()
