"""Selective release with a cap: after M rejections in a row a client stops for the round.

The bound of `accounting.selective` is for a step that is accepted in the end. With T planned
accepted steps in the whole run, the probability that the cap is ever reached is at most
``T (1 - lo)^M``; let it be at most `delta_cap`. Then a run that is (epsilon, delta)-DP without the
cap is (epsilon + delta_cap / (1 - delta_cap), delta + delta_cap)-DP with it.
"""

import math


def cap_probability(lowest_acceptance: float, most_rejections: int, steps: int) -> float:
    """``T (1 - lo)^M``, at most 1: bounds the probability that the cap ends any of T steps."""
    if lowest_acceptance == 1.0:
        return 0.0
    return min(1.0, steps * math.exp(most_rejections * math.log1p(-lowest_acceptance)))


def smallest_cap(lowest_acceptance: float, steps: int, delta_cap: float) -> int:
    """The smallest M with ``T (1 - lo)^M <= delta_cap``; above 2^40, nearly the smallest.

    Args:
        lowest_acceptance: lo, in (0, 1].
        steps: T, planned accepted steps of the whole run, at least 1.
        delta_cap: probability set aside, in (0, 1).

    Raises:
        ValueError: an argument is out of its bounds.
    """
    if not 0.0 < lowest_acceptance <= 1.0:
        raise ValueError(
            f"lowest_acceptance = {lowest_acceptance} must be in (0, 1]; add noise to the test"
        )
    if steps < 1:
        raise ValueError(f"steps = {steps} must be at least 1; plan one accepted step or more")
    _check(delta_cap)
    if lowest_acceptance == 1.0:
        return 1
    cap = max(1, math.floor(math.log(steps / delta_cap) / -math.log1p(-lowest_acceptance)))
    while cap_probability(lowest_acceptance, cap, steps) > delta_cap:
        cap += max(1, cap >> 40)  # adding 1 to a huge cap would be lost in rounding
    return cap


def with_cap(epsilon: float, delta_cap: float) -> float:
    """Epsilon of the capped run, from that of the run without a cap."""
    _check(delta_cap)
    return epsilon + delta_cap / (1.0 - delta_cap)


def _check(delta_cap: float) -> None:
    if not 0.0 < delta_cap < 1.0:
        raise ValueError(f"delta_cap = {delta_cap} must be in (0, 1); take a tenth of delta")
