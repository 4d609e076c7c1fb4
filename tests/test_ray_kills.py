"""Ray workers and drivers die again and again in one run, which ends with the bits of a calm one.

    pytest -m slow -n 0 tests/test_ray_kills.py

takes some ten minutes on two idle cores.
"""

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from mechanisms.accounting import ledger
from sim.commands.guard import main_guard
from sim.run import command
from tests.folders import rounds
from tests.processes import NEEDS_PROC, descendants, finish, wait_for

pytestmark = [pytest.mark.slow, NEEDS_PROC]
ROOT = Path(__file__).parent.parent
ROUNDS, DRIVERS, WORKERS = 1000, 2, 2
"""So many rounds that a fast run does not end before its deaths; drivers that die, and workers that
die under each of them."""
FLAGS = (
    f"--rounds={ROUNDS} --clients=20 --sample-rate=0.5 --steps=2 --groups=4 --chunk-clients=5 "
    "--epsilon=none --noise-multiplier=3 --quiet"
)


@pytest.fixture(scope="module")
def calm(tmp_path_factory) -> Path:
    """The run in one process, in which nothing dies."""
    base = tmp_path_factory.mktemp("calm")
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(400, 8)).astype(np.float32), rng.integers(0, 3, 400)
    np.savez(base / "records.npz", x=x, y=y, x_test=x[:50], y_test=y[:50])
    words = [*FLAGS.split(), f"--dataset={base / 'records.npz'}", f"--out={base}", "--name=run"]
    assert main_guard(command, [*words, "--engine=inline"]) == 0
    return base / "run"


def go_on(folder: Path, records: Path) -> subprocess.Popen:
    """Begin the run with two Ray workers, or resume it."""
    begin = [*FLAGS.split(), f"--dataset={records}", f"--out={folder.parent}", "--name=run"]
    words = ["--resume", str(folder), "--quiet"] if folder.exists() else begin
    return subprocess.Popen(
        [sys.executable, "-m", "sim.run", *words, "--engine=ray", "--workers=2"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def workers(process: subprocess.Popen) -> list[int]:
    found = descendants(process.pid).items()
    return [pid for pid, title in found if title.startswith("ray::Actor")]


def kill_one(process: subprocess.Popen, rng: random.Random) -> None:
    """Kill one of the workers that live; there may be none for a moment."""
    while not (living := workers(process)):
        assert process.poll() is None, process.communicate()[0]
    os.kill(rng.choice(living), signal.SIGKILL)


def after(process: subprocess.Popen, folder: Path, more: int) -> None:
    """Once so many rounds more are finished."""
    begun = rounds(folder)
    wait_for(lambda: rounds(folder) >= begun + more, process)


@pytest.mark.parametrize("seed", range(10))
def test_four_workers_and_two_drivers_die_and_the_run_has_the_same_bits(tmp_path, calm, seed):
    rng, folder = random.Random(seed), tmp_path / "run"
    for _ in range(DRIVERS):
        process = go_on(folder, calm.parent / "records.npz")
        for _ in range(WORKERS):
            after(process, folder, rng.randint(1, 9))
            kill_one(process, rng)
        after(process, folder, rng.randint(1, 9))
        process.send_signal(signal.SIGKILL)
        said = process.communicate()[0]
        assert process.returncode == -signal.SIGKILL, said
        assert rounds(folder) < ROUNDS
    finish(go_on(folder, calm.parent / "records.npz"))
    assert (folder / "model.safetensors").read_bytes() == (calm / "model.safetensors").read_bytes()
    assert ledger.read(folder / "ledger") == ledger.read(calm / "ledger")
