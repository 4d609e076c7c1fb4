"""Every noisy release that there is, watched where it is made; and an attack on the last bits of
what is released.

A mechanism or a phase is one row of `RELEASES`. It runs for K clients that hold the same records,
but for the last one, which some hold and the others do not. Whoever knows all of this, and what was
released, guesses who holds it.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from mechanisms import grid
from mechanisms.accounting.accountant import Charges
from mechanisms.accounting.allotment import Account, AdaptivePlan
from mechanisms.arithmetic import GRID
from mechanisms.cohort import Cohort
from mechanisms.dpagd_plan import DpagdPlan
from mechanisms.dphero import HeroPlan
from mechanisms.dpis_plan import DpisPlan
from mechanisms.dpsgd import DpsgdPlan
from mechanisms.dpsur import DpsurPlan
from mechanisms.gradients.record_gradients import RecordGradients
from mechanisms.mechanism import local_round
from mechanisms.optimizers import sgd
from mechanisms.randomness import Streams, seed_key
from mechanisms.registry import MECHANISMS
from mechanisms.sampling import CohortData
from mechanisms.screening import ScreeningPlan
from mechanisms.settings import Dpagd, Dpis
from mechanisms.sharing import ClassSums, SharingPlan, SingleRecords, Sum

RECORDS, WIDTH, CLASSES = 14, 64, 10
_RNG = np.random.default_rng(0)
X = torch.from_numpy(_RNG.normal(size=(RECORDS + 1, WIDTH)).astype(np.float32))
X[RECORDS] = torch.nan  # the null record: it adds to no sum
Y = torch.from_numpy(_RNG.integers(0, CLASSES, RECORDS + 1))
CPU, DELTA, NOISE = torch.device("cpu"), 1e-5, 2.85


@dataclass(frozen=True)
class Release:
    """What was noised, ``total [K, m]`` with parts up to ``bound [K]`` behind noise ``std [K]``,
    and what left."""

    purpose: str
    total: Tensor
    bound: Tensor
    std: Tensor
    released: Tensor

    def real(self) -> Tensor:
        """The total in units of the parts."""
        whole = self.total.dtype == torch.int64
        return (
            self.total.double() * self.bound[:, None].double() / grid.PART if whole else self.total
        )


@dataclass
class Watched:
    """An arithmetic whose releases are written down; with ``forced``, they are those of an earlier
    run instead."""

    inner: Any
    forced: Sequence[Tensor] | None = None
    seen: list[Release] = field(default_factory=list)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def noised(
        self, total: Tensor, bound: Tensor, std: Tensor, streams: Any, purpose: str
    ) -> Tensor:
        return self._note(
            purpose,
            total,
            bound,
            std,
            lambda: self.inner.noised(total, bound, std, streams, purpose),
        )

    def noised_from(self, source: Any, totals: Tensor, bound: float, std: float) -> Tensor:
        limits, stds = (
            torch.full((len(totals),), one, dtype=torch.float64) for one in (bound, std)
        )
        return self._note(
            "", totals, limits, stds, lambda: self.inner.noised_from(source, totals, bound, std)
        )

    def below(self, change: Tensor, *rest: Any) -> Tensor:
        return torch.ones_like(change, dtype=torch.bool)

    def _note(
        self, purpose: str, total: Tensor, bound: Tensor, std: Tensor, draw: Callable[[], Tensor]
    ) -> Tensor:
        released = draw() if self.forced is None else self.forced[len(self.seen)]
        self.seen.append(Release(purpose, total, bound, std, released))
        return released


@dataclass(frozen=True)
class Row:
    """A mechanism or a phase: what it does with clients' records, and what each client is charged
    for it."""

    run: Callable[[list[np.ndarray], Streams, Watched], object]
    charges: Charges


def _module() -> nn.Module:
    module = nn.Linear(WIDTH, CLASSES)
    module.weight.data.zero_()
    module.bias.data.zero_()
    return module


@functools.cache
def _gradients() -> RecordGradients:
    return RecordGradients(_module())


def cohort(
    plan: Any, records: list[np.ndarray], streams: Streams, arithmetic: Watched, nth: int = 1
) -> Cohort:
    """Clients of one plan in their ``nth`` round."""
    clients, adaptive = len(records), isinstance(plan, AdaptivePlan)
    return Cohort(
        gradients=_gradients(),
        data=CohortData(X, Y, records),
        plans=[plan] * clients,
        streams=streams,
        optimizer=sgd(),
        learning_rate=torch.ones_like,
        nth=[nth] * clients,
        holdout=(X[:2], Y[:2]),
        accounts=[Account(plan.allotment.order, plan.allotment.rdp)] * clients if adaptive else (),
        arithmetic=arithmetic,
    )


def row(name: str, plan: Any, nth: int = 1) -> Row:
    """A mechanism in the ``nth`` round of clients with this plan."""

    def run(records: list[np.ndarray], streams: Streams, arithmetic: Watched) -> object:
        world = cohort(plan, records, streams, arithmetic, nth)
        return local_round(MECHANISMS[name], world, torch.zeros(world.gradients.layout.size))

    return Row(run, plan.round_charges(nth))


def _shared(release: Any) -> Row:
    def run(records: list[np.ndarray], streams: Streams, arithmetic: Watched) -> object:
        index = [torch.from_numpy(own) for own in records]
        return release([X[i] for i in index], [Y[i] for i in index], streams, arithmetic)

    return Row(run, release.plan.round_charges(1))


def _features(x: Tensor) -> Tensor:
    return x


_DPSGD = DpsgdPlan(1.0, NOISE, 0.5, 1)
_OWN = dataclasses.asdict(_DPSGD)
_SHARE = SharingPlan(NOISE, 2.0)
TEST_NOISE = 3.0
MOVING = DpisPlan(1.0, NOISE, 0.01, 1, 1, DELTA, RECORDS, Dpis(dpis_clip=1.0))
_DPSUR = DpsurPlan(
    **_OWN,
    most_rejections=0,
    validation_rate=1.0,
    validation_noise=TEST_NOISE,
    loss_clip=0.01,
    beta=-1.0,
    accounting="visible",
)
_SCREENING = ScreeningPlan(
    **_OWN,
    most_rejections=5,
    gain=0.0,
    stage=1,
    planned=1,
    test_rate=1.0,
    clip=0.1,
    forced_after=5,
    accounting="clipped",
)
PLANS = {
    "dpsgd": _DPSGD,
    "dpsgd, automatic clipping": dataclasses.replace(_DPSGD, clipping="auto"),
    "dpsgd, moving clip bound": dataclasses.replace(_DPSGD, clip_quantile=0.5),
    "dpsur": _DPSUR,
    "screening": _SCREENING,
    "dphero": HeroPlan(**_OWN),
    "dpis": DpisPlan(1.0, NOISE, 0.01, 1, 1, DELTA, RECORDS, Dpis()),
    "dpis, moving clip bound": MOVING,
    "dpagd": DpagdPlan(1.0, NOISE, 0.5, 1, 1, DELTA, "flat", Dpagd()),
}
"""By mechanism, and what is special about the plan."""
VARIANTS = {
    "dpsur, selective": dataclasses.replace(_DPSUR, most_rejections=5, accounting="selective"),
    "dpsur, every trial": dataclasses.replace(_DPSUR, accounting="every-trial"),
    "screening, public test": dataclasses.replace(
        _SCREENING, most_rejections=0, clip=math.inf, accounting="public-test"
    ),
    "dpsgd, fixed": dataclasses.replace(_DPSGD, sampling="fixed", records=RECORDS),
    "dpsgd, shuffled": dataclasses.replace(_DPSGD, sampling="shuffled", records=RECORDS),
    "dphero, isotropic": HeroPlan(**_OWN, isotropic=True),
}
"""Plans that release what one of `PLANS` does, or (the last one) what has no exact sum."""
RELEASES = {name: row(name.split(",")[0], plan) for name, plan in PLANS.items()} | {
    "dpsgd, falling noise": row("dpsgd", dataclasses.replace(_DPSGD, noise_decay=0.3), nth=3),
    "class sums": _shared(ClassSums(_SHARE, _features, CLASSES, WIDTH)),
    "statistics": _shared(Sum(_SHARE, _features, WIDTH)),
    "scores": _shared(Sum(SharingPlan(NOISE, 1.0), _features, WIDTH, "scores")),
    "single records": _shared(
        SingleRecords(dataclasses.replace(_SHARE, singly=True), _features, CLASSES)
    ),
}


def owned(holds: np.ndarray) -> list[np.ndarray]:
    """Each client's records: the last one, or the null record in its place."""
    return [np.array([*range(RECORDS - 1), RECORDS - 1 if held else RECORDS]) for held in holds]


