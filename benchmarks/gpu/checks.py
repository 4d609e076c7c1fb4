"""Parts that check: equality with the CPU, replay bit for bit, the suite's tests of a GPU."""

import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch

from benchmarks.gpu.worlds import SHAPES, World
from mechanisms.clipping import clip_factors
from mechanisms.gradients.record_gradients import RecordGradients

ROOT = Path(__file__).resolve().parents[2]
TOLERANCE = 1e-3
"""Largest relative difference of a sum of clipped float32 gradients, device to CPU."""
MOST = 240
"""Seconds that the suite's tests may take."""
CPU = torch.device("cpu")
Rows = list[dict[str, object]]


class Failed(Exception):
    """A check that did not hold, with what was found."""


def equality(device: torch.device, quick: bool) -> Rows:
    """Relative differences between device and CPU of sums of clipped gradients, and the largest of
    gradient norms; at most 0.001."""
    rows: Rows = []
    for name in ("mlp", "cnn") if quick else SHAPES:
        (here, own), (there, norms) = (clipped_sum(name, where) for where in (device, CPU))
        of_sums = float((here - there).norm() / there.norm())
        of_norms = float(((own - norms).abs() / norms).max())
        rows.append({"model": name, "sums": of_sums, "norms": of_norms})
    # one by one: Python's max may pass over a NaN
    if not all(row[name] <= TOLERANCE for row in rows for name in ("sums", "norms")):
        raise Failed(f"beyond the tolerance of {TOLERANCE:g}: {rows}")
    return rows


def clipped_sum(name: str, where: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """The sums of clipped gradients of two clients with 16 records, and the norms, on the CPU."""
    world, bound = World.of(name, 32, where), torch.ones(2, device=where)
    gradients = RecordGradients(world.module)
    params = gradients.layout.initial(world.module).expand(2, -1).contiguous()
    x, y = (part.unflatten(0, (2, 16)) for part in (world.x, world.y))
    total, norms = gradients.scaled_sum(params, x, y, lambda norms: clip_factors(norms, bound))
    return total.cpu(), norms.cpu()


def replay(device: torch.device, quick: bool) -> Rows:
    """A local round of DPSGD, taken twice, must give the same bits: a repeated round is charged
    once because it does."""
    rows: Rows = []
    for name in ("mlp", "cnn") if quick else SHAPES:
        models = [World.of(name, 64, device).ours(4, steps=3, rate=0.5)() for _ in range(2)]
        rows.append({"model": name, "same bits": torch.equal(*models)})
    if not all(row["same bits"] for row in rows):
        raise Failed(f"a round did not repeat itself: {rows}")
    return rows


def runs(device: torch.device, quick: bool) -> Rows:
    """Two whole runs on the inline engine must end with the same bytes."""
    from sim.commands.flags import parse
    from sim.engines.start import train

    rng, found = np.random.default_rng(0), []
    with tempfile.TemporaryDirectory() as folder:
        x, y = rng.standard_normal((600, 1, 28, 28), np.float32), np.arange(600) % 10
        np.savez(f"{folder}/records.npz", x=x, y=y, x_test=x[:100], y_test=y[:100])
        words = (
            f"--dataset {folder}/records.npz --clients 20 --rounds 2 --model mlp --engine inline"
        )
        for name in ("a", "b"):
            own = f"{words} --quiet --out {folder} --name {name} --device {device.type}"
            run = train(parse(own.split(), "run", ""))
            found.append((run / "model.safetensors").read_bytes())
    if found[0] != found[1]:
        raise Failed("two runs with the same seed ended with different models")
    return [{"bytes of the model": len(found[0]), "same bytes": True}]


def tests(device: torch.device, quick: bool) -> Rows:
    """The suite's tests of a GPU, in a process of their own; with ``quick`` one of them."""
    import hypothesis  # noqa: F401
    import pytest  # noqa: F401

    chosen = ["-m", "cuda"] if device.type == "cuda" else ["-k", "cpu"]
    chosen += ["-k", "exact_draws and " + device.type] if quick else []
    files = ["tests/test_cuda.py", "tests/test_cuda_runs.py"]
    options = ["-v", "-p", "no:cacheprovider", "-o", "addopts="]  # no workers: one GPU
    command = [sys.executable, "-m", "pytest", *options, *chosen, *files]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=MOST)
    except subprocess.TimeoutExpired as late:  # which holds bytes, whatever was asked for
        seen = (late.stdout or b"").decode(errors="replace")
        raise Failed(f"not done after {MOST} s:\n{seen[-6000:]}") from None
    if done.returncode:
        raise Failed(done.stdout[-6000:] + done.stderr[-2000:])
    return [{"pytest": done.stdout.strip().splitlines()[-1]}]
