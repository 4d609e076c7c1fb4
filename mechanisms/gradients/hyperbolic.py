"""The hyperbolic tangent on a CPU, by the fastest library for it.

PyTorch's is MKL's, which on other makers' chips takes six times as long as NumPy's
(docs/decisions/0032-kernels-by-chip.md). Both round as float32 functions do.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from mechanisms.gradients.products import TYPES


def tanh(x: Tensor) -> Tensor:
    """`tanh(x)`, differentiable once, in the memory format of `x`."""
    return _Tanh.apply(x)


def tanh_into(out: Tensor, x: Tensor) -> Tensor:
    """`tanh(x)` in `out`, without a graph."""
    if x.device.type != "cpu" or x.dtype not in TYPES:
        return torch.tanh(x, out=out)
    with np.errstate(all="ignore"):  # as quiet as torch about a record that is not finite
        np.tanh(x.numpy(), out=out.numpy())
    return out


class _Tanh(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        output = tanh_into(torch.empty_like(x), x.detach())
        ctx.save_for_backward(output)
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (output,) = ctx.saved_tensors
        return torch.ops.aten.tanh_backward(gradient, output)
