"""Many steps, each as a pair that dominates it where little else is released.

What a step costs at most depends on what is looked at: the worst test for one hockey stick, or the
worst client where a batch has a fixed size, is not that for another. Later releases make a smooth
function of a hockey stick, and the earlier step is then cheaper than its worst hockey sticks. With
one more release R, whose losses are spread by about two steps' worth, every function is smooth: if
a pair S dominates a step before R for one hockey stick, any number of steps costs no more than as
many times S and R once (docs/theory, Theorem 28).

R has its losses on a lattice. S is the solution of a linear program: the least divergence of which,
before R, no step exceeds at any point of the lattice, nor between two of them, as both sides are
convex and S has its losses there, too. The solver is not trusted; what it finds is checked.
"""

import functools
import itertools
import math
from collections.abc import Callable, Iterator
from operator import ge, gt
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from mechanisms.accounting.finite import Finite

Floats = NDArray[np.float64]
Places = NDArray[np.int64]

SPREAD = 2.0
"""Standard deviation of R's losses, over that of a step's."""
FINE = {True: 32, False: 16}
"""Points of the lattice for each standard deviation of R, more if rejections are hidden."""
REACH = 7.5
"""Standard deviations of R's losses."""
NEAR, GROWTH = 4.0, 0.1
"""S's losses are next to each other up to so many of R's standard deviations, and further apart by
this share of what is beyond."""
FAR = 0.05
"""The same share of points that are looked at where R has no losses left: there S must dominate
without R, and has losses at these points alone."""
CERTAIN = 1e-13
"""What S has of infinite losses, on either side."""
MAX_SCALE = 1e7
"""Number of which a mass is made the reciprocal: the solver takes coefficients below 1e-9 for 0."""
MARGIN, CHECKED, FEASIBLE = 1e-7, 1e-8, 1e-9
"""S is asked to dominate by this share more, must do so by the second one, which is above what
floats lose, and the solver is to be right to the third one."""
SPREADS = (1e-5, 1.0)
"""Least and largest standard deviation of a step's losses: floats tell no smaller ones apart, and
steps of larger ones are few."""
WIDEST = 300.0
"""Largest loss that is looked at."""


class Maker(Protocol):
    """What a step makes of R."""

    def at(self, x: Floats) -> Floats:
        """An upper bound, beyond ``max(0, 1 - x)``, at rising points of the lattice from 1 on."""


class Step(Protocol):
    """A step of which no pair alone says what many cost."""

    @property
    def noise(self) -> float:
        """Its noise multiplier."""

    @property
    def hidden(self) -> bool:
        """Whether it has no pair by itself."""

    def largest_loss(self) -> float:
        """An upper bound on the loss of an outcome that counts, in either direction; infinite where
        no S is to be looked for."""

    def before(self, after: Finite, adding: bool) -> Maker:
        """Before R; the record is in P or, ``adding``, in Q."""

    def __hash__(self) -> int:
        """Equal steps are looked at once."""


@functools.lru_cache(maxsize=1_000)
def together(step: Step, spread: float) -> tuple[Finite, Finite] | None:
    """S and R.

    Args:
        step: what is done many times.
        spread: roughly the standard deviation of a step's losses.

    Returns:
        None where there are none.
    """
    if not SPREADS[0] <= spread <= SPREADS[1] or math.isinf(step.largest_loss()):
        return None
    fine = FINE[step.hidden]
    lattice = _Lattice(SPREAD * spread / fine, fine)
    noise, points = lattice.noise(step.noise), lattice.points(step.largest_loss())
    x = np.exp(lattice.space * points)
    most = [step.before(noise, adding).at(x) for adding in (False, True)]
    found = _cover(lattice, noise, points, most, spread)
    return None if found is None else (found, noise)


