"""Sums of scaled per-record gradients on the client axis: the interface of mechanisms to a model.

A mechanism never sees a gradient. From the L2 norm of a record's whole gradient it gives the factor
with which the record enters the sum: min(1, C / |g|) for clipping, 1 / (|g| + gamma) for automatic
clipping, 0 for padding and for a record that was not drawn. Only norms must be known per record;
gradients need not be held.
"""

import copy
import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mechanisms.gradients.evaluation import Evaluation
from mechanisms.gradients.factors import Factors, Unscaled, of_pass
from mechanisms.gradients.fixed_passes import fixed_passes, of_clients
from mechanisms.gradients.forms import Pass, put
from mechanisms.gradients.independence import refuse_mixing_layers
from mechanisms.gradients.materialised import Loss
from mechanisms.gradients.passes import Passes
from mechanisms.gradients.routes import Routes, needs_single_clients
from mechanisms.gradients.tapped import Tapped
from mechanisms.grid import PART
from mechanisms.kernels import with_all_digits
from mechanisms.layout import Layout
from mechanisms.metric import IDENTITY, Metric, check_metric
from mechanisms.placing import known

# A smaller norm may have lost digits to underflow: it is rounded up to this.
_SMALLEST_NORM = 1e-12


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """The cross-entropy `[B]`, in nats, of `logits [B, classes]` at class indices `targets [B]`."""
    return F.cross_entropy(logits, targets, reduction="none")


