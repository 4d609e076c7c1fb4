"""The recurrence of an LSTM with a backward of its own, for `mechanisms/gradients/lstm_tap.py`.

    i, f, g, o = s(W [x_t, h_{t-1}] + b),  c_t = f c_{t-1} + i g,  h_t = o tanh(c_t),  h_0 = c_0 = 0

where s is the logistic function for i, f, o and tanh for g. Every parameter's gradient follows from
that with respect to what enters the gates.

As 2 s(x) = 1 + tanh(x / 2), all gates are `half tanh(half x) + shift` with constants for each,
so that one call does what four did: on small batches calls are what a step costs. On a CPU they are
NumPy's, which cost less than PyTorch's (docs/decisions/0032-kernels-by-chip.md).
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from mechanisms.gradients.products import TYPES, parts_of


def recurrence(
    x: Tensor, at: Tensor, weight: Tensor, bias: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """K clients' recurrences in D directions, the second on the reversed sequence: T steps of B
    records with H units.

    Args:
        x: [K, T, B, in].
        at: [K, D, T + 1, B, 4 H], zeros that are not read: their gradient is that of what enters
            the gates i, f, g, o at each step, and at last its sum over the steps.
        weight: W [K, D, 4 H, in + H]; it gets no gradient here.
        bias: b [K, D, 4 H]; likewise.

    Returns:
        h_1 .. h_T [K, T, B, D, H] in the order of x; the h and c at the end of each direction
        [K, D, B, H]; and the rows [x_t, h_{t-1}], [K, D, T, B, in + H] in each direction's order,
        without a graph. All but the last can be differentiated once.
    """
    clients, times, records, inputs = x.shape
    ways, units = weight.shape[1], weight.shape[2] // 4
    seen = x.new_empty(clients, ways, times + 1, records, inputs + units)
    output, h, c = _Recurrence.apply(x, at, weight.detach(), bias.detach(), seen)
    return output, h, c, seen[:, :, :times]


class _Recurrence(torch.autograd.Function):
    """Both passes go step by step, so that what they compute with stays in a core's cache."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, at: Tensor, weight: Tensor, bias: Tensor, seen: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        clients, ways, above, records, width = at.shape
        gates = x.new_empty(clients, ways, above - 1, records, width)
        c, tanh_c = (x.new_empty(clients, ways, above, records, width // 4) for _ in range(2))
        half, shift = _constants(gates, 0.5, 1.0), _constants(gates, 0.5, 0.0)
        # times a half, which is exact
        scale = half[:, :, :1].mT
        turned, added = (weight * scale).mT.contiguous(), (bias.unsqueeze(3) * scale).mT
        output = x.new_empty(*x.shape[:3], ways, width // 4)
        with np.errstate(all="ignore"):  # as quiet as torch about a record that is not finite
            _forward(*_library(x, turned, added, half, shift, seen, gates, c, tanh_c, output))
        ctx.save_for_backward(gates, c, tanh_c, weight, half, shift)
        ctx.shape = at.shape
        return output, seen[:, :, -1, :, x.shape[3] :].clone(), c[:, :, -1].clone()

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, of_output: Tensor, of_h: Tensor, of_last: Tensor
    ) -> tuple[Tensor | None, Tensor, None, None, None]:
        gates, c, _, weight, *_ = ctx.saved_tensors
        of_at, of_c = gates.new_empty(ctx.shape), of_last.clone()
        of_seen = gates.new_empty(*c.shape[:4], weight.shape[3])
        of_x = gates.new_empty(*of_output.shape[:3], weight.shape[3] - c.shape[4])
        with np.errstate(all="ignore"):
            given = *ctx.saved_tensors, of_output, of_h
            _backward(*_library(*given, of_c, of_seen, of_at, of_x))
        return of_x if ctx.needs_input_grad[0] else None, of_at, None, None, None


def _forward(library: Any, *arrays: Any) -> None:
    """Fills seen, gates, c, tanh_c (but for its first entries) and output."""
    x, turned, added, half, shift, seen, gates, c, tanh_c, output = arrays
    multiply, add, inputs = library.multiply, library.add, x.shape[3]
    for way in range(seen.shape[1]):
        seen[:, way, :-1, :, :inputs] = library.flip(x, (1,)) if way else x
    states, spare = seen[..., inputs:], library.empty_like(c[:, :, 0])
    states[:, :, 0] = c[:, :, 0] = 0.0
    product = _in_parts(library, gates[:, :, 0], turned)
    for t in range(x.shape[1]):
        now, cell, tanh = gates[:, :, t], c[:, :, t + 1], tanh_c[:, :, t + 1]
        product(seen[:, :, t], now)
        add(now, added, out=now)
        library.tanh(now, out=now)
        multiply(now, half, out=now)
        add(now, shift, out=now)
        i, f, g, o = _each(now)
        multiply(f, c[:, :, t], out=cell)
        multiply(i, g, out=spare)
        add(cell, spare, out=cell)
        library.tanh(cell, out=tanh)
        multiply(o, tanh, out=states[:, :, t + 1])
    for way in range(seen.shape[1]):
        own = states[:, way, 1:]
        output[:, :, :, way] = library.flip(own, (1,)) if way else own


def _backward(library: Any, *arrays: Any) -> None:
    """Fills of_at, of_x and of_seen; `of_c` is the gradient of c_T to begin with."""
    gates, c, tanh_c, weight, half, shift, of_output, of_h, of_c, of_seen, of_at, of_x = arrays
    multiply, add, subtract = library.multiply, library.add, library.subtract
    squares, slope = half * half, library.empty_like(half)
    inputs, spare, total = of_x.shape[3], library.empty_like(of_c), of_at[:, :, -1]
    product = _in_parts(library, of_seen[:, :, 0], weight)
    # of each h_t, by what comes after it
    of_states = of_seen[..., inputs:]
    of_states[:, :, -1], total[...] = of_h, 0.0
    for t in reversed(range(gates.shape[2])):
        now, of = gates[:, :, t], of_at[:, :, t]
        tanh, from_h = tanh_c[:, :, t + 1], of_states[:, :, t + 1]
        (i, f, g, o), (of_i, of_f, of_g, of_o) = _each(now), _each(of)
        for way in range(gates.shape[1]):
            time = -1 - t if way else t
            add(from_h[:, way], of_output[:, time, :, way], out=from_h[:, way])
        # o (1 - tanh^2)
        multiply(tanh, tanh, out=spare)
        multiply(spare, o, out=spare)
        subtract(o, spare, out=spare)
        multiply(spare, from_h, out=spare)
        add(of_c, spare, out=of_c)
        multiply(of_c, g, out=of_i)
        multiply(of_c, c[:, :, t], out=of_f)
        multiply(of_c, i, out=of_g)
        multiply(from_h, tanh, out=of_o)
        # half^2 (1 - tanh^2) of what entered the gates
        subtract(now, shift, out=slope)
        multiply(slope, slope, out=slope)
        subtract(squares, slope, out=slope)
        multiply(of, slope, out=of)
        add(total, of, out=total)
        multiply(of_c, f, out=of_c)
        product(of, of_seen[:, :, t])
    of_x[...] = of_seen[:, 0, :-1, :, :inputs]
    if gates.shape[1] == 2:
        of_x += library.flip(of_seen[:, 1, :-1, :, :inputs], (1,))


def _in_parts(library: Any, rows: Any, right: Any) -> Any:
    """What puts products of others like `rows [K, D, B, m]` with `right [K, D, m, n]` into a third
    array."""
    parts = parts_of(rows.shape[2], right[0, 0].size) if library is np else 1
    if parts == 1:
        return lambda left, out: library.matmul(left, right, out=out)
    shape, right = (*rows.shape[:2], parts, -1), right[:, :, None]

    def product(left: Any, out: Any) -> Any:
        left, out = (some.reshape(*shape, some.shape[3]) for some in (left, out))
        return np.matmul(left, right, out=out)

    return product


def _each(gates: Any) -> list[Any]:
    """i, f, g, o `[K, D, B, H]` of `[K, D, B, 4 H]`."""
    units = gates.shape[3] // 4
    return [gates[..., k * units : (k + 1) * units] for k in range(4)]


def _constants(gates: Tensor, logistic: float, tanh: float) -> Tensor:
    """One number for i, f, o and one for g, at every entry of the gates of a step."""
    clients, ways, _, records, width = gates.shape
    each = gates.new_full((clients, ways, records, 4, width // 4), logistic)
    each[:, :, :, 2] = tanh
    return each.flatten(3)


def _library(*tensors: Tensor) -> tuple[Any, ...]:
    """NumPy or PyTorch, whose functions used here have the same names, and the tensors for it."""
    first = tensors[0]
    if first.device.type != "cpu" or first.dtype not in TYPES:
        return torch, *tensors
    return np, *(tensor.detach().numpy() for tensor in tensors)
