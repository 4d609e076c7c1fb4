"""The cost of a release relative to its simulation: training steps and the default run.

    python benchmarks/release_cost.py --out benchmarks/results/release_cost.json

A step is that of DPSGD for one client of 2,048 records of 1x28x28 on `cnn`, and of 25 clients of 40
records of 64 numbers on `linear`, CPU seconds in one process and one thread. The run is the default
command with the inline engine, wall seconds of the whole process.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.measured import publish
from mechanisms import dpsgd
from mechanisms.arithmetic import FLOATS, GRID
from mechanisms.cohort import Cohort
from mechanisms.dpsgd import DpsgdPlan
from mechanisms.gradients.record_gradients import RecordGradients
from mechanisms.kernels import openblas_kernels
from mechanisms.optimizers import sgd
from mechanisms.randomness import Streams, SystemStreams, seed_key
from mechanisms.sampling import CohortData
from sim.job.device import single_thread
from sim.models.networks import build

STEPS = {"cnn": ((1, 28, 28), 1, 2048), "linear": ((64,), 25, 40)}
SIDES = ("simulation", "release")


def stepper(model: str) -> Callable[[str], object]:
    """One step of training, by side."""
    shape, clients, records = STEPS[model]
    rng, device = np.random.default_rng(0), torch.device("cpu")
    x = torch.from_numpy(rng.normal(size=(clients * records, *shape)).astype(np.float32))
    y = torch.from_numpy(rng.integers(0, 10, clients * records))
    gradients = RecordGradients(build(model, shape, 10, seed=0))
    owned = [np.arange(records) + k * records for k in range(clients)]
    worlds = {
        side: Cohort(
            gradients=gradients,
            data=CohortData(x, y, owned),
            plans=[DpsgdPlan(1.0, 2.85, 1.0, 1)] * clients,
            streams=streams,
            optimizer=sgd(),
            learning_rate=torch.ones_like,
            nth=[1] * clients,
            arithmetic=arithmetic,
        )
        for side, arithmetic, streams in (
            ("simulation", FLOATS, Streams(seed_key(0), 1, range(clients), device)),
            ("release", GRID, SystemStreams(clients, device)),
        )
    }
    start = torch.zeros(gradients.layout.size)
    return lambda side: dpsgd.step(worlds[side], dpsgd.start(worlds[side], start))


def steps(model: str, repeats: int) -> dict[str, float]:
    """Median CPU seconds of a step by side, and the median of the ratios."""
    step, seconds = stepper(model), {side: [] for side in SIDES}
    for repeat in range(repeats + 1):
        for side in SIDES:
            began = time.process_time()
            step(side)
            if repeat:
                seconds[side].append(time.process_time() - began)
    return medians(seconds)


def runs(repeats: int) -> dict[str, float]:
    """Median wall seconds of the default run by side, and the median of the ratios."""
    seconds = {side: [] for side in SIDES}
    with tempfile.TemporaryDirectory() as folder:
        for repeat in range(repeats + 1):
            for side in SIDES:
                command = (
                    "-m sim.run --clients 100 --dirichlet 0.5 --engine inline --quiet --out "
                    f"{folder}"
                ).split()
                began = time.perf_counter()
                subprocess.run(
                    [sys.executable, *command, *["--release"][: side == "release"]], check=True
                )
                if repeat:
                    seconds[side].append(time.perf_counter() - began)
    return medians(seconds)


def medians(seconds: dict[str, list[float]]) -> dict[str, float]:
    """Of each side, and of the ratios pair by pair."""
    ratios = [b / a for a, b in zip(*(seconds[side] for side in SIDES), strict=True)]
    return {side: statistics.median(seconds[side]) for side in SIDES} | {
        "ratio": statistics.median(ratios)
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=7, help="counted steps, and runs")
    parser.add_argument("--out", type=Path, help="JSON file for the result")
    given = parser.parse_args()
    single_thread()
    result = {
        "openblas": openblas_kernels(),
        "steps": {model: steps(model, given.repeats) for model in STEPS},
    }
    publish(result | {"default_run": runs(given.repeats)}, given.out)


if __name__ == "__main__":
    main()