class RecordGradients:
    """Per-record gradients of one module and loss, for K clients with their own parameters.

    Shapes, in every method: `params [K, P]` in the order of `layout`; records `x [K, B, ...]`,
    targets `y [K, B, ...]`. K and B may be 0. All tensors are on the module's device and in its
    dtype. `loss(output [B, ...], targets [B, ...])` is the loss `[B]` of each record. A record's
    gradient is that of its loss with the record as a batch of its own.

    Records are taken in passes of at most `max_records` (K times B), whose tensors fit into
    `memory_limit` bytes (64 MiB on a CPU, 1 GiB elsewhere) unless a single record does not. Only
    tensors that gradients are made from are counted. The cut depends on sizes only, never on
    values, so equal inputs give equal bits on one CPU.

    The first records of a shape decide how gradients are computed (`Routes`); `is_tapped` tells.
    The module is copied, and must give one tensor for a batch. An object serves one thread.

    With `bf16`, convolutions and dense layers multiply factors rounded to bfloat16 (8 binary
    digits) on the way to the losses and back. What a record's gradient is made from there has the
    digits of float32 again, so norms, factors and sums fit to each other as before.

    Raises ValueError if the module has no trainable parameter, or a layer that
    `refuse_mixing_layers` refuses. Gradients and losses raise it, from the first records on, for a
    module that is seen to mix records (`gradients.record_trial`) or has a state
    (`gradients.module_state`); gradients, with `bf16`, for one that is not tapped.
    """

    def __init__(
        self,
        module: nn.Module,
        loss: Loss = cross_entropy,
        *,
        max_records: int | None = None,
        memory_limit: int | None = None,
        bf16: bool = False,
    ) -> None:
        refuse_mixing_layers(module)
        self.layout = Layout.of(module)
        self._module = copy.deepcopy(module)
        self._routes = Routes(self._module, loss, self.layout, bf16)
        self._alone = needs_single_clients(self._module)
        entry_size = max(p.element_size() for p in self._module.parameters())
        self._passes = Passes(max_records, memory_limit, entry_size)
        self._evaluation = Evaluation(self.layout, self._routes, self._passes, self._alone)

    def scaled_sum(
        self, params: Tensor, x: Tensor, y: Tensor, factors: Factors, metric: Metric = IDENTITY
    ) -> tuple[Tensor, Tensor]:
        """`(total [K, P], norms [K, B])`: per client the sum over records of factor times gradient,
        and the norms.

        `factors` maps norms `[K, B]` to factors `[K, B]`, record by record: entry (k, b) of its
        result may depend on entry (k, b) of the norms only. It is called once per pass, always with
        all of `[K, B]` and norm 0 for the records of other passes, so it must have no side effects.

        With `metric`, gradients, norms and total are those after mapping each named layer by its
        matrices.

        A record with a non-finite gradient has norm inf and adds exactly 0, even if its factor is
        not 0; a record with factor 0 adds exactly 0. A norm below 1e-12 that is not 0 is reported
        as 1e-12.

        With `Unscaled` factors norms may be left out, and are then reported as 0.

        Raises ValueError on shapes that do not fit, of the factors too, and on a metric that
        `check_metric` refuses.
        """
        norms = self._zeros(params, x, y, metric)
        if isinstance(factors, Unscaled) and not metric:
            plain = self._unscaled_sum(params, x, y, factors(norms))
            if plain is not None and math.isfinite(plain.sum().item()):
                return plain, norms
        total = _room(params, y)
        for c, b, one in self._gradients(params, x, y, metric):
            norms[c, b] = _norms(one)
            scale = of_pass(factors, norms, c, b)
            finite = norms[c, b].isfinite()
            scale = torch.where(finite, scale, 0.0).to(params.dtype)
            with with_all_digits():
                sums = one.weighted_sums(scale, None if known(finite) else finite)
            self._put(total[c], b.start > 0, sums)
        return total, norms

    def whole_sum(
        self,
        params: Tensor,
        x: Tensor,
        y: Tensor,
        factors: Factors,
        bound: Tensor,
        width: int,
        metric: Metric = IDENTITY,
    ) -> tuple[Tensor, Tensor]:
        """As `scaled_sum`, but exact: `(total [K, P] int64, norms [K, B] float64)`.

        The unit of the total is `2^-44 bound [K]`. A record's part, factor times gradient, is
        rounded to whole units by itself; one whose norm is above the bound is scaled down to it.
        Passes have one shape, about `width` records of a client, so that what is computed for a
        record does not depend on any other record.

        A client has fewer than 2^18 records (`grid.check_sizes`). Raises ValueError as
        `scaled_sum`.
        """
        norms = self._zeros(params, x, y, metric).double()
        total = _room(params, y, torch.int64)
        for c, b, one in self._gradients(params, x, y, metric, width):
            drawn = norms[c, b].shape[1]
            found = _norms(one, whole=True)
            norms[c, b] = found[:, :drawn]
            finite, most = found.isfinite(), PART / found
            scale = of_pass(factors, norms, c, b).double() * (PART / bound[c, None].double())
            scale = F.pad(scale, (0, found.shape[1] - drawn))
            scale = torch.where(finite, torch.minimum(scale, most), 0.0)
            sums = one.whole_sums(scale, None if known(finite) else finite)
            self._put(total[c], b.start > 0, sums)
        return total, norms

    def norms(
        self,
        params: Tensor,
        x: Tensor,
        y: Tensor,
        metric: Metric = IDENTITY,
        width: int | None = None,
    ) -> Tensor:
        """`[K, B]`: the L2 norm of each record's gradient as `scaled_sum` gives it; with `width`,
        as `whole_sum`."""
        norms = self._zeros(params, x, y, metric).to(torch.float64 if width else params.dtype)
        for c, b, one in self._gradients(params, x, y, metric, width):
            norms[c, b] = _norms(one, whole=bool(width))[:, : norms[c, b].shape[1]]
        return norms

    def entries(self, x: Tensor, y: Tensor) -> int:
        """Tensor entries that a pass holds for each record shaped as those of `x [K, B, ...]`; K
        and B at least 1."""
        return self._routes.of(x, y).entries

    def refuse_mixing(self, x: Tensor, y: Tensor) -> None:
        """Raises ValueError if records `x [K, B, ...]`, `y [K, B, ...]` are seen to mix; K and B at
        least 1."""
        self._routes.independent(x, y)

    def is_tapped(self, x: Tensor, y: Tensor) -> bool:
        """Whether the gradients of records `x [K, B, ...]`, `y [K, B, ...]` take the fast route; K
        and B at least 1."""
        return isinstance(self._routes.of(x, y).engine, Tapped)

    def losses(self, params: Tensor, x: Tensor, y: Tensor, width: int | None = None) -> Tensor:
        """`[K, B]`: the loss of each record, without gradients; with `width`, in passes as those of
        `whole_sum`.

        A batch is evaluated as one if all operations are known to act on each record alone.
        """
        losses = self._zeros(params, x, y, IDENTITY)
        if losses.numel() > 0:
            self._evaluation.losses(params, x, y, losses, width)
        return losses

    def logits(self, params: Tensor, x: Tensor) -> Tensor:
        """`[K, B, ...]`: the output of the module for a batch, without a graph; K at least 1."""
        self._zeros(params, x, x, IDENTITY)
        return self._evaluation.logits(params, x)

    def _gradients(
        self, params: Tensor, x: Tensor, y: Tensor, metric: Metric, width: int | None = None
    ) -> Iterator[tuple[slice, slice, Pass]]:
        """Passes over all records; with `width`, padded with zeros to one shape."""
        if y.shape[:2].numel() == 0:
            return
        route = self._routes.of(x, y, metric)
        tapped = isinstance(route.engine, Tapped)
        if width is None:
            for c, b in self._passes.cut(x, route.entries, self._alone and not tapped):
                yield c, b, route.engine.run(params[c], x[c, b], y[c, b], of_clients(metric, c))
            return
        for c, b, xs, ys in fixed_passes(self._passes, params, x, y, width, route, metric):
            yield c, b, route.engine.run(params[c], xs, ys, of_clients(metric, c))

    def _put(self, total: Tensor, further: bool, sums: dict[str, Tensor]) -> None:
        """Sets `total [K, P]` to the `sums {name: [K, *shape]}` of a pass, or adds them."""
        for name, own in self.layout.unflatten(total).items():
            put(own, further, sums[name])

    def _unscaled_sum(self, params: Tensor, x: Tensor, y: Tensor, weights: Tensor) -> Tensor | None:
        """`[K, P]`: the weighted sum of gradients by a plain backward of each pass, or None."""
        if weights.numel() == 0:
            return None
        route = self._routes.of(x, y)
        if not isinstance(route.engine, Tapped) or not route.engine.to_weights:
            return None
        total = torch.empty_like(params)
        for c, b in self._passes.cut(x, route.entries, alone=False):
            sums = self.layout.unflatten(total[c])
            route.engine.sum_into(sums, b.start > 0, params[c], x[c, b], y[c, b], weights[c, b])
        return total

    def _zeros(self, params: Tensor, x: Tensor, y: Tensor, metric: Metric) -> Tensor:
        """Zeros `[K, B]`, after checking that all shapes agree."""
        if params.dim() != 2 or params.shape[1] != self.layout.size:
            raise ValueError(
                f"params has shape {tuple(params.shape)}, it must be [K, P] with P = "
                f"{self.layout.size}"
            )
        for name, tensor in (("x", x), ("y", y)):
            if tensor.dim() < 2 or tensor.shape[:2] != (len(params), x.shape[1]):
                raise ValueError(
                    f"{name} has shape {tuple(tensor.shape)}, it must start with [K, B] where K = "
                    f"{params.shape[0]} as in params and B is the same for x and y: pad the "
                    "clients' batches to one length"
                )
        check_metric(metric, self.layout, params.shape[0])
        return params.new_zeros(x.shape[:2])


def _room(params: Tensor, y: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """`[K, P]` for the sums of all passes; zeros if there is no record."""
    total = torch.empty_like(params, dtype=dtype)
    return total if y.shape[:2].numel() else total.zero_()


def _norms(one: Pass, whole: bool = False) -> Tensor:
    norms = one.squared_norms(whole).sqrt()
    norms = torch.where(norms == 0, 0.0, norms.clamp(min=_SMALLEST_NORM))
    return torch.where(norms.isfinite(), norms, torch.inf)
