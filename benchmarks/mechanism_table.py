"""Accuracy and cost of a local step of all mechanisms at the same certified epsilon.

100 clients, Dirichlet 0.5.

    python benchmarks/mechanism_table.py --dataset digits --out benchmarks/results
    python benchmarks/mechanism_table.py --dataset mnist --model mlp --out benchmarks/results

Every mechanism gets the same tuning: the same learning rates times two values of one setting of its
own, each tried once at each epsilon on a fifth of the *training* part, held out by
`--validation-records` (seed 100). The best setting is then trained on the whole training part with
each seed and measured once on the test part. Runs are the inline engine's, several processes side
by side. The cost of a local step is measured afterwards, in one process: runs of the mechanism and
of DPSGD take turns, and the least training time of a round counts, over DPSGD's.
"""

import argparse
import itertools
import json
import math
import statistics
import tempfile
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, fields
from pathlib import Path

OWN = {
    "dpsgd": ("clip_norm", (1.0, 0.3)),
    "dpsur": ("dpsur_beta", (-1.0, 0.0)),
    "dpis": ("dpis_slack", (2.0, 4.0)),
    "dphero": ("hero_floor", (0.2, 0.6)),
    "screening": ("screening_clip", (0.1, 0.02)),
    "dpagd": ("agd_search_share", (0.05, 0.2)),
}
"""The setting of its own that each mechanism has tuned, and the two values tried."""
EPSILONS = (2.0, 8.0)
SEEDS = (0, 1, 2)
TUNING_SEED = 100
TURNS = 3


@dataclass(frozen=True)
class Case:
    """One run: a mechanism with its settings."""

    mechanism: str
    epsilon: float
    lr: float
    own: float
    seed: int


def play(case: Case, arguments: argparse.Namespace, held_out: int = 0) -> dict:
    """Train once; accuracy after the last round, epsilon, and the least seconds of a round.

    Accuracy is that on the records that are held out of the training part, where there are any.
    """
    from sim.job.environment import prepare

    prepare()
    from sim.commands.flags import parse
    from sim.engines.start import train

    settings = asdict(case) | {"dataset": arguments.dataset, "model": arguments.model}
    settings[OWN[case.mechanism][0]] = settings.pop("own")
    settings |= {"rounds": arguments.rounds, "clients": 100, "dirichlet": 0.5}
    settings |= {"engine": "inline", "groups": 1}
    if held_out:
        settings |= {"validation_records": held_out, "evaluate_on": "validation"}
    settings |= dict(s.split("=", 1) for s in arguments.set)
    flags = [f"--{key.replace('_', '-')}={value}" for key, value in settings.items()]
    flags += [f"--data-dir={arguments.data_dir}"] if arguments.data_dir else []
    with tempfile.TemporaryDirectory() as folder:
        own = ["--quiet", "--out", folder, "--name", "run"]
        run = train(parse([*flags, *own], "mechanisms", ""))
        records = [json.loads(line) for line in (run / "rounds.jsonl").read_text().splitlines()]
    last = records[-1]
    return asdict(case) | {
        "accuracy": last["accuracy"],
        "certified": last["epsilon_certified_max"],
        "published": last["epsilon_published_max"],
        "seconds": min(r["seconds_training"] for r in records),
    }


def attempt(case: Case, arguments: argparse.Namespace, held_out: int) -> dict:
    """As ``play``; a setting that diverges or is refused is a bad one, and its reason is kept."""
    try:
        return play(case, arguments, held_out)
    except ValueError as fault:
        return asdict(case) | {"accuracy": 0.0, "fault": str(fault)}


def tune(arguments: argparse.Namespace, pool: ProcessPoolExecutor) -> list[dict]:
    """Every case of the grid on held-out training records."""
    from sim.data.dataset import load

    cases = [
        Case(mechanism, epsilon, lr, own, TUNING_SEED)
        for mechanism in arguments.mechanisms
        for epsilon, lr, own in itertools.product(EPSILONS, arguments.rates, OWN[mechanism][1])
    ]
    held_out = len(load(arguments.dataset, arguments.data_dir).y) // 5
    return list(pool.map(attempt, cases, [arguments] * len(cases), [held_out] * len(cases)))


def costs(rows: list[dict], arguments: argparse.Namespace) -> dict[str, float]:
    """Local steps' cost over DPSGD's, at each mechanism's settings for the largest epsilon."""
    cases = {r["mechanism"]: Case(**{f.name: r[f.name] for f in fields(Case)}) for r in rows}
    least = dict.fromkeys(cases, math.inf)
    for _ in range(TURNS):
        for mechanism, case in cases.items():
            least[mechanism] = min(least[mechanism], play(case, arguments)["seconds"])
    return (
        {mechanism: seconds / least["dpsgd"] for mechanism, seconds in least.items()}
        if "dpsgd" in least
        else {}
    )


def markdown(rows: list[dict], cost: dict[str, float], arguments: argparse.Namespace) -> str:
    """The table: mean and spread over seeds."""
    lines = [
        f"`python benchmarks/mechanism_table.py --dataset {arguments.dataset} --model "
        f"{arguments.model}`",
        "",
        "| mechanism | certified epsilon | published | accuracy, mean (least to largest) | "
        "settings | step / DPSGD's |",
        "|---|---|---|---|---|---|",
    ]
    keys = dict.fromkeys((r["mechanism"], r["epsilon"]) for r in rows)
    for mechanism, epsilon in keys:
        cell = [r for r in rows if (r["mechanism"], r["epsilon"]) == (mechanism, epsilon)]
        accuracies = [100 * r["accuracy"] for r in cell]
        lines.append(
            f"| {mechanism} | {max(r['certified'] for r in cell):.4g} | "
            f"{max(r['published'] for r in cell):.3g} | {statistics.mean(accuracies):.1f} "
            f"({min(accuracies):.1f} to {max(accuracies):.1f}) | lr {cell[0]['lr']:g}, "
            f"{OWN[mechanism][0]} {cell[0]['own']:g} | {cost.get(mechanism, math.nan):.2f} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    """Tune, measure, print, and write the results where asked."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dataset", default="digits")
    parser.add_argument("--data-dir")
    parser.add_argument("--model", default="linear")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument(
        "--rates", type=float, nargs="+", default=[0.5, 1.0, 2.0], help="learning rates tried"
    )
    parser.add_argument(
        "--set",
        nargs="*",
        default=[],
        help="further settings of all runs, such as local-momentum=0.9",
    )
    parser.add_argument("--mechanisms", nargs="+", default=list(OWN), choices=list(OWN))
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    with ProcessPoolExecutor(arguments.processes) as pool:
        tuning = tune(arguments, pool)
        cases = []
        for mechanism, epsilon in itertools.product(arguments.mechanisms, EPSILONS):
            tried = [t for t in tuning if (t["mechanism"], t["epsilon"]) == (mechanism, epsilon)]
            best = max(tried, key=lambda t: t["accuracy"])
            if "fault" in best:
                print(f"{mechanism} at epsilon {epsilon:g} is left out: {best['fault']}")
                continue
            cases += [Case(mechanism, epsilon, best["lr"], best["own"], seed) for seed in SEEDS]
        rows = list(pool.map(play, cases, [arguments] * len(cases)))
    cost = costs(rows, arguments)
    table = markdown(rows, cost, arguments)
    print(table)
    if arguments.out:
        stem = arguments.out / f"mechanisms_{arguments.dataset}"
        stem.with_suffix(".md").write_text(table)
        stem.with_suffix(".json").write_text(
            json.dumps({"tuning": tuning, "runs": rows, "step_cost": cost}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
