"""For all tests: they compute with one thread, as runs do, and draw the same each time."""

from collections.abc import Iterator

import pytest
from hypothesis import settings

from sim import environment

environment.prepare()  # before torch is imported; threads of several workers would only wait for each other

# Derandomised everywhere, not only in CI: a failure is due to the change at hand, and a mutant dies always or never.
# `pytest --hypothesis-profile=search` tries examples that nobody has seen. An example has all the time that it needs.
settings.register_profile("search", deadline=None)
settings.register_profile("tests", deadline=None, derandomize=True)
settings.load_profile("tests")


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Layers that a test makes without a generator have the same weights, whichever tests ran before."""
    import torch

    torch.manual_seed(0)


@pytest.fixture
def no_report(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs and audits draw no report, which takes them most of their time; those that nobody reads need none."""
    for place in ("sim.session", "sim.auditing.session"):
        monkeypatch.setattr(f"{place}.write_report", lambda folder: folder)


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.cuda)])
def device(request: pytest.FixtureRequest):
    """The devices on which device code is tested."""
    import torch

    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("no CUDA device; the same law has run on the CPU")
    return torch.device(request.param)


@pytest.fixture
def exact_products() -> Iterator[None]:
    """Products of float32 with all their digits, and kernels that add up in one order, as in a run."""
    import torch

    flags = [(torch.backends.cuda.matmul, "allow_tf32", False), (torch.backends.cudnn, "allow_tf32", False)]
    flags += [(torch.backends.cudnn, "deterministic", True)]
    before = [getattr(place, name) for place, name, _ in flags]
    for place, name, value in flags:
        setattr(place, name, value)
    yield
    for (place, name, _), value in zip(flags, before, strict=True):
        setattr(place, name, value)
