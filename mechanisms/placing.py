"""Tensors on their way to a device, and what the host may ask without waiting for one.

The host queues a GPU's kernels and runs ahead of them. To read a value, or to copy from ordinary
memory, it has to wait until the queue is empty. So within a local round nothing is read from a GPU,
and copies go through pinned memory.
"""

import torch
from torch import Tensor


def place(tensor: Tensor, device: torch.device) -> Tensor:
    """The tensor on ``device``; the host does not wait for a copy to a GPU."""
    if device.type == "cuda" and tensor.device.type == "cpu":
        # PyTorch keeps the pinned memory until the copy is done
        tensor = tensor.pin_memory()
    # for a copy from a GPU it waits, or it could read memory that is not written yet
    return tensor.to(device, non_blocking=device.type != "cpu")


def known(condition: Tensor) -> bool:
    """Whether all entries are true, as far as the host can tell at once: False on other devices."""
    return condition.device.type == "cpu" and bool(condition.all())
