"""Arrays on the computing device: one copy in a process, for as long as somebody holds it."""

import weakref

import numpy as np
import torch

_COPIES: weakref.WeakValueDictionary[tuple[int, torch.device], torch.Tensor] = (
    weakref.WeakValueDictionary()
)


def copy_on(device: torch.device, array: np.ndarray) -> torch.Tensor:
    """The array on the device, whoever asks; on the CPU it shares the array's memory."""
    if device.type == "cpu":
        return torch.from_numpy(array)
    copy = _COPIES.get((id(array), device))
    if copy is None:
        copy = torch.from_numpy(array).to(device)
        # the array lives as long as its copy, so no other array gets its number
        vars(copy)["source"] = array
        _COPIES[id(array), device] = copy
    return copy


def pair_on(
    device: torch.device, pair: tuple[np.ndarray, np.ndarray]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Records and their labels on the device, each as `copy_on` gives it."""
    x, y = pair
    return copy_on(device, x), copy_on(device, y)
