"""Linear maps on the output index of layers: the geometry in which gradients are measured.

A metric is `{layer path: M [K, out, out]}`. It maps a layer's gradient g to M g, acting on the
output index: the first index of `weight [out, ...]` and of `bias [out]`. Layers it does not name
keep the identity. DP-Hero's whitening is `M = diag(v)^-1 B^T`; its way back, after the noise, is
the metric `B diag(v)`.
"""

from collections.abc import Mapping
from types import MappingProxyType

import torch
from torch import Tensor

from mechanisms.layout import Layout

Metric = Mapping[str, Tensor]
IDENTITY: Metric = MappingProxyType({})


def layer_of(name: str) -> str:
    """The path of the layer that owns parameter `name`: `features.0` for `features.0.weight`, ''
    for the root's."""
    return name.rpartition(".")[0]


def check_metric(metric: Metric, layout: Layout, clients: int) -> None:
    """Raises ValueError for a layer without trainable parameters, or a matrix not `[K, out, out]`
    for all of them."""
    for layer, matrix in metric.items():
        owned = {
            n: s for n, s in zip(layout.names, layout.shapes, strict=True) if layer_of(n) == layer
        }
        if not owned:
            raise ValueError(
                f"metric names layer '{layer}', which has no trainable parameter: use one of "
                f"{sorted({layer_of(n) for n in layout.names})}"
            )
        for name, shape in owned.items():
            out = shape[0] if shape else 0
            if tuple(matrix.shape) != (clients, out, out):
                raise ValueError(
                    f"metric of layer '{layer}' has shape {tuple(matrix.shape)}, parameter {name} "
                    f"of shape {shape} and K = {clients} clients need {(clients, out, out)}: give "
                    "one [out, out] matrix per client"
                )


def transform_index(matrix: Tensor, gradient: Tensor) -> Tensor:
    """`M g` for `matrix [K, out, out]` and `gradient [K, n, out, ...]`."""
    rows = gradient.flatten(3) if gradient.dim() > 3 else gradient.unsqueeze(3)
    return torch.matmul(matrix.unsqueeze(1), rows).view(gradient.shape)


def transform_parameter(metric: Metric, name: str, gradient: Tensor) -> Tensor:
    """`M g` for parameter `name` and `gradient [K, n, out, ...]`; `gradient` itself if its layer
    has no matrix."""
    matrix = metric.get(layer_of(name))
    return gradient if matrix is None else transform_index(matrix, gradient)


def transform(metric: Metric, layout: Layout, flat: Tensor) -> Tensor:
    """`flat [K, P]` with each layer's output index mapped by the metric, as a new row. Raises as
    `check_metric`."""
    check_metric(metric, layout, flat.shape[0])
    named = layout.unflatten(flat)
    return layout.flatten(
        {n: transform_parameter(metric, n, t.unsqueeze(1)).squeeze(1) for n, t in named.items()}
    )
