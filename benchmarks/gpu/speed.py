"""Parts that measure: steps, cohorts, chunks, the yardstick, evaluation, precision."""

import time
from collections.abc import Callable
from functools import partial
from statistics import median

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.gpu.checks import Rows
from benchmarks.gpu.worlds import SHAPES, World, seconds, synchronize
from mechanisms.clipping import clip_factors
from mechanisms.device_normals import STEPS_AHEAD
from mechanisms.gradients.convolution_tap import all_clients, each_client
from mechanisms.gradients.record_gradients import RecordGradients
from mechanisms.kernels import fix_kernels
from mechanisms.randomness import Streams, seed_key
from mechanisms.sampling import CohortData, poisson


def steps(device: torch.device, quick: bool) -> Rows:
    """A step of DPSGD with one client beside a plain step on the same batch; the aim is 1.2."""
    rows: Rows = []
    repeats, many, batches = (1, 1, (32,)) if quick else (5, 10, (256, 1024))
    for name in ("mlp", "cnn") if quick else SHAPES:
        gradients = RecordGradients(World.of(name, 1, device).module)
        for batch in batches:
            world = World.of(name, batch, device)
            ours, plain = world.ours(1, many, gradients=gradients), world.plain(1, many)
            found = seconds(device, repeats, ours=ours, plain=plain)
            ratio = {"DP over plain": found["ours"] / found["plain"]}
            rows.append({"model": name, "batch": batch} | ratio | _each(found, many))
    return rows


def cohort(device: torch.device, quick: bool) -> Rows:
    """1,000 clients of 60 records take 10 steps together; beside plain PyTorch without privacy, one
    client after the other, of which 20 are timed."""
    clients, some, many = (20, 2, 2) if quick else (1_000, 20, 10)
    rows: Rows = []
    for name in ("mlp", "cnn"):
        together, few = (World.of(name, 60 * n, device) for n in (clients, some))
        found = seconds(device, 1, ours=together.ours(clients, many), plain=few.plain(some, many))
        alone = found["plain"] / some * clients
        rows.append(
            {"model": name, "clients": clients, "steps": many, "seconds": found["ours"]}
            | {"one by one, no privacy": alone, "times faster": alone / found["ours"]}
        )
    return rows


def opacus(device: torch.device, quick: bool) -> Rows:
    """The same beside Opacus, one client after the other, of which 5 are timed; the aim is 100."""
    from benchmarks.dp_step import opacus as private

    clients, some, many = (20, 1, 2) if quick else (1_000, 5, 10)
    rows: Rows = []
    for name in ("mlp", "cnn"):
        together = World.of(name, 60 * clients, device)
        few = [World.of(name, 60, device) for _ in range(some)]
        theirs = [private(one.module, one.x, one.y, "hooks") for one in few]

        def alone(sides: list = theirs) -> None:
            for step in sides:
                for _ in range(many):
                    step()

        found = seconds(device, 1, ours=together.ours(clients, many), opacus=alone)
        one_by_one = found["opacus"] / some * clients
        rows.append({"model": name, "seconds": found["ours"], "Opacus": one_by_one})
        rows[-1]["times faster"] = one_by_one / found["ours"]
    return rows


def chunks(device: torch.device, quick: bool) -> Rows:
    """Clients a second by the number that is computed together: 60 records, half of them in each of
    5 steps."""
    rows: Rows = []
    many, widths = (1, (5, 20)) if quick else (5, (25, 100, 400, 1_600, 4_096))
    for name in ("mlp",) if quick else ("mlp", "cnn", "cnn-cifar"):
        gradients = RecordGradients(World.of(name, 1, device).module)
        for width in widths[:3] if name == "cnn-cifar" else widths:
            world = World.of(name, 60 * width, device)
            ours = world.ours(width, many, 0.5, gradients=gradients)
            took = seconds(device, 1, ours=ours)["ours"]
            rows.append({"model": name, "together": width, "clients/s": width / took})
    return rows


def yardstick(device: torch.device, quick: bool) -> Rows:
    """pfl-research's round on CIFAR-10's shapes: 50 clients of 50 records, 5 steps of 10 (ours: of
    10 expected); the aim is 3 times plain PyTorch."""
    clients = 3 if quick else 50
    world = World.of("yardstick", 50 * clients, device)
    sides = {
        mechanism: world.ours(clients, 5, rate=0.2, mechanism=mechanism)
        for mechanism in ("none", "dpsgd")
    }
    found = seconds(device, 1 if quick else 5, plain=world.plain(clients, 5, batch=10), **sides)
    return [
        {"side": name, "seconds": took, "times plain": found["plain"] / took}
        for name, took in found.items()
    ]


