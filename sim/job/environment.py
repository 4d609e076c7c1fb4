"""Process settings that must be made before torch, Ray and Flower are imported."""

import ctypes
import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager

SETTINGS = {
    # one thread per process: workers share the cores, and a sum has one order of additions
    "OMP_NUM_THREADS": "1",
    # large buffers are kept instead of being returned to the system after each step: up to 1.8
    # times faster on a CPU
    "MALLOC_MMAP_THRESHOLD_": "4000000000",
    "MALLOC_TRIM_THRESHOLD_": "8000000000",
    # no telemetry
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    # workers without a share of a GPU keep the visible devices (and do not warn about it)
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}

_ALLOCATOR = {"MALLOC_TRIM_THRESHOLD_": -1, "MALLOC_MMAP_THRESHOLD_": -3}
"""Variable that glibc reads when a process starts -> its parameter number in ``mallopt``."""
_INT_MAX = 2**31 - 1


def prepare() -> None:
    """Set what the user has not set, for this process and its children."""
    for name, parameter in _ALLOCATOR.items():
        if name not in os.environ:
            _keep_buffers(parameter)
    set_variables()


@contextmanager
def importing() -> Iterator[None]:
    """Import without a search for garbage, which would go over all that torch has made again and
    again: a fifth of a short run. What is there afterwards lives as long as the process."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.freeze()


def set_variables() -> None:
    """Set the variables that the user has not set; Ray's workers inherit them."""
    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)


def _keep_buffers(parameter: int) -> None:
    """Raise a threshold of this process's allocator if it is glibc's."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(parameter, _INT_MAX)
