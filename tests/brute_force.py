"""Lower bounds on epsilon by brute force. Of the accounting they share the events alone.

A mechanism is a table of outcomes: the probability of each with the record, and without it. What
merges outcomes, or leaves some out, is no less private. So every bound is from below, up to
rounding, for which there is a margin.
"""

import itertools
import math
from collections.abc import Iterator

import numpy as np
from scipy.signal import fftconvolve
from scipy.special import ndtr

from mechanisms.accounting import events

Table = tuple[np.ndarray, np.ndarray]
"""Probabilities of outcomes with the record and without it, ``[n]`` each."""

CELLS = 2_000
"""Intervals of a noisy sum that are told apart."""
FINENESS = 0.02
"""Width of a class of losses, in standard deviations of a step's loss."""
NOISE = 1e-12
"""Bound on the error of convolved probabilities, all together; of the second law's, times
exp(-loss)."""
ORDERS = (2.0, 6.0, 20.0)
"""Renyi orders whose worst tests are tried in many steps."""


def least_epsilon(event: events.Event, count: int, delta: float) -> float:
    """An epsilon that some data and tests reach with so many applications."""
    tables = (table for test in _tables(event, count) for table in (test, test[::-1]))
    return max(_composed_epsilon(*table, count, delta) for table in tables)


def _composed_epsilon(ours: np.ndarray, theirs: np.ndarray, count: int, delta: float) -> float:
    with np.errstate(divide="ignore", invalid="ignore"):
        losses = np.log(ours) - np.log(theirs)
    seen = ours > 0.0
    ours, theirs, losses = ours[seen], theirs[seen], losses[seen]
    if count == 1:
        falling = np.argsort(-losses)
        return _epsilon(ours[falling], np.cumsum(theirs[falling]), delta)
    mean = float(ours @ losses)
    width = FINENESS * math.sqrt(float(ours @ (losses - mean) ** 2))
    least = losses.min()
    classes = np.rint((losses - least) / width).astype(int)
    # the second law is kept as what it is times exp(loss), as large as the first one
    near = np.exp(least + width * classes)
    one = [np.bincount(classes, weights=mass) for mass in (ours, theirs * near)]
    ours, theirs, first = _convolved(one, count)
    losses = count * least + width * (first + np.arange(len(ours)))
    sums = np.cumsum((theirs * np.exp(-losses))[::-1]) + NOISE * np.exp(-losses[::-1])
    return _epsilon(ours[::-1], sums, delta + NOISE)


def _convolved(one: list[np.ndarray], count: int) -> tuple[np.ndarray, np.ndarray, int]:
    """Both laws of the sum of so many classes' numbers, which all steps together release, without
    the ends that hardly ever happen; and where they begin."""
    total, first = [np.ones(1), np.ones(1)], 0
    for bit in f"{count:b}":
        total, first = [fftconvolve(law, law) for law in total], 2 * first
        if bit == "1":
            total = [fftconvolve(*both) for both in zip(total, one, strict=True)]
        inner = [np.cumsum(total[0][::way])[::way] > 1e-15 for way in (1, -1)]
        kept = np.flatnonzero(inner[0] & inner[1])
        total = [np.maximum(law[kept[0] : kept[-1] + 1], 0.0) for law in total]
        first += int(kept[0])
    return total[0], total[1], first


def _epsilon(ours: np.ndarray, sums: np.ndarray, delta: float) -> float:
    """The largest ``log((P(S) - delta) / Q(S))`` of sets S of the first outcomes."""
    with np.errstate(divide="ignore", invalid="ignore"):
        found = np.log(np.maximum(np.cumsum(ours) - delta, 0.0)) - np.log(sums)
    return max(0.0, float(np.nanmax(found)))


def sampled(rate: float, noise: float) -> Table:
    """One noisy sum in which the record is with this probability."""
    edges = np.linspace(-9.0 * noise, 1.0 + 9.0 * noise, CELLS - 1)
    absent, present = (_between(edges, middle, noise) for middle in (0.0, 1.0))
    return (1.0 - rate) * absent + rate * present, absent


def fixed(rate: float, noise: float, other: float) -> Table:
    """One noisy sum in whose batch the record is with this probability, and else another one."""
    edges = np.linspace(-1.0 - 9.0 * noise, 1.0 + 9.0 * noise, CELLS - 1)
    apart, absent, present = (_between(edges, mean, noise) for mean in (other, 0.0, 1.0))
    return (1.0 - rate) * apart + rate * present, (1.0 - rate) * apart + rate * absent


def _between(edges: np.ndarray, mean: float, noise: float) -> np.ndarray:
    """Masses of a normal variable between the edges and beyond them; of its small tails, too."""
    up = ndtr((np.array([-np.inf, *edges, np.inf]) - mean) / noise)
    down = ndtr((mean - np.array([-np.inf, *edges, np.inf])) / noise)
    return np.where(up[1:] < 0.5, np.diff(up), -np.diff(down))


