"""An example where DPSUR's published epsilon is exceeded, integrated exactly and simulated.

    python benchmarks/dpsur_audit.py --out benchmarks/results/dpsur_audit.json \\
        --plot docs/dpsur_audit.svg

The model is one number w, a record's loss is ``-c w``. D' holds n records with c = 0.002, and D one
more with c = 1; the clip norm is 1. A public drift t is taken from every proposal, ``w' - w = G -
t`` with G the noisy sum, so that the test accepts mostly where G is above t, which is where a
record with c = 1 shows. As the losses are linear, accepted steps are independent draws of one law,
and their number is fixed. Its density with and without the record is integrated on a grid; binning
is post-processing, so the epsilon of the binned pair (privacy-loss distributions of dp-accounting,
rounded optimistically) is a lower bound on that of the mechanism.
"""

import argparse
import dataclasses
import json
import math
from dataclasses import dataclass
from pathlib import Path

import matplotlib
import numpy as np
import torch
from dp_accounting.pld import privacy_loss_distribution
from matplotlib.figure import Figure
from scipy import stats

from mechanisms.accounting.acceptance import Acceptance
from mechanisms.accounting.accountant import epsilon
from mechanisms.cohort import Cohort
from mechanisms.dpsur import DpsurPlan
from mechanisms.gradients.record_gradients import RecordGradients
from mechanisms.mechanism import local_round
from mechanisms.optimizers import Optimizer
from mechanisms.randomness import Streams, seed_key
from mechanisms.registry import MECHANISMS
from mechanisms.sampling import CohortData
from mechanisms.trials import most_rejections

DELTA = 1e-5
SMALL, LARGE = 0.002, 1.0
"""c of the common records, and of the one that D has and D' has not."""
LOSS_CLIP = 1e-5
DRIFT = 1.5
EDGES = np.linspace(-9.0, 11.0, 4_001)
"""Bins of G - t."""
NEGLIGIBLE = 1e-18
STEPS = tuple(range(25, 501, 25))
RUNS = 2_000


@dataclass(frozen=True)
class Example:
    """Parameters of DPSUR, n, and the accepted steps at which the paper claims epsilon 3."""

    sample_rate: float
    noise: float
    validation_rate: float
    validation_noise: float
    beta: float
    records: int
    steps: int

    def plan(self, steps: int) -> DpsurPlan:
        """One round of that many accepted steps; a tenth of delta is for the cap on rejections."""
        plan = DpsurPlan(
            self.sample_rate,
            self.noise,
            1.0,
            steps,
            most_rejections=1,
            validation_rate=self.validation_rate,
            validation_noise=self.validation_noise,
            loss_clip=LOSS_CLIP,
            beta=self.beta,
            accounting="selective",
        )
        test = Acceptance.of_noisy_loss(self.validation_rate, self.validation_noise, self.beta)
        cap = most_rejections(test.lowest, steps, DELTA / 10)
        return dataclasses.replace(plan, most_rejections=cap)


EXAMPLES = (
    Example(0.02, 1.0, 0.005, 1.0, -1.0, 2_000, 426),
    Example(0.02, 1.0, 0.002, 0.8, -2.0, 5_000, 439),
)


def accepted_law(example: Example, present: bool) -> np.ndarray:
    """Probabilities ``[bins]`` of the accepted ``G - t``, with the large record or without it."""
    proposal = np.diff(_proposal(example, 0.0))
    middle = (EDGES[1:] + EDGES[:-1]) / 2
    chance = _acceptance(example, middle, without=True)
    if present:
        rate, test_rate = example.sample_rate, example.validation_rate
        proposal = (1 - rate) * proposal + rate * np.diff(_proposal(example, LARGE))
        chance = (1 - test_rate) * chance + test_rate * _acceptance(example, middle, without=False)
    # differences of a distribution function may round below 0
    law = np.maximum(proposal * chance, 0.0)
    return law / law.sum()


def _proposal(example: Example, extra: float) -> np.ndarray:
    """Distribution function of ``G - t`` at the edges: small records, the extra one, the noise."""
    count, weight = _likely(example.records, example.sample_rate)
    centres = SMALL * count + extra - DRIFT
    return weight @ stats.norm.cdf((EDGES[None, :] - centres[:, None]) / example.noise)


def _acceptance(example: Example, move: np.ndarray, without: bool) -> np.ndarray:
    """Probability ``[bins]`` that a test batch with or without the large record accepts a move."""
    count, weight = _likely(example.records, example.validation_rate)
    size = count if without else count + 1
    total = SMALL * count + (0.0 if without else LARGE)
    mean = np.divide(total, size, out=np.zeros(len(size)), where=size > 0)
    change = np.clip(-mean[:, None] * move[None, :], -LOSS_CLIP, LOSS_CLIP) / LOSS_CLIP
    return weight @ stats.norm.cdf((example.beta - change) / (2 * example.validation_noise))


def _likely(records: int, rate: float) -> tuple[np.ndarray, np.ndarray]:
    count = np.arange(records + 1)
    weight = stats.binom.pmf(count, records, rate)
    return count[weight > NEGLIGIBLE], weight[weight > NEGLIGIBLE]


