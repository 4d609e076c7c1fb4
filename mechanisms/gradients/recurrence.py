"""The recurrence of an LSTM with a backward of its own, for `mechanisms/gradients/lstm_tap.py`.

    i, f, g, o = s(W [x_t, h_{t-1}] + b),  c_t = f c_{t-1} + i g,  h_t = o tanh(c_t),  h_0 = c_0 = 0

where s is the logistic function for i, f, o and tanh for g. Every parameter's gradient follows from
that with respect to what enters the gates.

As 2 s(x) = 1 + tanh(x / 2), all gates are `half tanh(half x) + shift` with constants for each,
so that one call does what four did: on small batches calls are what a step costs. On a CPU they are
NumPy's, which cost less than PyTorch's (docs/decisions/0032-kernels-by-chip.md). Between products
the entries of a gate lie together, `[4, K, D, B, H]`, where one loop goes over all of them.
"""

from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from mechanisms.gradients.products import TYPES, parts_of

# Entries of gates whose slopes are computed at once: on small batches, of many steps.
_BLOCK = 2**17


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
        each = clients, ways, records, width // 4
        gates, entering = x.new_empty(above - 1, 4, *each), x.new_empty(*each[:3], width)
        c, tanh_c = x.new_empty(above, *each), x.new_empty(above - 1, *each)
        half, shift = _constants(x, 0.5, 1.0), _constants(x, 0.5, 0.0)
        # times a half, which is exact
        scale = half.expand(4, each[3], 1, 1, 1).flatten()
        turned, added = (weight.mT * scale).contiguous(), (bias * scale).unsqueeze(2)
        output = x.new_empty(*x.shape[:3], ways, width // 4)
        made = seen, entering, gates, c, tanh_c, output
        with np.errstate(all="ignore"):  # as quiet as torch about a record that is not finite
            _forward(*_library(x, turned, added, half, shift, *made))
        ctx.save_for_backward(gates, c, tanh_c, weight, half, shift)
        ctx.shape = at.shape
        return output, seen[:, :, -1, :, x.shape[3] :].clone(), c[-1].clone()

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, of_output: Tensor, of_h: Tensor, of_last: Tensor
    ) -> tuple[Tensor | None, Tensor, None, None, None]:
        gates, _, _, weight, *_ = ctx.saved_tensors
        of_at, of_c = gates.new_empty(ctx.shape), of_last.clone()
        of_seen = gates.new_empty(*ctx.shape[:4], weight.shape[3])
        of_x = gates.new_empty(*of_output.shape[:3], weight.shape[3] - gates.shape[5])
        with np.errstate(all="ignore"):
            given = *ctx.saved_tensors, of_output, of_h
            _backward(*_library(*given, of_c, of_seen, of_at, of_x))
        return of_x if ctx.needs_input_grad[0] else None, of_at, None, None, None


def _forward(library: Any, *arrays: Any) -> None:
    """Fills seen, gates, c, tanh_c and output; `entering` is room for a step."""
    x, turned, added, half, shift, seen, entering, gates, c, tanh_c, output = arrays
    multiply, add, inputs = library.multiply, library.add, x.shape[3]
    for way in range(seen.shape[1]):
        seen[:, way, :-1, :, :inputs] = library.flip(x, (1,)) if way else x
    rows, by_gate = _by_step(library, seen), _by_gate(library, entering)
    states, spare = rows[..., inputs:], library.empty_like(c[0])
    states[0] = c[0] = 0.0
    product = _in_parts(library, entering, turned)
    for t in range(x.shape[1]):
        now, cell, tanh = gates[t], c[t + 1], tanh_c[t]
        product(rows[t], entering)
        add(entering, added, out=entering)
        library.tanh(by_gate, out=now)
        multiply(now, half, out=now)
        add(now, shift, out=now)
        i, f, g, o = now
        multiply(f, c[t], out=cell)
        multiply(i, g, out=spare)
        add(cell, spare, out=cell)
        library.tanh(cell, out=tanh)
        multiply(o, tanh, out=states[t + 1])
    for way in range(seen.shape[1]):
        own = seen[:, way, 1:, :, inputs:]
        output[:, :, :, way] = library.flip(own, (1,)) if way else own


