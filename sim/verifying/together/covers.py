"""Many steps as one law each, beside one law of a little noise.

S, T and R map convex homogeneous functions W(u, v) of an output's densities to what they may be
before a release: S and R those with a law, ``S W = sum of W(u P(z), v Q(z))`` over its losses z, T
a step with the worst test (`trials`) or the worst client (`replaced`). If

    T R W <= S R W  for  W(u, v) = max(0, u - v),

then n such steps and any other releases with dominating laws, in an order that may depend on what
was released, are dominated by n times S, once R and the others' laws. For every W_0 is a linear
function, which all of them keep, and a mixture of ``max(0, u - k v)``, so that T R W_0 <= S R W_0.
With W_0 the hockey stick of all that follows, W_0 <= R W_0 by Jensen; and if what follows is at
most ``S^i U R W_0``, with U the other laws, one step more makes at most
``T R (S^i U W_0) <= S^(i + 1) U R W_0`` of it, since laws commute.

R has its losses on a lattice. At u = 1 and v = exp(loss), S R W is linear between points of the
lattice if the losses of S are on it, too, and T R W is convex: the inequality holds between two
points if it holds at both. A linear program proposes S, and balls check what it says.
"""

import bisect
import functools
import itertools
import math
from typing import NamedTuple

import numpy as np
from flint import arb
from scipy.optimize import linprog

from mechanisms.accounting import events
from sim.verifying.laws import Law
from sim.verifying.together import replaced, trials
from sim.verifying.together.replaced import Replaced
from sim.verifying.together.trials import Curve, Floats, Trial

REACH = 7.5
"""Standard deviations of the noise R that its losses reach."""
FINE = 48
"""Points of the lattice in one of them."""
CERTAIN = 1e-13
"""Masses of S at both infinities, in place of what is rarer."""
SPARSE = 0.05
"""Spaces between losses beyond those of R, relative to the losses."""
APART = 0.03
"""The same of losses of S among those of R."""
RAISED = (1e-7, 1e-6, 1e-5)
"""What is tried to be added to each demand, relatively, for what solvers and floats leave open."""
MAX_ENTRY = 1e12
"""Largest number in the program; the solver takes no more than 1e15."""
MIN_DEVIATION, MAX_DEVIATION, MIN_ACCEPTANCE = 1e-9, 3.0, 1e-6
"""Range of the standard deviation of a step's loss, and the least probability of acceptance where
rejections are hidden; beyond these no S is looked for."""
MAX_LOSS = 300.0
"""Largest loss that is looked at; floats have room for it."""


class Atoms:
    """Masses of the denominator at multiples of a spacing; the numerator has exp(loss) times these.
    What either lacks of 1 is at an infinite loss of its own side."""

    def __init__(self, spacing: float, places: list[int], masses: list[arb]) -> None:
        self.spacing, self.places = arb(spacing), places
        self.theirs = masses
        self.ours = [
            mass * (self.spacing * place).exp() for place, mass in zip(places, masses, strict=True)
        ]
        self.rests = tuple(1 - sum(side, arb(0)) for side in (self.ours, self.theirs))
        self.sums = [
            list(itertools.accumulate(side, initial=arb(0))) for side in (self.ours, self.theirs)
        ]

    def below(self, loss: arb) -> tuple[arb, arb]:
        first, last = (
            bisect.bisect_right(self.places, int(float((end / self.spacing).lower().floor())))
            for end in (loss.lower(), loss.upper())
        )
        ours, theirs = (functools.reduce(arb.union, side[first : last + 1]) for side in self.sums)
        return ours, theirs + self.rests[1]

    def least(self) -> arb:
        return arb(0)

    def ends(self) -> tuple[float, float]:
        first, last = (float(self.spacing) * self.places[k] for k in (0, -1))
        return first, last

    def variance(self) -> float:
        losses = np.array(self.places) * float(self.spacing)
        return float(np.cov(losses, aweights=[float(mass) for mass in self.ours], ddof=0))


class Noise:
    """R, with a standard deviation of its loss, and R W at the lattice's points."""

    def __init__(self, deviation: float) -> None:
        self.spacing = deviation / FINE
        self.last = math.ceil(REACH * FINE)
        places = list(range(-self.last, self.last + 1))
        losses = [arb(self.spacing) * place for place in places]
        width = 2 * arb(deviation) ** 2
        weights = [(-loss / 2 - loss**2 / width).exp() for loss in losses]
        whole = sum(weights, arb(0))
        self.law = Atoms(self.spacing, places, [weight / whole for weight in weights])
        self.excesses: list[arb] = []
        ours, theirs = arb(0), arb(0)
        for place in range(self.last, -1, -1):
            self.excesses.append(ours - losses[place + self.last].exp() * theirs)
            ours += self.law.ours[place + self.last]
            theirs += self.law.theirs[place + self.last]
        self.excesses.reverse()

    @functools.cached_property
    def curve(self) -> Curve:
        """R W at u = 1."""
        places = np.arange(-self.last, self.last + 1)
        points = np.append(0.0, np.exp(places * self.spacing))
        weights = np.array([float(mass) for mass in self.law.ours])
        return Curve(points, np.append(1.0, self.smooth(places)), weights)

    def smooth(self, places: np.ndarray) -> Floats:
        """R W at some of the lattice's points."""
        excesses = np.array([*(float(one) for one in self.excesses), 0.0])
        found = excesses[np.minimum(np.abs(places), self.last)]
        below = np.minimum(places, 0) * self.spacing
        return np.exp(below) * found - np.expm1(below)

    def exact(self, place: int, blurred: bool) -> arb:
        """R W at one of them, or W."""
        ratio = (self.law.spacing * min(place, 0)).exp()
        excess = self.excesses[abs(place)] if blurred and abs(place) <= self.last else arb(0)
        return 1 - ratio + ratio * excess


