"""Sums of scaled per-record gradients on the client axis: the one seam between a mechanism and a model.

A mechanism never sees a gradient. It says, from the L2 norm of a record's whole gradient, by which factor the record
enters the sum: min(1, C / |g|) for clipping, 1 / (|g| + gamma) for automatic clipping, 0 for padding and for a record
that was not drawn. Norms are what must be known per record; gradients need not be held.
"""

import copy
import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from mechanisms.gradients.forms import Pass
from mechanisms.gradients.independence import refuse_mixing_layers
from mechanisms.gradients.materialised import Loss
from mechanisms.gradients.routes import Routes
from mechanisms.gradients.tapped import Tapped
from mechanisms.layout import Layout
from mechanisms.metric import IDENTITY, Metric, check_metric

# Bytes of tensors held in one pass. On a CPU larger tensors cost page faults and cache misses.
_HELD_ON_CPU = 2**26
_HELD_ELSEWHERE = 2**30
# A forward pass is taken to hold this many entries for each one of its input.
_FORWARD_ENTRIES = 8
_FORWARD_RECORDS = 1024
# A smaller norm may have lost digits to underflow: it is rounded up to this.
_SMALLEST_NORM = 1e-12


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """The cross-entropy `[B]`, in nats, of `logits [B, classes]` at the class indices `targets [B]`."""
    return F.cross_entropy(logits, targets, reduction="none")


class Unscaled:
    """Factors that look at no norm: `weights [K, B]`, whatever the gradients."""

    def __init__(self, weights: Tensor) -> None:
        self.weights = weights

    def __call__(self, norms: Tensor) -> Tensor:
        """The weights, in the type of `norms [K, B]`."""
        return self.weights.to(norms)


