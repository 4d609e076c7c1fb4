"""Products of many small matrices on a CPU, by the library that is quickest at them.

PyTorch's products on a CPU are MKL's, which leaves the wide registers of other makers' chips
unused; NumPy's are OpenBLAS', with kernels for each of them, and for small matrices
(docs/decisions/0010-speed.md has the figures). Both round as float32 products do, and the choice
rests on the device and the type alone, never on values. NumPy's also give a row the same bits
wherever it stands, which MKL's do not where rows are not aligned.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

_TYPES = (torch.float32, torch.float64)


def products(left: Tensor, right: Tensor, out: Tensor | None = None) -> Tensor:
    """`left [..., m, t] @ right [..., t, n]`, in `out` if given; leading axes are the same, and no
    graph is made."""
    if left.device.type != "cpu" or left.dtype not in _TYPES:
        return torch.matmul(left, right, out=out)
    result = left.new_empty(*left.shape[:-1], right.shape[-1]) if out is None else out
    with np.errstate(all="ignore"):  # as quiet as torch about a record that is not finite
        np.matmul(left.numpy(), right.numpy(), out=result.numpy())
    return result


def linear(x: Tensor, weight: Tensor) -> Tensor:
    """`x [K, n, in] @ weight [K, out, in]^T`; it can be differentiated once, with respect to
    `x`."""
    return _Linear.apply(x, weight.detach())


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(weight)
        return products(x.detach(), weight.mT)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, None]:
        (weight,) = ctx.saved_tensors
        return products(gradient, weight) if ctx.needs_input_grad[0] else None, None