class Demand(NamedTuple):
    """What T R W may be at losses from 0 on; from the last one on it is at most CERTAIN."""

    turned: bool
    places: list[int]
    values: list[float]


Step = Trial | Replaced


def repeated(event: events.Event) -> Step | None:
    """The step of an event of which many are one law each."""
    return trials.tested(event) or replaced.replaced(event)


def cover(step: Step, deviation: float, width: float) -> tuple[Law, Law] | None:
    """S and R, with R of so many standard deviations of a step's loss; None if no S is found."""
    if not MIN_DEVIATION <= deviation <= MAX_DEVIATION:
        return None
    if isinstance(step, Trial) and step.hidden and not step.lowest > MIN_ACCEPTANCE:
        return None
    noise = Noise(width * deviation)
    demands = []
    for turned in (False, True):
        demand = _demand(step.worst(deviation, turned), noise, turned)
        if demand is None:
            return None
        demands.append(demand)
    places = _losses(noise, demands)
    for raised in RAISED:
        law = _proposed(noise, demands, places, raised)
        if law is not None and all(holds(law, noise, demand) for demand in demands):
            return law, noise.law
    return None


def _demand(worst: trials.Worst | replaced.Worst, noise: Noise, turned: bool) -> Demand | None:
    """What a cover must dominate, at all points among the losses of R and at sparser ones beyond;
    None if it does not come to an end."""
    places = list(range(noise.last + 1))
    last = min(worst.largest + noise.last * noise.spacing, MAX_LOSS)
    while places[-1] * noise.spacing < last:
        places.append(places[-1] + math.ceil(SPARSE * places[-1]))
    values = worst.before(noise.curve, np.array(places) * noise.spacing)
    rare = np.flatnonzero(values[noise.last :] <= CERTAIN / 2)
    if not len(rare):
        return None
    end = noise.last + int(rare[0]) + 1
    return Demand(turned, places[:end], values[:end].tolist())


def _losses(noise: Noise, demands: list[Demand]) -> np.ndarray:
    """Places of losses that S may have. Beyond those of R they are points at which it is compared,
    as S W has bends there."""
    side = [0]
    while side[-1] < noise.last:
        side.append(side[-1] + max(1, int(APART * side[-1])))
    beyond = [demand.places[noise.last :] for demand in demands]
    above, below = ([k for k in side if k < noise.last] + more for more in beyond)
    return np.array([-k for k in below[:0:-1]] + above)


def _proposed(
    noise: Noise, demands: list[Demand], places: np.ndarray, raised: float
) -> Atoms | None:
    """The S of the least symmetrized divergence that a linear program finds."""
    losses = places * noise.spacing
    ratios = np.exp(losses)
    rows = []
    for demand in demands:
        at, values = np.array(demand.places), np.array(demand.values) * (1.0 + raised) - CERTAIN
        moved = at[:, None] + (places if demand.turned else -places)
        sharp = -np.expm1(np.minimum(moved, 0) * noise.spacing)
        terms = np.where(at[:, None] < noise.last, noise.smooth(moved), sharp)
        if not demand.turned:
            terms *= ratios
        asked = values > 0.0
        rows.append(terms[asked] / values[asked, None])
    table = np.concatenate(rows)
    scale = np.minimum(1.0, MAX_ENTRY / table.max(axis=0))
    gains = np.expm1(losses) / math.sqrt(noise.law.variance())
    found = linprog(
        np.expm1(losses) * losses * scale,
        A_ub=-table * scale,
        b_ub=-np.ones(len(table)),
        A_eq=np.stack([np.ones(len(places)), gains]) * scale,
        b_eq=[1.0 - CERTAIN, 0.0],
        method="highs",
        options={"primal_feasibility_tolerance": 1e-10},
    )
    if found.status != 0:
        return None
    kept = found.x > 0.0
    return _whole(noise.spacing, places[kept].tolist(), (found.x * scale)[kept].tolist())


def _whole(spacing: float, places: list[int], masses: list[float]) -> Atoms | None:
    """The two largest masses, on both sides of 0, changed such that both laws lack CERTAIN."""
    exact = [arb(mass) for mass in masses]
    sides = [[k for k, place in enumerate(places) if sign * place > 0] for sign in (-1, 1)]
    if not all(sides):
        return None
    low, high = (max(side, key=lambda k: masses[k]) for side in sides)
    ours, theirs = (rest - arb(CERTAIN) for rest in Atoms(spacing, places, exact).rests)
    one, two = ((arb(spacing) * places[k]).exp() for k in (low, high))
    more = (ours - one * theirs) / (two - one)
    exact[high] += more
    exact[low] += theirs - more
    return Atoms(spacing, places, exact) if exact[low] > 0 and exact[high] > 0 else None


def holds(law: Atoms, noise: Noise, demand: Demand) -> bool:
    """Whether S R W is at least what is demanded, and S W beyond the losses of R."""
    masses, rest = (law.theirs, law.rests[1]) if demand.turned else (law.ours, law.rests[0])
    sign = 1 if demand.turned else -1
    if not (rest >= demand.values[-1] and law.rests[0] > 0 and law.rests[1] > 0):
        return False
    for place, value in zip(demand.places, demand.values, strict=True):
        found = rest
        for at, mass in zip(law.places, masses, strict=True):
            if (moved := place + sign * at) < noise.last:
                found += mass * noise.exact(moved, blurred=place < noise.last)
        if not found >= value:
            return False
    return True
