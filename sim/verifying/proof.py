"""The exact epsilon of charges, between two bounds, by arithmetic of its own.

It shares nothing with the accountant's: numbers are balls that hold the exact ones, in place of
floats, and the methods are others.
"""

import math
from collections.abc import Mapping

from flint import arb, ctx

from mechanisms.accounting import events
from sim.verifying import lattice, trials
from sim.verifying.divergences import divergence, failure
from sim.verifying.laws import Law, laws

BITS = 192
"""Of every number."""
FINENESS = (0.0125, 0.006, 0.003)
"""Spacings that are tried, in standard deviations of a step's loss."""

Charges = Mapping[events.Event, int]
Steps = list[tuple[Law, int]]


def dominated(charges: Charges) -> bool:
    """Whether every event has dominating laws."""
    return all(laws(event) is not None for event in charges)


def interval(
    charges: Charges, delta: str, order: float | None, printed: float, beside: str = "0"
) -> tuple[float, float]:
    """Bounds on epsilon at one Renyi order, or without one by loss distributions.

    The latter are tried with smaller and smaller spacings until they tell whether the printed
    epsilon is above.

    Args:
        delta: a decimal number.
        beside: another one, what pays for caps on rejections in place of delta.
    """
    with ctx.workprec(BITS):
        if order is not None:
            ball = _at_order(charges, arb(delta), arb(order), arb(beside))
            return outward(ball, ball)
        if _overdrawn(charges):
            return math.inf, math.inf
        left = arb(delta) - _lost(charges)
        if not left > 0:
            return math.inf, math.inf
        steps = _steps(charges)
        if not steps:
            return 0.0, 0.0
        found = _together(charges)
        if found is None:
            return _tried(steps, left, printed)
        least, most = found
        low, _ = outward(*lattice.epsilon(least, left, FINENESS[0]))
        high = _tried(most, left, printed)[1]
        if printed < high:  # few trials may cost less by themselves
            high = min(high, _tried(steps, left, printed)[1])
        return low, high


def _tried(steps: Steps, left: arb, printed: float) -> tuple[float, float]:
    """Bounds on what these laws cost together, close enough to tell."""
    for fineness in FINENESS:
        low, high = outward(*lattice.epsilon(steps, left, fineness))
        if printed >= high or printed < low:
            break
    return low, high


def _steps(charges: Charges) -> Steps:
    return [(law, count) for event, count in charges.items() for law in laws(event) or ()]


def _together(charges: Charges) -> tuple[Steps, Steps] | None:
    """Where there are several trials of a kind: what they cost at least, and at most."""
    tested = {event: n for event, n in charges.items() if n > 1 and trials.follows(event)}
    if not tested:
        return None
    event = max(tested, key=lambda one: tested[one])
    others = _steps({one: n for one, n in charges.items() if one != event})
    least, most = trials.bounds(event, tested[event])
    return [*others, *least], [*others, *most]


def outward(low: arb, high: arb) -> tuple[float, float]:
    """The two bounds as floats, rounded down and up; a number of which nothing is known is between
    0 and infinity."""
    if low.is_nan() or high.is_nan():
        return 0.0, math.inf
    below, above = float(low.lower()), float(high.upper())
    return (
        below if arb(below) <= low else math.nextafter(below, -math.inf),
        above if arb(above) >= high else math.nextafter(above, math.inf),
    )


def _at_order(charges: Charges, delta: arb, order: arb, beside: arb) -> arb:
    """Balle et al. 2020, Canonne, Kamath, Steinke 2020; and the share of capped rejections."""
    if _overdrawn(charges):
        return arb("inf")
    spent = sum((n * divergence(event, order) for event, n in charges.items()), arb(0))
    lost = _lost(charges)
    left = delta if lost < beside else delta - lost
    if not left > 0:
        return arb("inf")
    found = spent + ((order - 1) / order).log() - (left.log() + order.log()) / (order - 1)
    found = found.max(arb(0)) + lost / (1 - lost)
    shares = any(isinstance(event, events.SummedShares) for event in charges)
    return found if not shares or found <= events.SummedShares.REACH else arb("inf")


def _lost(charges: Charges) -> arb:
    """The part of delta that all charges use up."""
    return sum((n * failure(event) for event, n in charges.items()), arb(0))


def _is_gaussian(event: events.Event) -> bool:
    """Whether it is a Gaussian of all records, as a `GaussianAllotment` pays for."""
    match event:
        case events.SampledGaussian(rate) | events.NoisyNormSum(rate):
            return rate == 1.0
        case events.ImportanceSampledGaussian(batch, clip, total):
            return batch * clip == total
    return isinstance(event, events.Gaussian)


def _overdrawn(charges: Charges) -> bool:
    """Whether covered releases are not proved to stay within what was allotted at their order, or
    are not what it pays for."""
    left: dict[float, arb] = {}
    gaussians = any(isinstance(event, events.GaussianAllotment) for event in charges)
    for event, count in charges.items():
        if isinstance(event, events.Allotment):
            left[event.order] = left.get(event.order, arb(0)) + count * arb(event.rdp)
        if isinstance(event, events.GaussianAllotment):
            left[2.0] = left.get(2.0, arb(0)) + count / arb(event.noise_multiplier) ** 2
        if isinstance(event, events.Covered):
            price = count * divergence(event.event, arb(event.order))
            left[event.order] = left.get(event.order, arb(0)) - price
            if gaussians and event.order == 2.0 and not _is_gaussian(event.event):
                return True
    return not all(rest >= 0 for rest in left.values())
