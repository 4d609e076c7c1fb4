"""Messages, bytes, object store and memory of rounds over Ray workers, for a large model.

    ray start --head --port 6390 --num-cpus 1 --object-store-memory 4000000000
    ray start --address 127.0.0.1:6390 --num-cpus 1 --object-store-memory 4000000000
    python benchmarks/cluster.py --ray-address 127.0.0.1:6390 --out benchmarks/results/cluster.json

100 clients of 10 records of 64 numbers train a model of 11.2 million parameters, as many as a
ResNet-18, by one step of DPSGD a round, in as many groups as ``--groups`` says. Messages and their
bytes, pickled as Ray does, are counted where the grid sends and takes them. What each node's object
store holds is looked at ten times a second. CPU seconds are those of the driver's process, without
the counting. Without an address, Ray starts on this machine. Prints
JSON; ``--out FILE`` also writes it.
"""

import contextlib
import json
import resource
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import torch
from torch import nn

from benchmarks.measured import parser_of, publish

CLIENTS, RECORDS, ROUNDS, FEATURES, CLASSES = 100, 10, 2, 64, 10
INTERVAL = 0.1
COUNTING = "seconds of counting"


class Wide(nn.Sequential):
    """11,194,890 parameters, nearly all of them in one layer."""

    def __init__(self) -> None:
        wide, wider = nn.Linear(FEATURES, 1024), nn.Linear(1024, 10_752)
        super().__init__(wide, nn.Tanh(), wider, nn.Tanh(), nn.Linear(10_752, CLASSES))


def records(folder: Path) -> Path:
    """An .npz of 10 records a client."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(CLIENTS * RECORDS, FEATURES)).astype(np.float32)
    y = np.arange(len(x)) % CLASSES
    np.savez(folder / "records.npz", x=x, y=y, x_test=x[:100], y_test=y[:100])
    return folder / "records.npz"


@contextlib.contextmanager
def counted() -> Iterator[Counter]:
    """Messages of the training, and their bytes."""
    import cloudpickle

    from sim.engines.ray_grid import RayGrid

    counts, hand_over, take = Counter(), RayGrid._hand_over, RayGrid._take

    def count(kind, message) -> None:
        if message is not None and message.metadata.message_type == "train":
            began = time.process_time()
            counts[f"{kind} a round"] += 1 / ROUNDS
            counts[f"bytes of {kind} a round"] += len(cloudpickle.dumps(message)) / ROUNDS
            counts[COUNTING] += time.process_time() - began

    def counting_hand_over(grid, message, *of, **named):
        count("requests", message)
        return hand_over(grid, message, *of, **named)

    def counting_take(grid, name):
        reply = take(grid, name)
        count("answers", reply)
        return reply

    RayGrid._hand_over, RayGrid._take = counting_hand_over, counting_take
    try:
        yield counts
    finally:
        RayGrid._hand_over, RayGrid._take = hand_over, take


@contextlib.contextmanager
def watched() -> Iterator[dict[str, int]]:
    """The most that each node's object store has held [bytes], by the node's ID."""
    import ray
    from ray._private.internal_api import node_stats

    largest, over = Counter(), threading.Event()

    def watch() -> None:
        while not over.wait(INTERVAL):
            for node in ray.nodes() if ray.is_initialized() else []:
                with contextlib.suppress(Exception):  # Ray is about to end
                    stats = node_stats(
                        node["NodeManagerAddress"], node["NodeManagerPort"], False
                    ).store_stats
                    name = node["NodeID"][:8]
                    largest[name] = max(largest[name], stats.object_store_bytes_used)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield largest
    finally:
        over.set()
        thread.join()


def run(groups: int, address: str | None) -> dict:
    """One whole run with so many groups."""
    from sim.commands.flags import parse
    from sim.engines.start import train

    with tempfile.TemporaryDirectory() as folder, counted() as counts, watched() as largest:
        flags = [f"--dataset={records(Path(folder))}", "--model=benchmarks.cluster:Wide"]
        flags += [f"--clients={CLIENTS}", f"--rounds={ROUNDS}", "--partition=iid", "--steps=1"]
        flags += ["--engine=ray", f"--groups={groups}", "--quiet", f"--out={folder}"]
        flags += [f"--ray-address={address}"] if address else []
        began = time.process_time()
        train(parse(flags, "", ""))
        seconds = time.process_time() - began - counts.pop(COUNTING)
    return {
        "groups": groups,
        "parameters": sum(parameter.numel() for parameter in Wide().parameters()),
        **{kind: round(count) for kind, count in sorted(counts.items())},
        "largest object store by node [bytes]": dict(largest),
        "largest memory of the driver so far [KiB]": resource.getrusage(
            resource.RUSAGE_SELF
        ).ru_maxrss,
        f"CPU seconds of the driver in {ROUNDS} rounds": round(seconds, 2),
    }


def main() -> None:
    """Run with each number of groups and print what was measured."""
    parser = parser_of(__doc__)
    parser.add_argument("--groups", type=int, nargs="+", default=[2, 10, 20])
    parser.add_argument("--ray-address")
    arguments = parser.parse_args()
    from sim.job.environment import prepare

    prepare()
    torch.set_num_threads(1)
    runs = []
    for groups in arguments.groups:
        runs.append(run(groups, arguments.ray_address))
        print(json.dumps(runs[-1]), file=sys.stderr, flush=True)
    publish({"command": "python " + " ".join(sys.argv), "runs": runs}, arguments.out)


if __name__ == "__main__":
    main()
