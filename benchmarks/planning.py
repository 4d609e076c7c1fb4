"""CPU time of planning 10,000 clients of 1,000 different sizes, on one core.

Each client's noise is calibrated to its own rate and steps. Every repetition is a process of its
own, as what is computed once is kept.

python benchmarks/planning.py --out benchmarks/results/planning.json
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from sim.job import environment

environment.prepare()

import numpy as np  # noqa: E402

from benchmarks.measured import chip, publish  # noqa: E402
from mechanisms.registry import plan_table  # noqa: E402
from mechanisms.settings import Privacy  # noqa: E402

CLIENTS, BATCH, ROUNDS, EPSILON = 10_000, 32, 20, 8.0
SIZES = np.resize(np.arange(40, 1_040), CLIENTS)
STEPS = {"equal": 3, "an epoch": -(-SIZES // BATCH)}


def seconds(steps: str) -> float:
    """CPU seconds of a plan table in this process."""
    privacy = Privacy(mechanism="dpsgd", batch_size=BATCH, epsilon=EPSILON)
    begin = time.process_time()
    table = plan_table(privacy, None, STEPS[steps], ROUNDS, SIZES)
    used = time.process_time() - begin
    if len(table.plans) != len(np.unique(SIZES)):
        raise ValueError(f"{len(table.plans)} plans, not one for each size: the work is not done")
    return used


def main() -> None:
    """Plan with equal and with different steps, each in processes of its own."""
    parser = argparse.ArgumentParser(description="CPU seconds of planning clients of many sizes.")
    parser.add_argument("--repeats", type=int, default=3, help="processes for each kind of steps")
    parser.add_argument("--steps", choices=STEPS, help="measure this kind once, in this process")
    parser.add_argument("--out", type=Path, help="where the JSON goes")
    known = parser.parse_args()
    if known.steps:
        print(seconds(known.steps))
        return
    found: dict[str, list[float]] = {steps: [] for steps in STEPS}
    load = os.getloadavg()[0]
    for _ in range(known.repeats):
        for steps in STEPS:
            command = [sys.executable, __file__, "--steps", steps]
            found[steps].append(json.loads(subprocess.check_output(command)))
    what = {"clients": CLIENTS, "sizes": len(np.unique(SIZES)), "rounds": ROUNDS}
    publish(what | {"cpu_seconds": found, "chip": chip(), "load_before": load}, known.out)


if __name__ == "__main__":
    main()