def least_epsilons(example: Example, steps: tuple[int, ...]) -> list[float]:
    """Lower bounds on the true epsilon of that many accepted steps."""
    with np.errstate(divide="ignore"):
        within, without = (
            dict(enumerate(np.log(accepted_law(example, present)))) for present in (True, False)
        )
    loss = privacy_loss_distribution.from_two_probability_mass_functions(
        {n: v for n, v in without.items() if math.isfinite(v)},
        {n: v for n, v in within.items() if math.isfinite(v)},
        pessimistic_estimate=False,
    )
    return [float(loss.self_compose(count).get_epsilon_for_delta(DELTA)) for count in steps]


class Line(torch.nn.Module):
    """Output ``w x``."""

    def __init__(self) -> None:
        super().__init__()
        self.w = torch.nn.Parameter(torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``[B]`` from ``[B]``."""
        return self.w * x


def accepted_by_the_mechanism(example: Example, present: bool, runs: int, seed: int) -> np.ndarray:
    """First accepted ``G - t`` of independent runs of `mechanisms.dpsur`, float64 ``[runs]``."""
    small = np.arange(example.records)
    x = torch.full((example.records + 1,), SMALL)
    x[-1] = LARGE
    own = np.append(small, example.records) if present else small
    scale = example.sample_rate * len(own)  # what the mechanism divides by
    drifting = Optimizer(lambda rows: (), lambda gradient, state: (gradient + DRIFT / scale, state))
    cohort = Cohort(
        gradients=RecordGradients(Line(), lambda output, targets: -output),
        data=CohortData(x, torch.zeros(len(x)), [own] * runs),
        plans=[example.plan(1)] * runs,
        streams=Streams(seed_key(seed), 1, range(runs), torch.device("cpu")),
        optimizer=drifting,
        learning_rate=lambda taken: torch.full_like(taken, scale),
        nth=[1] * runs,
    )
    end = local_round(MECHANISMS["dpsur"], cohort, torch.zeros(1))
    return end.params[end.taken > 0, 0].double().numpy()


def agreement(example: Example, present: bool, runs: int) -> float:
    """Kolmogorov-Smirnov p-value of the mechanism's accepted steps under the integrated law."""
    law = np.append(0.0, np.cumsum(accepted_law(example, present)))
    sample = accepted_by_the_mechanism(example, present, runs, seed=0)
    return float(stats.kstest(sample, lambda x: np.interp(x, EDGES, law)).pvalue)


def measure(example: Example) -> dict:
    """Claimed, least true and certified epsilon by accepted steps, and the p-value of the law."""
    steps = tuple(sorted({*STEPS, example.steps}))
    plans = [example.plan(count) for count in steps]
    return {
        **dataclasses.asdict(example),
        "at_steps": steps,
        "published": [
            epsilon(plan.claims(plan.steps, 1), DELTA, "published").epsilon for plan in plans
        ],
        "true_at_least": least_epsilons(example, steps),
        "certified": [epsilon(plan.round_charges(1), DELTA).epsilon for plan in plans],
        "p_value_with": agreement(example, True, RUNS),
        "p_value_without": agreement(example, False, RUNS),
    }


def picture(rows: list[dict]) -> Figure:
    """Epsilon by accepted steps, one panel an example."""
    figure = Figure(figsize=(8.6, 3.1), layout="constrained")
    for axes, row in zip(figure.subplots(1, len(rows), sharey=True), rows, strict=True):
        axes.plot(row["at_steps"], row["certified"], color="#2b6cb0", label="certified")
        axes.plot(row["at_steps"], row["true_at_least"], color="#c53030", label="true, at least")
        axes.plot(
            row["at_steps"], row["published"], color="#dd7a1b", linestyle=":", label="published"
        )
        axes.set(xlabel="accepted steps", xlim=(0, max(row["at_steps"])))
        axes.set_title(
            f"q_v = {row['validation_rate']:g}, s_v = {row['validation_noise']:g}, beta = "
            f"{row['beta']:g}"
        )
        axes.grid(color="#e2e8f0")
    figure.axes[0].set(
        ylabel="epsilon", ylim=(0, 1.05 * max(max(row["certified"]) for row in rows))
    )
    figure.axes[0].legend(frameon=False)
    return figure


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description="DPSUR's published epsilon against a lower bound on the true one."
    )
    parser.add_argument("--out", type=Path, help="where the JSON goes")
    parser.add_argument("--plot", type=Path, help="where the picture goes")
    arguments = parser.parse_args()
    measured = {"delta": DELTA, "examples": [measure(example) for example in EXAMPLES]}
    print(json.dumps(measured, indent=1))
    if arguments.out:
        arguments.out.write_text(json.dumps(measured, indent=1) + "\n")
    if arguments.plot:
        with matplotlib.rc_context(
            {"font.size": 9, "axes.titlesize": 9.5, "svg.hashsalt": "dpsur"}
        ):
            picture(measured["examples"]).savefig(arguments.plot, metadata={"Date": None})
