"""Which way of computing per-record gradients a model allows: found by comparison, once for each shape of a record.

Taps rest on properties of a model that no look at its layers can show: that records do not mix, that no weight is used
around its layer. So before they are trusted, two records are computed both ways, in float64 where the model can, at
parameters and inputs made up for the purpose, and must give the same norms and the same sum. A model that fails takes
the general way.
"""

import copy
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from mechanisms.forms import Pass
from mechanisms.image_format import channels_last, gains_from_channels_last
from mechanisms.layout import Layout
from mechanisms.materialised import Looped, Loss, Vectorized
from mechanisms.metric import IDENTITY, Metric
from mechanisms.tapped import Tapped

_TOLERANCE = 1e-6
_WIDE_TOLERANCE = 1e-3  # for a model that computes in its own type only


@dataclass(frozen=True)
class Route:
    """A way to compute passes, and the number of tensor entries that it holds for each record."""

    engine: Looped | Vectorized | Tapped
    entries: int


class Routes:
    """The routes of one module and loss by shape of a record; what is found for a shape is kept."""

    def __init__(self, module: nn.Module, loss: Loss, layout: Layout) -> None:
        self._module, self._loss, self._layout = module, loss, layout
        recurrent = any(isinstance(layer, nn.RNNBase) for layer in module.modules())
        self._general = Route((Looped if recurrent else Vectorized)(module, loss, layout), layout.size)
        self._routes: dict[tuple[object, ...], Route] = {}
        self._formats: dict[tuple[object, ...], bool] = {}

    def of(self, x: Tensor, y: Tensor, metric: Metric = IDENTITY) -> Route:
        """The fastest route for records `x [K, B, ...]` with targets `y [K, B, ...]`, K and B at least 1.

        Of float inputs only the shape matters. Integer ones index embeddings, so records are taken as they are. As long
        as no two differ, or they have no gradient, nothing can be found out and the general route is taken. Errors of
        the model itself pass through.
        """
        key = (x.dtype, *x.shape[2:])
        if key not in self._routes:
            pair = _two_records(x)
            found = None if pair is None else self._find(pair, y)
            if found is None:
                return self._general
            self._routes[key] = found
        route = self._routes[key]
        fits = not isinstance(route.engine, Tapped) or route.engine.takes(metric)
        return route if fits else self._general

    def arranged(self, x: Tensor) -> Tensor:
        """`x [n, ...]` in the memory format that suits the module."""
        key = (x.dtype, *x.shape[1:])
        if key not in self._formats:
            self._formats[key] = gains_from_channels_last(self._module, x)
        return channels_last(x) if self._formats[key] else x

    def _find(self, pair: Tensor, y: Tensor) -> Route | None:
        targets = y[:1, :1].repeat(1, 2, *(1,) * (y.dim() - 2))
        try:
            twin = copy.deepcopy(self._module).cpu().double()
            wide = targets.cpu().double() if y.is_floating_point() else targets.cpu()
            return self._compare(twin, pair, wide, _TOLERANCE)
        except RuntimeError:  # the model or the loss holds tensors that stay on their device or in their type
            own = self._layout.initial(self._module)
            pair = pair.to(own) if pair.is_floating_point() else pair.to(own.device)
            return self._compare(self._module, pair, targets, _WIDE_TOLERANCE)

    def _compare(self, module: nn.Module, pair: Tensor, targets: Tensor, tolerance: float) -> Route | None:
        """The route, or None if the records `pair [1, 2, ...]` have no gradient to compare."""
        start = self._layout.initial(module)
        params = (start + 0.1 * _wave(start)).unsqueeze(0)
        expected = Looped(module, self._loss, self._layout).run(params, pair, targets, IDENTITY)
        if bool((expected.squared_norms() == 0).any()):
            return None
        try:
            tapped = Tapped(module, self._loss, self._layout, lambda records: records)
            found = tapped.run(params, pair, targets, IDENTITY)
        except RuntimeError:  # Untappable, or an operation of the model fails on what a tap gives it
            return self._general
        if not _agree(found, expected, tolerance):
            return self._general
        return Route(Tapped(self._module, self._loss, self._layout, self.arranged), found.entries // 2)


def _two_records(x: Tensor) -> Tensor | None:
    """Two different records `[1, 2, ...]` shaped as those of `x [K, B, ...]`, on the CPU; None if there are none."""
    if x.is_floating_point():
        return _wave(torch.empty(1, 2, *x.shape[2:], dtype=torch.float64))
    rows = x.flatten(0, 1)
    differs = (rows != rows[:1]).reshape(rows.shape[0], -1).any(1)
    return torch.stack([rows[0], rows[differs][0]]).unsqueeze(0).cpu() if bool(differs.any()) else None


def _wave(like: Tensor) -> Tensor:
    """Numbers in [-1, 1] without a pattern that a model could be blind to, in the shape of `like`."""
    return torch.sin(12.9898 * torch.arange(1, like.numel() + 1).to(like)).view(like.shape)


def _agree(found: Pass, expected: Pass, tolerance: float) -> bool:
    norms = expected.squared_norms()
    factors = norms.new_tensor([[1.0, 0.5]])
    totals = [one.weighted_sum(factors, None) for one in (found, expected)]
    same_norms = torch.allclose(found.squared_norms(), norms, rtol=tolerance)
    return same_norms and bool((totals[0] - totals[1]).norm() <= tolerance * totals[1].norm())
