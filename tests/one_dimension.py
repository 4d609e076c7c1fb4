"""Selective and visible release in one dimension, by plain numerical integration: what any bound
has to stay above."""

import numpy as np


def log_sum(logs):
    """``log(sum(exp(logs)))``."""
    return logs.max() + np.log(np.exp(logs - logs.max()).sum())


class Model:
    """Proposals N(0, s^2) and (1 - q) N(0, s^2) + q N(1, s^2), a test batch of rate q_v; on a grid
    x ``[points]``.

    Acceptance functions a0, az are ``[points]``, positive; a jump between points makes an error of
    some 1e-6 relative.
    """

    def __init__(self, rate, noise, test_rate, order, points=6_001):
        self.x = np.linspace(-order - 9 * noise, order + 9 * noise, points)
        step = (self.x[1] - self.x[0]) / (noise * np.sqrt(2 * np.pi))
        self.without = -(self.x**2) / (2 * noise**2) + np.log(step)
        shift = np.log(rate) + (2 * self.x - 1) / (2 * noise**2)
        self.within = self.without + (np.logaddexp(np.log1p(-rate), shift) if rate < 1 else shift)
        self.test_rate, self.order = test_rate, order

    def accepted(self, a0, az, added):
        """Log masses per point of accepted proposals: numerator and denominator."""
        mixed = self.within + np.log((1 - self.test_rate) * a0 + self.test_rate * az)
        pair = (mixed, self.without + np.log(a0))
        return pair if added else pair[::-1]

    def selective(self, a0, az, added):
        """Renyi divergence of the accepted proposal."""
        f, g = (logs - log_sum(logs) for logs in self.accepted(a0, az, added))
        return log_sum(self.order * f + (1 - self.order) * g) / (self.order - 1)

    def visible(self, a0, az, added):
        """Renyi divergence of a trial whose rejected proposal stays hidden."""
        f, g = self.accepted(a0, az, added)
        rejected = (np.log1p(-np.exp(log_sum(logs))) for logs in (f, g))
        points = [np.append(logs, rest) for logs, rest in zip((f, g), rejected, strict=True)]
        return log_sum(self.order * points[0] + (1 - self.order) * points[1]) / (self.order - 1)

    def climb(self, divergence, lowest, highest, added):
        """The largest divergence met by moving a test uphill: at each point to the corner that its
        tangent prefers."""
        corners = [(a0, az) for a0 in (lowest, highest) for az in (lowest, highest)]
        flat = [
            self.accepted(np.full(self.x.size, a0), np.full(self.x.size, az), added)
            for a0, az in corners
        ]
        order, hidden, best = self.order, divergence == self.selective, -np.inf
        powers = [order * f + (1 - order) * g for f, g in flat]
        for m in (0.98, 1.0, 1.02):
            # log J; a visible trial subtracts its rejections at J = e^scale
            price = 0.0 if hidden else -np.inf
            for _ in range(40):
                scale = max(power.max() for power in powers)
                worth = [np.exp(power - scale) for power in powers]
                tangent = [
                    order * m ** (order - 1) * np.exp(f) - (order - 1) * m**order * np.exp(g)
                    for f, g in flat
                ]
                factor = np.exp(price - scale) if hidden else np.exp(-scale)
                chosen = np.argmax(
                    [w - factor * t for w, t in zip(worth, tangent, strict=True)], axis=0
                )
                a0, az = np.array(corners)[chosen].T
                reached = divergence(a0, az, added)
                f, g = (np.exp(log_sum(logs)) for logs in self.accepted(a0, az, added))
                m, price = (f / g, (order - 1) * reached) if hidden else ((1 - f) / (1 - g), price)
                best = max(best, reached)
        return best

    def attack(self, divergence, lowest, highest, thresholds=24):
        """The largest divergence over tests whose a0 and az jump at thresholds, in all
        directions."""
        jumps = np.linspace(-4, self.order + 2, thresholds)
        levels = [
            np.where(sign * (self.x - t) > 0, highest, lowest) for sign in (1, -1) for t in jumps
        ]
        best = -np.inf
        for added in (True, False):
            for a0 in levels[:: max(1, len(levels) // 24)]:
                best = max(best, *(divergence(a0, az, added) for az in levels))
        return best
