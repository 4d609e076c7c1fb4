"""Tests of device code: on which devices a law runs, and what a machine with a GPU may lack."""

import importlib
from collections.abc import Callable, Iterable
from types import ModuleType

import pytest
import torch
from torch.overrides import TorchFunctionMode

CPU, META = torch.device("cpu"), torch.device("meta")


class Asynchronous(TorchFunctionMode):
    """Refuses what makes the host wait while it copies to a device; see `test_placing.py`. With
    deterministic kernels, `scatter_` copies strides."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        named, result = kwargs or {}, func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor) and result.device.type != "cpu":
            built = func in (torch.tensor, torch.as_tensor, torch.Tensor.new_tensor)
            built |= func in (torch.Tensor.scatter, torch.Tensor.scatter_)
            sent = func is torch.Tensor.to and args[0].device.type == "cpu"
            if built or (sent and not named.get("non_blocking")):
                raise AssertionError(f"the host waits for a copy to a device: {func.__name__}")
        return result


def on(device: torch.device, *tensors: torch.Tensor) -> list[torch.Tensor]:
    return [tensor.to(device) for tensor in tensors]


def on_devices(names: Iterable[str], *on_cpu: str) -> list:
    """Parameters (device, name): all names on a GPU; these on the CPU, which is compared with
    itself there."""
    gpu = [pytest.param("cuda", name, marks=pytest.mark.cuda, id=f"cuda-{name}") for name in names]
    return [pytest.param("cpu", name, id=f"cpu-{name}") for name in on_cpu] + gpu


def needed(*names: str) -> list[ModuleType]:
    """Modules that import what such a machine may lack; the test is skipped where it does."""
    for package in ("pydantic", "safetensors", "threadpoolctl"):
        pytest.importorskip(package)
    return [importlib.import_module(name) for name in names]


class Noted(TorchFunctionMode):
    """Tells ``note`` of each function of torch that is called."""

    def __init__(self, note: Callable[[object], None]):
        super().__init__()
        self._note = note

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self._note(func)
        return func(*args, **(kwargs or {}))
