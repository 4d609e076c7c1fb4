"""Arithmetic at the defaults of PyTorch and NumPy inside a program that may have set others.

A default type decides how noise multipliers are rounded, and gradient mode whether there is a
gradient: what is proved of a release is of the defaults.
"""

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import torch
from threadpoolctl import threadpool_limits

CUDNN = {"deterministic": False, "benchmark": False, "allow_tf32": True}
"""PyTorch's defaults of cuDNN's flags."""
MATMUL = {
    "allow_bf16_reduced_precision_reduction": True,
    "allow_fp16_reduced_precision_reduction": True,
}
"""PyTorch's defaults of cuBLAS' flags, besides that of TF32."""
ERRORS: dict[str, Any] = {"divide": "warn", "over": "warn", "under": "ignore", "invalid": "warn"}
"""NumPy's default handling of floating-point errors."""

_ONE_USER = threading.RLock()


@contextmanager
def default_arithmetic() -> Iterator[None]:
    """Set dtypes, devices, precision and gradient mode to the defaults, and restore what was set.

    Most of them are of the whole process: other threads that ask for them wait here.
    """
    with _ONE_USER, ExitStack() as stack:
        _set(stack)
        yield


@contextmanager
def one_thread() -> Iterator[None]:
    """One thread for PyTorch and NumPy, so that sums have one order; restored afterwards."""
    threads = torch.get_num_threads()  # read first: the limit applies to PyTorch's pool, too
    with threadpool_limits(1):
        torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(threads)


def _set(stack: ExitStack) -> None:
    for place, flags in ((torch.backends.cudnn, CUDNN), (torch.backends.cuda.matmul, MATMUL)):
        for name, value in flags.items():
            stack.callback(setattr, place, name, getattr(place, name))
            setattr(place, name, value)
    stack.callback(_set_determinism, *_determinism())
    _set_determinism(False, False, True)
    stack.callback(torch.set_float32_matmul_precision, torch.get_float32_matmul_precision())
    torch.set_float32_matmul_precision("highest")
    stack.callback(torch.set_default_dtype, torch.get_default_dtype())
    torch.set_default_dtype(torch.float32)
    if _flushes():
        stack.callback(torch.set_flush_denormal, True)
        torch.set_flush_denormal(False)
    if (device := torch.get_default_device()).type != "cpu":
        stack.callback(torch.set_default_device, device)
        torch.set_default_device(None)
    for kind in ("cpu", "cuda"):
        if torch.is_autocast_enabled(kind):
            stack.enter_context(torch.autocast(kind, enabled=False))
    stack.enter_context(torch.inference_mode(False))
    stack.enter_context(torch.enable_grad())
    stack.enter_context(np.errstate(**ERRORS))


def _flushes() -> bool:
    """Whether this thread takes numbers below the smallest normal one for 0, which PyTorch can be
    told, but not asked."""
    return torch.finfo(torch.float64).tiny / 2 == 0.0


def _determinism() -> tuple[bool, bool, bool]:
    """Whether kernels must be deterministic, or only warn, and whether new memory is filled."""
    return (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        torch.utils.deterministic.fill_uninitialized_memory,  # type: ignore[attr-defined]
    )


def _set_determinism(mode: bool, warn_only: bool, fill: bool) -> None:
    """Set what `_determinism` gives, if it is not so: that imports PyTorch's compiler."""
    torch.utils.deterministic.fill_uninitialized_memory = fill  # type: ignore[attr-defined]
    if _determinism() != (mode, warn_only, fill):
        torch.use_deterministic_algorithms(mode, warn_only=warn_only)
