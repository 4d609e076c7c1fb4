"""The smallest noise multiplier that meets a budget.

Epsilon over any subset of the orders is an upper bound of epsilon over all of them, so the search
may use few orders: what it returns always meets the budget. The full grid decides which ones.
"""

import functools
import math
from collections.abc import Callable, Sequence

from mechanisms.accounting import accountant
from mechanisms.accounting.accountant import Charges

LOWER, UPPER = 1e-2, 1e4
"""Smallest and largest noise multiplier that are tried."""
TOLERANCE = 1e-4
"""Relative width of the final bracket."""
SPARSE = 8  # the first search uses every eighth order of the grid
WINDOW = 3  # the second one uses the best order and this many neighbours on each side
ROUNDS = 8  # how often the window may be moved to a better order


def smallest(
    charges_of: Callable[[float], Charges],
    epsilon: float,
    delta: float,
    column: str = "certified",
    one_order: bool = False,
) -> float:
    """The smallest noise multiplier whose charges meet (epsilon, delta) in one column.

    Args:
        charges_of: the planned charges for a noise multiplier; their epsilon must not rise with it.
        epsilon: budget, above 0.
        delta: budget, in (0, 1).
        column: "certified", or "published" for a budget by the paper's own claim.
        one_order: whether the budget must be met at one Renyi order, as that of an adaptive run.

    Returns:
        The upper end of the bracket, which always meets the budget, or `LOWER` if that does:
        ``accountant.epsilon(charges_of(x), delta, column).epsilon <= epsilon``.

    Raises:
        ValueError: epsilon or delta is out of bounds, or even `UPPER` does not meet the budget.
    """
    accountant.check_delta(delta)
    if not 0.0 < epsilon < math.inf:
        raise ValueError(
            f"epsilon = {epsilon} must be above 0 and finite; name a budget to calibrate to"
        )
    grid, tighter = accountant.default_orders(column), column == "certified" and not one_order
    share = accountant.share_of_the_end(charges_of(UPPER)) if tighter else 1.0

    def spent(noise: float, orders: Sequence[float]) -> accountant.Guarantee:
        return accountant.guarantee(charges_of(noise), share * delta, column, orders)

    def meets(noise: float, orders: Sequence[float]) -> bool:
        return spent(noise, orders).epsilon <= epsilon

    sparse = grid[::-SPARSE][::-1]
    if not meets(UPPER, sparse) and not meets(UPPER, grid):
        least = accountant.epsilon(charges_of(UPPER), delta) if tighter else spent(UPPER, grid)
        if least.epsilon <= epsilon:
            return _tightened(charges_of, UPPER, epsilon, delta)
        raise ValueError(
            f"budget too small for a single step: epsilon = {epsilon} at delta = {delta} is below "
            f"{least.epsilon:.6g}, what noise multiplier {UPPER:g} still costs; raise epsilon or "
            "delta, plan fewer steps, lower the rates, or add noise to what else is released"
        )
    if meets(LOWER, sparse):
        return LOWER
    best = _bisect(functools.partial(meets, orders=sparse), LOWER, UPPER, 100.0 * TOLERANCE)
    window: Sequence[float] = ()
    for _ in range(ROUNDS):
        order = spent(best, grid).order
        if order is None or order in window:
            break
        place = grid.index(order)
        window = grid[max(0, place - WINDOW) : place + WINDOW + 1]
        best = _descend(functools.partial(meets, orders=window), best)
    return _tightened(charges_of, best, epsilon, delta) if tighter else best


def smallest_near(
    near: float, charges_of: Callable[[float], Charges], epsilon: float, delta: float
) -> float | None:
    """:func:`smallest` in the certified column by a short search that begins nearby; None where no
    privacy loss distributions prove the epsilon there."""
    if not LOWER < near < UPPER:
        return None
    known = accountant.epsilon(charges_of(near), delta)
    if known.order is not None or not 0.0 < known.epsilon < math.inf:
        return None
    return _tightened(charges_of, near, epsilon, delta)


def _tightened(
    charges_of: Callable[[float], Charges], noise: float, epsilon: float, delta: float
) -> float:
    """The smallest noise multiplier by privacy loss distributions, searched for from ``noise``; or
    ``noise`` itself, which meets the budget by a Renyi order, where there are none."""

    def excess(log_noise: float) -> float:
        return accountant.epsilon(charges_of(math.exp(log_noise)), delta).epsilon / epsilon - 1.0

    if accountant.epsilon(charges_of(noise), delta).order is not None:
        return noise
    start, least = math.log(noise), math.log(LOWER)
    at, value = start, excess(start)
    # epsilon falls about as fast as noise grows
    stride = max(value, TOLERANCE) if value > 0.0 else min(value, -1e-3 * TOLERANCE)
    following = excess(at + stride)
    while at + stride > least and (following > 0.0) == (value > 0.0):
        at, value, following = at + stride, following, excess(at + 2.0 * stride)
    (low, above), (high, below) = sorted([(at, value), (at + stride, following)])
    if low <= least:
        return math.exp(high)
    last = 0.0
    while high - low > TOLERANCE:  # false position (Illinois): an end that stays twice counts half
        finite = above < math.inf  # at the lower end epsilon may have no bound
        middle = (low * below - high * above) / (below - above) if finite else (low + high) / 2.0
        middle = min(max(middle, low + TOLERANCE / 4.0), high - TOLERANCE / 4.0)
        value = excess(middle)
        halved = 0.5 if last * value > 0.0 else 1.0
        if value > 0.0:
            low, above, below = middle, value, below * halved
        else:
            high, above, below = middle, above * halved, value
        last = value
    return math.exp(high)


def _bisect(meets: Callable[[float], bool], low: float, high: float, tolerance: float) -> float:
    """The upper end, which meets the budget, of a bracket of relative width `tolerance`."""
    while high > low * (1.0 + tolerance):
        middle = math.sqrt(low * high)
        if meets(middle):
            high = middle
        else:
            low = middle
    return high


def _descend(meets: Callable[[float], bool], high: float) -> float:
    """Bisection from above: growing strides down until the budget is missed, then `_bisect`."""
    stride = 1.0 + 10.0 * TOLERANCE
    low = max(LOWER, high / stride)
    while low > LOWER and meets(low):
        high, stride = low, stride * stride
        low = max(LOWER, high / stride)
    return _bisect(meets, low, high, TOLERANCE)
