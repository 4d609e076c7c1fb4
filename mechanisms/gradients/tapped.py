"""Per-record gradients by taps: one forward and one backward for all records of all clients.

The clients' records are folded into one batch `[K * B, ...]`; every layer with trainable parameters
is a tap, and everything between the taps acts record by record. On top of a plain step this costs
one product per layer.
"""

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from mechanisms.gradients.convolution_tap import ConvolutionTap
from mechanisms.gradients.forms import Form, Pass, put
from mechanisms.gradients.hyperbolic import tanh
from mechanisms.gradients.image_format import keep_format
from mechanisms.gradients.lstm_tap import LSTMTap
from mechanisms.gradients.materialised import Loss
from mechanisms.gradients.taps import EmbeddingTap, LinearTap, NormTap, Tap, Untappable
from mechanisms.layout import Layout
from mechanisms.metric import Metric

_TAPS: dict[type[nn.Module], type[Tap]] = {
    nn.Linear: LinearTap,
    nn.Conv1d: ConvolutionTap,
    nn.Conv2d: ConvolutionTap,
    nn.Conv3d: ConvolutionTap,
    nn.Embedding: EmbeddingTap,
    nn.LayerNorm: NormTap,
    nn.GroupNorm: NormTap,
    nn.LSTM: LSTMTap,
}


class Tapped:
    """Computes the passes of a module whose trainable parameters all belong to layers with a tap.

    Every such layer must be used exactly once, through its own forward, on the records in their
    order. Raises Untappable where that visibly fails: the constructor for a layer of another kind
    or a parameter of several layers. `Routes` finds other failures by comparison (a weight read
    around its layer, operations that mix records).

    `arranged` brings the folded records `[K * B, ...]` into the memory format that suits the
    module. `bf16` is that of the taps.
    """

    def __init__(
        self,
        module: nn.Module,
        loss: Loss,
        layout: Layout,
        arranged: Callable[[Tensor], Tensor],
        bf16: bool = False,
    ) -> None:
        self._module = copy.deepcopy(module)
        self._loss, self._layout, self._arranged = loss, layout, arranged
        trained = [(path, one) for path, one in self._module.named_modules() if _trains(one)]
        self._taps = {path: _tap(path, layer, bf16) for path, layer in trained}
        names = [_join(path, name) for path, tap in self._taps.items() for name in tap.trainable]
        if sorted(names) != sorted(layout.names):
            raise Untappable("a parameter belongs to several layers")
        for layer in self._module.modules():
            if not _trains(layer):
                layer.register_forward_hook(keep_format)
            if type(layer) is nn.Tanh:
                layer.forward = tanh  # type: ignore[assignment, method-assign]

    def takes(self, metric: Metric) -> bool:
        """Whether taps can apply the metric: not on grouped convolutions, not on embeddings."""
        return all(tap.maps_output for path, tap in self._taps.items() if path in metric)

    @property
    def to_weights(self) -> bool:
        """Whether `sum_into` is available."""
        return all(tap.to_weights for tap in self._taps.values())

    def run(self, params: Tensor, x: Tensor, y: Tensor, metric: Metric) -> Pass:
        """The pass over `params [K, P]`, `x [K, B, ...]`, `y [K, B, ...]`, with K, B >= 1."""
        losses, _ = self._losses(params, x, y)
        gradients = torch.autograd.grad(
            losses.sum(), [tap.edge for tap in self._taps.values()], allow_unused=True
        )
        forms: dict[str, Form] = {}
        for (path, tap), gradient in zip(self._taps.items(), gradients, strict=True):
            if gradient is None:
                raise Untappable("the layer has no part in the loss")
            for name, form in tap.forms(gradient, metric.get(path)).items():
                forms[_join(path, name)] = form
        return Pass(forms)

    @torch.no_grad()
    def record_losses(self, params: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """`[K, B]`: the losses, by the kernels of `run`."""
        return self._losses(params, x, y)[0].detach().view(y.shape[:2])

    def sum_into(
        self,
        sums: dict[str, Tensor],
        further: bool,
        params: Tensor,
        x: Tensor,
        y: Tensor,
        weights: Tensor,
    ) -> None:
        """Sets `sums {name: [K, *shape]}` to the sums over records of `weights [K, B]` times
        gradient, by one backward.

        Where `further` is true, they are added to what `sums` hold. No form is made.
        """
        losses, named = self._losses(params, x, y)
        dense = {path: tap for path, tap in self._taps.items() if isinstance(tap, LinearTap)}
        rest = [(path, tap) for path, tap in self._taps.items() if path not in dense]
        others = [_join(path, name) for path, tap in rest for name in tap.trainable]
        places: list[Any] = [tap.edge for tap in dense.values()] + [named[name] for name in others]
        gradients = torch.autograd.grad((losses * weights.flatten()).sum(), places)
        for (path, tap), gradient in zip(dense.items(), gradients, strict=False):
            own = {name: sums[_join(path, name)] for name in tap.trainable}
            tap.sum_into(own, further, gradient)
        for name, gradient in zip(others, gradients[len(dense) :], strict=True):
            put(sums[name], further, gradient)

    def _losses(self, params: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """The losses `[K * B]` through the taps, and the parameters `{name: [K, *shape]}`."""
        named = {n: p.requires_grad_() for n, p in self._layout.unflatten(params.detach()).items()}
        for path, tap in self._taps.items():
            tap.bind({name: named[_join(path, name)] for name in tap.trainable}, x.shape[1])
        with torch.enable_grad():
            output = self._module(self._arranged(x.flatten(0, 1)))
            return self._loss(output, y.flatten(0, 1)), named


def _tap(path: str, layer: nn.Module, bf16: bool) -> Tap:
    kind = next((t for t in _TAPS if isinstance(layer, t)), None)
    if kind is None or type(layer).forward is not kind.forward or not _TAPS[kind].follows(layer):
        raise Untappable(
            f"layer '{path}' ({type(layer).__name__}) is of no kind that can be tapped"
        )
    tap = _TAPS[kind](layer, bf16)
    layer.forward = tap.forward  # type: ignore[method-assign]
    return tap


def _trains(layer: nn.Module) -> bool:
    return any(p.requires_grad for p in layer.parameters(recurse=False))


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
