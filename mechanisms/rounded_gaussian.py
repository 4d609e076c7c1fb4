"""Exact draws of round(2^28 Z), Z standard normal, from uniform 64-bit words.

A float sampler misses some integers altogether and hits others too often; such gaps void a proof
that assumes the normal law (Mironov 2012, "On significance of the least significant bits for
differential privacy"). Here each integer m has the probability that Z lies between (m - 1/2) 2^-28
and (m + 1/2) 2^-28, exactly, if the words are uniform and independent. Rounding is post-processing:
whatever is proved of the continuous Gaussian holds of these integers.

**The law.** As in Karney 2016, "Sampling exactly from the normal distribution" (arXiv:1303.6257,
algorithm N), write |Z| = k + x with k = 0, 1, ... and x in [0, 1). Its density is proportional to

    exp(-(k + x)^2 / 2) = exp(-k^2 / 2) exp(-x (2 k + x) / 2).

A candidate is k with P(k) = exp(-k^2 / 2) / sum_j exp(-j^2 / 2), a uniform x, and a fair sign; it
is accepted with the probability exp(-x (2 k + x) / 2), which is at most 1. So accepted candidates
have the normal law. 0.715 are accepted. Karney draws k and the coin without any logarithm or
exponential, in a loop; here both are comparisons,

    k = the number of T_j <= v,  T_j = P(k < j), j = 1, 2, ...
    accept if u < exp(-x (2 k + x) / 2),

of uniform real numbers u, v in [0, 1) with exact bounds, which suits arrays.

**The bits.** The binary digits of uniform real numbers are independent fair bits, so one word holds
the first digits of all of them: v (18 digits), u (16), x (29) and the sign (1). Each prefix leaves
a cell of width 2^-digits in which its number lies. If all points of the cells give the same
decision, then that is the decision. Otherwise (4 candidates in 100,000) further digits are drawn,
64 at a time, until it is; with probability 1 this ends. So the result is, with probability 1, the
function above of real numbers.

**Rounding.** 2^28 |Z| = 2^28 k + 2^28 x, and the nearest integer to 2^28 x is floor(2^28 x + 1/2) =
floor((floor(2^29 x) + 1) / 2): the first 29 digits of x determine it. Ties have probability 0, so
rounding the magnitude and then giving it the sign is rounding 2^28 Z.

**Floats decide only clear cases.** v is compared in integers. For u, the first 29 digits
of x give exp(-t) in float64. With k <= 4 (a larger k never gets here) the digits of x left out
change it by less than 5 * 2^-29, which is 0.0007 of a cell of u. `MARGIN`, 0.0039 of a cell, leaves
2^-25 for the errors of float64, 2^27 times its precision: far more than those of four roundings and
of any exp in use. Closer cases are decided again by `decimal`, in outward rounded intervals;
its exp is correctly rounded.

**The first `size` accepted.** Candidates are independent with the same law, so the accepted ones in
order are independent draws of it, however many candidates a block holds. How many blocks are drawn
depends on how many were accepted, not on their values; surplus draws are dropped unseen.
"""

from bisect import bisect_left
from collections.abc import Callable
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from fractions import Fraction
from functools import cache
from math import isqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

SCALE_BITS = 28
"""Draws are in units of 2^-28 of the standard deviation."""

Words = Callable[[int], NDArray[np.uint64]]
"""Gives n independent uniform 64-bit words."""

V_BITS, U_BITS, X_BITS = 18, 16, SCALE_BITS + 1
MARGIN = 2.0**-8
"""Float decisions closer than this to the bound, in cells of u, are left to exact arithmetic. Draws
do not depend on it; from 2^16 on, every candidate is decided exactly."""

MAX_BLOCK = 2**15
"""The most candidates drawn together: few enough for the processor's cache."""

UNDECIDED = -1


