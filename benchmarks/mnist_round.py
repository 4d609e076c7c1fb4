"""A private round over MNIST beside the plain gradient of its 60,000 records.

    python benchmarks/mnist_round.py --data-dir DATA --out benchmarks/results/mnist_round.json

    ours    a whole round of 100 clients of unequal sizes (Dirichlet 0.5), one DPSGD step of each at
            full batch: charges on disk, clipped sums, noise, updates, exact sum; groups one after
            the other in this process
    plain   the gradient of the mean loss over all records, in batches of the size and layout that
            is fastest here

in turns, in one process with one thread, with the CNN of 26,010 parameters. Seconds are of the
process's CPU time, which other work on the machine disturbs least. The ratio is that of the
medians, and beside it of the minima.
"""

import copy
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from sim.job import environment

environment.prepare()

import numpy as np  # noqa: E402
import torch  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from benchmarks.measured import parser_of, publish  # noqa: E402
from client.messages import TrainRequest  # noqa: E402
from mechanisms.kernels import openblas_kernels  # noqa: E402
from sim.commands.flags import parse  # noqa: E402
from sim.engines.inline import inline_exchange  # noqa: E402
from sim.job.job import Job  # noqa: E402
from sim.phases.build import build  # noqa: E402

BATCHES = (128, 256, 512, 1024)


def plain(job: Job, batch: int, last: bool) -> Callable[[], None]:
    """The gradient of all records, as autograd accumulates it."""
    layout = torch.channels_last if last else torch.contiguous_format
    model = copy.deepcopy(job.model).to(memory_format=layout)
    x_parts, y_parts = (
        torch.from_numpy(one).split(batch) for one in (job.dataset.x, job.dataset.y)
    )

    def gradient() -> None:
        model.zero_grad()
        for x, y in zip(x_parts, y_parts, strict=True):
            loss = F.cross_entropy(model(x.contiguous(memory_format=layout)), y, reduction="sum")
            (loss / len(job.dataset.y)).backward()

    return gradient


def ours(job: Job, folder: Path) -> Callable[[], None]:
    """The next round of all clients."""
    exchange = inline_exchange(job, folder)
    params = job.gradients.layout.initial(job.model).numpy().copy()
    clients = [np.sort(np.concatenate(chunks)) for chunks in job.groups]
    done = 0

    def training() -> None:
        nonlocal done
        done += 1
        for group, own in enumerate(clients):
            nth = np.full(len(own), done)
            list(exchange([TrainRequest(done, group, f"round-{done}", own, nth, params)]))

    return training


def cpu_seconds(work: Callable[[], None]) -> float:
    """CPU time of this process."""
    began = time.process_time()
    work()
    return time.process_time() - began


def main() -> None:
    """Measure and print."""
    parser = parser_of(__doc__)
    parser.add_argument("--data-dir")
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    flags = ["--dataset=mnist", "--clients=100", "--dirichlet=0.5", "--engine=inline", "--groups=1"]
    flags += [f"--data-dir={arguments.data_dir}"] if arguments.data_dir else []
    job = build(parse(flags, "", "").config)
    kinds = {(batch, last): plain(job, batch, last) for batch in BATCHES for last in (False, True)}
    tried = {kind: min(cpu_seconds(work) for _ in range(2)) for kind, work in kinds.items()}
    best = min(tried, key=lambda kind: tried[kind])
    seconds: dict[str, list[float]] = {"plain": [], "ours": []}
    with tempfile.TemporaryDirectory() as folder:
        sides = {"plain": kinds[best], "ours": ours(job, Path(folder))}
        cpu_seconds(sides["ours"])  # finds its routes
        for _ in range(arguments.repeats):
            for name, work in sides.items():
                seconds[name].append(cpu_seconds(work))
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    result = {
        "command": "python " + " ".join(sys.argv),
        "openblas_kernels": openblas_kernels(),
        "plain": {"batch": best[0], "channels_last": best[1]},
        "median_cpu_seconds": medians,
        "ours_over_plain_medians": medians["ours"] / medians["plain"],
        "ours_over_plain_minima": min(seconds["ours"]) / min(seconds["plain"]),
    }
    publish(result, arguments.out)


if __name__ == "__main__":
    main()
