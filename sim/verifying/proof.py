"""The exact epsilon of charges, between two bounds, by arithmetic of its own.

It shares nothing with the accountant's: numbers are balls that hold the exact ones, in place of
floats, and the methods are others.
"""

import functools
import math
from collections.abc import Iterable, Iterator, Mapping

from flint import arb, ctx

from mechanisms.accounting import events
from sim.verifying import lattice
from sim.verifying.divergences import divergence, failure
from sim.verifying.fixed_batch import Opposite
from sim.verifying.laws import Law, laws
from sim.verifying.together.covers import Step, cover, repeated
from sim.verifying.together.least import FixedTest
from sim.verifying.together.trials import Trial

BITS = 192
"""Bits of precision of every number."""
FINENESS = (0.0125, 0.006, 0.003)
"""Spacings that are tried, in standard deviations of a step's loss."""
WIDTHS = (2.0, 3.0, 1.5)
"""Noise that is tried beside many steps, in standard deviations of a step's loss."""
NEARLY = 1.01
"""How many times what is printed a bound is at most for a smaller spacing to be tried."""
NEAR_ONE = 1.25
"""The Renyi order at which a step's divergence tells the standard deviation of its loss."""

Charges = Mapping[events.Event, int]
Steps = list[tuple[Law, int]]


def dominated(charges: Charges) -> bool:
    """Whether every event has dominating laws, or several of them together have."""
    return all(
        laws(event) is not None or repeated(event) or isinstance(event, events.TrialCap)
        for event in charges
    )


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
        stopped = _lost({e: n for e, n in charges.items() if isinstance(e, events.TrialCap)})
        capped = stopped / (1 - stopped)
        spare = float((arb(printed) - capped).lower())
        low, high = _composed(charges, left, spare)
        return outward(low + capped, high + capped)


def _composed(charges: Charges, left: arb, printed: float) -> tuple[float, float]:
    """Bounds on what all charges cost together without caps on rejections."""
    several = {
        event: step
        for event, n in charges.items()
        if (step := repeated(event)) and (step.hidden or n > 1)
    }
    others = _steps({event: n for event, n in charges.items() if event not in several})
    if not several:
        return _tried([others], left, printed) if others else (0.0, 0.0)
    least: Steps = [(_least(step), charges[event]) for event, step in several.items()]
    low, _ = outward(*lattice.epsilon([*others, *least], left, FINENESS[0]))
    ways = ([*others, *steps] for steps in _ways(several, charges))
    return low, _tried(ways, left, printed)[1]


def _tried(ways: Iterable[Steps], left: arb, printed: float) -> tuple[float, float]:
    """Bounds on what the laws of the cheapest way cost together, close enough to tell."""
    low, high = math.inf, math.inf
    for fineness in FINENESS:
        close = []
        for steps in ways:
            below, above = outward(*lattice.epsilon(steps, left, fineness))
            low, high = min(low, below), min(high, above)
            if printed >= high:
                return low, high
            if below <= printed and above <= NEARLY * printed:
                close.append(steps)
        ways = close
    return low, high


def _steps(charges: Charges) -> Steps:
    return [(law, count) for event, count in charges.items() for law in laws(event) or ()]


def _ways(several: Mapping[events.Event, Step], charges: Charges) -> Iterator[Steps]:
    """Laws that dominate many steps: those of each kind together, for some widths of the noise
    beside them; or the fewest of the visible kinds by themselves."""
    hidden = [event for event, step in several.items() if step.hidden]
    visible = sorted((one for one in several if one not in hidden), key=lambda one: -charges[one])
    deviations = {event: _deviation(event, step) for event, step in several.items()}

    @functools.cache
    def covered(event: events.Event, width: float) -> Steps | None:
        found = cover(several[event], deviations[event], width)
        return found and [(found[0], charges[event]), (found[1], 1)]

    for count in range(len(visible), -1, -1):
        alone = _steps({event: charges[event] for event in visible[count:]})
        together = hidden + visible[:count]
        for width in WIDTHS if together else WIDTHS[:1]:
            parts = [covered(event, width) for event in together]
            if all(parts):
                yield [*alone, *(step for part in parts for step in part or ())]


def _least(step: Step) -> Law:
    """What somebody reaches in each of many steps."""
    if isinstance(step, Trial):
        return FixedTest(step)
    return Opposite(step.rate * (1.0 - 1e-15), step.noise)  # at most what was rounded up


def _deviation(event: events.Event, step: Step) -> float:
    """Roughly the standard deviation of a step's loss."""
    found = divergence(event, arb(NEAR_ONE))
    if found.is_finite():
        return math.sqrt(2 * float(found) / NEAR_ONE)
    return math.sqrt(_least(step).variance())


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
