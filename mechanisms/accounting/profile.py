"""Privacy profiles: the hockey-stick divergence ``H(x) = E max(0, P - x Q)`` at ``x = exp(loss)``.

The largest profile that a mechanism reaches, whatever the data and whatever it tests, is convex in
x. So it is the profile of some pair of distributions. This pair dominates the mechanism, and such
pairs compose (Zhu, Dong, Wang 2022, "Optimal Accounting of Differential Privacy via Characteristic
Function", Proposition 10 and Theorem 10). All profiles here are put together from those of sampled
Gaussians:

- of SGM(q, s) itself: with the record in P, ``H(x) = q G(t)`` at ``x = 1 - q + q exp(t)``; with the
  record in Q, ``H(x) = (1 - x (1 - q)) G(t)`` at ``1 / x = 1 - q + q exp(-t)``; G is the profile of
  N(1, s^2) and N(0, s^2) at ``exp(t)``;
- of the largest of some lines ``c L - x g`` in the likelihood ratio L: a line of larger c takes the
  lead at ``L = u x``, whatever x is, and adds ``(c' - c) H(u x)`` to what the first line has.
"""

import functools
import math
from collections.abc import Callable, Iterable
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.special import erfcx

from mechanisms.accounting import fixed_batch, mixture
from mechanisms.accounting.mixture import CANCELLED, TINY

Floats = NDArray[np.float64]

ROUNDING = 1e-14
"""Bound on the error of a profile, relative to the terms whose difference it is."""

LARGEST = 700.0
"""Largest loss whose exponential is taken; that of a much larger one is no float."""


class Dominating(Protocol):
    """A pair of distributions that is at least as far apart as what an application releases, in
    every hockey stick."""

    @property
    def noises(self) -> set[float]:
        """Noise multipliers of all parts; infinite where there is no difference."""

    def excess(self, losses: Floats, adding: bool) -> tuple[Floats, Floats]:
        """The profile less that of equal distributions, ``max(0, 1 - x)``, and a bound on its
        error.

        Args:
            losses: float64 ``[n]``; below 0 it is the other direction's, ``x H'(1 / x)``.
            adding: whether the record is in Q, not in P.
        """

    def span(self, reach: float, adding: bool) -> tuple[float, float]:
        """Least and largest loss within ``reach`` standard deviations of each Gaussian."""

    def variance(self, adding: bool) -> float:
        """Roughly the variance of the losses; it only sets how close they lie."""


class Part(NamedTuple):
    """``weight * H(exp(loss - shift))`` with H of SGM(rate, noise), for several records of one
    person that of their `mixture`; of equal distributions where the noise is infinite; of a batch
    of fixed size (`fixed_batch`) where records are ``replaced`` by others."""

    weight: float
    shift: float
    rate: float
    noise: float
    records: int = 1
    replaced: bool = False


class Case(NamedTuple):
    """One kind of worst case: ``certain[0] - certain[1] x``, and parts.

    What is left to a weight of 1 is the same with and without the record.
    """

    parts: tuple[Part, ...]
    certain: tuple[float, float] = (0.0, 0.0)


class Pair(NamedTuple):
    """What dominates one application, as `Dominating`: at each loss the larger case.

    Attributes:
        removing: the record is in P.
        adding: the record is in Q.
    """

    removing: tuple[Case, ...]
    adding: tuple[Case, ...]

    @property
    def noises(self) -> set[float]:
        return {part.noise for cases in self for case in cases for part in case.parts}

    def excess(self, losses: Floats, adding: bool) -> tuple[Floats, Floats]:
        return _by_sign(losses, adding, lambda at, way: _largest_case(self._cases(way), at, way))

    def span(self, reach: float, adding: bool) -> tuple[float, float]:
        found = []
        for parts, (ours, theirs) in self._cases(adding):
            if ours > 0.0 < theirs:
                found.append(math.log(ours / theirs))
            for part in parts:
                ends = _ends(part, reach)
                found += [part.shift + (-one if adding else one) for one in ends]
        return min(found), max(found)

    def variance(self, adding: bool) -> float:
        return max(
            sum(part.weight * _variance(part, adding) for part in case.parts)
            for case in self._cases(adding)
        )

    def _cases(self, adding: bool) -> tuple[Case, ...]:
        return self.adding if adding else self.removing


def both_ways(*parts: Part) -> Pair:
    """The same parts in both directions."""
    return Pair((Case(parts),), (Case(parts),))


def largest(lines: Iterable[tuple[float, float]], rate: float, noise: float) -> Case:
    """The expectation of the largest line ``c L - x g``, (c, g) of ``lines``; L is the likelihood
    ratio of SGM(rate, noise)."""
    rest = set(lines)
    slope, offset = first = min(rest, key=lambda line: (line[1], -line[0]))
    parts, lead = [], TINY
    while rest := {line for line in rest if line[0] > slope}:
        next_lead, (steeper, further) = min(((g - offset) / (c - slope), (c, g)) for c, g in rest)
        lead = max(lead, next_lead)  # lines that differ by rounding may meet before
        parts.append(Part(steeper - slope, -math.log(lead), rate, noise))
        slope, offset = steeper, further
    return Case(tuple(parts), first)


