"""The recurrence of an LSTM with a backward of its own, for `mechanisms/gradients/lstm_tap.py`.

    i, f, g, o = s(z_t + W h_{t-1}),   c_t = f c_{t-1} + i g,   h_t = o tanh(c_t),   h_0 = c_0 = 0

where s is the logistic function for i, f, o and tanh for g, and z_t is what the inputs add to the
gates. The gradient with respect to z_t is that with respect to all that enters the gates at t, so
every parameter's gradient follows from it.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from mechanisms.gradients.hyperbolic import tanh_into

# From a gradient and a function's value to the gradient of its argument.
_through_tanh, _through_sigmoid = torch.ops.aten.tanh_backward, torch.ops.aten.sigmoid_backward


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
        units = width // 4
        gates = z.new_empty(runs, times, records, 4, units)
        h, c, tanh_c = (z.new_zeros(runs, times + 1, records, units) for _ in range(3))
        for t in range(times):
            entering = torch.baddbmm(z[:, t], h[:, t], weight.mT).unflatten(2, (4, units))
            i, f, g, o = gates[:, t].unbind(2)
            torch.sigmoid(entering[:, :, :2], out=gates[:, t, :, :2])
            tanh_into(g, entering[:, :, 2])
            torch.sigmoid(entering[:, :, 3], out=o)
            torch.mul(f, c[:, t], out=c[:, t + 1]).addcmul_(i, g)
            tanh_into(tanh_c[:, t + 1], c[:, t + 1])
            torch.mul(o, tanh_c[:, t + 1], out=h[:, t + 1])
        ctx.save_for_backward(gates, c, tanh_c, weight)
        return h, c[:, times].clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_h: Tensor, of_last: Tensor) -> tuple[Tensor, None]:
        gates, c, tanh_c, weight = ctx.saved_tensors
        of_z, from_c = torch.empty_like(gates), of_last
        for t in reversed(range(gates.shape[1])):
            i, f, g, o = gates[:, t].unbind(2)
            of_i, of_f, of_g, of_o = of_z[:, t].unbind(2)
            from_h = of_h[:, t + 1]
            if t + 1 < gates.shape[1]:
                from_h = torch.baddbmm(from_h, of_z[:, t + 1].flatten(2), weight)
            from_c = from_c + _through_tanh(from_h * o, tanh_c[:, t + 1])
            _through_sigmoid(from_h * tanh_c[:, t + 1], o, grad_input=of_o)
            _through_sigmoid(from_c * g, i, grad_input=of_i)
            _through_sigmoid(from_c * c[:, t], f, grad_input=of_f)
            _through_tanh(from_c * i, g, grad_input=of_g)
            from_c = from_c * f
        return of_z.flatten(3), None
