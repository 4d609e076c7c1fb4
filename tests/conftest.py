"""For all tests: they compute with one thread, as runs do, and draw the same each time."""

import functools
import gc
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest
from hypothesis import settings

from sim.job import environment

# Before torch is imported; threads of several workers would only wait for each other.
environment.prepare()

MEMORY = Path("/dev/shm")
"""Linux's file system in memory."""
MIN_FREE = 2**31
"""Bytes that must be free there; tests that passed leave nothing."""


def _holds_folders() -> bool:
    """Whether there is memory for folders of programs, whose files are flushed thousands of
    times."""
    return (
        "TMPDIR" not in os.environ
        and os.access(MEMORY, os.W_OK)
        and not os.statvfs(MEMORY).f_flag & os.ST_NOEXEC
        and shutil.disk_usage(MEMORY).free >= MIN_FREE
    )


if _holds_folders():
    os.environ["TMPDIR"] = tempfile.tempdir = str(MEMORY)

# Derandomised everywhere, not only in CI: a failure is due to the change at hand, and a mutant dies
# always or never. `pytest --hypothesis-profile=search` tries examples that nobody has seen. An
# example has all the time that it needs.
settings.register_profile("search", deadline=None)
settings.register_profile("tests", deadline=None, derandomize=True)
settings.load_profile("tests")


LONG = """
    account_command aggregator api architecture attack_command attack_figures attackers
    audit_attacks audit_bounds audit_command audit_dpsur audit_many_run bench bits buffer
    calibration_many card caveats central choosing cli comparison crash_points cuda_runs curator
    damage deployment door dpagd_budget dpis dpsur dpsur_charges drawer dropout dropout_trace engine
    fast_gradients faults fedfed flower flower_strategies fuzz gpu_benchmark gradients grid guard
    leaderboard ledger live loop loss_distribution lstm mechanisms mod moving mutants nodes
    objectives order_search own_budget own_training personal_budgets personal_models phases pinned
    plots plugins prices proof quickstart readme recipe_links record_trial release_files
    released_scores report report_figures rounded_gaussian run run_figures rundir screening
    selective site strategies summary theory verify workers
"""
"""The files of tests that take longest. `pytest -m fast` runs all others, and does not load
these."""


UNREPORTED = Path(__file__).with_name("unreported")
"""The folder by which Python's processes draw no report."""


def is_long(path: Path) -> bool:
    return path.stem.removeprefix("test_") in LONG.split()


def pytest_configure(config: pytest.Config) -> None:
    """Byte code is kept where pytest's own cache is: tests start the project's commands a hundred
    times, and each would compile the project first."""
    if config.pluginmanager.hasplugin("cacheprovider"):
        sys.dont_write_bytecode = False
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


def pytest_collection_finish() -> None:
    """A search for garbage leaves out what was imported; Flower and Ray search often."""
    gc.freeze()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    return True if config.option.markexpr == "fast" and is_long(collection_path) else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if not (is_long(item.path) or item.get_closest_marker("slow")):
            item.add_marker("fast")


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Layers that a test makes without a generator have the same weights, whichever tests ran
    before."""
    if torch := sys.modules.get("torch"):
        torch.manual_seed(0)


@pytest.fixture
def no_report(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs and audits draw no report, here and in processes that the test starts; it takes them
    most of their time, and those that nobody reads need none."""
    monkeypatch.setenv("PYTHONPATH", str(UNREPORTED), prepend=os.pathsep)
    for place in ("sim.engines.session", "sim.auditing.session"):
        monkeypatch.setattr(f"{place}.write_report", lambda folder: folder)
    monkeypatch.setattr("sim.engines.drawer.drawing", lambda run: nullcontext())


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.cuda)])
def device(request: pytest.FixtureRequest):
    """The devices on which device code is tested."""
    import torch

    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("no CUDA device; the same law has run on the CPU")
    return torch.device(request.param)


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Restores which kernels a GPU takes."""
    import torch

    names = ["deterministic", "benchmark", "allow_tf32"]
    flags = [(torch.backends.cudnn, name) for name in names]
    names = ["allow_tf32"]
    names += [f"allow_{kind}_reduced_precision_reduction" for kind in ("bf16", "fp16")]
    flags += [(torch.backends.cuda.matmul, name) for name in names]
    flags += [(torch.utils.deterministic, "fill_uninitialized_memory")]
    before = [getattr(place, name) for place, name in flags]
    for name in ("WORKSPACE_CONFIG", "EMULATE_SINGLE_PRECISION", "EMULATE_DOUBLE_PRECISION"):
        monkeypatch.setenv(f"CUBLAS_{name}", "")  # to be restored
        monkeypatch.delenv(f"CUBLAS_{name}")
    # the same without the import of PyTorch's compiler, which takes a second
    enable = functools.partial(torch._C._set_deterministic_algorithms, warn_only=False)
    monkeypatch.setattr(torch, "use_deterministic_algorithms", enable)
    yield
    enable(False)
    for (place, name), value in zip(flags, before, strict=True):
        setattr(place, name, value)


@pytest.fixture
def exact_products(device, kernels) -> None:
    """On a GPU, products of float32 with all their digits, and kernels that add up in one order, as
    in a run."""
    if device.type == "cuda":
        from mechanisms.kernels import fix_kernels

        fix_kernels()
