"""The tap of `nn.LSTM`: one layer, in one direction or in both, records first.

The weights are used at every step of a sequence, and only through what enters the gates,
W [x_t, h_{t-1}] + b: with u_t its gradient, a record's gradients are sum_t u_t x_t^T,
sum_t u_t h_{t-1}^T and sum_t u_t. Both directions run side by side, the second on the reversed
sequence.
"""

from typing import Any

import torch
from torch import Tensor, nn

from mechanisms.gradients.forms import Arranged, Form, Held
from mechanisms.gradients.products import products
from mechanisms.gradients.recurrence import recurrence
from mechanisms.gradients.taps import Tap

Kept = tuple[Tensor, dict[int, tuple[Tensor, Tensor]]]
"""The rows [x_t, h_{t-1}]; by direction the sums of their products and of what enters the gates."""
_INPUT, _STATE, _BIASES = "weight_ih_l0", "weight_hh_l0", ("bias_ih_l0", "bias_hh_l0")


class LSTMTap(Tap):
    """`nn.LSTM` on `[K * B, T, in]`, from states 0; D directions of H units."""

    _layer: nn.LSTM

    @classmethod
    def follows(cls, layer: nn.Module) -> bool:
        """One layer, records first, no projection."""
        names = [_INPUT, _STATE, *(_BIASES if getattr(layer, "bias", False) else ())]
        suffixes = ("", "_reverse") if getattr(layer, "bidirectional", False) else ("",)
        own = [name for name, _ in layer.named_parameters(recurse=False)]
        records_first = bool(getattr(layer, "batch_first", False))
        return records_first and own == [name + end for end in suffixes for name in names]

    @property
    def to_weights(self) -> bool:
        """False: the recurrence's own backward gives its weights no gradient."""
        return False

    def _apply(self, x: Tensor) -> tuple[Any, Tensor, Kept]:
        sequence = self._by_client(x).transpose(1, 2)  # [K, T, B, in]
        weight = torch.cat([self._both(_INPUT), self._both(_STATE)], dim=3)
        clients, ways, width, _ = weight.shape
        bias = x.new_zeros(clients, ways, width)
        for name in _BIASES if self._layer.bias else ():
            bias = bias + self._both(name)
        shape = clients, ways, sequence.shape[1] + 1, self._records, width
        at = x.new_zeros(()).expand(shape).requires_grad_()
        output, *last, seen = recurrence(sequence, at, weight, bias)
        ends = tuple(state.transpose(0, 1).flatten(1, 2) for state in last)
        return (output.flatten(3).transpose(1, 2).flatten(0, 1), ends), at, (seen, {})

    def _both(self, name: str) -> Tensor:
        """`[K, D, ...]`: a parameter of each direction."""
        own = [self._own[name + end] for end in ("", "_reverse")[: 1 + self._layer.bidirectional]]
        return torch.stack(own, dim=1)

    def _form(self, name: str, kept: Kept, gradient: Tensor, matrix: Tensor | None) -> Form:
        way, (seen, sums) = int(name.endswith("_reverse")), kept
        if way not in sums:
            left = gradient[:, way].transpose(1, 2)  # [K, B, T + 1, 4 H]
            if matrix is not None:
                left = left @ matrix.transpose(1, 2).unsqueeze(1)
            # [K, B, in + H, 4 H], so that the parts of both weights lie in rows
            both = products(seen[:, way].permute(0, 2, 3, 1), left[:, :, :-1])
            sums[way] = both, left[:, :, -1]
        both, total = sums[way]
        if name.startswith("bias"):
            return Held(total)
        inputs = self._layer.input_size
        part = both[:, :, :inputs] if name.startswith(_INPUT) else both[:, :, inputs:]
        sources = gradient[:, way].numel() + seen[:, way].numel()
        return Arranged(Held(part, sources // 2), lambda total: total.mT)
