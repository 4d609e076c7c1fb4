"""Renyi divergence of steps whose proposal is tested: the worst test, and a proof that it is.

A proposal has density n without the record and n u with it: n that of N(0, s^2), u as in
`moments`. A test accepts x with probabilities a(x) and a'(x) under the numerator's and the
denominator's data, at or between the four corners of the square of a record's effect. With
U = E'[a^alpha a'^(1 - alpha) L^alpha] and A, A' the probabilities of acceptance, divergences are

    hidden rejections:  log(U A^-alpha A'^(alpha - 1)) / (alpha - 1)
    a visible bit:      log(U + (1 - A)^alpha (1 - A')^(1 - alpha)) / (alpha - 1).

Any test gives a lower bound. Upper bounds come from tangents, for which the best test takes a
corner at each x (`_Pair.response`).
"""

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from flint import arb

from sim.verifying.moments import Ratio, normal

Term = tuple[arb, arb, arb]
GRID = 1001
"""Points at which the best corner is looked for."""
HALVINGS = 90
"""Halvings of the interval in which two corners are worth the same."""
PASSES, SETTLED, BALANCED = 60, 1e-12, 1e-9
"""Passes of searches for the worst test at most, and where they end."""
CLOSE = 3e-7
"""Relative width of the ball of a visible step."""
EXCESSES = (1e-12, 1e-10, 1e-8, 1e-6, 1e-4)
"""Relative widths that are tried of that of a hidden one."""
MAX_CELLS, NARROW = 5_000, 1.0 + 1e-9
"""Intervals of y that are looked at, and the ratio of the ends of the least around the best one,
before it is given up."""


class Test(NamedTuple):
    """What a test attains, and an upper bound on what any test can attain of ``gain U + on A +
    off A'``."""

    moment: arb
    accepted: arb
    otherwise: arb
    bound: arb


def selective(ratio: Ratio, lowest: arb, highest: arb, rate: arb, order: arb) -> arb:
    """Divergence of an accepted step whose rejections are hidden, as a ball."""
    pairs = [_Pair(ratio, lowest, highest, rate, order, added) for added in (True, False)]
    return _larger([_hidden(pair, order) for pair in pairs]).log() / (order - 1)


def visible(ratio: Ratio, lowest: arb, highest: arb, rate: arb, order: arb) -> arb:
    """Divergence of one trial whose bit is public, as a ball."""
    pairs = [_Pair(ratio, lowest, highest, rate, order, added) for added in (True, False)]
    spread = (highest - lowest) * (
        rate + ratio.rate * (2 * normal(1 / (2 * ratio.noise)) - 1)
    )  # bounds |A - A'|: the proposals' total variation, and a record in the test
    reach = 1 + spread / (1 - highest)
    return _larger([_seen(pair, order, reach) for pair in pairs]).log() / (order - 1)


def _larger(balls: list[tuple[arb, arb]]) -> arb:
    (low, high), (other_low, other_high) = balls
    return low.max(other_low).union(high.max(other_high))


def _hidden(pair: "_Pair", order: arb) -> tuple[arb, arb]:
    """``U A^-alpha A'^(alpha - 1)`` of the worst test, from below and above.

    If ``U - J (alpha m^(alpha-1) A - (alpha-1) m^alpha A')`` is at most 0 for all tests, J bounds
    it: the subtracted part is at most ``J A^alpha A'^(1 - alpha)``, by a tangent at m = A / A'.
    """
    bound = arb(1)

    def tangent(m: arb) -> tuple[arb, arb]:
        return order * m ** (order - 1), (1 - order) * m**order

    def worst(log_m: float) -> tuple[Test, float]:
        nonlocal bound
        on, off = tangent(arb(log_m).exp())
        for _ in range(PASSES):
            test = pair.response(-bound * on, -bound * off)
            subtracted = on * test.accepted + off * test.otherwise
            if not subtracted > 0:  # no J is large enough for this m
                break
            before, bound = bound, (test.moment / subtracted).mid()
            if abs(bound - before) <= SETTLED * abs(bound - 1):
                break
        return test, float((test.accepted / test.otherwise).log()) - log_m

    log_m, test = _balanced(worst, abs(float((pair.on[0] / pair.on[3]).log())))
    attained = test.moment * test.accepted**-order * test.otherwise ** (order - 1)
    on, off = tangent(arb(log_m).exp())
    for excess in EXCESSES:
        enough = (attained + excess * (attained - 1)).upper()
        if pair.response(-enough * on, -enough * off).bound <= 0:
            return attained, enough
    return attained, arb("inf")


