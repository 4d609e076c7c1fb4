"""Membership inference against central training: without privacy, DPSGD and DPSUR, at the same certified epsilon.

    python benchmarks/membership.py --out benchmarks/results/membership_digits.json -- --model mlp
    python benchmarks/membership.py --out benchmarks/results/membership_mnist.json --records 6000 -- --dataset mnist

Black-Box/Shadow and White-Box/Partial with the 2:1:2:1 split of DPSUR's section 6.4, and LiRA with its true-positive
rate at low false-positive rates. What follows ``--`` are flags of ``python -m sim.central``. Without privacy nothing is
clipped, and the learning rate is multiplied by the clip norm.
"""

import argparse
import math
import sys
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np

from benchmarks.measured import publish
from mechanisms.randomness import generator, seed_key
from sim.attacking.lira import confidences, halves, likelihood_ratios, roc
from sim.attacking.membership import split
from sim.attacking.partial import partial_accuracy
from sim.attacking.shadow import shadow_accuracy
from sim.auditing.trainings import train, with_mechanism
from sim.config.flags import parse
from sim.engines.environment import prepare
from sim.job.device import single_thread
from sim.job.job import Job
from sim.phases.build import build

MECHANISMS = ("none", "dpsgd", "dpsur")
RATES = (0.001, 0.01, 0.1)
CURVE = np.geomspace(1e-4, 1.0, 41)


def of_some_records(job: Job, count: int | None) -> Job:
    """The job with that many of its training records."""
    if count is None:
        return job
    chosen = generator(seed_key(job.config.run.seed), "attacked records").permutation(len(job.dataset.y))[:count]
    return replace(job, dataset=replace(job.dataset, x=job.dataset.x[chosen], y=job.dataset.y[chosen]))


def with_rate(job: Job, rate: float) -> Job:
    """The job with another learning rate: a whole gradient is longer than a clipped one by the clip norm's inverse."""
    local = job.config.local.model_copy(update={"lr": rate})
    return replace(job, config=job.config.model_copy(update={"local": local}))


def attack(job: Job, seed: int, models: int) -> dict:
    """All attacks on trainings of one job, with draws of this seed."""
    key, records = seed_key(seed), len(job.dataset.y)
    parts = split(records, generator(key, "parts"))
    target = train(job, [parts.target_in], key)
    shadow = train(job, [parts.shadow_in], seed_key(seed + 1_000_000))
    inside = halves(records, models, key)
    shadows = train(job, [np.flatnonzero(row) for row in inside], seed_key(seed + 2_000_000))
    curve = roc(likelihood_ratios(confidences(shadows, np.arange(records)), inside), inside)
    right = target.probabilities(parts.target_out)[0].argmax(dim=1).numpy() == job.dataset.y[parts.target_out]
    return {
        "test_accuracy": float(right.mean()),
        "epsilon_certified": target.epsilon if math.isfinite(target.epsilon) else None,
        "shadow_accuracy": shadow_accuracy(target, shadow, parts, key),
        "partial_accuracy": partial_accuracy(target, parts, key),
        "lira_area": curve.area,
        "lira_true_positives": {str(rate): curve.at(rate) for rate in RATES},
        "lira_curve": [[float(rate), curve.at(rate)] for rate in CURVE],
    }


def main() -> None:
    """Attack every mechanism and print what came out."""
    parser = argparse.ArgumentParser(description="Membership inference without privacy, with DPSGD and with DPSUR.")
    parser.add_argument("--out", type=Path, help="where the JSON goes")
    parser.add_argument("--seeds", type=int, default=3, help="targets of the first two attacks")
    parser.add_argument("--models", type=int, default=16, help="models of LiRA, for each seed")
    parser.add_argument("--records", type=int, help="training records to take; all by default")
    parser.add_argument("flags", nargs="*", help="of sim.central, after --")
    known = parser.parse_args()
    prepare()
    single_thread()
    config = parse(known.flags, "benchmarks/membership.py", "", central=True).config
    job = of_some_records(build(config), known.records)
    found = {}
    for mechanism in MECHANISMS:
        one = with_mechanism(job, mechanism, config.privacy.epsilon)
        if mechanism == "none":
            one = with_rate(one, config.local.lr * config.privacy.clip_norm)
        found[mechanism] = [attack(one, seed, known.models) for seed in range(known.seeds)]
    result = {"flags": known.flags, "records": len(job.dataset.y), "models": known.models, "mechanisms": found}
    publish(result, known.out)


if __name__ == "__main__":
    main()
