"""Accuracy and time of whole runs, by the command a user types.

    python benchmarks/default_run.py                                        # digits, seeds 0 to 4
    python benchmarks/default_run.py --seeds 0 -- --dataset mnist --data-dir DATA
    python benchmarks/default_run.py --seeds 0 -- --dataset synthetic --clients 10000 --rounds 3

``--dataset synthetic`` stands for 20 records of 8x8 pixels a client, Gaussian classes, written to a
temporary file. Prints, and with ``--out FILE`` writes, one JSON object: seconds of the whole
process, median seconds of a round after the first, accuracy, certified epsilon, and the largest
resident memory of a process of the run.
"""

import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np

from benchmarks.measured import parser_of, publish, rounds_of

BLOCK = 100_000
"""Records that are drawn together."""


def synthetic(folder: Path, clients: int) -> Path:
    """An .npz of 20 records a client."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 10, 20 * clients)
    means, x = rng.normal(size=(10, 64)), np.empty((len(y), 64), np.float32)
    for at in range(0, len(y), BLOCK):  # in float64 a million clients have 10 GB
        labels = y[at : at + BLOCK]
        x[at : at + BLOCK] = means[labels] + 2 * rng.normal(size=(len(labels), 64))
    x, path = x.reshape(-1, 1, 8, 8), folder / "synthetic.npz"
    np.savez(path, x=x, y=y, x_test=x[:2000], y_test=y[:2000])
    return path


def run(flags: list[str], seed: int) -> dict:
    """One whole run in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        if "synthetic" in flags:
            clients = int(flags[flags.index("--clients") + 1])
            flags = [
                str(synthetic(Path(folder), clients)) if f == "synthetic" else f for f in flags
            ]
        own = [f"--seed={seed}", f"--out={folder}", "--name=run", "--quiet"]
        command = [sys.executable, "-m", "sim.run", *flags, *own]
        began = time.perf_counter()
        subprocess.run(command, check=True)
        seconds = time.perf_counter() - began
        records = rounds_of(Path(folder) / "run")
    return {
        "seed": seed,
        "seconds": seconds,
        "seconds_a_round_after_the_first": statistics.median(r["seconds"] for r in records[1:]),
        "accuracy": records[-1]["accuracy"],
        "epsilon_certified_max": records[-1]["epsilon_certified_max"],
    }


def main() -> None:
    """Run every seed and print the figures."""
    parser = parser_of(__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("flags", nargs="*", help="flags of sim.run, after --")
    arguments = parser.parse_args()
    flags = arguments.flags or ["--clients", "100", "--dirichlet", "0.5"]
    runs = [run(flags, seed) for seed in arguments.seeds]
    result = {
        "command": "python -m sim.run " + " ".join(flags),
        "accuracy_mean": statistics.mean(r["accuracy"] for r in runs),
        "largest_resident_mib": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024,
        "runs": runs,
    }
    publish(result, arguments.out)


if __name__ == "__main__":
    main()