def _balanced(worst: Callable[[float], tuple[Test, float]], reach: float) -> tuple[float, Test]:
    """Where the second result of a function that falls is 0, by false position (Illinois)."""
    low, high, at = -reach, reach, 0.0
    above, below = reach, -reach
    for _ in range(PASSES):
        test, found = worst(at)
        if abs(found) < BALANCED:
            break
        if found > 0.0:
            low, above, below = at, found, below / 2.0
        else:
            high, below, above = at, found, above / 2.0
        at = (low * below - high * above) / (below - above)
    return at, test


def _seen(pair: "_Pair", order: arb, reach: arb) -> tuple[arb, arb]:
    """``U + (1 - A)^alpha (1 - A')^(1 - alpha)`` of the worst test, from below and above.

    The last term is the largest ``T(y) = alpha y (1 - A) - (alpha - 1) y^p (1 - A')`` over y, where
    ``p = alpha / (alpha - 1)`` and y = ((1 - A) / (1 - A'))^(alpha - 1). T is concave, so that its
    tangents bound it; and the largest ``U +`` tangent over all tests is convex in y, so that on an
    interval one of its ends has the most. Intervals are halved until they cover all y.
    """
    p = order / (order - 1)

    def worst(log_m: float) -> tuple[Test, float]:
        y = (arb(log_m) * (order - 1)).exp()
        test = pair.response(-order * y, (order - 1) * y**p)
        return test, float(((1 - test.accepted) / (1 - test.otherwise)).log()) - log_m

    def most(low: arb, touching: arb, high: arb) -> arb:
        ends = []
        for end in (low, high):
            other = order * touching ** (p - 1) * end - touching**p
            ends.append(pair.response(-order * end, other).bound + order * end - other)
        return ends[0].max(ends[1])

    log_m, test = _balanced(worst, float(reach.log()))
    left, right = 1 - test.accepted, 1 - test.otherwise
    attained = test.moment + left**order * right ** (1 - order)
    enough = (attained + CLOSE * (attained - 1)).upper()
    y, width, limit = (arb(log_m) * (order - 1)).exp().mid(), 2.0, reach ** (order - 1)
    while not most(y / width, y, y * width) <= enough:
        width = math.sqrt(width)
        if width < NARROW:
            return attained, arb("inf")
    cells = [(1 / limit, y / width), (y * width, limit)]
    for _ in range(MAX_CELLS):
        if not cells:
            return attained, enough
        low, high = cells.pop()
        middle = (low * high).sqrt().mid()
        if not (low >= high or most(low, middle, high) <= enough):
            cells += [(low, middle), (middle, high)]
    return attained, arb("inf")


