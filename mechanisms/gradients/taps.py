"""Taps: layers that keep, in one forward and backward, what their per-record gradients are made of.

A tap replaces the forward of one layer. It computes the layer for K clients with their own weights
on records folded into one batch `[K * B, ...]`, client by client, and keeps the layer's input and
the place in the autograd graph of its output (or of another tensor that the output is made from).
From the gradient at that place it builds the forms of the layer's per-record gradients.
"""

from abc import ABC, abstractmethod
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.nn import functional as F

from mechanisms.gradients.forms import Form, Held, Looked, outer_products, put
from mechanisms.gradients.products import linear
from mechanisms.metric import transform_index


class Untappable(RuntimeError):
    """A model uses a layer in a way that a tap cannot follow."""


class Tap(ABC):
    """One layer's stand-in: `bind` the clients' weights, run the model, take the `forms`.

    With `bf16`, a convolution or a dense layer multiplies bfloat16 factors in the forward and the
    backward pass.
    """

    def __init__(self, layer: nn.Module, bf16: bool = False) -> None:
        self._layer, self._bf16 = layer, bf16
        self.trainable = [
            name for name, p in layer.named_parameters(recurse=False) if p.requires_grad
        ]
        self._clients = self._records = 0
        self._own: dict[str, Tensor] = {}
        self._use: tuple[Any, GradientEdge] | None = None

    def bind(self, weights: dict[str, Tensor], records: int) -> None:
        """Prepares a pass: `weights {name: [K, *shape]}` of trainable parameters, B = `records`."""
        self._clients, self._records = next(iter(weights.values())).shape[0], records
        named = self._layer.named_parameters(recurse=False)
        frozen = {name: p.detach() for name, p in named if name not in weights}
        self._own = {n: p.expand(self._clients, *p.shape) for n, p in frozen.items()} | weights
        self._use = None

    @classmethod
    def follows(cls, layer: nn.Module) -> bool:
        """Whether the layer has the parameters and the options that the tap knows."""
        own = [name for name, _ in layer.named_parameters(recurse=False)]
        return own in (["weight"], ["weight", "bias"]) and not getattr(
            layer, "scale_grad_by_freq", False
        )

    def forward(self, x: Tensor, hx: object = None) -> Any:
        """The layer's output for `x [K * B, ...]`.

        Raises Untappable on a second use, another leading size, or a state `hx` for a recurrent
        layer to start from.
        """
        if self._use is not None:
            raise Untappable("the layer is used more than once")
        if hx is not None:
            raise Untappable("the layer is given a state")
        if x.shape[0] != self._clients * self._records:
            raise Untappable("the layer's input does not start with the records")
        output, place, kept = self._apply(x)
        self._use = kept, get_gradient_edge(place)
        return output

    @property
    def maps_output(self) -> bool:
        """Whether a matrix on the layer's output index maps its parameters' gradients."""
        return True

    @property
    def to_weights(self) -> bool:
        """Whether automatic differentiation through the tap also gives the weights' gradients."""
        return True

    @property
    def edge(self) -> GradientEdge:
        """Where the gradient that the forms are made from is available. Raises Untappable if the
        layer was not used."""
        return self._used()[1]

    def forms(self, gradient: Tensor, matrix: Tensor | None) -> dict[str, Form]:
        """The forms by name, from the `gradient` at `edge`; `matrix [K, out, out]` maps them."""
        kept, _ = self._used()
        self._use = None
        return {name: self._form(name, kept, gradient, matrix) for name in self.trainable}

    def _used(self) -> tuple[Any, GradientEdge]:
        if self._use is None:
            raise Untappable("the layer is not used")
        return self._use

    @abstractmethod
    def _apply(self, x: Tensor) -> tuple[Any, Tensor, Any]:
        """The output, the tensor on the way to it from whose gradient forms are made, and what else
        `_form` needs, without a graph."""

    @abstractmethod
    def _form(self, name: str, kept: Any, gradient: Tensor, matrix: Tensor | None) -> Form: ...

    def _factor(self, tensor: Tensor) -> Tensor:
        """A factor of the layer's products, in the type that they are computed in."""
        short = self._bf16 and tensor.dtype == torch.float32
        return tensor.bfloat16() if short else tensor

    def _by_client(self, folded: Tensor) -> Tensor:
        return folded.unflatten(0, (self._clients, self._records))

    def _by_record(self, own: Tensor) -> Tensor:
        """`[K * B, ...]`: `own [K, ...]` repeated for each record, without a copy where K = 1."""
        return own.unsqueeze(1).expand(-1, self._records, *own.shape[1:]).flatten(0, 1)


