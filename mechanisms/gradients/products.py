"""Products of many small matrices on a CPU, by the fastest library for them.

PyTorch's products on a CPU are MKL's, which leaves the wide registers of other makers' chips
unused; NumPy's are OpenBLAS', with kernels for each of them, and for small matrices (measurements
in docs/decisions/0010-speed.md). Both round as float32 products do, and the choice depends on the
device and the type alone, never on values. NumPy's also give a row the same bits at any place,
which MKL's do not if rows are not aligned.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from mechanisms.kernels import small_product

TYPES = (torch.float32, torch.float64)


def products(left: Tensor, right: Tensor, out: Tensor | None = None) -> Tensor:
    """`left [..., m, t] @ right [..., t, n]`, into `out` if given, without a graph."""
    if left.device.type != "cpu" or left.dtype not in TYPES:
        return torch.matmul(left, right, out=out)
    result = left.new_empty(*left.shape[:-1], right.shape[-1]) if out is None else out
    with np.errstate(all="ignore"):  # as quiet as torch about a record that is not finite
        np.matmul(left.numpy(), right.numpy(), out=result.numpy())
    return result


def parts_of(rows: int, size: int) -> int:
    """Into how many equal parts of at least 16 rows to cut the rows of a product, so that a CPU's
    kernels for small matrices take them; the right side has `size` entries."""
    parts = 1
    while rows * size / parts > small_product() and rows % (2 * parts) == 0 and rows // parts >= 32:
        parts *= 2
    return parts


def small_products(left: Tensor, right: Tensor, out: Tensor) -> None:
    """As `products`, on a CPU with rows of `left` in parts."""
    # elsewhere each part would have a copy of the right side
    parts = parts_of(left.shape[-2], right.shape[-2:].numel()) if left.device.type == "cpu" else 1
    products(left.unflatten(-2, (parts, -1)), right.unsqueeze(-3), out.unflatten(-2, (parts, -1)))


def linear(x: Tensor, weight: Tensor) -> Tensor:
    """`x [K, n, in] @ weight [K, out, in]^T`, differentiable once, with respect to `x`."""
    return _Linear.apply(x, weight.detach())


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(weight)
        if x.device.type == "cpu" and x.dtype not in TYPES:
            # all at once, PyTorch would copy the transposed weights
            return torch.stack([F.linear(*own) for own in zip(x.detach(), weight, strict=True)])
        return products(x.detach(), weight.mT)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, None]:
        (weight,) = ctx.saved_tensors
        return products(gradient, weight) if ctx.needs_input_grad[0] else None, None
