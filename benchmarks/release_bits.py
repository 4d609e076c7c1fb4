"""What the bits of a release tell, and what a record can move in one: the attack, and twin runs.

    python benchmarks/release_bits.py --out benchmarks/results/release_bits.json

**Attack.** Whoever knows the other records asks of each released number whether any float32 normal
draw, or any step of the grid, gives it, with the last record and without, and guesses by the fewer
impossible numbers. For every release that there is (`tests/releases.py`), in a release and, as the
control, in floats; 2,000 trials each. And end to end, on the model that `python -m sim.central`
releases of 40 records of 64 numbers.

**Twin runs.** The same sums with a record and with the null record in its place, inputs from 1e-30
to 1e38, models built in and adverse (`tests/test_grid.py`): the largest part of a record, in clip
norms.
"""

import argparse
import contextlib
import io
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file
from scipy import stats

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.measured import publish
from mechanisms.arithmetic import FLOATS, GRID
from mechanisms.clipping import clip_factors
from mechanisms.dpsgd import DpsgdPlan
from sim.commands.flags import parse
from sim.config import configuration as config
from sim.engines.start import train
from sim.job.job import Job
from sim.phases.build import build
from tests import releases
from tests.test_grid import ADVERSE, CASES, worst_part

FEATURES, CLASSES, NULL = 64, 10, 3e38
"""The null record has numbers so large that its gradient is not finite."""
CENTRAL = (
    "--clients=1 --epsilon 1 --clip-norm 1 --lr 1 --rounds 1 --steps 1 --engine inline --quiet "
    "--model linear --dataset {data} --out {out}"
)


def share(right: int, trials: int) -> dict[str, float]:
    """The share of right guesses and its interval at 95 % (Clopper and Pearson)."""
    interval = stats.binomtest(right, trials).proportion_ci(0.95)
    return {"trials": trials, "right": right / trials, "low": interval.low, "high": interval.high}


def attack(trials: int) -> dict[str, dict[str, dict[str, float]]]:
    """By release: guesses on the grid and in floats."""
    found = {}
    for name, row in releases.RELEASES.items():
        sides = {}
        for side, arithmetic in (("release", GRID), ("simulation", FLOATS)):
            rights = [
                releases.successes(row, arithmetic, 200, seed) for seed in range(trials // 200)
            ]
            sides[side] = share(sum(rights), trials)
        print(name, {side: found["right"] for side, found in sides.items()}, flush=True)
        found[name] = sides
    return found


def end_to_end(trials: int, release: bool) -> dict[str, float]:
    """Guesses on whole runs of the command whether the last of 40 records was there."""
    rng, right = np.random.default_rng(0), 0
    for trial in range(trials):
        x = rng.normal(size=(2, 40, FEATURES)).astype(np.float32)
        x[1, :-1], x[1, -1] = x[0, :-1], NULL
        y = rng.integers(0, CLASSES, 40)
        y[:CLASSES] = np.arange(CLASSES)
        held = bool(rng.random() < 0.5)
        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
            np.savez(
                f"{folder}/data.npz", x=x[0 if held else 1], y=y, x_test=x[0, :2], y_test=y[:2]
            )
            flags = CENTRAL.format(data=f"{folder}/data.npz", out=folder).split()
            flags += ["--release"] if release else ["--seed", str(trial)]
            run = train(parse([*flags, "--name", "run"], "run", ""))
            built = build(config.load(run / "config.toml", {}))
            after = built.gradients.layout.flatten(load_file(run / "model.safetensors"))
        wrong = [impossible(built, after, one, y) for one in x]
        guess = wrong[0] < wrong[1] if wrong[0] != wrong[1] else rng.random() < 0.5
        right += guess == held
    return share(right, trials)


def impossible(built: Job, after: torch.Tensor, x: np.ndarray, y: np.ndarray) -> int:
    """How many released parameters no float32 normal draw gives, if the records were these."""
    start = built.gradients.layout.initial(built.model)
    given = torch.from_numpy(x)[None], torch.from_numpy(y)[None]
    total, _ = built.gradients.scaled_sum(
        start[None], *given, lambda norms: clip_factors(norms, torch.ones(1))
    )
    plan: DpsgdPlan = built.plans.of(0)
    noise = torch.tensor(plan.noise_multiplier)
    centre = ((start.double() - after.double()) * len(y) - total[0].double()) / noise
    draws, seen = [centre.float().numpy()], torch.zeros(after.shape, dtype=torch.bool)
    for toward in (-np.inf, np.inf):
        draw = draws[0]
        for _ in range(8):
            draw = np.nextafter(draw, np.float32(toward))
            draws.append(draw)
    for draw in draws:
        noisy = total[0] + noise * torch.from_numpy(draw)
        seen |= torch.addcmul(start, torch.ones(1), noisy / float(len(y)), value=-1) == after
    return int((~seen).sum())


def twins(cases: int) -> dict[str, float]:
    """The largest part of a record over random cases, by model."""
    rng, worst = np.random.default_rng(0), {}
    names = ["mlp", "conv2d", "groupnorm", "lstm", *ADVERSE]
    for number in range(cases):
        name = names[number % len(names)]
        case, clip = ADVERSE.get(name) or CASES[name], ("flat", "auto")[number // len(names) % 2]
        scale = 10.0 ** rng.uniform(-30, 38)
        worst[name] = max(
            worst.get(name, 0.0), worst_part(case, scale, int(rng.integers(2**31)), clip)
        )
    return worst


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--trials", type=int, default=2_000, help="of each attack, a multiple of 200"
    )
    parser.add_argument(
        "--runs", type=int, default=100, help="whole runs that are attacked, of each kind"
    )
    parser.add_argument("--cases", type=int, default=10_000, help="of twin runs")
    parser.add_argument("--out", type=Path, help="JSON file for the result")
    given = parser.parse_args()
    torch.set_num_threads(1)
    result = {
        "attack": attack(given.trials),
        "end_to_end": {
            "release": end_to_end(given.runs, True),
            "simulation": end_to_end(given.runs, False),
        },
        "twins": {"cases": given.cases, "largest_part": twins(given.cases)},
    }
    publish(result, given.out)


if __name__ == "__main__":
    main()
