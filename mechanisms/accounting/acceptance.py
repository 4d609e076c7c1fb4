"""The private acceptance test of a selective mechanism, and the cost of its accept/reject bit.

DPSUR (Fu et al., PVLDB 17(6), 2024) accepts a proposed model if a noisy loss difference is low
enough. The difference is clipped, so for any data the probability of acceptance lies in [lowest,
highest]; the test batch is a separate Poisson batch, so one record is in it with probability
`rate`.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtr

from mechanisms.accounting.sampled_gaussian import log_power_gap
from mechanisms.accounting.selection_events import DpsurStep, ScreenedStep

Floats = NDArray[np.float64]

ROUNDING = 1e-15
ALWAYS = 37.5
"""Standard deviations that a normal variable exceeds with a probability below 1e-300."""


@dataclass(frozen=True)
class Acceptance:
    """Bounds on the probability of acceptance.

    Attributes:
        lowest: lo, in [0, 1].
        highest: hi, in [lo, 1].
        rate: q_v, probability that a record enters the test batch, in (0, 1].
    """

    lowest: float
    highest: float
    rate: float

    @classmethod
    def of_noisy_loss(cls, rate: float, noise: float, beta: float) -> "Acceptance":
        """DPSUR's test ``clip(dE, -C_v, C_v) + N(0, (2 C_v noise)^2) < beta C_v``; all in units of
        C_v. Rounded outward, so that the probabilities of rejection hold, too; but a test that
        rejects with a probability below 1e-300 never does."""
        at_least, at_most = ((beta + c) / (2.0 * noise) for c in (-1.0, 1.0))
        lowest = 1.0 if at_least > ALWAYS else float(ndtr(at_least)) * (1.0 - _rounding(at_least))
        return cls(lowest, min(1.0, float(ndtr(at_most)) * (1.0 + _rounding(at_most))), rate)

    @classmethod
    def of(cls, event: DpsurStep | ScreenedStep) -> "Acceptance":
        """The test of an event."""
        if isinstance(event, DpsurStep):
            return cls.of_noisy_loss(event.validation_rate, event.validation_noise, event.beta)
        return cls(event.lowest_acceptance, 1.0, event.test_rate)  # a loss that falls is accepted

    @property
    def corners(self) -> list[tuple[float, float]]:
        """Probabilities without the record and with it: a convex function is largest at one."""
        ends, q = (self.lowest, self.highest), self.rate
        return [(without, (1.0 - q) * without + q * seen) for without in ends for seen in ends]

    def bit_cost(self, orders: ArrayLike) -> Floats:
        """Renyi divergence of the accept/reject bit alone, B(a) [nats], float64 ``[len(orders)]``.

        The largest Bernoulli divergence between ``p`` and ``(1 - q_v) p + q_v pz`` in both orders,
        with (p, pz) the two corners of [lowest, highest]: these divergences are jointly convex, so
        no other pair is worse.
        """
        low, high, rate = self.lowest, self.highest, self.rate
        one = np.array([[low, high], [1.0 - low, 1.0 - high]])  # of both answers
        other = (1.0 - rate) * one + rate * one[:, ::-1]
        gap = rate * (high - low)
        here, there = np.hstack([one, other]), np.hstack([other, one])
        change = np.array([[-gap, gap, gap, -gap], [gap, -gap, -gap, gap]])
        grid = np.asarray(orders, np.float64)
        return np.array([_bernoulli(here, there, change, order).max() for order in grid])


def _rounding(x: float) -> float:
    """Bound on the relative error of ``ndtr(x)``, and of what an x that is rounded twice moves."""
    return ROUNDING * (1.0 + min(x, 0.0) ** 2)


def _bernoulli(here: Floats, there: Floats, change: Floats, order: float) -> Floats:
    """Renyi divergence of each Bernoulli from another one, ``[n]``.

    Args:
        here, there: the probabilities of both answers, ``[2, n]``.
        change: exactly ``here - there``.
        order: a.

    Small divergences keep their digits: since ``E[t] = 1`` for the likelihood ratio t, ``E[t^a] -
    1`` is the mean of ``t^a - a t + a - 1``, which is never negative.
    """
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        near = np.abs(change) < 0.5 * there
        ratios = np.where(near, np.log1p(change / there), np.log(here / there))
        logs = np.log(there) + log_power_gap(ratios, order)
        values = np.logaddexp(0.0, np.logaddexp(*logs)) / (order - 1.0)
    return np.where(change[0] == 0.0, 0.0, np.where(np.isnan(values), np.inf, values))
