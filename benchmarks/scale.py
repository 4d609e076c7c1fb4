"""Growth of time and memory with the number of clients, 20 records each, all in every round.

    python benchmarks/scale.py --out benchmarks/results

For 100 to 1,000,000 clients: the user's own command on synthetic records of 8x8 pixels
(`default_run.py`), an MLP, local DPSGD at rate 1, two workers. Taken of each run: seconds of the
whole process and the median of its rounds after the first, the size of its run directory, and, of
all its processes together, the CPU time, which depends less on other work on the machine, and the
largest memory (proportional set size: what several share counts once), looked at every half second,
or less often where a look takes long. Exponents are slopes of straight lines fitted to the
logarithms, over all sizes and over the three largest. Prints JSON; with ``--out`` writes
`scale.json` and the picture `scale.svg` there, in which runs of other sizes stay.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np

from benchmarks.default_run import synthetic
from benchmarks.measured import parser_of, publish, rounds_of

INTERVAL = 0.5
"""Seconds between two looks at memory, or nine times as long as the look took."""
FIGURES = ("seconds_a_round_after_the_first", "seconds", "cpu_seconds", "largest_memory_gib")
"""What is drawn, and has an exponent."""
LARGEST = 3
"""Sizes over which the exponents at the end are fitted."""
FLAGS = ("--model=mlp", "--partition=iid", "--delta=1e-8", "--workers=2", "--quiet")


def family(root: int) -> set[int]:
    """A process and its descendants."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int(
                    (entry / "stat").read_text().rpartition(")")[2].split()[1]
                )
            except OSError:  # it has ended
                continue
    found, fresh = {root}, {root}
    while fresh:
        fresh = {child for child, parent in parents.items() if parent in fresh} - found
        found |= fresh
    return found


def resident(process: int) -> int:
    """A process's proportional set size [KiB]; 0 where it has ended."""
    try:
        lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))


def busy(process: int) -> float:
    """A process's CPU time so far [s]; 0 where it has ended."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def run(clients: int, rounds: int, engine: str) -> dict:
    """One whole run, in processes of its own."""
    with tempfile.TemporaryDirectory() as folder:
        records = synthetic(Path(folder), clients)
        shape = (
            f"--dataset={records}",
            f"--clients={clients}",
            f"--rounds={rounds}",
            f"--engine={engine}",
        )
        command = [sys.executable, "-m", "sim.run", *FLAGS, *shape, f"--out={folder}", "--name=run"]
        load, began, largest, spent = os.getloadavg()[0], time.perf_counter(), 0, Counter[int]()
        process = subprocess.Popen(command, cwd=Path(__file__).resolve().parents[1])
        while process.poll() is None:
            looked = time.perf_counter()
            alive = family(process.pid)
            largest = max(largest, sum(map(resident, alive)))
            spent |= Counter({one: busy(one) for one in alive})
            time.sleep(max(INTERVAL, 9 * (time.perf_counter() - looked)))
        if process.returncode:
            raise RuntimeError(f"{' '.join(command)}: exit status {process.returncode}")
        seconds = time.perf_counter() - began
        made = Path(folder) / "run"
        done = rounds_of(made)
        size = sum(path.stat().st_size for path in made.rglob("*") if path.is_file())
    return {
        "clients": clients,
        "engine": engine,
        "seconds": seconds,
        "seconds_first_round": done[0]["seconds"],
        "seconds_a_round_after_the_first": statistics.median(r["seconds"] for r in done[1:]),
        "cpu_seconds": sum(spent.values()),
        "largest_memory_gib": largest / 2**20,
        "run_directory_mib": size / 2**20,
        "accuracy": done[-1]["accuracy"],
        "load_average_before": load,
    }


def exponents(runs: list[dict]) -> dict[str, float]:
    """The power of the number of clients with which each figure grows."""
    clients = np.log([r["clients"] for r in runs])
    logs = {name: np.log([r[name] for r in runs]) for name in FIGURES}
    return {name: float(np.polyfit(clients, values, 1)[0]) for name, values in logs.items()}


def picture(runs: list[dict]) -> bytes:
    """Seconds and memory by the number of clients, both axes logarithmic."""
    from matplotlib.figure import Figure

    from sim.showing.plots import BLUE, GREY, ORANGE, svg

    figure = Figure(figsize=(8.6, 3.8), layout="constrained")
    left, right = figure.subplots(1, 2)
    clients, steep = [r["clients"] for r in runs], exponents(runs[-LARGEST:])
    places, colors = (left, left, left, right), (BLUE, ORANGE, GREY, BLUE)
    labels = ("a round after the first", "whole run", "its CPU time", "all processes")
    for name, label, axes, color in zip(FIGURES, labels, places, colors, strict=True):
        label += f": {steep[name]:.2f}"
        axes.loglog(clients, [r[name] for r in runs], marker="o", color=color, label=label)
    left.set(xlabel="clients", ylabel="seconds")
    right.set(xlabel="clients", ylabel="memory [GiB]")
    left.legend(title="exponent at the end", loc="lower right")
    right.legend(title="exponent at the end", loc="upper left")
    return svg(figure)


def main() -> None:
    """Run every size, then print and draw."""
    parser = parser_of(__doc__)
    sizes = [100, 1_000, 10_000, 100_000, 1_000_000]
    parser.add_argument("--clients", type=int, nargs="+", default=sizes)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--engine", choices=("ray", "inline"), default="ray")
    arguments = parser.parse_args()
    kept = arguments.out and arguments.out / "scale.json"
    known = json.loads(kept.read_text())["runs"] if kept and kept.exists() else []
    by_size = {one["clients"]: one for one in known}
    for clients in arguments.clients:
        by_size[clients] = run(clients, arguments.rounds, arguments.engine)
        print(json.dumps(by_size[clients]), file=sys.stderr, flush=True)
    runs = [by_size[clients] for clients in sorted(by_size)]
    result = {"command": "python " + " ".join(sys.argv), "runs": runs}
    if several := len(runs) > 1:
        result["exponents"] = exponents(runs)
        result["exponents_of_the_largest"] = exponents(runs[-LARGEST:])
    publish(result, kept)
    if kept and several:
        kept.with_suffix(".svg").write_bytes(picture(runs))


if __name__ == "__main__":
    main()