def _largest_case(cases: Iterable[Case], losses: Floats, adding: bool) -> tuple[Floats, Floats]:
    """The profile of the worst case, and a bound on its error, at losses of at least 0."""
    least, found, most = np.zeros((3, *losses.shape))
    x = np.exp(losses)
    for parts, (ours, theirs) in cases:
        total, terms = ours - theirs * x, ours + theirs * x
        for part in parts:
            at = losses - part.shift
            value, size = _by_sign(at, adding, _law(part))
            equal = np.maximum(-np.expm1(at), 0.0)
            total = total + part.weight * (equal + value)
            terms = terms + part.weight * (equal + size)
        error = ROUNDING * terms
        least = np.maximum(least, total - error)
        found = np.maximum(found, total)
        most = np.maximum(most, total + error)
    return found, np.maximum(most - found, found - least)


def _by_sign(
    losses: Floats, adding: bool, of: Callable[[Floats, bool], tuple[Floats, Floats]]
) -> tuple[Floats, Floats]:
    """``of`` losses in this direction, and in the other one where they are below 0."""
    value, error = np.empty((2, *losses.shape))
    for there, way in ((losses >= 0.0, adding), (losses < 0.0, not adding)):
        scale = np.exp(np.minimum(losses[there], 0.0))
        one, other = of(np.abs(losses[there]), way)
        value[there], error[there] = scale * one, scale * other
    return value, error


def _sampled(q: float, s: float, losses: Floats, adding: bool) -> tuple[Floats, Floats]:
    """H of SGM(q, s) at losses of at least 0, and the size of the terms whose difference it is."""
    if math.isinf(s):
        return np.zeros(losses.shape), np.zeros(losses.shape)
    signed = -losses if adding else losses
    share = np.exp(signed) if q == 1.0 else 1.0 + np.expm1(signed) / q  # exp(-t) or exp(t)
    with np.errstate(divide="ignore"):
        t = np.abs(np.log(np.maximum(share, 0.0)))
    # the profile of Gaussians, as a difference of scaled tails
    near, far = (t * s - 0.5 / s) / math.sqrt(2.0), (t * s + 0.5 / s) / math.sqrt(2.0)
    scale = 0.5 * q * np.exp(-(near**2))
    here, there = scale * erfcx(near), scale * erfcx(far)
    if adding:
        x, value, size = np.exp(losses), here - there, here + there
        if q == 1.0:
            return x * share * value, x * share * size
        unknown = q * (np.abs(share) < CANCELLED)
        return x * np.maximum(share, 0.0) * value, x * (size + unknown)
    return here - there, here + there


def _law(part: Part) -> Callable[[Floats, bool], tuple[Floats, Floats]]:
    """The profile of a part at losses of at least 0, in the form of :func:`_sampled`."""
    if part.replaced:
        return functools.partial(_fixed, part.rate, part.noise)
    if part.records > 1:
        return functools.partial(mixture.sampled, part.rate, part.noise, part.records)
    return functools.partial(_sampled, part.rate, part.noise)


def _fixed(q: float, s: float, losses: Floats, adding: bool) -> tuple[Floats, Floats]:
    """As :func:`_sampled`, of a batch of fixed size."""
    return _sampled(q, s, losses, False) if adding else fixed_batch.profile(q, s, losses)


def _ends(part: Part, reach: float) -> list[float]:
    """The losses of its outermost outcomes, in the direction of removing."""
    _, _, rate, noise, records, replaced = part
    if math.isinf(noise):
        return [0.0]
    far = mixture.farthest(rate, noise, records, reach) if records > 1 else 1.0 + reach * noise
    ends = (-reach * noise, far)
    least, most = (float(loss(x, rate, noise, records)) for x in ends)
    if replaced:
        return [-most, float(fixed_batch.log_ratio(ends[1], rate, noise))]
    return [least, most]


def _variance(part: Part, adding: bool) -> float:
    _, shift, q, s, records, replaced = part
    if replaced:
        return fixed_batch.variance(q, s)
    if math.isinf(s):
        return shift**2
    x = np.linspace(-8.0 * s, records + 8.0 * s, 4001)
    losses = loss(x, q, s, records)
    density = np.exp(-0.5 * (x / s) ** 2)
    if not adding:
        density = density * np.exp(np.minimum(losses, LARGEST))
    mass = density / density.sum()
    mean = float(mass @ losses)
    return float(mass @ (losses - mean) ** 2)


def loss(x: Floats | float, q: float, s: float, records: int = 1) -> Floats:
    """``log(1 - q + q exp((2 x - 1) / (2 s^2)))``, of the record against its absence; of several
    records, likewise."""
    if records > 1:
        terms = mixture.log_weights(q, records)
        nobody = records * math.log1p(-q) if q < 1.0 else -math.inf
        return np.logaddexp(nobody, mixture.log_mean(np.asarray(x), terms, s)[0])
    return fixed_batch.log_mixed((2.0 * np.asarray(x) - 1.0) / (2.0 * s**2), q)