class _Lattice(NamedTuple):
    """The lattice of losses: its spacing, and its points for each standard deviation of R."""

    space: float
    fine: int

    @property
    def centre(self) -> int:
        """The first point that is beyond R's losses."""
        return math.ceil(REACH * self.fine) + 1

    def noise(self, multiplier: float) -> Finite:
        """R: Gaussian losses."""
        losses = self.space * np.arange(-self.centre + 1, self.centre)
        masses = np.exp(-0.5 * losses - 0.5 * (losses / (self.space * self.fine)) ** 2)
        whole = tuple((masses / masses.sum()).tolist())
        return Finite(tuple(losses.tolist()), whole, 0.0, multiplier)

    def points(self, largest: float) -> Places:
        """From 0 on, up to where next to nothing is left."""
        last = self.centre + min(largest, WIDEST) / self.space
        far = itertools.takewhile(lambda place: place <= last, _growing(self.centre, FAR))
        return np.array([*range(self.centre), *far])

    def losses(self, above: int, below: int) -> Places:
        """S's, as points from ``-below`` to ``above``: close around 0, far away where chords
        end."""
        near = int(NEAR * self.fine)
        spaced = itertools.takewhile(functools.partial(gt, self.centre), _growing(near, GROWTH))
        found = {*range(near), *spaced}
        found |= {-at for at in found}
        for sign, last in ((1, above), (-1, below)):
            far = itertools.takewhile(functools.partial(ge, last), _growing(self.centre, FAR))
            found |= {sign * at for at in far}
        return np.array(sorted(found))


def _growing(start: int, growth: float) -> Iterator[int]:
    """Points from ``start`` on, whose spaces grow."""
    place = start
    while True:
        yield place
        place += max(1, int(growth * (place - start)))


def _cover(
    lattice: _Lattice, noise: Finite, points: Places, most: list[Floats], spread: float
) -> Finite | None:
    """S, at least ``most`` before R: in the direction of removing the record, and of adding it."""
    from scipy.optimize import linprog

    x = np.exp(lattice.space * points)
    # where, in each direction, next to nothing is left
    ends = [int(points[np.argmax(found <= CERTAIN)]) for found in most]
    if 0 in ends:
        return None
    losses = lattice.space * lattice.losses(*ends)
    ratios = np.exp(losses)
    near, rows, levels = points < lattice.centre, [], []
    for adding, found in zip((False, True), most, strict=True):
        ours, theirs = (np.ones_like(ratios), ratios)[:: 1 if adding else -1]
        for chosen, before in ((near, _profile(noise)), (~near, _alone)):
            kept = chosen & (found > CERTAIN)
            rows.append(ours * before(x[kept, None] * theirs / ours) / found[kept, None])
            levels.append(1.0 - CERTAIN / found[kept])
    above, level = np.vstack(rows), np.concatenate(levels)
    scale = np.minimum(above.max(axis=0), MAX_SCALE)
    both = np.stack([np.ones_like(ratios), (ratios - 1.0) / spread])
    solved = linprog(
        (ratios - 1.0) * losses / spread**2 / scale,
        A_ub=-above / scale,
        b_ub=-(level + MARGIN),
        A_eq=both / scale,
        b_eq=[1.0 - CERTAIN, 0.0],
        method="highs",
        options={"primal_feasibility_tolerance": FEASIBLE},
    )
    if solved.x is None:
        return None
    masses = _exact(np.maximum(solved.x / scale, 0.0), ratios)
    if not ((masses >= 0.0).all() and (above @ masses >= level + CHECKED).all()):
        return None
    kept = (masses > 0.0) | (losses == 0.0)
    its_losses, its_masses = tuple(losses[kept].tolist()), tuple(masses[kept].tolist())
    return Finite(its_losses, its_masses, CERTAIN, noise.noise)


def _profile(noise: Finite) -> Callable[[Floats], Floats]:
    corners = noise.corners()
    return lambda x: np.interp(x, *corners) + _alone(x)


def _alone(x: Floats) -> Floats:
    """The profile of equal distributions."""
    return np.maximum(0.0, 1.0 - x)


def _exact(masses: Floats, ratios: Floats) -> Floats:
    """The masses, the two largest changed so that both distributions add up to what they should."""
    one, two = np.argsort(masses)[-2:]
    missing = [1.0 - CERTAIN - math.fsum(masses), 1.0 - CERTAIN - math.fsum(masses * ratios)]
    moved = (missing[1] - ratios[one] * missing[0]) / (ratios[two] - ratios[one])
    masses = masses.copy()
    masses[two] += moved
    masses[one] += missing[0] - moved
    return masses
