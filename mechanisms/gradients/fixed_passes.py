"""Passes of one shape, for exact sums: a record's results do not depend on any other record."""

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from mechanisms.gradients.passes import Passes
from mechanisms.gradients.routes import Engine, Route
from mechanisms.gradients.tapped import Tapped
from mechanisms.grid import PART
from mechanisms.metric import IDENTITY, Metric


def fixed_passes(
    passes: Passes,
    params: Tensor,
    x: Tensor,
    y: Tensor,
    width: int,
    route: Route,
    metric: Metric = IDENTITY,
) -> Iterator[tuple[slice, slice, Tensor, Tensor]]:
    """Passes of about `width` records, as `(clients, records, x, y)`; of one record if the user's
    own code, or a kernel, could see which others are there."""
    tapped = isinstance(route.engine, Tapped)
    for c, b in passes.cut(x, route.entries, not tapped, width if tapped else 1):
        shown = partial(_shown, route.engine, params[c], of_clients(metric, c))
        for part, xs, ys in passes.of_shape(x[c, b], y[c, b], b, (tapped, *sorted(metric)), shown):
            yield c, part, xs, ys


def of_clients(metric: Metric, clients: slice) -> Metric:
    """The metric's rows for some clients."""
    return {layer: matrix[clients] for layer, matrix in metric.items()}


@torch.no_grad()
def losses(engine: Engine, params: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """`[K, B]`: the losses of a pass, by the kernels that compute its gradients."""
    if isinstance(engine, Tapped):
        return engine.record_losses(params, x, y)
    return engine.losses(engine.outputs(params, x), y)


@torch.enable_grad()
def _shown(
    engine: Engine, params: Tensor, metric: Metric, x: Tensor, y: Tensor
) -> tuple[Tensor, Tensor]:
    """Norm and loss `[K, B, 2]` of each record, and the exact sum of gradients scaled to norm 1."""
    one = engine.run(params, x, y, metric)
    norms = one.squared_norms(whole=True).sqrt()
    usable = norms.isfinite() & (norms > 0)
    sums = one.whole_sums(
        torch.where(usable, PART / norms, 0.0), None if bool(norms.isfinite().all()) else usable
    )
    total = torch.cat([part.flatten() for part in sums.values()])
    return torch.stack(
        [norms.nan_to_num(), losses(engine, params, x, y).double().nan_to_num()], dim=2
    ), total
