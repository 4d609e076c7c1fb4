"""The tap of `nn.LSTM`: one layer, in one direction or in both, records first.

The weights are used at every step of a sequence, and only through what enters the gates, z_t + W
h_{t-1} + b: with u_t its gradient, a record's gradients are sum_t u_t x_t^T, sum_t u_t h_{t-1}^T
and sum_t u_t. Both directions run side by side, the second on the reversed sequence.
"""

from typing import Any

import torch
from torch import Tensor, nn

from mechanisms.gradients.forms import Form, Held, outer_products
from mechanisms.gradients.products import linear
from mechanisms.gradients.recurrence import recurrence
from mechanisms.gradients.taps import Tap

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

    def _apply(self, x: Tensor) -> tuple[Any, Tensor, tuple[Tensor, Tensor]]:
        self._sums: dict[int, Form] = {}
        sequence = self._by_client(x).transpose(1, 2)  # [K, T, B, in]
        passes = [sequence, sequence.flip(1)] if self._layer.bidirectional else [sequence]
        seen = torch.stack(passes, 1)
        clients, ways, times, records, _ = seen.shape
        rows = seen.flatten(0, 1).flatten(1, 2)
        z = linear(rows, self._both(_INPUT))
        if self._layer.bias:
            first, second = (self._both(name).detach() for name in _BIASES)
            z = z.add_((first + second)[:, None])
        z = z.unflatten(1, (times, records))
        # in the first layer, with a frozen input weight, z has no graph yet
        z = z if z.requires_grad else z.requires_grad_()
        h, last = (
            states.unflatten(0, (clients, ways)) for states in recurrence(z, self._both(_STATE))
        )
        output = [one if way == 0 else one.flip(1) for way, one in enumerate(h[:, :, 1:].unbind(1))]
        folded = torch.cat(output, dim=3).transpose(1, 2).flatten(0, 1)
        ends = tuple(state.transpose(0, 1).flatten(1, 2) for state in (h[:, :, -1], last))
        return (folded, ends), z, (seen.detach(), h[:, :, :-1].detach())

    def _both(self, name: str) -> Tensor:
        """`[K * D, ...]`: a parameter of each direction."""
        own = [self._own[name + end] for end in ("", "_reverse")[: 1 + self._layer.bidirectional]]
        return torch.stack(own, dim=1).flatten(0, 1)

    def _form(
        self, name: str, kept: tuple[Tensor, Tensor], gradient: Tensor, matrix: Tensor | None
    ) -> Form:
        way = int(name.endswith("_reverse"))
        left = gradient.unflatten(0, (self._clients, -1))[:, way].transpose(1, 2)  # [K, B, T, 4 H]
        if matrix is not None:
            left = left @ matrix.transpose(1, 2).unsqueeze(1)
        if name.startswith("bias"):
            # both biases of a direction enter the gates alike
            if way not in self._sums:
                self._sums[way] = Held(left.sum(2))
            return self._sums[way]
        of_input = name.startswith(_INPUT)
        right = kept[0 if of_input else 1][:, way].transpose(1, 2)
        sides = left.unsqueeze(2), right.unsqueeze(2)
        return outer_products(*sides, lambda total: total.squeeze(1), shared=not of_input)