class _Pair:
    """The proposals with and without the record, ``added`` if it is in the numerator, and the
    corners of the square of acceptance probabilities."""

    def __init__(
        self, ratio: Ratio, lowest: arb, highest: arb, rate: arb, order: arb, added: bool
    ) -> None:
        self.ratio, self.added = ratio, added
        self.power = order if added else 1 - order
        square = [(a, b) for a in (lowest, highest) for b in (lowest, highest)]
        without, record = [a for a, _ in square], [(1 - rate) * a + rate * b for a, b in square]
        self.on, self.off = (record, without) if added else (without, record)
        self.gain = [a**order * b ** (1 - order) for a, b in zip(self.on, self.off, strict=True)]
        low, high = ratio.range(self.power)
        self.points = np.linspace(low, high, GRID)
        self.logs = ratio.logs(self.points)
        self.sums = [arb(0)]
        self.tails = [ratio.outside(power, low, high) for power in (self.power, arb(1), arb(0))]

    def response(self, on: arb, off: arb) -> Test:
        """The test that makes ``U + on A + off A'`` the largest, nearly, and a bound for all tests.

        At x a corner counts as n times ``gain u^power + linear u + constant``.
        """
        terms = [
            (g, on * a, off * b) if self.added else (g, off * b, on * a)
            for g, a, b in zip(self.gain, self.on, self.off, strict=True)
        ]
        factors = (self.gain, self.on, self.off) if self.added else (self.gain, self.off, self.on)
        sums = [one * arb(0).union(1) for one in self.tails]
        beyond = (abs(a) * b for term in terms for a, b in zip(term, self.tails, strict=True))
        excess = sum(beyond, arb(0))
        for corner, low, high in self._runs(terms):
            parts = self._integrals(low, high)
            sums = [a + f[corner] * b for a, f, b in zip(sums, factors, parts, strict=True)]
            for rival in terms[:corner] + terms[corner + 1 :]:
                excess += self._largest(_less(rival, terms[corner]), low, high) * parts[2]
        moment, accepted, otherwise = sums if self.added else (sums[0], sums[2], sums[1])
        bound = moment + on * accepted + off * otherwise + 2 * excess
        return Test(moment, accepted, otherwise, bound)

    def _integrals(self, low: arb, high: arb) -> tuple[arb, arb, arb]:
        """The integrals of n times u^power, u and 1 between two points."""
        rate, noise = self.ratio
        absent, moved = (
            normal((high - center) / noise) - normal((low - center) / noise) for center in (0, 1)
        )
        powers = self._up_to(high) - self._up_to(low)
        return powers, (1 - rate) * absent + rate * moved, absent

    def _up_to(self, x: arb) -> arb:
        """Integral of ``n u^power`` from the first point, of which most is kept."""
        step = 2 * float(self.ratio.noise)
        start = float(self.points[0])
        knots = int((float(x) - start) / step)
        while len(self.sums) <= knots:
            end = start + step * len(self.sums)
            more = self.ratio.part(self.power, arb(end - step), arb(end))
            self.sums.append(self.sums[-1] + more)
        return self.sums[knots] + self.ratio.part(self.power, arb(start + step * knots), x)

    def _largest(self, term: Term, low: arb, high: arb) -> arb:
        """At least 0 and the largest ``gain u^power + linear u + constant`` between two x.

        It is convex in u if the gain is positive, as power (power - 1) is; else concave.
        """
        gain, linear, constant = term
        ends = [self.ratio.at(x) for x in (low, high)]
        tried = list(ends)
        slopes = [gain * self.power * u ** (self.power - 1) + linear for u in ends]
        if not (gain > 0 or slopes[0] <= 0 or slopes[1] >= 0):
            tried.append((-linear / (gain * self.power)) ** (1 / (self.power - 1)))
        most = arb(0)
        for u in tried:
            most = most.max(gain * u**self.power + linear * u + constant)
        return most

    def _runs(self, terms: list[tuple[arb, arb, arb]]) -> Iterator[tuple[int, arb, arb]]:
        """The best corner from point to point."""
        exponents = np.stack([float(self.power) * self.logs, self.logs, 0.0 * self.logs])
        sizes = np.array([[float(abs(one).log()) for one in term] for term in terms])
        signs = np.array([[math.copysign(1.0, float(one / abs(one))) for one in t] for t in terms])
        logs = sizes[:, :, None] + exponents
        values = (signs[:, :, None] * np.exp(logs - logs.max(axis=(0, 1)))).sum(axis=1)
        best = np.argmax(values, axis=0)
        places = np.flatnonzero(np.diff(best)).tolist()
        low = arb(self.points[0])
        for k in places:
            corner, following = int(best[k]), int(best[k + 1])
            left, right = map(arb, self.points[k : k + 2])
            high = self._cut(terms[corner], terms[following], left, right)
            ahead = [float(self._worth(_less(term, terms[corner]), high)) for term in terms]
            ahead[corner] = ahead[following] = 0.0
            between = int(np.argmax(ahead))
            if ahead[between] > 0.0:  # it is the best on less than the grid's spacing
                first = self._cut(terms[corner], terms[between], left, high)
                yield corner, low, first
                corner, low = between, first
                high = self._cut(terms[between], terms[following], high, right)
            yield corner, low, high
            low = high
        yield int(best[-1]), low, arb(self.points[-1])

    def _cut(self, left: Term, right: Term, low: arb, high: arb) -> arb:
        """Where two corners are worth the same, nearly."""
        ends, gap = (low, high), _less(left, right)
        for _ in range(HALVINGS):
            middle = ((ends[0] + ends[1]) / 2).mid()
            ends = (middle, ends[1]) if self._worth(gap, middle) > 0 else (ends[0], middle)
        return middle

    def _worth(self, term: Term, x: arb) -> arb:
        """``gain u^power + linear u + constant`` at a point."""
        u = self.ratio.at(x)
        return term[0] * u**self.power + term[1] * u + term[2]


def _less(left: Term, right: Term) -> Term:
    return left[0] - right[0], left[1] - right[1], left[2] - right[2]
