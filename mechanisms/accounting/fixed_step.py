"""The most that a step whose batch has a fixed size can make of a function of the loss.

`fixed_batch` has a worst client for each direction, x = -1, y = 1 for ``H_u(P, Q)`` and x = y = 1
for ``H_u(Q, P)``, and no client is both. Let D be the distance of x and y. The likelihood ratios
there are (1 - c) X + c Y, with lognormals of mean 1 whose logarithms' covariances, times s^2, are

    D^2, |y|^2 <= 1 and <x - y, -y> <= D            for H_u(P, Q),
    |x|^2, |y|^2 <= 1 and <x, y> <= 1 - D^2 / 2     for H_u(Q, P),

and the mean of a convex function of such a sum grows with each covariance (Kahane 1985, "Sur le
chaos multiplicatif"). So the first is at most that of y = 1 and x = 1 - D on a line, which grows
with D, and the second that of unit vectors of distance D, which falls. A function of the loss is a
mixture of hockey sticks of both, and for all D of an interval at most what each has at its worse
end (docs/theory, Proposition 29).
"""

import functools
import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import erfcx, ndtr

from mechanisms.accounting import fixed_batch
from mechanisms.accounting.finite import Finite
from mechanisms.accounting.profile import ROUNDING

Floats = NDArray[np.float64]

INTERVALS = 16
"""Intervals of D, at equal angles between x and y."""
REACH = 8.5
"""Standard deviations of outcomes that count."""
PASSES = 30
"""Passes of Newton's method; a few are enough."""
COARSEST = 0.5
"""Space between the points of an integral over a normal variable at most. They are no further apart
than the width in which a bend of the integrand is smooth, nor than a quarter of that in which one
likelihood ratio takes over from the other: the trapezoidal rule is right to 1e-7 with them."""


class FixedStep(NamedTuple):
    """A sum with noise over a batch of a fixed size, which has a record with this rate."""

    rate: float
    noise: float

    @property
    def hidden(self) -> bool:
        """Nothing is rejected."""
        return False

    def largest_loss(self) -> float:
        """An upper bound on the loss of an outcome that counts, in either direction."""
        return float(fixed_batch.log_ratio(1.0 + REACH * self.noise, self.rate, self.noise))

    def before(self, after: Finite, adding: bool) -> "Before":
        """What a step makes of losses on a lattice."""
        return Before(self, after, adding)


class Before:
    """What a step makes of the profile of losses on a lattice, if the record is in P or,
    ``adding``, in Q."""

    def __init__(self, step: FixedStep, after: Finite, adding: bool) -> None:
        self.step, self.adding = step, adding
        self.losses = np.array(after.losses)
        self.masses = np.exp(self.losses) * after.masses

    def at(self, x: Floats) -> Floats:
        """The excess over ``max(0, 1 - x)`` at points of the lattice from 1 on."""
        last = len(self.losses) // 2
        space = float(self.losses[-1]) / last
        places = np.rint(np.log(x) / space).astype(np.int64)
        both = [side * (1.0 + fixed_batch.MARGIN) for side in _sides(self.step, space, 2 * last)]
        ours, theirs = both[:: -1 if self.adding else 1]
        below = theirs[:, :0:-1] * np.exp(-space * np.arange(2 * last, 0, -1))
        table = np.hstack([below, ours])
        near = places <= last
        windows = np.lib.stride_tricks.sliding_window_view(table, len(self.masses), axis=1)
        gained = (windows @ self.masses[::-1]).max(axis=0)[places[near] + last]
        moved = space * places[near, None] - self.losses
        equal = np.maximum(0.0, -np.expm1(moved)) @ self.masses
        # further away no hockey stick of the other direction counts
        beyond = np.exp(np.log(x[~near, None]) - self.losses)
        far = _alike(self.step, 0.0, beyond) if self.adding else _apart(self.step, 2.0, beyond)
        return np.append(gained + equal, far @ self.masses)


@functools.lru_cache(maxsize=4)
def _sides(step: FixedStep, space: float, last: int) -> tuple[Floats, Floats]:
    """Upper bounds on ``H_u(P, Q)`` and ``H_u(Q, P)`` for each interval of D, at ``u = exp(space *
    k)``, k up to the last one; ``[INTERVALS, last + 1]`` each."""
    u = np.exp(space * np.arange(last + 1))
    distances = 2.0 * np.sin(0.5 * math.pi * np.arange(INTERVALS + 1) / INTERVALS)
    ends = zip(distances[:-1].tolist(), distances[1:].tolist(), strict=True)
    found = [(_apart(step, most, u), _alike(step, least, u)) for least, most in ends]
    apart, alike = zip(*found, strict=True)
    return np.array(apart), np.array(alike)


def _apart(step: FixedStep, distance: float, u: Floats) -> Floats:
    """``H_u(P, Q)`` of y = 1 and x = 1 - D: of the outcomes at which P is larger than u Q."""
    q, s = step
    others, record = _weights(step, u)
    # log of the ratio of Q to P, which rises with g; from above, Newton's method falls to its root
    with np.errstate(divide="ignore", over="ignore"):
        g = np.minimum(0.5 / s - s * record, 0.5 * distance / s - s / distance * others)
    for _ in range(PASSES):
        one = others + distance * g / s - 0.5 * (distance / s) ** 2
        two = record + g / s - 0.5 / s**2
        log_ratio = np.logaddexp(one, two)
        g = g - log_ratio * s / (distance * np.exp(one - log_ratio) + np.exp(two - log_ratio))
    terms = ndtr(g), np.exp(others) * ndtr(g - distance / s), u * ndtr(g - 1.0 / s)
    return np.asarray(q * (np.maximum(terms[0] - terms[1] - terms[2], 0.0) + ROUNDING * sum(terms)))


def _alike(step: FixedStep, distance: float, u: Floats) -> Floats:
    """``H_u(Q, P)`` of unit vectors of distance D < 2: an integral along the difference of both."""
    q, s = step
    across, along = 0.5 * distance, math.sqrt(1.0 - 0.25 * distance**2)
    steps = math.ceil(9.0 * max(1.0 / COARSEST, across / along, 4.0 * across / s))
    g = np.linspace(-9.0, 9.0, 2 * steps + 1)
    weights = np.exp(-0.5 * g**2)
    others, record = (one[..., None] for one in _weights(step, u))
    pull = across * g / s
    log_m = np.logaddexp(others + pull, record - pull) - 0.5 / s**2
    t = -s / along * log_m
    away = t - along / s
    with np.errstate(over="ignore"):
        tail = 0.5 * np.exp(-0.5 * t**2) * erfcx(-np.minimum(away, 0.0) / math.sqrt(2.0))
        whole = np.exp(np.minimum(log_m + 0.5 * (along / s) ** 2, 0.0)) * ndtr(away)
    here, there = ndtr(t), np.where(away < 0.0, tail, whole)
    values = np.maximum(here - there, 0.0) + ROUNDING * (here + there)
    return np.asarray(q * (values @ weights) / weights.sum())


def _weights(step: FixedStep, u: Floats) -> tuple[Floats, Floats]:
    """Logarithms of a (1 - c) and a c, with a and c as in `fixed_batch`."""
    with np.errstate(divide="ignore"):
        return np.log((u - 1.0) * (1.0 - step.rate) / step.rate), np.log(u)
