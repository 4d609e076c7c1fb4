"""Growth of time and memory with the number of clients, 20 records each, all in every round.

    python benchmarks/scale.py --out benchmarks/results

For 100 to 100,000 clients: the user's own command on synthetic records of 8x8 pixels
(`default_run.py`), an MLP, local DPSGD at rate 1, two workers. Taken of each run: seconds of the
whole process and the median of its rounds after the first, and the largest memory of all its
processes together (proportional set size: what several share counts once), looked at every half
second. Prints JSON; with ``--out`` writes `scale.json` and the picture `scale.svg` there.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.default_run import synthetic

INTERVAL = 0.5
FLAGS = ("--model=mlp", "--partition=iid", "--delta=1e-7", "--workers=2", "--quiet")


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
        load, began, largest = os.getloadavg()[0], time.perf_counter(), 0
        process = subprocess.Popen(command, cwd=Path(__file__).resolve().parents[1])
        while process.poll() is None:
            largest = max(largest, sum(map(resident, family(process.pid))))
            time.sleep(INTERVAL)
        if process.returncode:
            raise RuntimeError(f"{' '.join(command)}: exit status {process.returncode}")
        seconds = time.perf_counter() - began
        lines = (Path(folder) / "run" / "rounds.jsonl").read_text().splitlines()
    done = [json.loads(line) for line in lines]
    return {
        "clients": clients,
        "engine": engine,
        "seconds": seconds,
        "seconds_first_round": done[0]["seconds"],
        "seconds_a_round_after_the_first": statistics.median(r["seconds"] for r in done[1:]),
        "largest_memory_gib": largest / 2**20,
        "accuracy": done[-1]["accuracy"],
        "load_average_before": load,
    }


def picture(runs: list[dict]) -> bytes:
    """Seconds and memory by the number of clients, both axes logarithmic."""
    from matplotlib.figure import Figure

    from sim.showing.plots import BLUE, ORANGE, svg

    figure = Figure(figsize=(8.6, 3.0), layout="constrained")
    left, right = figure.subplots(1, 2)
    clients = [r["clients"] for r in runs]
    for name, label, color in (
        ("seconds_a_round_after_the_first", "a round after the first", BLUE),
        ("seconds", "whole process", ORANGE),
    ):
        left.loglog(clients, [r[name] for r in runs], marker="o", color=color, label=label)
    left.set(xlabel="clients", ylabel="seconds")
    left.legend()
    right.loglog(clients, [r["largest_memory_gib"] for r in runs], marker="o", color=BLUE)
    right.set(xlabel="clients", ylabel="memory of all processes [GiB]")
    return svg(figure)


def main() -> None:
    """Run every size, then print and draw."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--clients", type=int, nargs="+", default=[100, 1_000, 10_000, 100_000])
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--engine", choices=("ray", "inline"), default="ray")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    runs = []
    for clients in arguments.clients:
        runs.append(run(clients, arguments.rounds, arguments.engine))
        print(json.dumps(runs[-1]), file=sys.stderr, flush=True)
    text = json.dumps({"command": "python " + " ".join(sys.argv), "runs": runs}, indent=1)
    print(text)
    if arguments.out:
        (arguments.out / "scale.json").write_text(text + "\n")
        (arguments.out / "scale.svg").write_bytes(picture(runs))


if __name__ == "__main__":
    main()