def _tables(event: events.Event, count: int) -> list[Table]:
    """What is released once, for each test that is tried."""
    match event:
        case events.SampledGaussian(rate, noise) | events.NoisyNormSum(rate, noise):
            scale = rate if isinstance(event, events.NoisyNormSum) else 1.0
            return [sampled(rate, noise * scale)]
        case events.FixedBatchGaussian(batch, records, noise):
            return [fixed(batch / records, noise, other) for other in (-1.0, 0.0, 1.0)]
        case events.Gaussian(noise):
            return [sampled(1.0, noise)]
        case events.ImportanceSampledGaussian(batch, clip, norm_sum, records, noise):
            return [sampled(batch * clip / norm_sum, noise * clip * records / norm_sum)]
        case events.HeterogeneousGaussian(rate, noise, scale):
            return [sampled(rate, noise * scale)]
        case events.VisibleChoice(rate, noise):
            own = sampled(1.0, noise)
            return [tuple(np.append(rate * mass, 1.0 - rate) for mass in own)]
        case events.RandomizedResponse(epsilon):
            likely = 1.0 / (1.0 + math.exp(-epsilon))
            return [(np.array([likely, 1.0 - likely]), np.array([1.0 - likely, likely]))]
        case events.ScreenedStep(rate, noise, _, _, "public-test"):
            return [sampled(rate, noise)]
        case events.ScreenedStep(rate, noise, share, lowest):
            return _tested(sampled(rate, noise), share, (lowest, 1.0), "selective", count)
        case events.DpsurStep(rate, noise, share, test, beta, accounting):
            bounds = tuple(float(ndtr((beta + side) / (2.0 * test))) for side in (-1.0, 1.0))
            return _tested(sampled(rate, noise), share, bounds, accounting, count)
    raise ValueError(f"{event} has no table")


def _tested(
    proposal: Table, share: float, bounds: tuple[float, float], accounting: str, count: int
) -> list[Table]:
    """Many tests of one step, and of many steps those that are the worst at a few Renyi orders."""
    corners = [
        (np.full(CELLS, a), np.full(CELLS, z)) for a, z in itertools.product(bounds, repeat=2)
    ]
    tests = [*_switching(proposal, corners), *_worst(proposal, share, corners)]
    tables = [_release(proposal, share, accounting, test) for test in tests]
    if count == 1:
        return tables
    worst = {max(range(len(tables)), key=lambda k: _moment(tables[k], a)) for a in ORDERS}
    return [tables[k] for k in sorted(worst)]


Test = tuple[np.ndarray, np.ndarray]
"""Probabilities of acceptance without the record in the test batch, and with it."""


def _switching(proposal: Table, corners: list[Test]) -> Iterator[Test]:
    """Tests that change where the proposal passes a point."""
    starts = np.searchsorted(np.cumsum(proposal[0]), [0.0, *ndtr(np.linspace(-4.0, 4.0, 9))])
    for start, (below, above) in itertools.product(starts, itertools.product(corners, repeat=2)):
        passed = np.arange(CELLS) >= start
        yield np.where(passed, above[0], below[0]), np.where(passed, above[1], below[1])


def _worst(proposal: Table, share: float, corners: list[Test]) -> Iterator[Test]:
    """Tests that choose at each proposal what tells most above some loss, or least."""
    kept = np.array([((1.0 - share) * a + share * z, a) for a, z in corners])
    for ratio, way in itertools.product(np.exp(np.geomspace(1e-2, 20.0, 60)), (1, -1)):
        ours, theirs = (proposal[side] * kept[:, side] for side in (0, 1))
        gain = ours - ratio * theirs if way > 0 else theirs - ratio * ours
        for best in (gain.argmax(axis=0), gain.argmin(axis=0)):
            yield np.choose(best, [a for a, _ in corners]), np.choose(best, [z for _, z in corners])


def _release(proposal: Table, share: float, accounting: str, test: Test) -> Table:
    accepted = ((1.0 - share) * test[0] + share * test[1], test[0])
    found = []
    for mass, chance in zip(proposal, accepted, strict=True):
        kept, lost = mass * chance, mass * (1.0 - chance)
        if accounting == "selective":
            found.append(kept / kept.sum())
        else:
            found.append(np.append(kept, lost if accounting == "every-trial" else lost.sum()))
    return found[0], found[1]


def _moment(table: Table, order: float) -> float:
    """The larger Renyi divergence, up to its factor."""
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = [np.log(mass) for mass in table]
    both = (order * one + (1.0 - order) * other for one, other in (logs, logs[::-1]))
    return max(float(np.logaddexp.reduce(one[np.isfinite(one)])) for one in both)
