"""`python -m benchmarks.gpu`: its parts run here in a small form, so that they run on a GPU."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchmarks.gpu import __main__ as gpu
from benchmarks.gpu import checks, speed
from benchmarks.gpu.worlds import SHAPES, World
from tests.devices import CPU

ROOT = Path(__file__).resolve().parents[1]
LONG = (checks.runs, checks.tests, speed.yardstick)
pytestmark = pytest.mark.usefixtures("kernels")


@pytest.mark.parametrize("part", [part for part in gpu.PARTS if part not in LONG])
def test_every_part_runs_without_a_gpu(part):
    found = gpu.taken(part, CPU, quick=True)
    assert "failed" not in found, found["failed"]
    assert found.get("rows") or "No module named" in found["not run"]


def test_a_difference_beyond_the_tolerance_fails(monkeypatch):
    monkeypatch.setattr(checks, "clipped_sum", differing(checks.clipped_sum))
    assert "beyond the tolerance" in gpu.taken(checks.equality, CPU, quick=True)["failed"]


def test_a_norm_that_is_no_number_fails_and_every_model_is_named(monkeypatch):
    monkeypatch.setattr(checks, "clipped_sum", differing(checks.clipped_sum, 1.0, float("nan")))
    failed = gpu.taken(checks.equality, CPU, quick=True)["failed"]
    assert all(f"'model': '{name}'" in failed for name in ("mlp", "cnn"))


def differing(of, sums=1.002, norms=1.0):
    """A sum on the device that is off by one part in 500, or what is said."""
    calls = []

    def changed(name, where):
        calls.append(name)
        total, own = of(name, where)
        return (total * sums, own * norms) if len(calls) % 2 else (total, own)

    return changed


def test_a_round_that_does_not_repeat_itself_fails(monkeypatch):
    draws = torch.Generator().manual_seed(0)
    other = lambda *own, **named: lambda: torch.rand(3, generator=draws)  # noqa: E731
    monkeypatch.setattr(checks.World, "ours", other)
    assert "did not repeat itself" in gpu.taken(checks.replay, CPU, quick=True)["failed"]


def good(device, quick):
    """A part."""
    return [{"model": "mlp", "ratio": 1.23456789}]


def missing(device, quick):
    """Needs what is not there."""
    raise ImportError("No module named 'opacus'")


def broken(device, quick):
    """Fails."""
    raise RuntimeError("out of memory")


def test_what_could_not_run_is_named_and_a_failure_is_the_exit_code(tmp_path, monkeypatch, capsys):
    """All parts are taken, whatever went wrong before. Kills a failure that nobody sees."""
    words = ["--device", "cpu", "--quick", "--out", str(tmp_path / "out")]
    monkeypatch.setattr(gpu, "PARTS", (missing, good))
    assert gpu.main(words) == 0
    monkeypatch.setattr(gpu, "PARTS", (broken, missing, good))
    assert gpu.main(words) == 1
    result = json.loads((tmp_path / "out" / "gpu.json").read_text())["parts"]
    assert (
        list(result) == ["broken", "missing", "good"]
        and "out of memory" in result["broken"]["failed"]
    )
    page = (tmp_path / "out" / "gpu.md").read_text()
    assert "No module named 'opacus'" in page and "| model | ratio |" in page
    assert "| mlp | 1.235 |" in page and page in capsys.readouterr().out


@pytest.mark.parametrize("package", ["pytest", "hypothesis"])
def test_without_what_the_tests_need_they_are_left_out(monkeypatch, package):
    monkeypatch.setitem(sys.modules, package, None)
    assert package in gpu.taken(checks.tests, CPU, quick=True)["not run"]


def test_a_gpu_that_does_not_recover_fails_part_after_part(monkeypatch):
    """Kills a program that ends there, without its page."""

    def fails(*_: object) -> None:
        raise RuntimeError("CUDA error: device-side assert triggered")

    monkeypatch.setattr(torch.cuda, "empty_cache", fails)
    found = gpu.taken(good, torch.device("cuda"), quick=True)
    assert "device-side assert" in found["failed"] and "rows" not in found


def test_tests_that_take_too_long_say_how_far_they_came(monkeypatch):
    def late(command, timeout, **named):
        raise subprocess.TimeoutExpired(command, timeout, output=b"test_one PASSED\ntest_two ")

    monkeypatch.setattr(subprocess, "run", late)
    failed = gpu.taken(checks.tests, CPU, quick=True)["failed"]
    assert f"not done after {checks.MOST} s" in failed and "test_two" in failed


def test_noise_is_measured_by_as_many_steps_as_a_gpu_draws_at_once(monkeypatch):
    """The shortest of several draws would be one that was made before."""
    asked = []
    normal = speed.Streams.normal
    monkeypatch.setattr(speed.Streams, "normal", lambda *own: asked.append(own[1:]) or normal(*own))
    once = lambda *_, **sides: {name: float(bool(side())) for name, side in sides.items()}  # noqa: E731
    monkeypatch.setattr(speed, "seconds", once)
    (row,) = speed.one_step(CPU, quick=True)
    assert len(asked) == speed.STEPS_AHEAD and row["noise [ms]"] == 1e3 / speed.STEPS_AHEAD


def test_after_a_fault_no_part_has_fewer_digits(monkeypatch):
    def fails(*_: object, **sides: object) -> None:
        raise RuntimeError("out of memory")

    fixed = []
    monkeypatch.setattr(speed, "fix_kernels", lambda tf32=False: fixed.append(tf32))
    monkeypatch.setattr(speed, "seconds", fails)
    assert "out of memory" in gpu.taken(speed.precision, CPU, quick=True)["failed"]
    assert len(fixed) == 2 and fixed[-1] is False


def test_no_part_begins_late(monkeypatch):
    monkeypatch.setattr(gpu, "PARTS", (good, broken))
    monkeypatch.setattr(gpu, "LIMIT", -1.0)
    assert gpu.main(["--device", "cpu"]) == 0


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_how_to_try_it(capsys):
    with pytest.raises(SystemExit) as ended:
        gpu.main([])
    assert ended.value.code == 2 and "--device cpu --quick" in capsys.readouterr().err


@pytest.mark.slow
def test_the_command_takes_all_parts():
    command = [sys.executable, "-m", "benchmarks.gpu", "--device", "cpu", "--quick"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert all(f"## {part.__name__}" in done.stdout for part in gpu.PARTS)


def test_all_ways_to_convolve_give_the_same():
    draws = torch.Generator().manual_seed(0)
    x, weight = (
        torch.randn(6, 2, 5, 4, generator=draws),
        torch.randn(3, 4, 2, 3, 3, generator=draws),
    )
    found = [
        way(x, weight, None, (1, 1, 1), 1)
        for way in (speed.all_clients, speed.each_client, speed._patches)
    ]
    for one in found[1:]:
        torch.testing.assert_close(one, found[0], rtol=1e-4, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("name", SHAPES)
def test_every_model_takes_a_step_on_both_sides(name):
    world = World.of(name, 8, CPU)
    assert world.ours(2)().isfinite().all()
    before = world.module.state_dict()
    world.plain(2, batch=3)()
    assert all(torch.equal(world.module.state_dict()[n], t) for n, t in before.items())
    assert world.ours(2, mechanism="none")().isfinite().all()