def _backward(library: Any, *arrays: Any) -> None:
    """Fills of_at, of_x and of_seen; `of_c` is the gradient of c_T to begin with."""
    gates, c, tanh_c, weight, half, shift, of_output, of_h, of_c, of_seen, of_at, of_x = arrays
    multiply, add = library.multiply, library.add
    inputs, total, spare = of_x.shape[3], of_at[:, :, -1], library.empty_like(of_c)
    product = _in_parts(library, total, weight)
    # of each h_t: by the output, by what comes after it, and by both
    given, from_h = library.empty_like(tanh_c), library.empty_like(of_c)
    for way in range(of_output.shape[3]):
        own = of_output[:, :, :, way].swapaxes(0, 1)
        given[:, :, way] = library.flip(own, (0,)) if way else own
    rows, entered = _by_step(library, of_seen), _by_step(library, of_at)
    by_gate, states = _by_gate(library, entered), rows[..., inputs:]
    states[-1], total[...] = of_h, 0.0
    times = len(gates)
    steps = min(max(1, _BLOCK // prod(total.shape)), times)
    slopes, of_cell = library.empty_like(gates[:steps]), library.empty_like(c[:steps])
    for stop in range(times, 0, -steps):
        start = max(stop - steps, 0)
        own = gates[start:stop], c[start:stop], tanh_c[start:stop]
        _slopes(library, half, shift, *own, slopes, of_cell)
        for t in reversed(range(start, stop)):
            slope = slopes[t - start]
            add(states[t + 1], given[t], out=from_h)
            multiply(from_h, of_cell[t - start], out=spare)
            add(of_c, spare, out=of_c)
            multiply(of_c, slope[:3], out=slope[:3])
            multiply(from_h, slope[3], out=slope[3])
            by_gate[:, t] = slope
            add(total, entered[t], out=total)
            multiply(of_c, gates[t, 1], out=of_c)
            product(entered[t], rows[t])
    of_x[...] = of_seen[:, 0, :-1, :, :inputs]
    if of_seen.shape[1] == 2:
        of_x += library.flip(of_seen[:, 1, :-1, :, :inputs], (1,))


def _slopes(library: Any, *arrays: Any) -> None:
    """Fills, for some steps, `slopes` of what enters i, f, g through c_t and o through h_t, and
    `of_cell` of c_t through h_t."""
    half, shift, gates, c, tanh, slopes, of_cell = arrays
    multiply, subtract = library.multiply, library.subtract
    slopes, of_cell = slopes[: len(gates)], of_cell[: len(gates)]
    # half^2 (1 - tanh^2) of what entered the gates
    subtract(gates, shift, out=slopes)
    multiply(slopes, slopes, out=slopes)
    subtract(half * half, slopes, out=slopes)
    i, _, g, o = gates.swapaxes(0, 1)
    for own, other in zip(slopes.swapaxes(0, 1), (g, c, i, tanh), strict=True):
        multiply(own, other, out=own)
    # o (1 - tanh^2)
    multiply(tanh, tanh, out=of_cell)
    multiply(of_cell, o, out=of_cell)
    subtract(o, of_cell, out=of_cell)


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


def _by_step(library: Any, array: Any) -> Any:
    """`[T, K, D, ...]` of `[K, D, T, ...]`."""
    return library.moveaxis(array, 2, 0)


def _by_gate(library: Any, array: Any) -> Any:
    """`[4, ..., H]` of `[..., 4 H]`."""
    return library.moveaxis(array.reshape(*array.shape[:-1], 4, -1), -2, 0)


def _constants(x: Tensor, logistic: float, tanh: float) -> Tensor:
    """One number for i, f, o and one for g, for `[4, K, D, B, H]`."""
    each = x.new_full((4, 1, 1, 1, 1), logistic)
    each[2] = tanh
    return each


def _library(*tensors: Tensor) -> tuple[Any, ...]:
    """NumPy or PyTorch, whose functions used here have the same names, and the tensors for it."""
    first = tensors[0]
    if first.device.type != "cpu" or first.dtype not in TYPES:
        return torch, *tensors
    return np, *(tensor.detach().numpy() for tensor in tensors)
