"""The smallest noise multiplier that meets a budget.

Epsilon over any subset of the orders is an upper bound of epsilon over all of them, so the search
may use few orders: what it returns always meets the budget. The full grid decides which ones.
"""

import functools
import math
from collections.abc import Callable, Sequence

from mechanisms.accounting import accountant
from mechanisms.accounting.accountant import Charges

SPARSE = 8  # the first search uses every eighth order of the grid
WINDOW = 3  # the second one uses the best order and this many neighbours on each side
ROUNDS = 8  # how often the window may be moved to a better order


def smallest(
    charges_of: Callable[[float], Charges],
    epsilon: float,
    delta: float,
    lower: float = 1e-2,
    upper: float = 1e4,
    tolerance: float = 1e-4,
    column: str = "certified",
) -> float:
    """The smallest noise multiplier whose charges meet (epsilon, delta) in one column.

    Args:
        charges_of: the planned charges for a noise multiplier; their epsilon must not rise with it.
        epsilon: budget, above 0.
        delta: budget, in (0, 1).
        lower: smallest noise multiplier to try; returned if it meets the budget.
        upper: largest noise multiplier to try.
        tolerance: relative width of the final bracket.
        column: "certified", or "published" for a budget by the paper's own claim.

    Returns:
        The upper end of the bracket, which always meets the budget:
        ``accountant.epsilon(charges_of(x), delta, column).epsilon <= epsilon``.

    Raises:
        ValueError: epsilon or the bracket is out of bounds, or even `upper` does not meet the
            budget.
    """
    _check(epsilon, delta, lower, upper, tolerance)
    grid = accountant.default_orders(column)

    def spent(noise: float, orders: Sequence[float]) -> accountant.Guarantee:
        return accountant.guarantee(charges_of(noise), delta, column, orders)

    def meets(noise: float, orders: Sequence[float]) -> bool:
        return spent(noise, orders).epsilon <= epsilon

    sparse = grid[::-SPARSE][::-1]
    if not meets(upper, sparse) and not meets(upper, grid):
        _refuse(epsilon, delta, upper, spent(upper, grid).epsilon)
    if meets(lower, sparse):
        return lower
    best = _bisect(functools.partial(meets, orders=sparse), lower, upper, max(tolerance, 1e-2))
    window: Sequence[float] = ()
    for _ in range(ROUNDS):
        order = spent(best, grid).order
        if order is None or order in window:
            break
        window = _around(order, grid)
        best = _descend(functools.partial(meets, orders=window), lower, best, tolerance)
    return best


def _around(order: float, grid: Sequence[float]) -> Sequence[float]:
    """The order and its neighbours in the grid."""
    index = grid.index(order)
    return grid[max(0, index - WINDOW) : index + WINDOW + 1]


def _bisect(meets: Callable[[float], bool], low: float, high: float, tolerance: float) -> float:
    """The upper end, which meets the budget, of a bracket of relative width `tolerance`."""
    while high > low * (1.0 + tolerance):
        middle = math.sqrt(low * high)
        if meets(middle):
            high = middle
        else:
            low = middle
    return high


def _descend(meets: Callable[[float], bool], lower: float, high: float, tolerance: float) -> float:
    """Bisection from above: growing strides down until the budget is missed, then `_bisect`."""
    stride = 1.0 + 10.0 * tolerance
    low = max(lower, high / stride)
    while low > lower and meets(low):
        high, stride = low, stride * stride
        low = max(lower, high / stride)
    return _bisect(meets, low, high, tolerance)


def _check(epsilon: float, delta: float, lower: float, upper: float, tolerance: float) -> None:
    accountant.check_delta(delta)
    if not 0.0 < epsilon < math.inf:
        raise ValueError(
            f"epsilon = {epsilon} must be above 0 and finite; name a budget to calibrate to"
        )
    if not 0.0 < lower < upper < math.inf:
        raise ValueError(
            f"lower = {lower} and upper = {upper} must satisfy 0 < lower < upper; widen the bracket"
        )
    if not 0.0 < tolerance < 1.0:
        raise ValueError(f"tolerance = {tolerance} must be in (0, 1); it is a relative width")


def _refuse(epsilon: float, delta: float, upper: float, reached: float) -> None:
    raise ValueError(
        f"budget too small for a single step: epsilon = {epsilon} at delta = {delta} is below "
        f"{reached:.6g}, what noise multiplier {upper:g} still costs; raise epsilon or delta, "
        "plan fewer steps, lower the rates, or add noise to what else is released"
    )