def one_step(device: torch.device, quick: bool) -> Rows:
    """Where a step of many clients of `cnn` goes: batches of half of 60 records, clipped sums, one
    normal draw for each parameter and client."""
    clients = 10 if quick else 1_000
    world, owned = World.of("cnn", 60 * clients, device), range(clients)
    data = CohortData(world.x, world.y, np.array_split(np.arange(60 * clients), clients))
    streams, gradients = Streams(seed_key(0), 1, owned, device), RecordGradients(world.module)
    params = gradients.layout.initial(world.module).to(device).expand(clients, -1).contiguous()
    batch, bound = poisson(data, [0.5] * clients, streams.of("batch")), params.new_ones(clients)
    found = seconds(
        device,
        1 if quick else 5,
        batches=lambda: poisson(data, [0.5] * clients, streams.of("batch")),
        sums=lambda: gradients.scaled_sum(
            params, batch.x, batch.y, lambda norms: clip_factors(norms, bound) * batch.mask
        ),
        noise=lambda: [streams.normal("noise", params.shape[1]) for _ in range(STEPS_AHEAD)],
    )
    found["noise"] /= STEPS_AHEAD  # a GPU draws for so many steps at once
    return [{"clients": clients} | _each(found, 1)]


def evaluation(device: torch.device, quick: bool) -> Rows:
    """A look at 10,000 records, in batches of 2,000 as in a run."""
    rows: Rows = []
    for name in ("cnn",) if quick else ("cnn", "cnn-cifar"):
        world = World.of(name, 200 if quick else 10_000, device)
        look = partial(_look, world, RecordGradients(world.module))
        rows.append({"model": name} | seconds(device, 1, seconds=look))
    return rows


def precision(device: torch.device, quick: bool) -> Rows:
    """A round with TF32, and one by bfloat16 factors, beside one in float32."""
    rows: Rows = []
    repeats, steps = (1, 1) if quick else (5, 5)
    for name in ("mlp",) if quick else ("mlp", "cnn-cifar"):
        world, took = World.of(name, 60 * 20, device), {}
        try:
            for kind in ("float32", "TF32", "bfloat16"):
                gradients = RecordGradients(world.module, bf16=kind == "bfloat16")
                fix_kernels(tf32=kind == "TF32")
                round_ = world.ours(20, steps, gradients=gradients)
                took[kind] = seconds(device, repeats, ours=round_)["ours"]
        finally:
            fix_kernels()
        ratios = {
            f"float32 over {kind}": took["float32"] / took[kind] for kind in ("TF32", "bfloat16")
        }
        rows.append({"model": name} | ratios)
    return rows


def convolutions(device: torch.device, quick: bool) -> Rows:
    """Convolutions of many clients, with the gradients of their inputs: in one grouped call, as on
    a GPU; one after the other, as on a CPU; as products of patches."""
    rows: Rows = []
    draws = torch.Generator(device).manual_seed(0)
    for clients in (4,) if quick else (10, 100, 1_000):
        x = torch.randn(clients * 16, 16, 14, 14, device=device, generator=draws)
        weight = torch.randn(clients, 32, 16, 3, 3, device=device, generator=draws)
        ways = {"grouped": all_clients, "one by one": each_client, "patches": _patches}
        sides = {name: partial(_both_ways, way, x, weight) for name, way in ways.items()}
        rows.append({"clients": clients} | _each(seconds(device, 3, **sides), 1))
    return rows


def shapes(device: torch.device, quick: bool) -> Rows:
    """Clipped sums of 20 clients for batches of sizes not seen before, and the same again: what
    libraries do once for a shape. Batches drawn by coins have another one in most steps."""
    rows: Rows = []
    clients, first, last = (2, 3, 4) if quick else (20, 40, 50)
    for name in ("mlp",) if quick else ("mlp", "cnn", "cnn-cifar"):
        world = World.of(name, clients * last, device)
        once = partial(_sum_of, world, RecordGradients(world.module), clients)
        once(first)
        new, again = (median(map(once, range(first + 1, last + 1))) for _ in range(2))
        rows.append({"model": name} | _each({"new": new, "again": again}, 1))
    return rows


def _sum_of(world: World, gradients: RecordGradients, clients: int, size: int) -> float:
    """Seconds of a sum over so many records of each client."""
    bound = torch.ones(clients, device=world.device)
    params = gradients.layout.initial(world.module).expand(clients, -1).contiguous()
    x, y = (part.unflatten(0, (clients, -1))[:, :size] for part in (world.x, world.y))
    synchronize(world.device)
    began = time.perf_counter()
    gradients.scaled_sum(params, x, y, lambda norms: clip_factors(norms, bound))
    synchronize(world.device)
    return time.perf_counter() - began


def _both_ways(convolve: Callable[..., Tensor], x: Tensor, weight: Tensor) -> None:
    x = x.requires_grad_()
    output = convolve(x, weight, None, (1, 1, 1), 1)
    torch.autograd.grad(output, x, torch.ones_like(output))


def _patches(x: Tensor, weight: Tensor, *_: object) -> Tensor:
    """A 3x3 convolution, padding 1, as `all_clients`."""
    patches = F.unfold(x, 3, padding=1).unflatten(0, (len(weight), -1))
    return (weight.flatten(2).unsqueeze(1) @ patches).flatten(0, 1).unflatten(2, x.shape[2:])


def _look(world: World, gradients: RecordGradients) -> None:
    params = gradients.layout.initial(world.module)[None]
    for x in world.x.split(2_000):
        gradients.logits(params, x[None])


def _each(found: dict[str, float], many: int) -> dict[str, object]:
    return {f"{name} [ms]": 1e3 * took / many for name, took in found.items()}