def rounded_gaussian(words: Words, size: int) -> NDArray[np.int64]:
    """Independent draws of round(2^28 Z), Z standard normal, int64 ``[size]``.

    Args:
        words: gives n independent uniform 64-bit words, uint64 ``[n]``. The law is exact if theirs
            is.
        size: the number of draws, 0 or more.

    Raises:
        ValueError: ``size`` is negative, or ``words`` gives something else.
    """
    if size < 0:
        raise ValueError(f"size must be at least 0; it is {size}")
    draws, filled = np.empty(size, dtype=np.int64), 0
    while filled < size:
        missing = size - filled
        # 1.4 candidates make a draw; 4 standard deviations more usually make one block enough
        candidates = min(missing * 7 // 5 + 3 * isqrt(missing) + 8, MAX_BLOCK)
        found = _accepted(words, candidates)[:missing]
        draws[filled : filled + len(found)] = found
        filled += len(found)
    return draws


def _accepted(words: Words, candidates: int) -> NDArray[np.int64]:
    """The accepted draws among ``candidates`` of them, in order."""
    block = _take(words, candidates)
    v, u, x, sign = _fields(block)
    k = np.take(_k_of_prefix(), v.view(np.int64))
    fraction = x.view(np.int64) * 2.0**-X_BITS
    above = np.exp(-fraction * (k + 0.5 * fraction)) * 2**U_BITS - u.view(np.int64)
    accepted = above >= 1 + MARGIN
    magnitudes = _rounded(k.astype(np.int64), x.view(np.int64))
    draws = np.where(sign, -magnitudes, magnitudes)
    for i in np.flatnonzero((k == UNDECIDED) | ((above > -MARGIN) & ~accepted)):
        draw = _decide(int(block[i]), words)
        accepted[i] = draw is not None
        draws[i] = draw or 0
    return np.take(draws, np.flatnonzero(accepted))


def _take(words: Words, n: int) -> NDArray[np.uint64]:
    taken = words(n)
    if taken.dtype != np.uint64 or taken.shape != (n,):
        raise ValueError(
            f"words({n}) must give uint64 [{n}]; it gave {taken.dtype} {list(taken.shape)}"
        )
    return taken


def _fields(word: Any) -> tuple[Any, Any, Any, Any]:
    """The first digits of v, u and x, and the sign bit, of a word or of an array of words."""
    u = (word >> (1 + X_BITS)) & (2**U_BITS - 1)
    return word >> (1 + X_BITS + U_BITS), u, (word >> 1) & (2**X_BITS - 1), word & 1


def _rounded(k: Any, x: Any) -> Any:
    """The nearest integer to 2^28 (k + x), from k and 29 digits of x; integers or arrays."""
    return (k << SCALE_BITS) + ((x + 1) >> 1)


class _Uniform:
    """A uniform real number whose first digits are known: value <= 2^bits number < value + 1."""

    def __init__(self, value: int, bits: int, words: Words):
        self.value, self.bits, self._words = value, bits, words

    def extend(self) -> None:
        """Draw 64 further digits."""
        self.value, self.bits = self.value << 64 | int(_take(self._words, 1)[0]), self.bits + 64


def _decide(word: int, words: Words) -> int | None:
    """The draw of one candidate in exact arithmetic, or None; draws further digits if needed."""
    v, u, x, sign = _fields(word)
    k = _exact_k(_Uniform(v, V_BITS, words))
    if not _exact_accept(k, _Uniform(x, X_BITS, words), _Uniform(u, U_BITS, words)):
        return None
    return -_rounded(k, x) if sign else _rounded(k, x)


def _exact_k(v: _Uniform) -> int:
    """The number of T_j <= v."""
    while v.value in (cells := _threshold_cells(v.bits)):
        v.extend()
    return bisect_left(cells, v.value)


def _exact_accept(k: int, x: _Uniform, u: _Uniform) -> bool:
    """Whether u < exp(-t), t = x (2 k + x) / 2, which grows with x."""
    while True:
        digits = u.bits // 3 + 12  # 10^-12 of a cell of u or finer
        down, up = Context(digits, ROUND_FLOOR), Context(digits, ROUND_CEILING)
        denominator = Decimal(2 ** (2 * x.bits + 1))

        def numerator(value: int) -> Decimal:
            return Decimal(value * ((k << (x.bits + 1)) + value))

        # copy_negate: a minus sign would round to the 28 digits of the thread's context
        largest = up.next_plus(up.exp(down.divide(numerator(x.value), denominator).copy_negate()))
        smallest = down.next_minus(
            down.exp(up.divide(numerator(x.value + 1), denominator).copy_negate())
        )
        if Fraction(u.value + 1, 2**u.bits) <= Fraction(smallest):
            return True
        if Fraction(u.value, 2**u.bits) >= Fraction(largest):
            return False
        u.extend()
        x.extend()


@cache
def _threshold_cells(bits: int) -> tuple[int, ...]:
    """floor(2^bits T_j) for j = 1, 2, ..., up to the first in the last cell, with all others.

    T_j is computed by `decimal` to 10^(4 - digits): fewer than 100 terms, each correctly rounded,
    as are their sums and the ratio; the terms left out add up to less than 10^-digits. Digits are
    added until no floor is in doubt.
    """
    digits, last = bits // 3, 2**bits - 1
    while True:
        context, error = Context(digits), Fraction(1, 10 ** (digits - 4))
        sums = [Decimal(0)]
        for i in range(isqrt(5 * digits) + 3):  # exp(-5 digits / 2) < 10^(-1.08 digits)
            sums.append(
                context.add(sums[-1], context.exp(context.divide(Decimal(-i * i), Decimal(2))))
            )
        ratios = [Fraction(context.divide(part, sums[-1])) for part in sums[1:-1]]
        lower = [(2**bits * (ratio - error)).__floor__() for ratio in ratios]
        upper = [min((2**bits * (ratio + error)).__floor__(), last) for ratio in ratios]
        if lower == upper:
            return tuple(lower[: lower.index(last) + 1])
        digits += 10


@cache
def _k_of_prefix() -> NDArray[np.int8]:
    """k for every prefix of v, `UNDECIDED` if a threshold is in its cell; read-only int8 [2^18]."""
    cells = list(_threshold_cells(V_BITS))
    table = np.searchsorted(cells, np.arange(2**V_BITS)).astype(np.int8)
    table[cells] = UNDECIDED
    table.flags.writeable = False
    return table
