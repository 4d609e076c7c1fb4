"""Tests of device code: on which devices a law runs, and what a machine with a GPU may lack."""

import importlib
from collections.abc import Iterable
from types import ModuleType

import pytest
import torch

CPU = torch.device("cpu")


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
