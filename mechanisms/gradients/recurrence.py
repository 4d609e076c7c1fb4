"""The recurrence of an LSTM with a backward of its own, for `mechanisms/gradients/lstm_tap.py`.

    i, f, g, o = s(z_t + W h_{t-1}),   c_t = f c_{t-1} + i g,   h_t = o tanh(c_t),   h_0 = c_0 = 0

where s is the logistic function for i, f, o and tanh for g, and z_t is what the inputs add to the
gates. The gradient with respect to z_t is that with respect to all that enters the gates at t, so
every parameter's gradient follows from it.

As 2 s(x) = 1 + tanh(x / 2), all gates are `half tanh(half x) + shift` with constants for each,
so that one call does what four did: on small batches calls are what a step costs. On a CPU they are
NumPy's, which cost less than PyTorch's (docs/decisions/0032-kernels-by-chip.md).
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from mechanisms.gradients.products import TYPES


def recurrence(z: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """The states of N independent recurrences over T steps of B records with H units.

    Args:
        z: [N, T, B, 4 H], the gates in the order i, f, g, o.
        weight: W [N, 4 H, H]; it gets no gradient here.

    Returns:
        h_0 .. h_T [N, T + 1, B, H] and c_T [N, B, H]. Both can be differentiated once, with respect
        to z.
    """
    return _Recurrence.apply(z, weight.detach())


class _Recurrence(torch.autograd.Function):
    """Both passes go step by step, so that what they compute with stays in a core's cache."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        runs, times, records, width = z.shape
        gates = torch.empty_like(z)
        h, c, tanh_c = (z.new_empty(runs, times + 1, records, width // 4) for _ in range(3))
        h[:, 0] = c[:, 0] = 0.0
        half, shift = _constants(z, 0.5, 1.0), _constants(z, 0.5, 0.0)
        with np.errstate(all="ignore"):  # as quiet as torch about a record that is not finite
            _forward(*_library(z, weight.mT.contiguous(), half, shift, gates, h, c, tanh_c))
        ctx.save_for_backward(gates, c, tanh_c, weight, half, shift)
        return h, c[:, times].clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_h: Tensor, of_last: Tensor) -> tuple[Tensor, None]:
        gates = ctx.saved_tensors[0]
        of_z, of_c = torch.empty_like(gates), of_last.clone()
        with np.errstate(all="ignore"):
            _backward(*_library(*ctx.saved_tensors, of_h, of_c, of_z))
        return of_z, None


def _forward(library: Any, *arrays: Any) -> None:
    """Fills gates, h, c and tanh_c but for the zeros before the first step; `turned` is W^T."""
    z, turned, half, shift, gates, h, c, tanh_c = arrays
    multiply, add, spare = library.multiply, library.add, library.empty_like(c[:, 0])
    for t in range(z.shape[1]):
        now, cell = gates[:, t], c[:, t + 1]
        library.matmul(h[:, t], turned, out=now)
        add(now, z[:, t], out=now)
        multiply(now, half, out=now)
        library.tanh(now, out=now)
        multiply(now, half, out=now)
        add(now, shift, out=now)
        i, f, g, o = _each(now)
        multiply(f, c[:, t], out=cell)
        multiply(i, g, out=spare)
        add(cell, spare, out=cell)
        library.tanh(cell, out=tanh_c[:, t + 1])
        multiply(o, tanh_c[:, t + 1], out=h[:, t + 1])


def _backward(library: Any, *arrays: Any) -> None:
    """Fills of_z; `of_c` is the gradient of c_T to begin with."""
    gates, c, tanh_c, weight, half, shift, of_h, of_c, of_z = arrays
    multiply, add, subtract = library.multiply, library.add, library.subtract
    squares, slope = half * half, library.empty_like(half)
    from_h, spare = library.empty_like(of_c), library.empty_like(of_c)
    for t in reversed(range(gates.shape[1])):
        now, of, tanh = gates[:, t], of_z[:, t], tanh_c[:, t + 1]
        (i, f, g, o), (of_i, of_f, of_g, of_o) = _each(now), _each(of)
        if t + 1 < gates.shape[1]:
            library.matmul(of_z[:, t + 1], weight, out=from_h)
            add(from_h, of_h[:, t + 1], out=from_h)
        else:
            from_h[...] = of_h[:, t + 1]
        # o (1 - tanh^2)
        multiply(tanh, tanh, out=spare)
        multiply(spare, o, out=spare)
        subtract(o, spare, out=spare)
        multiply(spare, from_h, out=spare)
        add(of_c, spare, out=of_c)
        multiply(of_c, g, out=of_i)
        multiply(of_c, c[:, t], out=of_f)
        multiply(of_c, i, out=of_g)
        multiply(from_h, tanh, out=of_o)
        # half^2 (1 - tanh^2) of what entered the gates
        subtract(now, shift, out=slope)
        multiply(slope, slope, out=slope)
        subtract(squares, slope, out=slope)
        multiply(of, slope, out=of)
        multiply(of_c, f, out=of_c)


def _each(gates: Any) -> list[Any]:
    """i, f, g, o `[N, B, H]` of `[N, B, 4 H]`."""
    units = gates.shape[2] // 4
    return [gates[:, :, k * units : (k + 1) * units] for k in range(4)]


def _constants(z: Tensor, logistic: float, tanh: float) -> Tensor:
    """One number for i, f, o and one for g, at every entry of the gates `[N, B, 4 H]`."""
    runs, _, records, width = z.shape
    each = z.new_full((runs, records, 4, width // 4), logistic)
    each[:, :, 2] = tanh
    return each.flatten(2)


def _library(*tensors: Tensor) -> tuple[Any, ...]:
    """NumPy or PyTorch, whose functions used here have the same names, and the tensors for it."""
    first = tensors[0]
    if first.device.type != "cpu" or first.dtype not in TYPES:
        return torch, *tensors
    return np, *(tensor.detach().numpy() for tensor in tensors)
