"""Noise that is correlated over rounds: what one round's noise adds, later ones take away in part.

With sums X_1, X_2, ... of rounds, b bands ``c_0 = 1, c_1, ..., c_(b-1)``, and Z_t standard normal,

    Y_t = sum_j c_j X_(t-j) + s C Z_t,        x_t = Y_t - sum_(j >= 1) c_j x_(t-j),

where x_t, what is used of round t, is X_t with noise, and a function of what is released, Y_1 ..
Y_t (DP-FTRL with a banded matrix: Choquette-Choo, Ganesh, McKenna, McMahan, Rush, Thakurta, Xu
2023, "(Amplified) Banded Matrix Factorization"). The bands are those of the square root of the
matrix of prefix sums, ``c_j = binomial(2j, j) / 4^j`` (Kalinin and Lampert 2024, "Banded Square
Root Matrix Factorization"), here in multiples of 1/64.

A client that contributes to round t moves Y_t .. Y_(t+b-1) by at most ``c_0 C .. c_(b-1) C``. If it
takes part again no sooner than in round t + b, each of its rounds is a Gaussian with the multiplier
``s / |c|``. `docs/theory/sums.md` has the proof, also on the grid of a release.
"""

import math
from collections import deque

from torch import Tensor

from mechanisms import grid
from mechanisms.rounded_gaussian import SCALE_BITS

WEIGHT_BITS = 6
"""Bands are whole multiples of 2^-6, so that a release adds whole numbers."""


def weights(bands: int) -> tuple[int, ...]:
    """``2^6 c_j``."""
    found = [1.0]
    for j in range(1, bands):
        found.append(found[-1] * (2 * j - 1) / (2 * j))
    return tuple(round(one * 2**WEIGHT_BITS) for one in found)


def norm(bands: int) -> float:
    """``|c|``, the Euclidean norm of the bands."""
    return math.hypot(*weights(bands)) / 2**WEIGHT_BITS


class Correlated:
    """What the noise of the next round depends on, in memory alone.

    Attributes:
        last: number of the last round that was released.
    """

    def __init__(self, bands: int):
        self.last, self._weights = 0, weights(bands)
        self._points: deque[Tensor] = deque(maxlen=bands - 1)
        self._found: deque[Tensor] = deque(maxlen=bands - 1)

    def begin(self, last: int) -> None:
        """Release the next round as the first one, after round ``last``."""
        self.last = last
        self._points.clear()
        self._found.clear()

    def found(self, noisy: Tensor) -> Tensor:
        """x_t of ``noisy``, Y_t, float64 ``[1, m]``."""
        found = noisy.clone()
        for weight, earlier in zip(self._weights[1:], self._found, strict=False):
            found -= earlier * (weight / 2**WEIGHT_BITS)
        self._found.appendleft(found)
        self.last += 1
        return found

    def released(self, total: Tensor, multiplier: float, draws: Tensor) -> Tensor:
        """x_t in units of C, as `mechanisms.grid.noised` releases a sum: Y_t is that of whole
        numbers.

        Args:
            total: X_t, int64 ``[1, m]`` in units of ``2^-44 C``.
            multiplier: s.
            draws: int64 ``[1, m]``, of round(2^28 Z).
        """
        bits = SCALE_BITS - WEIGHT_BITS
        raised = multiplier * (1.0 + grid.slack(total.shape[1], multiplier, bits))
        points = grid.points(total, raised, bits)
        noisy = draws + self._weights[0] * points
        for weight, earlier in zip(self._weights[1:], self._points, strict=False):
            noisy += weight * earlier
        self._points.appendleft(points)
        return self.found(noisy.double() * (raised * 2.0**-SCALE_BITS))
