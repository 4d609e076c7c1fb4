"""Which way of computing per-record gradients a model allows: found by comparison, once for each shape of a record.

A model is tried on made-up records (`gradients.record_trial`), in float64 where it can: one whose records mix is
refused. Taps rest on more that no look at layers can show, as that no weight is used around its layer. So before they
are trusted, the gradients of the trial records are computed both ways, and must have the same norms and the same sums.
A model that fails there takes the general way.
"""

import copy
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from mechanisms.gradients.forms import Pass
from mechanisms.gradients.image_format import channels_last, gains_from_channels_last
from mechanisms.gradients.materialised import Looped, Loss, Vectorized
from mechanisms.gradients.record_trial import Trial, trial_batches, wave
from mechanisms.gradients.tapped import Tapped
from mechanisms.layout import Layout
from mechanisms.metric import IDENTITY, Metric

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
        self._independent: set[tuple[object, ...]] = set()
        self._formats: dict[tuple[object, ...], bool] = {}

    def of(self, x: Tensor, y: Tensor, metric: Metric = IDENTITY) -> Route:
        """The fastest route for records `x [K, B, ...]` with targets `y [K, B, ...]`, K and B at least 1.

        Of float inputs only the shape matters. Integer ones index embeddings, so records are taken as they are. As long
        as no two differ, or they have no gradient, nothing can be found out and the general route is taken. Errors of
        the model itself pass through.

        Raises:
            ValueError: the model mixes records.
        """
        key = _key(x)
        if key not in self._routes:
            found = self._find(x, y)
            if found is None:
                return self._general
            self._routes[key] = found
        route = self._routes[key]
        fits = not isinstance(route.engine, Tapped) or route.engine.takes(metric)
        return route if fits else self._general

    def independent(self, x: Tensor, y: Tensor) -> bool:
        """Whether records shaped as those of `x [K, B, ...]` are known not to mix; K and B at least 1.

        Raises:
            ValueError: they are known to mix.
        """
        if _key(x) not in self._independent:
            self.of(x, y)
        return _key(x) in self._independent

    def arranged(self, x: Tensor) -> Tensor:
        """`x [n, ...]` in the memory format that suits the module."""
        key = (x.dtype, *x.shape[1:])
        if key not in self._formats:
            self._formats[key] = gains_from_channels_last(self._module, x)
        return channels_last(x) if self._formats[key] else x

    def _find(self, x: Tensor, y: Tensor) -> Route | None:
        """The route, or None if there are no two records to try, or none with a gradient to compare."""
        batches = trial_batches(x)
        if not batches:
            return None
        targets = y[:1, :1].repeat(1, 2, *(1,) * (y.dim() - 2))
        try:
            twin = copy.deepcopy(self._module).cpu().double()
            wide = targets.cpu().double() if y.is_floating_point() else targets.cpu()
            return self._judge(self._trial(twin, batches, wide, _TOLERANCE), _key(x))
        except RuntimeError:  # the model or the loss holds tensors that stay on their device or in their type
            own = self._layout.initial(self._module)
            batches = [b.to(own) if b.is_floating_point() else b.to(own.device) for b in batches]
            return self._judge(self._trial(self._module, batches, targets, _WIDE_TOLERANCE), _key(x))

    def _trial(self, module: nn.Module, batches: list[Tensor], targets: Tensor, tolerance: float) -> Trial:
        start = self._layout.initial(module)
        params = (start + 0.1 * wave(start)).unsqueeze(0)
        return Trial(module, self._loss, self._layout, params, batches, targets, tolerance)

    def _judge(self, trial: Trial, key: tuple[object, ...]) -> Route | None:
        batches, floors = zip(*trial.independent(), strict=True)
        self._independent.add(key)
        looped = Looped(trial.module, self._loss, self._layout)
        expected = [looped.run(trial.params, batch, trial.targets, IDENTITY) for batch in batches]
        if bool((expected[0].squared_norms() == 0).any()):
            return None
        try:
            tapped = Tapped(trial.module, self._loss, self._layout, lambda records: records)
            found = [tapped.run(trial.params, batch, trial.targets, IDENTITY) for batch in batches]
        except RuntimeError:  # Untappable, or an operation of the model fails on what a tap gives it
            return self._general
        rounding = (torch.zeros_like(floors[0]), *floors[1:])  # the least records have gradients, as was seen
        if not all(map(partial(_agree, trial.tolerance), rounding, found, expected)):
            return self._general
        return Route(Tapped(self._module, self._loss, self._layout, self.arranged), found[0].entries // 2)


def _key(x: Tensor) -> tuple[object, ...]:
    """Type and shape of a record of `x [K, B, ...]`."""
    return (x.dtype, *x.shape[2:])


def _agree(tolerance: float, floor: Tensor, found: Pass, expected: Pass) -> bool:
    """Whether norms, and a sum in which each record has its part, are the same.

    Gradients of norm `floor [1, 2]` or less, as of large records whose losses are saturated, are rounding in both.
    """
    own, norms = (one.squared_norms().sqrt() for one in (found, expected))
    finite, counts = norms.isfinite(), norms.isfinite() & (norms > floor)
    allowed = torch.where(counts, tolerance * norms, 2.0 * floor)
    same = torch.equal(own.isfinite(), finite) and bool(((own - norms).abs() <= allowed)[finite].all())
    factors = torch.where(counts, norms.new_tensor([[1.0, 0.5]]) / norms, 0.0)
    totals = [one.weighted_sum(factors, counts) for one in (found, expected)]
    return same and bool((totals[0] - totals[1]).norm() <= tolerance)
