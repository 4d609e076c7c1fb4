"""Selective and visible release in one dimension, by plain numerical integration: what any bound has to stay above."""

import numpy as np


class Model:
    """Proposals N(0, s^2) and (1 - q) N(0, s^2) + q N(1, s^2), a test batch of rate q_v; on a grid x ``[points]``."""

    def __init__(self, rate, noise, test_rate, order, points=6_001):
        self.x = np.linspace(-order - 9 * noise, order + 9 * noise, points)
        step = (self.x[1] - self.x[0]) / (noise * np.sqrt(2 * np.pi))
        self.without = np.exp(-(self.x**2) / (2 * noise**2)) * step
        self.within = (1 - rate) * self.without + rate * np.exp(-((self.x - 1) ** 2) / (2 * noise**2)) * step
        self.test_rate, self.order = test_rate, order

    def masses(self, a0, az, added):
        """Accepted numerator and denominator masses per point, and the proposals' masses in the same order."""
        mixed = (1 - self.test_rate) * a0 + self.test_rate * az
        pairs = [(self.within, mixed), (self.without, a0)]
        (p, a), (p2, a2) = pairs if added else pairs[::-1]
        return p * a, p2 * a2

    def selective(self, a0, az, added):
        """Renyi divergence of the accepted proposal."""
        f, g = self.masses(a0, az, added)
        f, g = f / f.sum(), g / g.sum()
        return np.log((g * (f / g) ** self.order).sum()) / (self.order - 1)

    def visible(self, a0, az, added):
        """Renyi divergence of a trial whose rejected proposal stays hidden."""
        f, g = self.masses(a0, az, added)
        rejected = (1 - f.sum()) ** self.order * (1 - g.sum()) ** (1 - self.order)
        return np.log((g * (f / g) ** self.order).sum() + rejected) / (self.order - 1)

    def attack(self, divergence, lowest, highest, thresholds=24):
        """The largest divergence over tests whose a0 and az jump at thresholds, in all directions."""
        jumps = np.linspace(-4, self.order + 2, thresholds)
        levels = [np.where(sign * (self.x - t) > 0, highest, lowest) for sign in (1, -1) for t in jumps]
        best = -np.inf
        for added in (True, False):
            for a0 in levels[:: max(1, len(levels) // 24)]:
                best = max(best, *(divergence(a0, az, added) for az in levels))
        return best
