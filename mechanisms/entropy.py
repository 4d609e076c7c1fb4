"""Uniform bits from the operating system's cryptographic generator, for the draws of a release.

Unlike a seeded stream (``mechanisms/randomness.py``), nobody can repeat these draws: nothing that
could be guessed, stored or copied determines them. Every law here is exact for uniform bytes: no
probability is rounded.
"""

import os
from collections.abc import Callable
from typing import Literal

import numpy as np
from numpy.typing import NDArray

WORD_BITS = 64


class SystemEntropy:
    """The methods of ``numpy.random.Generator`` that mechanisms use, on the system's random bytes.

    It keeps no state and no buffer: two objects, two threads, and a process and its forked child
    never share a draw.

    Args:
        source: returns n independent uniform bytes; tests pass their own.
    """

    def __init__(self, source: Callable[[int], bytes] = os.urandom):
        self._source = source

    def words(self, n: int) -> NDArray[np.uint64]:
        """n independent uniform 64-bit words, read-only ``[n]``."""
        return np.frombuffer(self._source(n * WORD_BITS // 8), dtype=np.uint64)

    def random(self, size: int) -> NDArray[np.float64]:
        """Multiples of 2^-53 in [0, 1), each equally likely, ``[size]``."""
        return (self.words(size) >> 11).astype(np.float64) * 2.0**-53

    def integers(self, low: int, high: int, size: int) -> NDArray[np.int64]:
        """Uniform integers with low <= draw < high, int64 ``[size]``.

        A word is reduced modulo high - low. Words beyond the largest multiple of it are drawn
        again, so that every remainder has equally many words.

        Raises:
            ValueError: the range is empty or not one of int64.
        """
        if not -(2**63) <= low < high <= 2**63:
            raise ValueError(
                f"low and high must satisfy -2^63 <= low < high <= 2^63; they are {low} and {high}"
            )
        kept, width = np.empty(0, dtype=np.uint64), high - low
        last = 2**WORD_BITS - 2**WORD_BITS % width - 1
        while len(kept) < size:
            words = self.words(size - len(kept))
            kept = np.concatenate([kept, words[words <= np.uint64(last)]])
        remainders = kept if width == 2**WORD_BITS else kept % np.uint64(width)
        # int64 sums wrap around: the result is right modulo 2^64 and lies in range
        return remainders.view(np.int64) + np.array([low], dtype=np.int64)

    def choice(self, n: int, size: int, replace: Literal[False] = False) -> NDArray[np.int64]:
        """``size`` of the numbers 0 ... n - 1 in random order, int64 ``[size]``: every sequence is
        equally likely.

        It is the order of n distinct words. Words of which two agree are all drawn again, which
        favours no order.

        Raises:
            ValueError: ``size`` is above n.
        """
        if not 0 <= size <= n:
            raise ValueError(
                f"size must lie between 0 and n = {n} without replacement; it is {size}"
            )
        while True:
            words = self.words(n)
            order = np.argsort(words)
            if (np.diff(words[order]) > 0).all():
                return order[:size].astype(np.int64)
