"""Many tested steps against whoever chooses each test by what was released before, by backward
induction. Of the accounting it shares the events alone.

After each step the test may depend on the privacy loss l so far. With W(l) the largest mean of
``max(0, 1 - exp(epsilon - loss))`` that later steps can bring about, a step's largest mean is

    visible:    E_P[a W(l + log(L a / a'))] + (1 - A) W(l + log((1 - A) / (1 - A')))
    selective:  E_P[a W(l + log(L a A' / (a' A)))] / A

over all tests: a and a' are the probabilities of acceptance with the numerator's and the
denominator's data, A and A' their means. W depends on l - epsilon alone, so that one induction
gives all epsilons. Where A and A' enter, W is replaced by its tangent at the last test's values;
then the best test takes the best corner at each outcome. Every test that is tried gives a lower
bound, up to the grid.
"""

import math
from typing import NamedTuple

import numpy as np
from scipy.optimize import brentq
from scipy.special import ndtr

from mechanisms.accounting.events import DpsurStep

REACH = (7.0, 8.5)
"""Standard deviations of the proposal on either side."""
DAMPING = 0.3
"""Of the change of A / A' from one pass to the next, without which it oscillates."""


class Grid(NamedTuple):
    """Of losses less epsilon, from ``low`` to ``high``; and of a proposal's outcomes."""

    low: float = -6.0
    high: float = 3.0
    spacing: float = 0.01
    outcomes: int = 120


def worst_epsilon(event: DpsurStep, count: int, delta: float, passes: int, grid: Grid) -> float:
    """The least epsilon of so many steps against the worst tests that were found."""
    induction = _Induction(event, grid)
    step = induction.hidden if event.accounting == "selective" else induction.visible
    for _ in range(count):
        step(passes)
    logs = np.log(np.maximum(induction.values, 1e-300)) - math.log(delta)
    return float(brentq(lambda eps: np.interp(-eps, induction.losses, logs), 0.0, -grid.low - 0.5))


class _Induction:
    def __init__(self, event: DpsurStep, grid: Grid) -> None:
        q, s, share = event.sample_rate, event.noise_multiplier, event.validation_rate
        bounds = [ndtr((event.beta + c) / (2.0 * event.validation_noise)) for c in (-1.0, 1.0)]
        without = np.repeat(bounds, 2)
        within = (1.0 - share) * without + share * np.tile(bounds, 2)
        y = np.linspace(-REACH[0] * s, 1.0 + REACH[1] * s, grid.outcomes)
        absent = np.exp(-0.5 * (y / s) ** 2)
        present = absent * (1.0 - q + q * np.exp((2.0 * y - 1.0) / (2.0 * s * s)))
        ours, theirs = ((one / one.sum())[:, None] for one in (present, absent))
        self.on, self.off = (ours * within).ravel(), (theirs * without).ravel()
        self.shifts = np.log(self.on / self.off)
        self.corners = np.arange(0, self.on.size, 4)
        self.spacing = grid.spacing
        self.losses = np.arange(grid.low, grid.high + grid.spacing / 2.0, grid.spacing)
        self.values = np.maximum(0.0, -np.expm1(np.minimum(-self.losses, 0.0)))
        self.log_m = np.zeros(self.losses.size)
        self.mean, self.slope = self.values, self.values + np.gradient(self.values, self.spacing)

    def visible(self, passes: int) -> None:
        """One trial earlier; `log_m` is ``log((1 - A) / (1 - A'))`` of the last test."""
        slopes = np.gradient(self.values, self.spacing)
        gain = self.on * self._at(self.values, self.shifts[None, :])
        best = np.zeros(self.values.size)
        for _ in range(passes):
            there, slope = (self._at(one, self.log_m[:, None]) for one in (self.values, slopes))
            tangent, m = there + slope, np.exp(self.log_m)[:, None]
            pick = self._best(gain - tangent * self.on + m * slope * self.off)
            on, off = 1.0 - self.on[pick].sum(axis=1), 1.0 - self.off[pick].sum(axis=1)
            self.log_m = np.log(on / off)
            rejected = on * self._at(self.values, self.log_m[:, None])[:, 0]
            best = np.maximum(best, np.take_along_axis(gain, pick, 1).sum(axis=1) + rejected)
        self.values = np.minimum(best, 1.0)

    def hidden(self, passes: int) -> None:
        """One accepted step earlier; `log_m` is ``log(A / A')`` of the last tests, `mean` what they
        attain, and `slope` its derivative by ``-log_m``, which also pays for A'."""
        derivative = self.values + np.gradient(self.values, self.spacing)
        best = np.zeros(self.values.size)
        for _ in range(passes):
            m, slope = np.exp(self.log_m)[:, None], self.slope[:, None]
            gain = self.on * self._at(self.values, self.shifts - self.log_m[:, None])
            pick = self._best(
                (gain - slope * self.on) / m + (slope - self.mean[:, None]) * self.off
            )
            on = self.on[pick]
            accepted = on.sum(axis=1)
            log_m = np.log(accepted / self.off[pick].sum(axis=1))
            moved = self.shifts[pick] - log_m[:, None]
            mean, slopes = (
                (on * self._at(one, moved)).sum(axis=1) / accepted
                for one in (self.values, derivative)
            )
            best = np.maximum(best, mean)
            self.log_m = self.log_m + DAMPING * (log_m - self.log_m)
            self.mean, self.slope = mean, slopes
        self.values = np.minimum(best, 1.0)

    def _best(self, scores: np.ndarray) -> np.ndarray:
        """The place of the best of four corners at each outcome ``[losses, outcomes]``."""
        return scores.reshape(len(scores), -1, 4).argmax(axis=2) + self.corners

    def _at(self, values: np.ndarray, moved: np.ndarray) -> np.ndarray:
        """At the grid's losses, moved; by cubic interpolation."""
        place = (self.losses[:, None] - self.losses[0] + moved) / self.spacing
        place = np.clip(place, 1.0, values.size - 3.001)
        k = place.astype(int)
        f = place - k
        below, above = f * (f - 1.0) / 6.0, f * (f + 1.0) / 6.0
        outer = (f - 1.0) * above * values[k + 2] - (f - 2.0) * below * values[k - 1]
        inner = (f + 1.0) * (f - 2.0) / 2.0
        return outer + inner * ((f - 1.0) * values[k] - f * values[k + 1])
