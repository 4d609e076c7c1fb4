"""The cost of privacy per training step: ours, Opacus' two ways, and a plain step.

    python benchmarks/dp_step.py --out benchmarks/results/dp_step.json

For the CNN of MNIST (26,010 parameters), that of CIFAR-10 (550,570) and the LSTM of IMDb (21,202),
and several batch sizes, one process with one thread times one step each of

    plain          forward, backward of the mean loss, SGD; contiguous and channels-last
    ours           gradients clipped and summed, noise, divisor, SGD: a step of one client's cohort
    opacus hooks   `PrivacyEngine.make_private`; wrong in the channels-last layout, so contiguous
    opacus ghost   the same with `grad_sample_mode="ghost"`

(but for the LSTM, where Opacus has a layer of its own) in turns, after a warm-up of each. Every
side counts at its own best layout. Then the gain of a cohort: K clients of an MLP in one step of K
batches, beside K steps of one client each.

Seconds are of the process's CPU time, which other work on the machine disturbs least. The ratio is
that of the medians, and beside it of the minima. Opacus is left out where it is not installed
(benchmarks/requirements.txt).
"""

import statistics
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from sim.job import environment

environment.prepare()

import torch  # noqa: E402
from torch import Tensor, nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from benchmarks.measured import chip, parser_of, publish  # noqa: E402
from mechanisms.clipping import clip_factors  # noqa: E402
from mechanisms.gradients.record_gradients import RecordGradients  # noqa: E402
from mechanisms.kernels import openblas_kernels  # noqa: E402
from sim.data.words import Words  # noqa: E402
from sim.models.networks import build  # noqa: E402

CLIP, NOISE, RATE = 1.0, 1.0, 0.1
SHAPES = {"cnn": (1, 28, 28), "cnn-cifar": (3, 32, 32), "mlp": (1, 8, 8), "lstm": (80,)}
WORDS = Words(10_000)
Step = Callable[[], object]


def plain(model: nn.Module, x: Tensor, y: Tensor) -> Step:
    """A step without privacy."""
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()

    return step


def ours(model: nn.Module, x: Tensor, y: Tensor) -> Step:
    """A step of DPSGD of the K clients of `x [K, B, ...]`, `y [K, B]`."""
    gradients, bound = RecordGradients(model), torch.full((len(x),), CLIP)
    params = gradients.layout.initial(model).expand(len(x), -1).clone()
    draws = torch.Generator().manual_seed(0)

    def step() -> None:
        total, _ = gradients.scaled_sum(params, x, y, lambda norms: clip_factors(norms, bound))
        noise = torch.empty_like(total).normal_(std=NOISE * CLIP, generator=draws)
        params.sub_((total + noise) / x.shape[1], alpha=RATE)

    return step


def opacus(model: nn.Module, x: Tensor, y: Tensor, mode: str) -> Step:
    """A step of Opacus on the batch as it is: its sampler and loader are left out."""
    from opacus.grad_sample import GradSampleModule, GradSampleModuleFastGradientClipping
    from opacus.optimizers import DPOptimizer, DPOptimizerFastGradientClipping
    from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping

    settings = {"noise_multiplier": NOISE, "max_grad_norm": CLIP, "expected_batch_size": len(x)}
    sgd = torch.optim.SGD(model.parameters(), lr=RATE)
    criterion: Callable = nn.CrossEntropyLoss()
    if mode == "ghost":
        ghost = GradSampleModuleFastGradientClipping(
            model, max_grad_norm=CLIP, use_ghost_clipping=True
        )
        wrapped, optimizer = ghost, DPOptimizerFastGradientClipping(sgd, **settings)
        criterion = DPLossFastGradientClipping(ghost, optimizer, criterion)
    else:
        wrapped, optimizer = GradSampleModule(model), DPOptimizer(sgd, **settings)

    def step() -> None:
        optimizer.zero_grad()
        criterion(wrapped(x), y).backward()
        optimizer.step()

    return step


