"""A tensor in three numbers."""

import torch
from torch import Tensor


def sums(tensor: Tensor) -> list[float]:
    """The norm, and two sums of the entries with different weights."""
    values = tensor.detach().to(torch.float64).flatten()
    places = torch.arange(1, len(values) + 1, dtype=torch.float64)
    weighted = (values @ torch.cos(rate * places) for rate in (0.7, 1.9))
    return [float(f"{one:.7g}") for one in (values.norm(), *weighted)]
