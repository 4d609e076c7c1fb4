"""Draws a second of the exact release noise, on one core, beside NumPy's float normals.

    python benchmarks/release_noise.py --out benchmarks/results/release_noise.json

Times draws of round(2^28 Z) (`mechanisms/rounded_gaussian.py`) from the operating system's entropy,
as in a release, and from a Philox stream, as in a seeded run; the words alone; and
`standard_normal` in float32 and float64, from a Philox stream. All in turns, one thread, CPU time,
after a warm-up of each.
"""

import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.measured import parser_of, publish
from mechanisms.entropy import SystemEntropy
from mechanisms.rounded_gaussian import rounded_gaussian

Draw = Callable[[int], np.ndarray]


def sides() -> dict[str, Draw]:
    """Every sampler by name."""
    entropy, philox = SystemEntropy(), np.random.Philox(0)
    floats = np.random.Generator(np.random.Philox(1))
    return {
        "rounded Gaussian, system entropy": lambda n: rounded_gaussian(entropy.words, n),
        "rounded Gaussian, Philox": lambda n: rounded_gaussian(philox.random_raw, n),
        "64-bit words, system entropy": entropy.words,
        "64-bit words, Philox": philox.random_raw,
        "numpy standard_normal float32": lambda n: floats.standard_normal(n, dtype=np.float32),
        "numpy standard_normal float64": floats.standard_normal,
    }


def timed(size: int, draws: int, repeats: int) -> dict[str, dict[str, float]]:
    """Millions of draws a second by sampler, in arrays of `size`, as many as make `draws`."""
    seconds: dict[str, list[float]] = {name: [] for name in sides()}
    for repeat in range(repeats + 1):
        for name, draw in sides().items():
            began = time.process_time()
            for _ in range(max(draws // size, 1)):
                draw(size)
            if repeat:
                seconds[name].append(time.process_time() - began)
    millions = size * max(draws // size, 1) / 1e6
    return {
        name: {
            "median_million_a_second": millions / statistics.median(s),
            "most": millions / min(s),
        }
        for name, s in seconds.items()
    }


def main() -> None:
    """Measure and print."""
    parser = parser_of(__doc__)
    parser.add_argument(
        "--sizes", type=int, nargs="*", default=[100, 26_010, 1_000_000], help="draws in an array"
    )
    parser.add_argument(
        "--draws", type=int, default=2_000_000, help="draws in a repeat; arrays of 100: a tenth"
    )
    parser.add_argument("--repeats", type=int, default=11)
    arguments = parser.parse_args()
    rows = []
    for size in arguments.sizes:
        draws = arguments.draws if size > 100 else arguments.draws // 10
        rows.append({"size": size, "samplers": timed(size, draws, arguments.repeats)})
    command = "python " + " ".join(sys.argv)
    publish({"command": command, "repeats": arguments.repeats, "sizes": rows}, arguments.out)


if __name__ == "__main__":
    main()
