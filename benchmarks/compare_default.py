"""Compares the default federated run with plain Flower, Ray and Opacus.

Digits, 100 clients, 10 rounds, local DPSGD.

All sides are whole commands, started by this script one at a time and in turns (the side that goes
first changes with every repeat, so that none always meets the warmer machine):

    peer     PEER-PYTHON benchmarks/peers/flower_ray_opacus.py ...
    auto     OURS-PYTHON -m sim.run --dataset digits --engine auto ...
             (the default engine; run directory in a temporary folder)
    inline   the same with --engine inline
    ray      the same with --engine ray

Two figures are taken of each run: the wall-clock seconds of the whole process, measured here from
before its start to after its exit, and the median seconds of its rounds after the first, as it
reports them itself (the first round holds the start of the workers). Reported are minimum, median
and maximum over the repeats, and for each of our engines three ratios peer / ours: of the medians,
the least favourable to us (the peer's fastest run over our slowest) and the most favourable.

    python benchmarks/compare_default.py --ours-python .venv/bin/python \\
        --peer-python .venv-peer/bin/python --repeats 5

Prints JSON, then Markdown; `--out FOLDER` writes both there as `compare_default.json` and
`compare_default.md`.
"""

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PEER = ROOT / "benchmarks" / "peers" / "flower_ray_opacus.py"
OUR_MODELS = {"cnn": "benchmarks.digits_cnn:DigitsCNN"}
"""Where our name for the peer's model is another one."""
BASELINE_PRIVACY = ("--mechanism=dpsgd", "--clip-norm=1", "--epsilon=none")
"""As in the baseline no client retires; ledgers and epsilons are still written, and timed."""
SIDES = ("peer", "auto", "inline", "ray")
"""The baseline, and our engines."""
MEASURES = {"whole_process": "whole process", "round_after_first": "a round after the first"}


@dataclass(frozen=True)
class Run:
    """One finished command."""

    side: str
    repeat: int
    whole_process: float
    round_after_first: float
    accuracy: float | None
    load_average: float | None
    """Of the machine over the last minute, before the command was started."""


def task_flags(arguments: argparse.Namespace, seed: int) -> list[str]:
    """The flags that both sides understand alike."""
    names = "clients dirichlet rounds steps workers noise_multiplier sample_rate lr"
    flags = [f"--{name.replace('_', '-')}={getattr(arguments, name)}" for name in names.split()]
    return [*flags, f"--seed={seed}"]


def execute(command: list[str], timeout: float) -> tuple[float, str]:
    """Wall-clock seconds and standard output of a command; its error output when it fails."""
    start = time.perf_counter()
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=timeout, check=False
    )
    seconds = time.perf_counter() - start
    if done.returncode != 0:
        raise RuntimeError(
            f"{' '.join(command)}: exit status {done.returncode}\n{done.stderr[-4000:]}"
        )
    return seconds, done.stdout


def run_peer(arguments: argparse.Namespace, repeat: int) -> tuple[Run, dict]:
    load = load_average()
    command = [arguments.peer_python, str(PEER), f"--model={arguments.model}"]
    seconds, output = execute(
        [*command, *task_flags(arguments, arguments.seed + repeat)], arguments.timeout
    )
    report = json.loads(output.strip().splitlines()[-1])
    run = Run("peer", repeat, seconds, report["seconds_per_round"], report["accuracy"], load)
    return run, {"versions": report["versions"], "parameters": report["parameters"]}


def run_ours(arguments: argparse.Namespace, repeat: int, engine: str) -> Run:
    load = load_average()
    with tempfile.TemporaryDirectory() as folder:
        command = [arguments.ours_python, "-m", "sim.run", "--dataset=digits", f"--engine={engine}"]
        model = OUR_MODELS.get(arguments.model, arguments.model)
        command += [f"--model={model}", *BASELINE_PRIVACY]
        command += task_flags(arguments, arguments.seed + repeat)
        command += [f"--out={folder}", "--name=benchmark", "--quiet", *arguments.ours_flags]
        seconds, _ = execute(command, arguments.timeout)
        lines = (Path(folder) / "benchmark" / "rounds.jsonl").read_text("utf-8").splitlines()
    rounds = [json.loads(line) for line in lines]
    if len(rounds) != arguments.rounds:
        raise RuntimeError(
            f"rounds.jsonl holds {len(rounds)} rounds, {arguments.rounds} were asked for"
        )
    per_round = statistics.median(record["seconds"] for record in rounds[1:])
    return Run(engine, repeat, seconds, per_round, rounds[-1].get("accuracy"), load)


def load_average() -> float | None:
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else None


def spread(values: list[float]) -> dict[str, float]:
    return {"min": min(values), "median": statistics.median(values), "max": max(values)}


def ratios(peer: dict[str, float], ours: dict[str, float]) -> dict[str, float]:
    """How many times longer the peer takes."""
    return {
        "median": peer["median"] / ours["median"],
        "least": peer["min"] / ours["max"],
        "most": peer["max"] / ours["min"],
    }