class LinearTap(Tap):
    """`nn.Linear` on `[K * B, ..., in]`."""

    def _apply(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        weight, bias = self._own["weight"], self._own.get("bias")
        factors = self._by_client(x).flatten(1, -2), weight
        output = linear(*map(self._factor, factors)).to(x.dtype)
        if bias is not None:
            output = output + bias.unsqueeze(1)
        # in the first layer, without a bias, the output has no graph yet
        output = output if output.requires_grad else output.requires_grad_()
        output = output.view(*x.shape[:-1], weight.shape[1])
        return output, output, x.detach()

    def _form(self, name: str, kept: Tensor, gradient: Tensor, matrix: Tensor | None) -> Form:
        left = self._positions(gradient)
        if matrix is not None:
            left = left @ matrix.transpose(1, 2).unsqueeze(1)
        if name == "bias":
            return Held(left.sum(2))
        return outer_products(
            left.unsqueeze(2), self._positions(kept).unsqueeze(2), lambda total: total.squeeze(1)
        )

    def sum_into(self, sums: dict[str, Tensor], further: bool, gradient: Tensor) -> None:
        """Puts the sums over each client's records into `sums {name: [K, *shape]}`, from the
        `gradient` at `edge`.

        The product is computed in place; automatic differentiation would compute and copy it.
        """
        left, right = (self._by_client(t).flatten(1, -2) for t in (gradient, self._used()[0]))
        self._use = None
        if "weight" in sums:
            sums["weight"].baddbmm_(left.transpose(1, 2), right, beta=int(further))
        if "bias" in sums:
            put(sums["bias"], further, left.sum(1))

    def _positions(self, folded: Tensor) -> Tensor:
        return folded.reshape(self._clients, self._records, -1, folded.shape[-1])


class EmbeddingTap(Tap):
    """`nn.Embedding` on indices `[K * B, ...]`; `padding_idx` gets no gradient."""

    _layer: nn.Embedding

    @property
    def maps_output(self) -> bool:
        """False: the first index of the weight is not the output's."""
        return False

    @property
    def to_weights(self) -> bool:
        """False with a `padding_idx`, which the tap leaves out afterwards."""
        return self._layer.padding_idx is None

    def _apply(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        weight = self._own["weight"]
        first = torch.arange(self._clients, device=x.device) * weight.shape[1]
        offset = self._by_record(first).view(-1, *(1,) * (x.dim() - 1))
        output = F.embedding(x + offset, weight.flatten(0, 1))
        return output, output, x

    def _form(self, name: str, kept: Tensor, gradient: Tensor, matrix: Tensor | None) -> Form:
        index = self._by_client(kept)
        index = index.flatten(2) if kept.dim() > 1 else index.unsqueeze(2)
        rows = gradient.reshape(*index.shape, gradient.shape[-1])
        if self._layer.padding_idx is not None:
            rows = torch.where((index == self._layer.padding_idx).unsqueeze(-1), 0.0, rows)
        return Looked(index, rows, self._layer.num_embeddings)


class NormTap(Tap):
    """`nn.LayerNorm` and `nn.GroupNorm` with their scale and shift."""

    _layer: nn.LayerNorm | nn.GroupNorm

    def _apply(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        layer = self._layer
        if isinstance(layer, nn.LayerNorm):
            normal = F.layer_norm(x, layer.normalized_shape, None, None, layer.eps)
        else:
            normal = F.group_norm(x, layer.num_groups, None, None, layer.eps)
        output = normal * self._broadcast("weight", x)
        output = output + self._broadcast("bias", x) if "bias" in self._own else output
        return output, output, normal.detach()

    def _broadcast(self, name: str, x: Tensor) -> Tensor:
        own = self._by_record(self._own[name])
        first = self._first_index(x)
        before, after = (1,) * (first - 1), (1,) * (x.dim() - first - own.dim() + 1)
        return own.view(x.shape[0], *before, *own.shape[1:], *after)

    def _first_index(self, x: Tensor) -> int:
        """The dimension of `x` at which the parameters' indices start."""
        if isinstance(self._layer, nn.LayerNorm):
            return x.dim() - len(self._layer.normalized_shape)
        return 1

    def _form(self, name: str, kept: Tensor, gradient: Tensor, matrix: Tensor | None) -> Form:
        # output = weight * normal + bias: each parameter's gradient is summed over its positions
        product = gradient * kept if name == "weight" else gradient
        first, shape = self._first_index(kept), self._own[name].shape[1:]
        summed = product.reshape(kept.shape[0], prod(kept.shape[1:first]), *shape, -1).sum((1, -1))
        held = self._by_client(summed)
        return Held(held if matrix is None else transform_index(matrix, held))
