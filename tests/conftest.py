"""For all tests: they compute with one thread, as runs do, and draw the same each time."""

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
