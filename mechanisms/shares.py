"""Noise that many clients make together: each adds a share to its part of a sum that nobody sees
but added up (secure aggregation), modulo a power of two.

With contributions v_k of norm at most C (`mechanisms/contributions.py`), L answers at least, and m
numbers, a client sends

    ( round(c v_k) + round(2^g Z_k) )  mod 2^b,        c = 2^g / (s' C),    Z_k standard normal

Let ``s_1 = s / sqrt(L - 1)`` and ``s' = s_1 (1 + slack)`` as in `mechanisms/grid.py`, for points of
``2^-g`` deviations. The real part of a sum moves by at most ``2^g / s_1`` with a unit, and L - 1
shares have a deviation of ``2^g sqrt(L - 1)``: together SGM with the multiplier s. One share less
than there are answers, as whoever looks may be one of the clients, and knows its own.

A sum of rounded Gaussians is not a rounded Gaussian. It is one, with noise added that depends on
nothing, but for a probability of at most `FAILURE`, of which ``2^-180`` would be enough: the cells
of a grid as fine as ``2^g >= 8`` hardly show in a Gaussian. Reduced sums are functions of sums, so
wrapping around costs no privacy. `FAILURE` bounds its probability, too, so that what is charged
covers a protocol in which it shows. `docs/theory/sums.md` has the proofs.
"""

import math
from dataclasses import dataclass, replace

from torch import Tensor

from mechanisms import grid
from mechanisms.rounded_gaussian import SCALE_BITS
from mechanisms.updates import Sent

FAILURE = 2.0**-60
"""Part of delta of a round; half of it bounds the probability that its sum wraps around."""
MIN_FINENESS = 3
"""g at least: the proof is for shares of a deviation of at least 8 points."""


@dataclass(frozen=True)
class Shares:
    """How clients make the noise of a round.

    Attributes:
        least: L, answers without which a sum is not opened; at least 2.
        bits: b, of each number of an upload.
        fineness: g, a share has a deviation of 2^g points.
        multiplier: s_1, of a share alone.
        entries: m, numbers of an upload.
    """

    least: int
    bits: int
    fineness: int
    multiplier: float
    entries: int

    @property
    def raised(self) -> float:
        """s': 2^g points are so many clip norms."""
        return self.multiplier * (1.0 + grid.slack(self.entries, self.multiplier, self.fineness))

    def added(self, whole: Tensor, draws: Tensor) -> Tensor:
        """What clients send, int64 ``[K, m]`` in [0, 2^b).

        Args:
            whole: contributions, int64 in units of ``2^-44 C``.
            draws: of round(2^28 Z), int64.
        """
        coarser = SCALE_BITS - self.fineness
        share = (draws + (2**coarser >> 1)) >> coarser
        return (grid.points(whole, self.raised, self.fineness) + share) & (2**self.bits - 1)

    def opened(self, total: Tensor) -> Tensor:
        """The noisy sum in clip norms, float64, from sums int64 modulo 2^b."""
        half = 2 ** (self.bits - 1)
        centred = ((total + half) & (2**self.bits - 1)) - half
        return centred.double() * (self.raised * 2.0**-self.fineness)


def least_answers(asked: int, honest: float) -> int:
    """The answers that are enough for a round, of the clients that are ``asked``.

    Raises:
        ValueError: fewer than two, whose sum hides nobody.
    """
    least = math.ceil(round(honest * asked, 9))
    if least < 2:
        raise ValueError(
            f"honest = {honest:g} of {asked} clients that are asked in a round is {least}, but a "
            "sum hides nobody below 2: raise --honest, --fraction or --clients"
        )
    return least


def shares_of(
    noise: float, asked: int, honest: float, norms: float, entries: int, bits: int
) -> Shares:
    """The finest shares whose sum fits.

    Args:
        noise: s, the multiplier that the sum is charged for.
        asked: clients that are asked in a round.
        honest: least share of them that answer and add their noise.
        norms: bounds a sum of the round, in clip norms.
        entries: m.
        bits: b.

    Raises:
        ValueError: fewer than two answers would be enough, or no shares fit.
    """
    least = least_answers(asked, honest)
    multiplier = noise / math.sqrt(least - 1)
    # P(|N(0, 1)| > reach) <= exp(-reach^2 / 2), for each of the numbers
    reach = math.sqrt(2.0 * math.log(2.0 * entries / FAILURE))
    size = norms * (1.0 + 2.0**-20) / multiplier + reach * math.sqrt(asked)

    def needed(fineness: int) -> int:
        """Bits that a sum has room in."""
        return math.ceil(math.log2(2.0**fineness * size + 2.0 * asked)) + 1

    fineness = next((g for g in range(SCALE_BITS, 0, -1) if needed(g) <= bits), 0)
    coarsest = max(MIN_FINENESS, math.ceil(math.log2(8.0 * multiplier * math.sqrt(entries))))
    if fineness < coarsest:
        raise ValueError(
            f"aggregate_bits is {bits}, but sums of {asked} clients with noise_multiplier = "
            f"{noise:g} need {needed(coarsest)} on the coarsest grid that is proved: raise "
            "--aggregate-bits, or lower --noise-multiplier"
        )
    return Shares(least, bits, fineness, multiplier, entries)


def shared(sent: Sent, shares: Shares) -> Sent:
    """What clients send, with their share of the noise."""
    return replace(
        sent,
        rows=lambda cohort, start, end: shares.added(
            sent.rows(cohort, start, end), cohort.streams.rounded("noise", shares.entries)
        ),
    )
