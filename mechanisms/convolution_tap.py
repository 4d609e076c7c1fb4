"""The tap of convolutions in one, two and three dimensions.

A convolution is a linear layer on patches: the gradient of its weight is, for each record, a sum over the output's
pixels of (gradient of the pixel) times (patch of the input under it). Stride, dilation, groups and every padding act
on how patches are cut only.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.conv import _ConvNd

from mechanisms.forms import Form, Held, Outer
from mechanisms.taps import Tap

_CONVOLUTIONS = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}


class ConvolutionTap(Tap):
    """`nn.Conv1d`, `nn.Conv2d` and `nn.Conv3d` on `[K * B, C, *size]`."""

    _layer: nn.Conv1d | nn.Conv2d | nn.Conv3d

    def _apply(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """K > 1 clients are K times as many groups of channels."""
        layer, clients, weight = self._layer, self._clients, self._own["weight"]
        bias = self._own["bias"].flatten() if "bias" in self._own else None
        plain = layer.padding_mode == "zeros"
        padded, padding = (x, layer.padding) if plain else (self._pad(x), 0)
        if clients > 1:
            padded = self._by_client(padded).transpose(0, 1).flatten(1, 2)
        convolve = _CONVOLUTIONS[x.dim() - 2]
        output = convolve(
            padded, weight.flatten(0, 1), bias, layer.stride, padding, layer.dilation, layer.groups * clients
        )
        if clients > 1:
            output = output.unflatten(1, (clients, layer.out_channels)).transpose(0, 1).flatten(0, 1)
        return output, x

    def _form(self, name: str, kept: Tensor, gradient: Tensor, matrix: Tensor | None) -> Form:
        left = self._by_client(gradient.flatten(2))
        if matrix is not None:
            left = matrix.unsqueeze(1) @ left
        if name == "bias":
            return Held(left.sum(3))
        left = left.unflatten(2, (self._layer.groups, -1)).transpose(3, 4)
        return Outer(left, self._by_client(self._patches(kept)), self._arrange)

    def _patches(self, x: Tensor) -> Tensor:
        """`[n, G, T, in]`: under each of the T output pixels the input's patch, its entries by kernel, then channel.

        Channels come last because a copy from the channels-last layout then runs over contiguous memory.
        """
        layer = self._layer
        dims = x.dim() - 2
        views = self._pad(x).unflatten(1, (layer.groups, -1)).movedim(2, -1)
        for d in range(dims):
            span = layer.dilation[d] * (layer.kernel_size[d] - 1) + 1
            views = views.unfold(2 + d, span, layer.stride[d])[..., :: layer.dilation[d]]
        return views.movedim(2 + dims, -1).flatten(2 + dims).flatten(2, 1 + dims)

    def _pad(self, x: Tensor) -> Tensor:
        layer = self._layer
        mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
        amounts = layer._reversed_padding_repeated_twice
        return F.pad(x, amounts, mode) if any(amounts) else x

    def _arrange(self, total: Tensor) -> Tensor:
        """`[K, out, in / G, *kernel]` from `[K, G, out / G, kernel * in / G]`."""
        layer = self._layer
        rows = total.flatten(1, 2).unflatten(2, (*layer.kernel_size, -1))
        return rows.movedim(-1, 2)
