"""The order of runs: cells with the fewest seeds first, among these the cheapest."""

import bisect
import functools
import math
from collections.abc import Sequence

from mechanisms.accounting.accountant import epsilon
from mechanisms.accounting.events import SampledGaussian
from sim.benching.runs import Run, result
from sim.config.configuration import Config

RECORDS = {"digits": 1_437, "mnist": 60_000, "fmnist": 60_000, "cifar10": 50_000, "imdb": 25_000}
UNKNOWN_RECORDS = 1_000

SECONDS = {"linear": 5e-6, "mlp": 5e-6, "cnn": 6e-5, "lenet": 6e-5, "cnn-scattering": 8e-5}
SECONDS |= {"cnn-scattering-cifar": 6e-4, "lstm": 3e-4, "cnn-cifar": 2.8e-3, "cnn-5x5": 1.5e-3}
"""Rough seconds per record's gradient on one core, which order cells and tell what is missing."""
OTHER_SECONDS = 1e-4
START = 20.0
"""Seconds until a run's first round, and after its last."""
FACTORS = {"dpsur": 1.3, "screening": 1.3, "dpis": 2.0, "dpagd": 2.5, "dphero": 1.3, "none": 0.7}


def ordered(runs: Sequence[Run]) -> list[Run]:
    """The unfinished runs, by the number of their cell's seeds before them, then by seconds.

    Runs in the same folder are one training, which appears once.
    """
    of_cell: dict[tuple[str, str, str], list[Run]] = {}
    for run in runs:
        of_cell.setdefault((str(run.folder.parent), run.cell.row, run.cell.column), []).append(run)
    ranked = []
    for own in of_cell.values():
        done = [found for run in own if (found := result(run)) is not None]
        times = [one.summary.seconds for one in done if one.summary.seconds is not None]
        price = sum(times) / len(times) if times else seconds(own[0].config)
        waiting = [run for run in own if not run.finished]
        ranked += [(len(done) + place, price, run) for place, run in enumerate(waiting)]
    unique = {run.folder: run for *_, run in sorted(ranked, key=lambda one: one[:2])}
    return list(unique.values())


def missing(runs: Sequence[Run]) -> float:
    """A rough estimate of the time on one core of a seed of each cell that has none."""
    cells = {run: (run.cell.row, run.cell.column) for run in runs}
    trained = {cell for run, cell in cells.items() if result(run) is not None}
    first = {
        run.folder: run
        for run, cell in cells.items()
        if run.seed == runs[0].seed and cell not in trained
    }
    return sum(seconds(run.config) for run in first.values())


def seconds(config: Config) -> float:
    """A rough estimate of a run's time on one core, from its settings alone."""
    data, privacy, local = config.data, config.privacy, config.local
    size = RECORDS.get(data.dataset, UNKNOWN_RECORDS) / data.clients
    rate = privacy.rate(max(1, round(size)))
    steps = local.steps or math.ceil((local.epochs or 1.0) / rate)
    planned = steps * config.rounds.rounds
    if privacy.mechanism != "none" and privacy.noise_multiplier and privacy.epsilon is not None:
        noise, target, delta = privacy.noise_multiplier, privacy.epsilon, privacy.delta
        planned = min(planned, _affordable(rate, noise, target, delta, planned))
    one = SECONDS.get(data.model, OTHER_SECONDS) * FACTORS.get(privacy.mechanism, 1.0)
    return START + planned * rate * size * data.clients * one


@functools.lru_cache(maxsize=10_000)
def _affordable(rate: float, noise: float, target: float, delta: float, most: int) -> int:
    """How many steps of DPSGD a budget pays for, up to ``most``."""

    def spent(steps: int) -> float:
        return epsilon({SampledGaussian(rate, noise): steps}, delta, "published").epsilon

    return bisect.bisect_right(range(1, most + 1), target, key=spent)
