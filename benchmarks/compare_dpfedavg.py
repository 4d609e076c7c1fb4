"""DP-FedAvg at a trusted server in pfl-research, in Flower and here, at the same noise.

    python benchmarks/compare_dpfedavg.py --pfl-python .venv-pfl/bin/python --data-dir DATA \\
        --out benchmarks/results/dpfedavg.json

    pfl      benchmarks/peers/pfl_yardstick.py, in an environment of its own
             (`pip install 'pfl[pytorch]'`)
    flower   benchmarks/peers/flower_dpfedavg.py, in an environment with `flwr[simulation,dp]`, such
             as this project's own
    ours     `python -m sim.run --trust server --unit client`

Whole commands in turns, each with one thread. The example is pfl's own in its numbers: 1,000
clients of 50 images, 50 a round, a local pass in 5 steps of 10 images (ours: of 10 expected, or as
theirs with `--sampling shuffled`) at rate 0.1, updates clipped to 0.4, a plain mean at the server,
a look at the test part every 10 rounds.

    mnist    a small net and noise of one clip norm on each sum, as it is charged
    cifar10  pfl's benchmark: its net, and its noise, which is that of 1,000 clients a round of a
             million (`noise_cohort_size`), scaled down to 50. Epsilon is that of the planned
             training, 3,000 rounds, not that of the rounds that are trained here. No result of
             it is kept

Taken of each: accuracy of the last model, CPU seconds of the whole command (of Flower without Ray's
own processes), median seconds of a round that ends without a look at the test part. Epsilon is what
each side's own accountant gives for the same noise, rounds and sampling; ours also for the end
alone, as theirs are: 2 % of our delta pay for figures while a run goes on. Prints JSON.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import numpy as np  # noqa: E402

from benchmarks.compare_pfl import cpu_seconds, quiet_rounds  # noqa: E402
from benchmarks.measured import chip, publish  # noqa: E402
from benchmarks.peers.yardstick import (  # noqa: E402
    BATCH,
    CLIP_NORM,
    COHORT,
    IMAGES,
    RATE,
    USERS,
)
from mechanisms.accounting import accountant, dominating  # noqa: E402
from mechanisms.accounting.events import SampledGaussian  # noqa: E402
from sim.data.dataset import load  # noqa: E402


@dataclass(frozen=True)
class Task:
    """What is trained, and what is charged for it.

    Attributes:
        net: a name of `benchmarks.peers.yardstick.NETS`.
        noise_multiplier: on the sum of ``noise_cohort`` clients, over the clip norm.
        noise_cohort: clients a round.
        population: all clients.
        charged_rounds: of the whole training; None for those of a run.
        delta: of the guarantee.
        rounds: of a run, unless others are asked for.
    """

    net: str
    noise_multiplier: float
    noise_cohort: int
    population: int
    charged_rounds: int | None
    delta: float
    rounds: int


TASKS = {
    "mnist": Task("SmallCNN", 1.0, COHORT, USERS, None, 1e-5, 100),
    "cifar10": Task("TwoLayerCNN", 0.6328, 1000, 1_000_000, 3000, 1e-6, 30),
}
SIDES = ("pfl", "flower", "ours")


def write_records(path: Path, dataset: str, data_dir: str | None) -> None:
    """As many images as the clients have, as bytes, for all sides."""
    data = load(dataset, data_dir, normalise=False)
    x, x_test = (np.rint(part * 255).astype(np.uint8) for part in (data.x, data.x_test))
    most = USERS * IMAGES
    np.savez(path, x=x[:most], y=data.y[:most], x_test=x_test, y_test=data.y_test)


def run_peer(python: str, script: str, task: Task, common: list[str]) -> tuple[dict, dict]:
    """One run of a peer, and what its runs have in common. Flower says its own CPU time."""
    command = [python, f"benchmarks/peers/{script}.py", f"--net={task.net}", *common]
    command += [f"--noise-multiplier={task.noise_multiplier}", f"--delta={task.delta}"]
    command += [f"--noise-cohort={task.noise_cohort}", f"--population={task.population}"]
    if task.charged_rounds:
        command.append(f"--charged-rounds={task.charged_rounds}")
    cpu, output = cpu_seconds(command)
    report = json.loads(output.strip().splitlines()[-1])
    seconds = report["round_seconds"]
    looks_first = script == "pfl_yardstick"
    quiet = (
        statistics.median(s for n, s in enumerate(seconds) if n % 10)
        if looks_first
        else quiet_rounds(seconds)
    )
    run = {"accuracy": report["accuracy"], "round": quiet, "cpu": report.get("cpu", cpu)}
    return run, {"epsilon": report["epsilon"], "versions": report["versions"]}


def run_ours(task: Task, rounds: int, sampling: str, common: list[str]) -> tuple[dict, dict]:
    """One run of ours, and what its runs have in common."""
    noise = task.noise_multiplier * COHORT / task.noise_cohort
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "sim.run", "--trust=server", "--unit=client"]
        command += [f"--model=benchmarks.peers.yardstick:{task.net}", f"--clients={USERS}"]
        command += ["--partition=iid", f"--fraction={COHORT / USERS}", f"--lr={RATE}"]
        command += [f"--sample-rate={BATCH / IMAGES}", f"--steps={IMAGES // BATCH}"]
        command.append(f"--sampling={sampling}")
        command += [f"--clip-norm={CLIP_NORM}", f"--noise-multiplier={noise}", "--epsilon=none"]
        command += [f"--delta={task.delta}", "--server-momentum=0", "--evaluate-every=10"]
        command += ["--engine=inline", "--quiet", f"--out={folder}", "--name=run"]
        cpu, _ = cpu_seconds([*command, *common])
        lines = (Path(folder) / "run" / "rounds.jsonl").read_text().splitlines()
    done = [json.loads(line) for line in lines]
    quiet = quiet_rounds([r["seconds"] for r in done])
    run = {"accuracy": done[-1]["accuracy"], "round": quiet, "cpu": cpu}
    return run, {"epsilon": our_epsilons(task, rounds), "versions": {"torch": version("torch")}}


def our_epsilons(task: Task, rounds: int) -> dict[str, float]:
    """Certified at any time of a run, and at its end alone."""
    event = SampledGaussian(task.noise_cohort / task.population, task.noise_multiplier)
    charges = {event: task.charged_rounds or rounds}
    return {
        "certified": accountant.epsilon(charges, task.delta).epsilon,
        "end alone": accountant.composed(charges, task.delta, dominating.pairs),
    }


def spread(values: list[float]) -> dict[str, float]:
    """Mean and standard deviation."""
    deviation = statistics.stdev(values) if len(values) > 1 else 0.0
    return {"mean": statistics.mean(values), "deviation": deviation}


def main() -> None:
    """Run all sides in turns and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pfl-python", default="python")
    parser.add_argument("--flower-python", default=sys.executable)
    parser.add_argument("--data-dir")
    parser.add_argument("--task", choices=TASKS, default="mnist")
    parser.add_argument("--rounds", type=int, help="the task's, if not given")
    parser.add_argument("--seeds", type=int, default=3, help="runs of each side, of seeds from 0")
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=list(SIDES))
    parser.add_argument(
        "--sampling",
        choices=("poisson", "shuffled"),
        default="poisson",
        help="of our local batches",
    )
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    task = TASKS[arguments.task]
    rounds = arguments.rounds or task.rounds
    runs: list[dict] = []
    facts: dict[str, dict] = {}
    with tempfile.TemporaryDirectory() as folder:
        records = Path(folder) / f"{arguments.task}.npz"
        write_records(records, arguments.task, arguments.data_dir)
        for seed in range(arguments.seeds):
            common = [f"--rounds={rounds}", f"--seed={seed}"]
            peers = [f"--records={records}", *common]
            for side in arguments.sides:
                load_average = os.getloadavg()[0]
                if side == "ours":
                    run, facts[side] = run_ours(
                        task, rounds, arguments.sampling, [f"--dataset={records}", *common]
                    )
                else:
                    python = arguments.pfl_python if side == "pfl" else arguments.flower_python
                    script = "pfl_yardstick" if side == "pfl" else "flower_dpfedavg"
                    run, facts[side] = run_peer(os.path.abspath(python), script, task, peers)
                runs.append({"side": side, "seed": seed, **run, "load_average": load_average})
                print(json.dumps(runs[-1]), file=sys.stderr, flush=True)

    def of(side: str, figure: str) -> list[float]:
        return [run[figure] for run in runs if run["side"] == side]

    sides = {
        side: {
            "accuracy": spread(of(side, "accuracy")),
            "cpu": statistics.median(of(side, "cpu")),
            "round": statistics.median(of(side, "round")),
            **facts[side],
        }
        for side in arguments.sides
    }
    result = {
        "command": "python " + " ".join(sys.argv),
        "task": {"name": arguments.task, **asdict(task), "rounds": rounds},
        "processor": chip(),
        "sides": sides,
        "over_ours": {
            figure: {s: sides[s][figure] / sides["ours"][figure] for s in sides if s != "ours"}
            for figure in ("cpu", "round")
        },
        "runs": runs,
    }
    publish(result, arguments.out)


if __name__ == "__main__":
    main()