def sides(name: str, batch: int) -> dict[str, Step]:
    """Every side's step, by name; a name's first word is the side, the rest its layout."""
    data, shape = torch.Generator().manual_seed(0), SHAPES[name]
    y = torch.randint(10, (batch,), generator=data)
    words = WORDS if name == "lstm" else None
    x = torch.randn(batch, *shape, generator=data)
    if words:
        x = torch.randint(words.count, (batch, *shape), generator=data)

    def model() -> nn.Module:
        return build(name, shape, 10, 0, "tanh", words)

    found = {"plain contiguous": plain(model(), x, y), "ours": ours(model(), x[None], y[None])}
    if words:
        return found
    last = x.contiguous(memory_format=torch.channels_last)
    found["plain channels-last"] = plain(model().to(memory_format=torch.channels_last), last, y)
    try:
        found |= {f"opacus-{mode}": opacus(model(), x, y, mode) for mode in ("hooks", "ghost")}
    except ImportError:
        print("opacus is not installed: left out", file=sys.stderr)
    return found


def timed(steps: dict[str, Step], repeats: int) -> dict[str, list[float]]:
    """CPU seconds of each step, taken in turns, after two of each to warm up."""
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for repeat in range(repeats + 2):
        for name, step in steps.items():
            began = time.process_time()
            step()
            if repeat >= 2:
                seconds[name].append(time.process_time() - began)
    return seconds


def compare(name: str, batch: int, repeats: int) -> dict:
    """Seconds of each side at its best layout, and what it costs beside the plain step."""
    seconds = timed(sides(name, batch), repeats)
    best: dict[str, list[float]] = {}
    for side in sorted({n.split()[0] for n in seconds}):
        best[side] = min(
            (s for n, s in seconds.items() if n.split()[0] == side), key=statistics.median
        )
    base = best["plain"]
    rows = {
        side: {
            "median_seconds": statistics.median(s),
            "over_plain_medians": statistics.median(s) / statistics.median(base),
            "over_plain_minima": min(s) / min(base),
        }
        for side, s in best.items()
    }
    return {"model": name, "batch": batch, "repeats": repeats, "sides": rows}


def cohort(clients: int, batch: int, repeats: int) -> dict:
    """K clients of an MLP together, beside one after the other."""
    data = torch.Generator().manual_seed(0)
    x = torch.randn(clients, batch, *SHAPES["mlp"], generator=data)
    y = torch.randint(10, (clients, batch), generator=data)
    model = build("mlp", SHAPES["mlp"], 10, 0, "tanh")
    alone = [ours(model, x[k : k + 1], y[k : k + 1]) for k in range(clients)]
    seconds = timed(
        {"together": ours(model, x, y), "one by one": lambda: [step() for step in alone]}, repeats
    )
    medians = {name: statistics.median(s) for name, s in seconds.items()}
    ratio = medians["one by one"] / medians["together"]
    return {
        "model": "mlp",
        "clients": clients,
        "batch": batch,
        "median_seconds": medians,
        "gain": ratio,
    }


def main() -> None:
    """Measure and print."""
    parser = parser_of(__doc__)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--cnn", type=int, nargs="*", default=[1024, 256], help="batch sizes")
    parser.add_argument("--cifar", type=int, nargs="*", default=[256, 64, 16], help="batch sizes")
    parser.add_argument("--lstm", type=int, nargs="*", default=[256, 64], help="batch sizes")
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    steps = []
    given = {"cnn": arguments.cnn, "cnn-cifar": arguments.cifar, "lstm": arguments.lstm}
    for name, batches in given.items():
        for batch in batches:
            steps.append(compare(name, batch, arguments.repeats))
            costs = {
                side: round(row["over_plain_medians"], 2)
                for side, row in steps[-1]["sides"].items()
            }
            print(f"{name}, batch {batch}: {costs}", file=sys.stderr, flush=True)
    together = cohort(50, 16, arguments.repeats)
    result = {
        "command": "python " + " ".join(sys.argv),
        "chip": chip(),
        "openblas_kernels": openblas_kernels(),
        "steps": steps,
        "cohort": together,
    }
    publish(result, arguments.out)


if __name__ == "__main__":
    main()
