"""pfl-research's benchmark in pfl and here: CIFAR-10, 1,000 clients of 50 images, 50 a round.

    python benchmarks/compare_pfl.py --pfl-python .venv-pfl/bin/python --data-dir DATA \\
        --out benchmarks/results/pfl.json

    pfl      benchmarks/peers/pfl_yardstick.py, in an environment of its own
             (`pip install 'pfl[pytorch]'`)
    none     `python -m sim.run --mechanism none`: the same without privacy
    dpsgd    the same under local DPSGD, for what privacy adds

``--bf16`` is given to ours; pfl computes in float32 either way.

Whole commands in turns, each one process with one thread; with ``--processes 2`` pfl's under
`torchrun` and ours in Ray's two workers; with ``--processes 0`` each as it starts by itself, pfl as
one process with torch's own number of threads and ours by its default engine. Two convolutions and
a hidden layer (1,626,442 parameters), a local pass in 5 steps of 10 images (ours: of 10 expected)
at rate 0.1, a plain mean at the server, a look at the test part every 10 rounds. Taken of each: the
median seconds of a round that ends without such a look, and of one process the CPU seconds of all
of it, which other work on the machine disturbs less (Ray's workers are nobody's children). Prints
JSON with the ratios pfl / ours.
"""

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import numpy as np  # noqa: E402

from benchmarks.measured import parser_of, publish, rounds_of  # noqa: E402
from sim.data.dataset import load  # noqa: E402

FLAGS = (
    "--model=benchmarks.peers.yardstick:TwoLayerCNN --clients=1000 --partition=iid --fraction=0.05 "
    "--sample-rate=0.2 --steps=5 --lr=0.1 --evaluate-every=10 --quiet --server-momentum=0"
)
SIDES = {
    "none": ("--mechanism=none",),
    "dpsgd": ("--mechanism=dpsgd", "--noise-multiplier=1", "--epsilon=none"),
}


def write_records(path: Path, name: str, data_dir: str | None, most: int | None = None) -> None:
    """A data set as one file of bytes, for all sides; of its training part the first records."""
    data = load(name, data_dir, normalise=False)
    x, x_test = (np.rint(part * 255).astype(np.uint8) for part in (data.x, data.x_test))
    np.savez(path, x=x[:most], y=data.y[:most], x_test=x_test, y_test=data.y_test)


def cpu_seconds(command: list[str], processes: int) -> tuple[float, str]:
    """CPU time of a command and its children, and what it prints."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    variables = os.environ | ({"OMP_NUM_THREADS": "1"} if processes else {})
    done = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(
            f"{' '.join(command)}: exit status {done.returncode}\n{done.stderr[-4000:]}"
        )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, done.stdout


def quiet_rounds(seconds: list[float]) -> float:
    """The median of the rounds that neither are the first nor look at the test part."""
    return statistics.median(
        s for n, s in enumerate(seconds, start=1) if n > 1 and n % 10 and n < len(seconds)
    )


def run_pfl(python: str, processes: int, records: Path, rounds: int) -> dict:
    """One run of pfl. It evaluates before every tenth round, whose time is therefore left out."""
    torchrun = (str(Path(python).with_name("torchrun")), f"--nproc-per-node={processes}")
    command = [
        *(torchrun if processes > 1 else (python,)),
        "benchmarks/peers/pfl_yardstick.py",
        f"--records={records}",
        f"--rounds={rounds}",
        f"--threads={min(processes, 1)}",
    ]
    cpu, output = cpu_seconds(command, processes)
    report = json.loads(output.strip().splitlines()[-1])
    seconds = [s for n, s in enumerate(report["round_seconds"]) if n % 10]
    return {
        "side": "pfl",
        "round": statistics.median(seconds),
        "cpu": cpu,
        "accuracy": report["accuracy"],
    }


def run_ours(side: str, processes: int, records: Path, rounds: int, flags: list[str]) -> dict:
    """One run of ours, with further flags."""
    engines = {0: (), 1: ("--engine=inline",)}
    engine = engines.get(processes, ("--engine=ray", f"--workers={processes}"))
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "sim.run", *FLAGS.split(), *engine, *SIDES[side], *flags]
        command += [f"--dataset={records}", f"--rounds={rounds}", f"--out={folder}", "--name=run"]
        cpu, _ = cpu_seconds(command, processes)
        done = rounds_of(Path(folder) / "run")
    seconds = quiet_rounds([r["seconds"] for r in done])
    return {"side": side, "round": seconds, "cpu": cpu, "accuracy": done[-1]["accuracy"]}


def main() -> None:
    """Run all sides in turns and print."""
    parser = parser_of(__doc__)
    parser.add_argument("--pfl-python", required=True)
    parser.add_argument("--data-dir")
    parser.add_argument(
        "--sides", nargs="+", choices=SIDES, default=list(SIDES), help="ours; pfl always runs"
    )
    parser.add_argument(
        "--processes",
        type=int,
        default=1,
        help="where clients are trained; 0: as each starts by itself",
    )
    parser.add_argument("--bf16", action="store_true", help="ours by bfloat16 factors")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--repeats", type=int, default=1)
    arguments = parser.parse_args()
    runs = []
    with tempfile.TemporaryDirectory() as folder:
        records = Path(folder) / "cifar10.npz"
        write_records(records, "cifar10", arguments.data_dir)
        for _ in range(arguments.repeats):
            given = arguments.processes, records, arguments.rounds
            runs.append(run_pfl(os.path.abspath(arguments.pfl_python), *given))
            flags = ["--bf16"] if arguments.bf16 else []
            runs += [run_ours(side, *given, flags) for side in arguments.sides]
            for run in runs[-1 - len(arguments.sides) :]:
                print(json.dumps(run), file=sys.stderr, flush=True)
    figures = ("round", "cpu") if arguments.processes == 1 else ("round",)
    middle = {
        (side, figure): statistics.median(run[figure] for run in runs if run["side"] == side)
        for side in ("pfl", *arguments.sides)
        for figure in figures
    }
    ratios = {f: {s: middle["pfl", f] / middle[s, f] for s in arguments.sides} for f in figures}
    result = {
        "command": "python " + " ".join(sys.argv),
        "rounds": arguments.rounds,
        "pfl_over_ours": ratios,
        "runs": runs,
    }
    publish(result, arguments.out)


if __name__ == "__main__":
    main()
