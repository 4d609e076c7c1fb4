"""What a tested step makes of a smooth function at most, against explicit tests."""

import itertools
import math
from typing import Any

import numpy as np
import pytest

from mechanisms.accounting import curves, dominating, tested_step
from mechanisms.accounting.events import DpsurStep, ScreenedStep
from mechanisms.accounting.finite import Finite
from mechanisms.accounting.tested_step import Before, Trial

EVENTS = {
    "paper": DpsurStep(0.01707, 1.35, 0.00427, 0.9, -1.0, "visible"),
    "paper, hidden": DpsurStep(0.01707, 1.35, 0.00427, 0.9, -1.0, "selective"),
    "telling": DpsurStep(0.02, 2.0, 0.05, 0.5, 0.2, "visible"),
    "telling, hidden": DpsurStep(0.02, 2.0, 0.05, 0.5, 0.2, "selective"),
    "all records": DpsurStep(1.0, 8.0, 0.02, 0.9, -1.0, "visible"),
    "all records, hidden": DpsurStep(1.0, 8.0, 0.02, 0.9, -1.0, "selective"),
    "clipped": ScreenedStep(0.1, 2.0, 0.05, 0.2, "clipped"),
    "all alike, hidden": DpsurStep(0.1, 2.0, 0.1, 0.01, 2.0, "selective"),
    "seldom rejected": DpsurStep(0.1, 2.0, 0.05, 0.3, 0.6, "visible"),
}
"""Tests that say more than proposals do, and less."""


class Smooth:
    """What R makes of the hockey stick ``max(0, u - v)``: linear between its bends. R's losses are
    spread by twice those of a step."""

    def __init__(self, event: DpsurStep | ScreenedStep) -> None:
        self.spread = 2.0 * math.sqrt(2.0 * curves.at(event, 1.25, "certified") / 1.25)
        self.space = self.spread / 32
        losses = self.space * np.arange(-240, 241)
        masses = np.exp(-0.5 * losses - 0.5 * (losses / self.spread) ** 2)
        masses /= masses.sum()
        self.bends = np.exp(losses)
        self.values = np.array([masses @ np.maximum(self.bends - x, 0.0) for x in self.bends])
        self.pair = Finite(tuple(losses.tolist()), tuple(masses.tolist()), 0.0, 1.0)
        self.x = np.exp(self.space * np.arange(300))

    def __call__(self, ours: np.ndarray, theirs: np.ndarray) -> np.ndarray:
        ratio = np.divide(theirs, ours, out=np.full(ours.shape, np.inf), where=ours > 0.0)
        inner = ours * np.interp(ratio, self.bends, self.values, right=0.0)
        return np.where(ratio < self.bends[0], ours - theirs, inner)


