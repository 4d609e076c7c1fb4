"""Sums of whole numbers behind Gaussian noise whose guarantee holds for the bits that leave.

In floats neither a sum's bound nor its noise is exact: rounding lets a record move a sum by more
than the clip norm, and the last digits of a noised float tell what was below the noise (Mironov
2012; Casacuberta, Shoemate, Vadhan, Wagaman 2022). On a grid both are. For a sum of m numbers over
records whose parts have norm at most C, behind noise of deviation s C:

1. A record's part is scaled by ``2^44 / C`` and rounded to whole numbers v_i by itself. ``V = sum
   v_i``, over fewer than 2^18 records, is exact: one record moves V by its own v_i, regardless of
   the others and of their order, and ``|v_i| <= 2^44 (1 + e)`` with ``e = 2^-22 sqrt(m)`` for the
   rounding of its numbers and of its norm.
2. ``Y = round(c V)`` with ``c = 2^-16 / s'``, in float64 and held within +-2^51. Each entry of Y is
   a monotone function of that of V, and within 1 of its real value: a record moves Y by at most ``c
   |v_i| + 2 sqrt(m)``.
3. ``Y + round(2^28 Z)`` with exact draws, Z standard normal. Rounding commutes with shifts by whole
   numbers, so this is ``round(Y + 2^28 Z)``: post-processing of the continuous Gaussian mechanism
   of deviation 2^28 and sensitivity ``c 2^44 (1 + e) + 2 sqrt(m)``. Whatever is proved of that one
   holds, by Renyi orders, by PLD or by tests of a step.
4. Deviation over sensitivity is at least s if ``s' = s (1 + slack)``, ``slack = 2^-20 + sqrt(m)
   (2^-22 + 2^-26 s)``. So s is what the plan charges, and s' is what is drawn: some 5e-5 more for a
   network of 26,000 parameters.
5. Times ``s' C / 2^28`` the result is a float again. All that follows is post-processing.

`docs/theory/grid.md` has the whole argument and its assumptions.
"""

import math
from collections.abc import Iterable

import torch
from torch import Tensor

from mechanisms.rounded_gaussian import SCALE_BITS

PART = 2.0**44
"""Bound on the norm of a record's part, in units of an exact sum."""
MAX_RECORDS = 2**18
"""A client's sum has fewer records than this, so that int64 holds their parts."""
MAX_POINT = 2.0**51
"""Bound on a point of the grid, so that float64 still tells neighbours apart."""


def check_sizes(sizes: Iterable[int]) -> None:
    """Refuse clients whose sums could overflow, by their public numbers of records, never by draws.

    Raises:
        ValueError: a client has too many records.
    """
    if (largest := max(sizes, default=0)) >= MAX_RECORDS:
        raise ValueError(
            f"a client holds {largest} records, in a release it must hold fewer than "
            f"{MAX_RECORDS}, the most that an exact sum has room for: raise --clients, or leave "
            "out --release"
        )


def slack(entries: int, multiplier: float, bits: int = SCALE_BITS) -> float:
    """The share by which the noise on a sum of ``entries`` numbers is raised above s times C, if
    its deviation is ``2^bits`` points.

    Raises:
        ValueError: the noise is so large that a grid of its size would be too coarse for the sum.
    """
    share = 2.0**-20 + math.sqrt(entries) * (2.0**-22 + 2.0 ** (2 - bits) * multiplier)
    if share > 1.0:
        raise ValueError(
            f"noise_multiplier = {multiplier:g} is too large for a release of {entries} numbers, "
            "where rounding would double it: lower --noise-multiplier"
        )
    return share


def whole_parts(values: Tensor, bound: Tensor) -> Tensor:
    """Records' parts ``values [K, ...]``, rounded to units of ``2^-44 bound [K]``, int64."""
    scale = (PART / bound.double()).view(-1, *[1] * (values.dim() - 1))
    return (values.double() * scale).round_().to(torch.int64)


def points(total: Tensor, raised: Tensor | float, bits: int = SCALE_BITS) -> Tensor:
    """The points int64 nearest to sums int64 in units of ``2^-44 C``, where ``2^bits`` points are
    ``raised`` times C. Clamp and round are monotone, and a clamp never moves two points apart."""
    near = total.double() * (2.0**bits / PART / raised)
    return near.clamp(-MAX_POINT, MAX_POINT).round().to(torch.int64)


def noised(total: Tensor, bound: Tensor, std: Tensor, draws: Tensor) -> Tensor:
    """The released sum, float64 ``[K, m]``.

    Args:
        total: int64 ``[K, m]``, in units of ``2^-44 bound``.
        bound: C ``[K]``, of the norm of a record's part.
        std: s C ``[K]``, standard deviation of the noise; with 0 the sum is released as it is.
        draws: int64 ``[K, m]``, of round(2^28 Z).
    """
    bound = bound.double()
    multipliers = (std.double() / bound).tolist()
    raised = bound.new_tensor([s * (1.0 + slack(total.shape[1], s)) for s in multipliers])[:, None]
    noisy = (points(total, raised) + draws).double() * raised * 2.0**-SCALE_BITS  # steps 2 to 5
    return torch.where(raised > 0, noisy, total.double() / PART) * bound[:, None]