def watch(
    row: Row, holds: np.ndarray, arithmetic: Any, seed: int, forced: Sequence[Tensor] | None = None
) -> Watched:
    """A run of clients that hold the last record or not."""
    watched = Watched(arithmetic, forced)
    row.run(owned(holds), Streams(seed_key(seed), 1, range(len(holds)), CPU), watched)
    return watched


def impossible(release: Release, real: Tensor) -> np.ndarray:
    """Bool ``[rows, m]``: numbers that no float32 normal draw behind ``real [rows, m]`` gives."""
    std, seen = release.std[:, None], release.released
    guess = ((seen.double() - real.double()) / std.double()).float().numpy()
    found = torch.zeros(seen.shape, dtype=torch.bool)
    for toward in (-np.inf, np.inf):
        draw = guess
        for _ in range(3):
            found |= (real + std * torch.from_numpy(draw).to(std)).to(torch.float32) == seen.to(
                torch.float32
            )
            draw = np.nextafter(draw, np.float32(toward))
    return ~found.numpy()


def off_grid(release: Release, total: Tensor) -> np.ndarray:
    """Bool ``[rows, m]``: numbers that no step of the grid from a whole ``total [rows, m]``
    gives."""
    zeros = torch.zeros_like(total)
    start = grid.noised(total, release.bound, release.std, zeros)
    step = grid.noised(total, release.bound, release.std, zeros + 2**40) - start
    count = ((release.released.double() - start) / step * 2**40).round().to(torch.int64)
    found = torch.zeros(total.shape, dtype=torch.bool)
    for near in (-1, 0, 1):
        value = grid.noised(total, release.bound, release.std, count + near)
        found |= value.to(release.released) == release.released
    return ~found.numpy()


def successes(row: Row, arithmetic: Any, clients: int, seed: int) -> int:
    """How many of so many clients the attacker places right, by the numbers that either hypothesis
    makes impossible."""
    holds = np.random.default_rng(seed).random(clients) < 0.5
    true = watch(row, holds, arithmetic, seed).seen
    forced = [one.released for one in true]
    worlds = [
        watch(row, np.full(clients, held), arithmetic, seed, forced).seen for held in (False, True)
    ]
    against = np.zeros((2, clients))
    alone = [number for number, one in enumerate(true) if not one.purpose]
    for number, release in enumerate(true):
        # releases of one client come one after the other, equally many of each
        who = slice(None) if release.purpose else alone.index(number) * clients // len(alone)
        for hypothesis, seen in enumerate(worlds):
            wrong = impossible(release, seen[number].real())
            if arithmetic is GRID:
                wrong = wrong | off_grid(release, seen[number].total)
            against[hypothesis, who] += wrong.sum(axis=1) if release.purpose else wrong.sum()
    coins = np.random.default_rng(seed + 1).random(clients) < 0.5
    guesses = np.where(against[0] == against[1], coins, against[1] < against[0])
    return int((guesses == holds).sum())
