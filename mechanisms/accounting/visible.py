"""Trials whose accept/reject bit is public while a rejected proposal stays hidden.

With U = E[L^alpha a^alpha a'^(1-alpha)], A = E[L a], A' = E[a'] over the denominator's proposal,
the moment of one trial is ``U + (1-A)^alpha (1-A')^(1-alpha)``. Replacing the last term by its
tangents and exchanging suprema, its maximum over all tests is the supremum over m of

    V(m) = E[ max over corners of
              (a^alpha a'^(1-alpha) L^alpha - alpha m^(alpha-1) a L + (alpha-1) m^alpha a') ]
           + alpha m^(alpha-1) - (alpha-1) m^alpha

The bound is a supremum over m, so it must also cover all m between those that are evaluated. Two
facts make that cheap:
- A maximizing m equals (1-A) / (1-A'), and |A - A'| <= eta = (hi - lo) (total variation of the
  proposals + q_v), so
  |log m| <= log(1 + eta / (1-hi)).
- In log m, V is a supremum of functions with second derivatives at least -k (bounded below on each
  cell), so between two points it stays below its chord plus the parabola of curvature k.
Cells whose bound exceeds the largest value found are halved until none does: branch and bound.

Unit: one record, zero-out adjacency, larger of both directions; nats per trial.
"""

import math
import sys

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mechanisms.accounting import sampled_gaussian
from mechanisms.accounting.acceptance import Acceptance
from mechanisms.accounting.worst_pair import WorstPair, divergence, pairs

Floats = NDArray[np.float64]

CELLS = 8  # to begin with
CLOSE = 1e-5  # relative accuracy of the divergence at which branch and bound stops
EVALUATIONS = 4_000
MIN_SCALED = sys.float_info.min  # scaled sums of many points lose no digits above it


def every_trial(rate: float, noise: float, acceptance: Acceptance, orders: ArrayLike) -> Floats:
    """Cost of a trial whose proposal is public whether accepted or not: SGM(rate, noise) plus the
    bit; nats ``[n]``."""
    return np.asarray(sampled_gaussian.curve(rate, noise, orders) + acceptance.bit_cost(orders))


def visible(rate: float, noise: float, acceptance: Acceptance, orders: ArrayLike) -> Floats:
    """Renyi divergence of one trial with a public bit; float64 ``[len(orders)]`` in nats, never
    above `every_trial`.

    Args:
        rate: Poisson rate q of the proposal, in (0, 1].
        noise: its noise multiplier s, positive.
        acceptance: bounds on the probability of acceptance.
        orders: Renyi orders above 1.
    """
    grid = np.asarray(orders, dtype=np.float64)
    values = [_one(rate, noise, acceptance, float(order)) for order in grid]
    return np.minimum(values, every_trial(rate, noise, acceptance, grid))


def _one(rate: float, noise: float, acceptance: Acceptance, order: float) -> float:
    """An upper bound of the divergence; infinite where the grid or the range of m gives none."""
    if acceptance.lowest <= 0.0 or acceptance.highest >= 1.0:
        return math.inf
    both = pairs(rate, noise, acceptance, order)
    if both is None:
        return math.inf
    return divergence(max(_Supremum(pair, acceptance).log_moment() for pair in both), order)


class _Supremum:
    """The supremum of V - 1 over log m in one direction, kept without a factor e^scale."""

    def __init__(self, pair: WorstPair, acceptance: Acceptance) -> None:
        variation = float(np.maximum(pair.basis[1] - pair.basis[2], 0.0).sum())
        self.pair = pair
        self.accept = acceptance
        self.eta = (acceptance.highest - acceptance.lowest) * (variation + acceptance.rate)
        rejected = 1.0 - acceptance.highest
        self.reach = math.log1p(min(self.eta, acceptance.highest - acceptance.lowest) / rejected)
        self.scale = max(0.0, pair.log_scale + float(pair.log_gain.max()), pair.order * self.reach)
        self.gain = np.exp(pair.log_gain + pair.log_scale - self.scale)

    def log_moment(self) -> float:
        """An upper bound of log V, within `CLOSE` unless it takes more than `EVALUATIONS`."""
        nodes = np.linspace(-self.reach, self.reach, CELLS + 1)
        values = self.excess(nodes)
        cells = np.stack([nodes[:-1], nodes[1:], values[:-1], values[1:]])
        best, used = float(values.max()), nodes.size
        while True:
            bounds = self.cell_bounds(cells)
            enough = best + CLOSE * self.log(best) * (best + math.exp(-self.scale))
            worst = float(bounds.max())
            if worst <= enough or used > EVALUATIONS:
                return self.log(max(best, worst))
            cells = cells[:, bounds > enough]
            middle = cells[:2].mean(axis=0)
            values = self.excess(middle)
            best, used = max(best, float(values.max())), used + middle.size
            left = np.stack([cells[0], middle, cells[2], values])
            right = np.stack([middle, cells[1], values, cells[3]])
            cells = np.concatenate([left, right], axis=1)

    def log(self, excess: float) -> float:
        """``log(V)`` of a scaled ``V - 1``; one that has underflowed is rounded up."""
        if self.scale == 0.0:
            return math.log1p(max(excess, 0.0))
        return self.scale + math.log(
            max(excess + math.exp(-self.scale), math.exp(-self.scale), MIN_SCALED)
        )

    def excess(self, log_m: Floats) -> Floats:
        """Scaled ``V - 1`` at each log m, float64 ``[n]``."""
        pair, order = self.pair, self.pair.order
        linear = order * np.exp((order - 1.0) * log_m - self.scale)
        constant = (order - 1.0) * np.exp(order * log_m - self.scale)
        parts = [np.outer(linear, -pair.numerator), np.outer(constant, pair.denominator)]
        factors = np.stack([np.broadcast_to(self.gain, parts[0].shape), *parts], axis=2)
        sums, corners = np.empty(log_m.size), np.empty((len(self.gain), pair.basis.shape[1]))
        for k, factor in enumerate(factors):  # one m at a time stays within the processor's cache
            np.matmul(factor, pair.basis, out=corners)
            sums[k] = np.maximum(*np.maximum(corners[:2], corners[2:])).sum()
        return np.asarray(sums + (linear - constant - math.exp(-self.scale)))

    def cell_bounds(self, cells: Floats) -> Floats:
        """Upper bounds of the scaled ``V - 1`` on cells (left, right, value left, value right),
        ``[4, n] -> [n]``.

        The second derivative in log m of the part that depends on m is
        ``-alpha (alpha-1) m^(alpha-1) [(1-A') (alpha m - alpha + 1) + (alpha-1) (A - A')]``.
        """
        order = self.pair.order
        left, right, at_left, at_right = cells
        bracket = (1.0 - self.accept.lowest) * np.maximum(order * np.exp(right) - order + 1.0, 0.0)
        bracket += (order - 1.0) * self.eta
        growth = order * (order - 1.0) * np.exp((order - 1.0) * right - self.scale)
        bend = growth * bracket * (right - left) ** 2
        # the maximum of chord plus parabola: at an end if the chord rises by bend / 2 or more
        rise = np.abs(at_right - at_left)
        with np.errstate(divide="ignore", invalid="ignore"):
            inside = (at_left + at_right) / 2.0 + bend / 8.0 + rise**2 / (2.0 * bend)
        return np.where(rise >= bend / 2.0, np.maximum(at_left, at_right), inside)