class World:
    """The outcomes of a proposal, and what is released of it after a test."""

    def __init__(self, step: Trial, adding: bool) -> None:
        y = np.linspace(-8.0 * step.noise, 1.0 + 9.0 * step.noise, 2_001)
        self.theirs = np.exp(-0.5 * (y / step.noise) ** 2)
        self.theirs /= self.theirs.sum()
        q, s = step.rate, step.noise
        self.ours = self.theirs * (1 - q + q * np.exp((2 * y - 1) / (2 * s * s)))
        self.ours /= self.ours.sum()
        self.step, self.adding = step, adding

    def released(self, a: np.ndarray, z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        share = self.step.test.rate
        ours, theirs = self.ours * ((1 - share) * a + share * z), self.theirs * a
        if self.step.hidden:
            ours, theirs = ours / ours.sum(), theirs / theirs.sum()
        else:
            ours, theirs = np.append(ours, 1 - ours.sum()), np.append(theirs, 1 - theirs.sum())
        return (theirs, ours) if self.adding else (ours, theirs)

    def tests(self, smooth: Smooth, x: float) -> list[tuple[np.ndarray, np.ndarray]]:
        """Random ones; and those that take the best corner at each outcome, where it costs b to
        accept it with the record and pays g without it."""
        test, rng = self.step.test, np.random.default_rng(0)
        found = [tuple(rng.uniform(test.lowest, test.highest, (2, len(self.ours))))]
        for shift in np.linspace(-1.0, 1.0, 9):
            if not self.step.hidden:
                z = x * math.exp(shift * smooth.spread)
                fall = -np.interp(z, smooth.bends, np.gradient(smooth.values, smooth.bends))
                start = np.interp(z, smooth.bends, smooth.values) + fall * z
                found.append(self.best(smooth, x, start, fall)[0])
                continue
            y = x * self.step.moved() ** shift
            low, high = 0.0, 1.0
            for _ in range(12):  # until the means are as far apart as y is from x
                g, b = (low + high) / 2.0, 0.0
                for _ in range(5):
                    test, more, (u, v) = self.best(smooth, y, b, g)
                    b += more / u
                found.append(test)
                low, high = (low, g) if y * v > x * u else (g, high)
        return found

    def best(self, smooth: Smooth, y: float, b: float, g: float) -> tuple[Any, float, list[float]]:
        """The test, the mean of what it is worth, and of acceptance in both worlds."""
        test = self.step.test
        corners = np.array(list(itertools.product((test.lowest, test.highest), repeat=2)))
        mixed = (1 - test.rate) * corners[:, 0] + test.rate * corners[:, 1]
        ours, theirs = self.ours * mixed[:, None], self.theirs * corners[:, :1]
        if self.adding:
            ours, theirs = theirs, ours
        worth = smooth(ours, y * theirs) - b * ours + g * y * theirs
        pick = np.argmax(worth, axis=0)
        taken = [np.take_along_axis(one, pick[None], 0).sum() for one in (worth, ours, theirs)]
        return tuple(corners[pick].T), taken[0], taken[1:]


@pytest.mark.parametrize("adding", [False, True])
@pytest.mark.parametrize("event", EVENTS.values(), ids=EVENTS)
def test_no_test_makes_more_of_a_smooth_function_and_one_makes_as_much(event, adding):
    smooth, step = Smooth(event), dominating.repeated(event)
    most = Before(step, smooth.pair, adding, smooth.space / 2.0).at(smooth.x)
    world = World(step, adding)
    for place in (0, 60):
        x = float(smooth.x[place])
        released = (world.released(*one) for one in world.tests(smooth, x))
        found = max(float(smooth(ours, x * theirs).sum()) for ours, theirs in released)
        least = float(smooth(np.ones(1), np.full(1, x))[0])
        assert least <= found <= most[place] * (1 + 1e-4)
        assert most[place] - least < 1.08 * (found - least)


def test_outcomes_keep_the_mass_and_the_mean_of_both_laws():
    """Mass is moved to both neighbours, so that no convex mean falls."""
    for step in map(dominating.repeated, EVENTS.values()):
        found = tested_step.outcomes(step.rate, step.noise, 1e-4)
        assert found.weights.sum() == pytest.approx(1.0, rel=1e-9)
        assert found.weights @ found.ratios + found.beyond == pytest.approx(1.0, rel=1e-9)
        assert found.ratios[0] == 1.0 - step.rate and (np.diff(found.ratios) > 0.0).all()
        y = np.linspace(-12.0, 13.0, 200_001) * step.noise
        law = np.exp(-0.5 * (y / step.noise) ** 2)
        q, s = step.rate, step.noise
        ratios = 1 - q + q * np.exp((2 * y - 1) / (2 * s * s))
        for bend in (0.99, 1.0, 1.2, 3.0):
            true = float(law @ np.maximum(ratios - bend, 0.0) / law.sum())
            assert true <= float(found.weights @ np.maximum(found.ratios - bend, 0.0)) + 1e-12


def test_no_outcome_that_counts_has_a_larger_loss():
    """Of tests that take the best corners."""
    silent = DpsurStep(0.00159, 5.6, 0.0541, 0.385, -0.373, "visible")
    for event in (*EVENTS.values(), silent):
        step = dominating.repeated(event)
        for adding in (False, True):
            world = World(step, adding)
            for one in world.tests(Smooth(event), 1.0)[::10]:
                ours, theirs = world.released(*one)
                told = (ours > 1e-13) & (theirs > 1e-13)
                losses = np.abs(np.log(ours[told] / theirs[told]))
                assert losses.max() <= step.largest_loss() + 1e-9


def test_a_proposal_that_says_little_has_outcomes_all_the_same():
    found = tested_step.outcomes(1e-4, 100.0, 0.01)
    assert 10 < len(found.ratios) < 200
    assert math.log(found.ratios[-1] / found.ratios[0]) < 2e-4