class RecordGradients:
    """Per-record gradients of one module and loss, for cohorts of K clients with their own parameters.

    Shapes, in every method: `params [K, P]` in the order of `layout`; records `x [K, B, ...]`, targets `y [K, B, ...]`.
    K and B may be 0. All tensors are on the module's device and in its dtype. `loss(output [B, ...], targets [B, ...])`
    is the loss `[B]` of each record. A record's gradient is that of its loss with the record as a batch of its own.

    Records are taken in passes whose tensors fit into `memory_limit` bytes (64 MiB on a CPU, 1 GiB elsewhere), as far
    as one record does, and of at most `max_records` (K times B). What is counted is what a gradient is made from. The
    cut depends on sizes only, never on values, so equal inputs give equal bits on one CPU.

    How gradients are computed is found out from the first records of a shape (`Routes`); `is_tapped` tells. The module
    is copied, and gives one tensor for a batch. An object serves one thread.

    Raises ValueError if the module has no trainable parameter, or a layer that `refuse_mixing_layers` refuses, or if
    `max_records` or `memory_limit` is below 1. Gradients and losses raise it, from the first records on, for a module
    that is seen to mix records (`gradients.record_trial`) or has a state (`gradients.module_state`).
    """

    def __init__(
        self,
        module: nn.Module,
        loss: Loss = cross_entropy,
        *,
        max_records: int | None = None,
        memory_limit: int | None = None,
    ) -> None:
        if max_records is not None and max_records < 1:
            raise ValueError(f"max_records is {max_records}, it must be at least 1: give the records of one pass")
        if memory_limit is not None and memory_limit < 1:
            raise ValueError(f"memory_limit is {memory_limit}, it must be at least 1: give the bytes of one pass")
        refuse_mixing_layers(module)
        self.layout = Layout.of(module)
        self._module = copy.deepcopy(module)
        self._loss = loss
        self._max_records, self._memory_limit = max_records, memory_limit
        self._routes = Routes(self._module, loss, self.layout)
        self._alone = _needs_single_clients(self._module)
        self._entry_size = max(p.element_size() for p in self._module.parameters())

    def scaled_sum(
        self, params: Tensor, x: Tensor, y: Tensor, factors: Callable[[Tensor], Tensor], metric: Metric = IDENTITY
    ) -> tuple[Tensor, Tensor]:
        """`(total [K, P], norms [K, B])`: per client the sum over records of factor times gradient, and the norms.

        `factors` maps norms `[K, B]` to factors `[K, B]`, record by record: entry (k, b) of its result may depend on
        entry (k, b) of the norms only. It is called once per pass, each time with all of `[K, B]`, where the records
        of other passes have norm 0; so it must draw nothing and count nothing.

        With `metric`, gradients, norms and total are those after mapping each named layer by its matrices.

        A record with a non-finite gradient has norm inf and adds exactly 0 whatever its factor; a record with factor 0
        adds exactly 0. A norm below 1e-12 that is not 0 is reported as 1e-12.

        `Unscaled` factors may be applied without looking at norms, which are then reported as 0.

        Raises ValueError on shapes that do not fit, of the factors too, and on a metric that `check_metric` refuses.
        """
        norms = self._zeros(params, x, y, metric)
        if isinstance(factors, Unscaled) and not metric:
            plain = self._unscaled_sum(params, x, y, factors(norms))
            if plain is not None and math.isfinite(plain.sum().item()):
                return plain, norms
        total = torch.zeros_like(params)
        for c, b, one in self._gradients(params, x, y, metric):
            seen = torch.zeros_like(norms)
            seen[c, b] = norms[c, b] = _norms(one)
            scale = factors(seen)
            if scale.shape != seen.shape:
                raise ValueError(
                    f"factors returned shape {tuple(scale.shape)}, it must be [K, B] = {tuple(seen.shape)}: "
                    "give one factor per record"
                )
            finite = norms[c, b].isfinite()
            scale = torch.where(finite, scale[c, b], 0.0).to(params.dtype)
            total[c] += one.weighted_sum(scale, None if bool(finite.all()) else finite)
        return total, norms

    def norms(self, params: Tensor, x: Tensor, y: Tensor, metric: Metric = IDENTITY) -> Tensor:
        """`[K, B]`: the L2 norm of each record's whole gradient, as `scaled_sum` gives it."""
        norms = self._zeros(params, x, y, metric)
        for c, b, one in self._gradients(params, x, y, metric):
            norms[c, b] = _norms(one)
        return norms

    def entries(self, x: Tensor, y: Tensor) -> int:
        """Tensor entries that a pass holds for each record shaped as those of `x [K, B, ...]`; K and B at least 1."""
        return self._routes.of(x, y).entries

    def refuse_mixing(self, x: Tensor, y: Tensor) -> None:
        """Raises ValueError if records `x [K, B, ...]`, `y [K, B, ...]` are seen to mix; K and B at least 1."""
        self._routes.independent(x, y)

    def is_tapped(self, x: Tensor, y: Tensor) -> bool:
        """Whether the gradients of records `x [K, B, ...]`, `y [K, B, ...]` take the fast route; K and B at least 1."""
        return isinstance(self._routes.of(x, y).engine, Tapped)

    @torch.no_grad()
    def losses(self, params: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """`[K, B]`: the loss of each record; no gradient is formed.

        A batch is evaluated as one where all operations are known to act on each record alone.
        """
        losses = self._zeros(params, x, y, IDENTITY)
        if losses.numel() == 0:
            return losses
        self._routes.independent(x, y)
        together = self._routes.loss_program(x, y)
        for c, b in self._forward_passes(x):
            output, targets = self._forward(params[c], x[c, b]), y[c, b]
            if together is None:
                losses[c, b] = self._routes.general(x, y).losses(output, targets)
            else:
                losses[c, b] = together(output.flatten(0, 1), targets.flatten(0, 1)).view(output.shape[:2])
        return losses

    def logits(self, params: Tensor, x: Tensor) -> Tensor:
        """`[K, B, ...]`: the output of the module for a batch, without a graph. K must be at least 1."""
        self._zeros(params, x, x, IDENTITY)
        outputs: Tensor | None = None
        for c, b in self._forward_passes(x):
            part = self._forward(params[c], x[c, b])
            if outputs is None:
                outputs = part.new_empty(*x.shape[:2], *part.shape[2:])
            outputs[c, b] = part
        return self._forward(params, x) if outputs is None else outputs

    @torch.no_grad()
    def _forward(self, params: Tensor, x: Tensor) -> Tensor:
        program = self._routes.program(x)
        if program is None and x.shape[:2].numel() > 0:
            return self._routes.general(x).outputs(params, x)
        module = self._module if program is None else program
        if params.shape[0] == 1:
            x = self._routes.arranged(x[0])
            return functional_call(module, self.layout.unflatten(params[0]), (x,)).unsqueeze(0)
        with sdpa_kernel(SDPBackend.MATH):  # vmap has no rule for the fused attention of a CPU
            return vmap(lambda row, xs: functional_call(module, self.layout.unflatten(row), (xs,)))(params, x)

    def _gradients(self, params: Tensor, x: Tensor, y: Tensor, metric: Metric) -> Iterator[tuple[slice, slice, Pass]]:
        if y.shape[:2].numel() == 0:
            return
        route = self._routes.of(x, y, metric)
        for c, b in self._passes(x, route.entries, self._alone and not isinstance(route.engine, Tapped)):
            matrices = {layer: matrix[c] for layer, matrix in metric.items()}
            yield c, b, route.engine.run(params[c], x[c, b], y[c, b], matrices)

    def _unscaled_sum(self, params: Tensor, x: Tensor, y: Tensor, weights: Tensor) -> Tensor | None:
        """`[K, P]`: the weighted sum of gradients by a plain backward of each pass; None where there is no such way."""
        if weights.numel() == 0:
            return None
        route = self._routes.of(x, y)
        if not isinstance(route.engine, Tapped) or not route.engine.to_weights:
            return None
        total = torch.empty_like(params)
        for c, b in self._passes(x, route.entries, alone=False):
            sums = self.layout.unflatten(total[c])
            route.engine.sum_into(sums, b.start > 0, params[c], x[c, b], y[c, b], weights[c, b])
        return total

    def _forward_passes(self, x: Tensor) -> Iterator[tuple[slice, slice]]:
        entries = max(_FORWARD_ENTRIES * x.shape[2:].numel(), self._held(x) // _FORWARD_RECORDS)
        return self._passes(x, entries, self._alone)

    def _passes(self, x: Tensor, entries: int, alone: bool) -> Iterator[tuple[slice, slice]]:
        """Cuts `[K, B]` into whole clients where several fit a pass, else into stretches of one client's records."""
        clients, records = x.shape[:2]
        if clients * records == 0:
            return
        fitting = max(1, self._held(x) // max(1, entries))
        fitting = fitting if self._max_records is None else min(self._max_records, fitting)
        step = math.ceil(records / math.ceil(records / fitting))  # equal stretches
        together = 1 if alone else max(1, fitting // records)
        for c in range(0, clients, together):
            for b in range(0, records, step):
                yield slice(c, min(c + together, clients)), slice(b, min(b + step, records))

    def _held(self, x: Tensor) -> int:
        """Tensor entries that one pass may hold."""
        default = _HELD_ON_CPU if x.device.type == "cpu" else _HELD_ELSEWHERE
        return (self._memory_limit or default) // self._entry_size

    def _zeros(self, params: Tensor, x: Tensor, y: Tensor, metric: Metric) -> Tensor:
        """Zeros `[K, B]`, after checking that all shapes agree."""
        if params.dim() != 2 or params.shape[1] != self.layout.size:
            raise ValueError(f"params has shape {tuple(params.shape)}, it must be [K, P] with P = {self.layout.size}")
        for name, tensor in (("x", x), ("y", y)):
            if tensor.dim() < 2 or tensor.shape[0] != params.shape[0] or tensor.shape[1] != x.shape[1]:
                raise ValueError(
                    f"{name} has shape {tuple(tensor.shape)}, it must start with [K, B] where K = {params.shape[0]} "
                    "as in params and B is the same for x and y: pad the clients' batches to one length"
                )
        check_metric(metric, self.layout, params.shape[0])
        return params.new_zeros(x.shape[:2])


def _norms(one: Pass) -> Tensor:
    norms = one.squared_norms().sqrt()
    norms = torch.where(norms == 0, 0.0, norms.clamp(min=_SMALLEST_NORM))
    return torch.where(norms.isfinite(), norms, torch.inf)


def _needs_single_clients(module: nn.Module) -> bool:
    """Whether vmap over clients is to be avoided: convolutions with batched weights are slow grouped kernels on a CPU,
    and recurrent kernels have no batching rule at all."""
    on_cpu = all(p.device.type == "cpu" for p in module.parameters())
    slow = (nn.RNNBase, nn.modules.conv._ConvNd) if on_cpu else (nn.RNNBase,)
    return any(isinstance(layer, slow) for layer in module.modules())
