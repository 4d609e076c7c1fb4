"""The tap of convolutions in one, two and three dimensions.

A convolution is a linear layer on patches: the gradient of its weight is, for each record, a sum
over the output's pixels of (gradient of the pixel) times (patch of the input under it). Stride,
dilation, groups and padding only affect how patches are cut (`gradients.windows`).
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mechanisms.gradients.forms import Arranged, Form, Held, outer_products
from mechanisms.gradients.products import small_products
from mechanisms.gradients.taps import Tap
from mechanisms.gradients.windows import arranged, factors, pad, patches, width

_CONVOLUTIONS: dict[int, Callable[..., Tensor]] = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
# Entries of products' factors made at a time on a CPU: 2 MiB, which fit its caches
# (docs/decisions/0032-kernels-by-chip.md).
_STRETCH = 2**19
# Stride, padding and dilation, as torch takes them.
Geometry = tuple[int | tuple[int, ...], str | int | tuple[int, ...], int | tuple[int, ...]]


def each_client(
    x: Tensor, weight: Tensor, bias: Tensor | None, geometry: Geometry, groups: int
) -> Tensor:
    """`[K * B, out, ...]`: `x [K * B, in, ...]` convolved with `weight [K, out, in / groups, ...]`,
    `bias [K, out]`.

    `geometry` is (stride, padding, dilation). Clients go one after the other: the faster way on a
    CPU.
    """
    clients, convolve = len(weight), _CONVOLUTIONS[x.dim() - 2]
    shifts = [None] * clients if bias is None else bias
    if clients == 1:
        return convolve(x, weight[0], shifts[0], *geometry, groups)
    parts = zip(x.chunk(clients), weight, shifts, strict=True)
    return torch.cat([convolve(*one, *geometry, groups) for one in parts])


def all_clients(
    x: Tensor, weight: Tensor, bias: Tensor | None, geometry: Geometry, groups: int
) -> Tensor:
    """As `each_client`, in one call: K clients make K times as many groups of channels."""
    clients, convolve = len(weight), _CONVOLUTIONS[x.dim() - 2]
    channels = x.unflatten(0, (clients, -1)).transpose(0, 1).flatten(1, 2)
    shift = None if bias is None else bias.flatten()
    output = convolve(channels, weight.flatten(0, 1), shift, *geometry, groups * clients)
    return output.unflatten(1, (clients, -1)).transpose(0, 1).flatten(0, 1)


class ConvolutionTap(Tap):
    """`nn.Conv1d`, `nn.Conv2d` and `nn.Conv3d` on `[K * B, C, *size]`."""

    _layer: nn.Conv1d | nn.Conv2d | nn.Conv3d

    @property
    def maps_output(self) -> bool:
        """False with several groups, where an output index has patches of its own."""
        return self._layer.groups == 1

    def _apply(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        layer = self._layer
        plain = layer.padding_mode == "zeros"
        padded, padding = (x, layer.padding) if plain else (pad(layer, x), 0)
        bias = self._factor(self._own["bias"]) if "bias" in self._own else None
        factors = self._factor(padded), self._factor(self._own["weight"])
        convolve = each_client if x.device.type == "cpu" else all_clients
        geometry = layer.stride, padding, layer.dilation
        output = convolve(*factors, bias, geometry, layer.groups).to(x.dtype)
        return output, output, x.detach()

    def _form(self, name: str, kept: Tensor, gradient: Tensor, matrix: Tensor | None) -> Form:
        left = self._by_client(gradient.flatten(2))
        if matrix is not None:
            left = matrix.unsqueeze(1) @ left
        if name == "bias":
            return Held(left.sum(3))
        left = left.unflatten(2, (self._layer.groups, -1)).transpose(3, 4)
        if left.shape[3] > 1:
            formed = self._by_client(self._gradients(kept, left.flatten(0, 1)))
            return Arranged(Held(formed, left.numel() + kept.numel()), self._arrange)
        right = self._by_client(patches(self._layer, kept))
        return outer_products(left, right, lambda total: self._arrange(total.unsqueeze(2)))

    def _gradients(self, x: Tensor, left: Tensor) -> Tensor:
        """`[n, G, A, out / G, F]` of `x [n, in, *size]`, `left [n, G, T, out / G]`, where A times F
        are the kernel's entries."""
        groups, pixels, own = left.shape[1:]
        features = self._layer.weight[0].numel()
        entries = groups * pixels * (own + width(self._layer, x))
        records = max(1, _STRETCH // entries) if x.device.type == "cpu" else len(x)
        formed = left.new_empty(len(x), groups, own * features)
        parts = (whole.split(records) for whole in (formed, left, x))
        for part, gradient, source in zip(*parts, strict=True):
            rows, shifts = factors(self._layer, source, gradient)
            lead = shifts.shape[2:-2]
            rows = rows.unflatten(1, (-1, *(1 for _ in lead)))
            small_products(rows.mT, shifts, part.unflatten(2, (*lead, own, -1)))
        return formed.unflatten(2, (-1, own, shifts.shape[-1]))

    def _arrange(self, total: Tensor) -> Tensor:
        return arranged(self._layer, total)
