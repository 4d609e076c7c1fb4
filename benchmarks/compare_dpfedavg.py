"""DP-FedAvg at a trusted server in pfl-research, in Flower and here, at the same noise.

    python benchmarks/compare_dpfedavg.py --pfl-python .venv-pfl/bin/python --data-dir DATA \\
        --out benchmarks/results/dpfedavg.json

    pfl      benchmarks/peers/pfl_yardstick.py, in an environment of its own
             (`pip install 'pfl[pytorch]'`)
    flower   benchmarks/peers/flower_dpfedavg.py, in an environment with `flwr[simulation,dp]`, such
             as this project's own
    ours     `python -m sim.run --trust server --unit client`

Whole commands in turns, each with one thread, on MNIST with a small net. The example is pfl's own
in its numbers: 1,000 clients of 50 images, 50 a round, a local pass in 5 steps of 10 images (ours:
of 10 expected, or as theirs with `--sampling shuffled`) at rate 0.1, updates clipped to 0.4, a
plain mean at the server, a look at the test part every 10 rounds. The noise on a round's sum is one
clip norm.

Taken of each: accuracy of the last model, CPU seconds of the whole command (of Flower without Ray's
own processes), median seconds of a round that ends without a look at the test part. Epsilon is what
each side's own accountant gives for the same noise, rounds and sampling; ours also for the end
alone, as theirs are: a part of our delta pays for figures while a run goes on. Prints JSON.
"""

import json
import os
import statistics
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.compare_pfl import cpu_seconds, quiet_rounds, write_records  # noqa: E402
from benchmarks.measured import chip, parser_of, publish, rounds_of  # noqa: E402
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

NET, NOISE, DELTA = "SmallCNN", 1.0, 1e-5
SIDES = ("pfl", "flower", "ours")


def run_peer(python: str, script: str, common: list[str]) -> tuple[dict, dict]:
    """One run of a peer, and what its runs have in common. Flower says its own CPU time."""
    command = [python, f"benchmarks/peers/{script}.py", f"--net={NET}", *common]
    command += [f"--noise-multiplier={NOISE}", f"--delta={DELTA}"]
    cpu, output = cpu_seconds(command, processes=1)
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


def run_ours(rounds: int, sampling: str, common: list[str]) -> tuple[dict, dict]:
    """One run of ours, and what its runs have in common."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "sim.run", "--trust=server", "--unit=client"]
        command += [f"--model=benchmarks.peers.yardstick:{NET}", f"--clients={USERS}"]
        command += ["--partition=iid", f"--fraction={COHORT / USERS}", f"--lr={RATE}"]
        command += [f"--sample-rate={BATCH / IMAGES}", f"--steps={IMAGES // BATCH}"]
        command.append(f"--sampling={sampling}")
        command += [f"--clip-norm={CLIP_NORM}", f"--noise-multiplier={NOISE}", "--epsilon=none"]
        command += [f"--delta={DELTA}", "--server-momentum=0", "--evaluate-every=10"]
        command += ["--engine=inline", "--quiet", f"--out={folder}", "--name=run"]
        cpu, _ = cpu_seconds([*command, *common], processes=1)
        done = rounds_of(Path(folder) / "run")
    quiet = quiet_rounds([r["seconds"] for r in done])
    run = {"accuracy": done[-1]["accuracy"], "round": quiet, "cpu": cpu}
    return run, {"epsilon": our_epsilons(rounds), "versions": {"torch": version("torch")}}


def our_epsilons(rounds: int) -> dict[str, float]:
    """Certified at any time of a run, and at its end alone."""
    charges = {SampledGaussian(COHORT / USERS, NOISE): rounds}
    return {
        "certified": accountant.epsilon(charges, DELTA).epsilon,
        "end alone": accountant.composed(charges, DELTA, dominating.ways),
    }


def spread(values: list[float]) -> dict[str, float]:
    """Mean and standard deviation."""
    deviation = statistics.stdev(values) if len(values) > 1 else 0.0
    return {"mean": statistics.mean(values), "deviation": deviation}


def main() -> None:
    """Run all sides in turns and print."""
    parser = parser_of(__doc__)
    parser.add_argument("--pfl-python", default="python")
    parser.add_argument("--flower-python", default=sys.executable)
    parser.add_argument("--data-dir")
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--seeds", type=int, default=3, help="runs of each side, of seeds from 0")
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=list(SIDES))
    parser.add_argument(
        "--sampling",
        choices=("poisson", "shuffled"),
        default="poisson",
        help="of our local batches",
    )
    arguments = parser.parse_args()
    runs: list[dict] = []
    facts: dict[str, dict] = {}
    with tempfile.TemporaryDirectory() as folder:
        records = Path(folder) / "mnist.npz"
        write_records(records, "mnist", arguments.data_dir, USERS * IMAGES)
        for seed in range(arguments.seeds):
            common = [f"--rounds={arguments.rounds}", f"--seed={seed}"]
            peers = [f"--records={records}", *common]
            for side in arguments.sides:
                load_average = os.getloadavg()[0]
                if side == "ours":
                    run, facts[side] = run_ours(
                        arguments.rounds, arguments.sampling, [f"--dataset={records}", *common]
                    )
                else:
                    python = arguments.pfl_python if side == "pfl" else arguments.flower_python
                    script = "pfl_yardstick" if side == "pfl" else "flower_dpfedavg"
                    run, facts[side] = run_peer(os.path.abspath(python), script, peers)
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
        "task": {
            "name": "mnist",
            "net": NET,
            "noise_multiplier": NOISE,
            "delta": DELTA,
            "rounds": arguments.rounds,
        },
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