def summarize(runs: list[Run], task: dict, peer_facts: dict) -> dict:
    seconds = {
        measure: {
            side: spread([getattr(run, measure) for run in runs if run.side == side])
            for side in SIDES
        }
        for measure in MEASURES
    }
    return {
        "task": task,
        "machine": {
            "cpus": os.cpu_count(),
            "system": platform.platform(),
            "processor": platform.machine(),
        },
        "peer": peer_facts,
        "seconds": seconds,
        "ratio_peer_to_ours": {
            measure: {engine: ratios(sides["peer"], sides[engine]) for engine in SIDES[1:]}
            for measure, sides in seconds.items()
        },
        "runs": [asdict(run) for run in runs],
    }


def to_markdown(summary: dict) -> str:
    task, machine = summary["task"], summary["machine"]
    versions = ", ".join(f"{name} {number}" for name, number in summary["peer"]["versions"].items())
    lines = [
        f"Digits, {task['clients']} clients (Dirichlet {task['dirichlet']}), {task['rounds']} "
        f"rounds of {task['steps']} local DPSGD steps, {task['model']}, sample rate "
        f"{task['sample_rate']}, noise multiplier {task['noise_multiplier']}, {task['workers']} "
        f"workers; {task['repeats']} alternating runs a side on {machine['cpus']} CPUs "
        f"({machine['system']}). Peer: {versions}.",
        "",
        "| seconds | side | min | median | max | peer / ours, medians | least | most |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for measure, title in MEASURES.items():
        for side, seconds in summary["seconds"][measure].items():
            ratio = summary["ratio_peer_to_ours"][measure].get(side, {})
            cells = [title, side, *(f"{seconds[key]:.3g}" for key in ("min", "median", "max"))]
            cells += [f"{ratio[key]:.1f}" if ratio else "" for key in ("median", "least", "most")]
            lines.append(f"| {' | '.join(cells)} |")
    accuracies = {
        side: [
            run["accuracy"]
            for run in summary["runs"]
            if run["side"] == side and run["accuracy"] is not None
        ]
        for side in SIDES
    }
    texts = [
        f"{side} {statistics.median(values):.3f}" for side, values in accuracies.items() if values
    ]
    return "\n".join([*lines, "", f"Median accuracy after the last round: {', '.join(texts)}."])


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Ours against plain Flower + Ray + Opacus")
    parser.add_argument(
        "--ours-python", default=sys.executable, help="interpreter with this project installed"
    )
    parser.add_argument(
        "--peer-python", default=sys.executable, help="interpreter with benchmarks/requirements.txt"
    )
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--dirichlet", type=float, default=0.5)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--model", choices=("linear", "mlp", "cnn"), default="mlp")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--noise-multiplier", type=float, default=1.0)
    parser.add_argument("--sample-rate", type=float, default=0.5)
    parser.add_argument("--lr", type=float, default=1.0)
    parser.add_argument(
        "--seed", type=int, default=0, help="of the first repeat; the next ones count up"
    )
    parser.add_argument(
        "--ours-flags",
        nargs=argparse.REMAINDER,
        default=[],
        help="last: passed to our command as is",
    )
    parser.add_argument("--timeout", type=float, default=600.0, help="seconds for one run")
    parser.add_argument(
        "--out", type=Path, help="folder for compare_default.json and compare_default.md"
    )
    arguments = parser.parse_args()
    if arguments.repeats < 1:
        parser.error(f"--repeats {arguments.repeats}: must be at least 1")
    if arguments.rounds < 2:
        parser.error(
            f"--rounds {arguments.rounds}: must be at least 2, the first round is reported apart"
        )
    return arguments


def interpreter(name: str) -> str:
    """The absolute path with links kept: a virtual environment's interpreter is often a link."""
    return os.path.abspath(shutil.which(name) or name)


def main() -> None:
    arguments = parse_arguments()
    arguments.ours_python = interpreter(arguments.ours_python)
    arguments.peer_python = interpreter(arguments.peer_python)
    runs: list[Run] = []
    peer_facts: dict = {}
    for repeat in range(arguments.repeats):
        first = repeat % len(SIDES)
        for side in SIDES[first:] + SIDES[:first]:
            if side == "peer":
                run, peer_facts = run_peer(arguments, repeat)
            else:
                run = run_ours(arguments, repeat, side)
            runs.append(run)
            print(
                f"{side} {repeat + 1}/{arguments.repeats}: {run.whole_process:.2f} s",
                file=sys.stderr,
                flush=True,
            )
    private = ("ours_python", "peer_python", "timeout", "out")
    task = {name: value for name, value in vars(arguments).items() if name not in private}
    summary = summarize(runs, task, peer_facts)
    texts = {"json": json.dumps(summary, indent=2), "md": to_markdown(summary)}
    print(texts["json"], texts["md"], sep="\n\n")
    if arguments.out:
        arguments.out.mkdir(parents=True, exist_ok=True)
        for suffix, text in texts.items():
            (arguments.out / f"compare_default.{suffix}").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
