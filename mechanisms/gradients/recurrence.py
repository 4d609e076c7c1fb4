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
    @staticmethod
    def forward(ctx: Any, z: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        runs, times, records, width = z.shape
        units = width // 4
        gates = z.new_empty(runs, times, records, 4, units)
        h, c = (z.new_zeros(runs, times + 1, records, units) for _ in range(2))
        for t in range(times):
            entering = torch.baddbmm(z[:, t], h[:, t], weight.mT).unflatten(2, (4, units))
            i, f, g, o = gates[:, t].unbind(2)
            torch.sigmoid(entering[:, :, :2], out=gates[:, t, :, :2])
            torch.tanh(entering[:, :, 2], out=g)
            torch.sigmoid(entering[:, :, 3], out=o)
            torch.mul(f, c[:, t], out=c[:, t + 1]).addcmul_(i, g)
            torch.mul(o, c[:, t + 1].tanh(), out=h[:, t + 1])
        ctx.save_for_backward(gates, c, weight)
        return h, c[:, times].clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_h: Tensor, of_last: Tensor) -> tuple[Tensor, None]:
        gates, c, weight = ctx.saved_tensors
        i, f, g, o = gates.unbind(3)
        tanh = c[:, 1:].tanh()
        through = o * (1 - tanh.square())  # from h_t to c_t
        # each gate's derivative times its factor; multiplied by the gradient of c_t (for o: of h_t)
        # it becomes that of z_t
        of_i, of_f = g * i * (1 - i), c[:, :-1] * f * (1 - f)
        of_g, of_o = i * (1 - g.square()), tanh * o * (1 - o)
        of_z = torch.stack((of_i, of_f, of_g, of_o), dim=3)
        from_c, entered = of_last, of_z.flatten(3)
        for t in reversed(range(gates.shape[1])):
            from_h = of_h[:, t + 1]
            if t + 1 < gates.shape[1]:
                from_h = torch.baddbmm(from_h, entered[:, t + 1], weight)
            from_c = torch.addcmul(from_c, from_h, through[:, t])
            of_z[:, t, :, :3] *= from_c.unsqueeze(2)
            of_z[:, t, :, 3] *= from_h
            from_c = from_c * f[:, t]
        return entered, None
