"""The way to compute a model's per-record gradients, chosen once for each shape of a record.

Records are computed together only by a program all of whose operations act on each record alone
(`gradients.program`); every other model is given one record at a time. A model with a state is
refused (`gradients.module_state`), and so is one that mixes made-up records in a trial
(`gradients.record_trial`), in float64 if the model allows it.

Taps assume more: that each layer's weights are used once, and by that layer. So before they are
used, the gradients of the trial records are computed both ways, and must have the same norms and
the same sums. A model that fails there takes the general way.
"""

import copy
import math
from dataclasses import dataclass
from functools import cached_property, partial

import torch
from torch import Tensor, nn

from mechanisms.gradients.forms import Pass
from mechanisms.gradients.image_format import channels_last, gains_from_channels_last
from mechanisms.gradients.materialised import Looped, Loss, Vectorized
from mechanisms.gradients.module_state import Snapshot, close, refuse_state
from mechanisms.gradients.placements import Records
from mechanisms.gradients.program import (
    loss_acts_alone,
    marked_outputs,
    reads_weights,
    traced,
    traced_loss,
)
from mechanisms.gradients.record_trial import SCALES, SIZES, Trial, trial_batches, wave
from mechanisms.gradients.tapped import Tapped
from mechanisms.layout import Layout
from mechanisms.metric import IDENTITY, Metric

_TOLERANCE = 1e-6
_WIDE_TOLERANCE = 1e-3  # for a model that computes in its own type only


Engine = Looped | Vectorized | Tapped


@dataclass(frozen=True)
class Route:
    """A way to compute passes, and the number of tensor entries that it holds for each record."""

    engine: Engine
    entries: int


class Routes:
    """The routes of one module and loss by shape of a record, cached; `bf16` is that of taps."""

    def __init__(self, module: nn.Module, loss: Loss, layout: Layout, bf16: bool) -> None:
        self._module, self._loss, self._layout, self._bf16 = module, loss, layout, bf16
        self._snapshot = Snapshot(module)
        self._routes: dict[tuple[object, ...], Route] = {}
        self._general: dict[tuple[object, ...], Looped | Vectorized] = {}
        self._outputs: dict[tuple[object, ...], list[Records] | None] = {}
        self._losses: dict[tuple[object, ...], nn.Module | None] = {}
        self._stateless: set[tuple[object, ...]] = set()
        self._independent: set[tuple[object, ...]] = set()
        self._formats: dict[tuple[object, ...], bool] = {}

    @cached_property
    def _traced(self) -> tuple[nn.Module | None, nn.Module | None]:
        return traced(self._module), traced_loss(self._loss)

    def program(self, x: Tensor) -> nn.Module | None:
        """The model as operations that act on each record alone, or None; for records like those of
        `x [K, B, ...]`.

        Raises:
            ValueError: the model computes with the size of a batch.
        """
        key, program = _key(x), self._traced[0]
        if key not in self._outputs:
            known = program is not None and self._faithful(program, _rows(x))
            self._outputs[key] = (
                marked_outputs(program, _rows(x)) if program is not None and known else None
            )
        return None if self._outputs[key] is None else program

    def _faithful(self, program: nn.Module, rows: Tensor) -> bool:
        """Whether program and model agree: a graph misses that a tensor may have two names."""
        module = copy.deepcopy(self._module)
        for scale in SCALES if rows.is_floating_point() else SCALES[:1]:
            tried = rows * scale if rows.is_floating_point() else rows
            try:
                with torch.no_grad():
                    same = close(program(tried.clone()), module(tried.clone()))
            except Exception:  # the user's code can raise anything, and may refuse large records
                continue
            if not same:
                return False
        return True

    def loss_program(self, x: Tensor, y: Tensor) -> nn.Module | None:
        """The loss as such operations, or None; on outputs for records like those of `x`, with
        targets `y [K, B, ...]`."""
        key, loss, program = (_key(x), _key(y)), self._traced[1], self.program(x)
        if key not in self._losses:
            outputs = None if program is None or loss is None else self._outputs[_key(x)]
            self._losses[key] = None
            if (
                loss is not None
                and outputs is not None
                and loss_acts_alone(loss, outputs, _rows(y))
            ):
                self._losses[key] = loss
        return self._losses[key]

    def general(self, x: Tensor, y: Tensor | None = None) -> Looped | Vectorized:
        """The way that gives a model one record at a time, for outputs only if there is no `y`; K,
        B at least 1.

        It is vectorized, unless `vmap` has no rules for some operation, or the model branches on
        values.
        """
        key = (_key(x), None if y is None else _key(y))
        if key not in self._general:
            given = self._module, self._loss, self._layout, self._snapshot.refuse_change
            vectorized, looped = Vectorized(*given), Looped(*given)
            targets = None if y is None else torch.ones_like(y[:1, :1])
            works = self._vectorizes(vectorized, _rows(x).unsqueeze(0), targets)
            self._general[key] = vectorized if works else looped
        return self._general[key]

    def _vectorizes(self, engine: Looped | Vectorized, x: Tensor, y: Tensor | None) -> bool:
        """Tries a made-up record `x [1, 1, ...]`, of one client and of two, as a model may branch
        on its parameters."""
        if any(isinstance(layer, nn.RNNBase) for layer in self._module.modules()):
            return False
        params = self._layout.initial(self._module).unsqueeze(0)
        try:
            for clients in (1, 2):
                rows, records = (torch.cat([one] * clients) for one in (params, x))
                output = engine.outputs(rows, records)
                if y is not None:
                    targets = torch.cat([y] * clients)
                    engine.losses(output, targets)
                    engine.run(rows, records, targets, IDENTITY)
        except ValueError:
            self._snapshot.refuse_change()
            return False
        except Exception:  # the user's code can raise anything
            return False
        return True

    def of(self, x: Tensor, y: Tensor, metric: Metric = IDENTITY) -> Route:
        """The fastest route for records `x [K, B, ...]`, targets `y [K, B, ...]`; K, B at least 1.

        Only types and shapes matter: trials use made-up records. Errors of the model pass through.

        Raises:
            ValueError: the model mixes records, or has a state; or no taps, which bf16 needs.
        """
        key = (_key(x), _key(y))
        if key not in self._routes:
            self._routes[key] = self._find(x, y)
        route = self._routes[key]
        fits = not isinstance(route.engine, Tapped) or route.engine.takes(metric)
        return route if fits else self._general_route(x, y)

    def _general_route(self, x: Tensor, y: Tensor) -> Route:
        if self._bf16:
            raise ValueError(
                "bf16 = true has no effect on a model whose gradients are computed one record at a "
                "time, as this one's are: leave it out"
            )
        return Route(self.general(x, y), self._layout.size)

    def independent(self, x: Tensor, y: Tensor) -> bool:
        """Whether records like those of `x [K, B, ...]` are known not to mix; K and B at least 1.

        Raises:
            ValueError: they are known to mix.
        """
        key = (_key(x), _key(y))
        if key not in self._independent:
            self.of(x, y)
        return key in self._independent

    def arranged(self, x: Tensor) -> Tensor:
        """`x [n, ...]` in the memory format that suits the module."""
        key = (x.dtype, *x.shape[1:])
        if key not in self._formats:
            self._formats[key] = gains_from_channels_last(self._module, x)
        return channels_last(x) if self._formats[key] else x

    @torch.enable_grad()  # losses, which need none, may come first
    def _find(self, x: Tensor, y: Tensor) -> Route:
        self._refuse_state(x)
        program, loss = self.program(x), self.loss_program(x, y)
        batches, targets = trial_batches(x), torch.ones_like(y[:1, :1])
        own = self._layout.initial(self._module)
        known = program is not None and loss is not None
        try:
            twin = copy.deepcopy(self._module).cpu().double()
            wide = targets.cpu().double() if y.is_floating_point() else targets.cpu()
            trial = self._trial(twin, batches, wide, _TOLERANCE, known)
            tried = copy.deepcopy(program)
            return self._judge(trial, tried.cpu().double() if tried is not None else None, x, y)
        except RuntimeError:  # the model or the loss has tensors that keep their device or type
            batches = [b.to(own) if b.is_floating_point() else b.to(own.device) for b in batches]
            trial = self._trial(self._module, batches, targets, _WIDE_TOLERANCE, known)
            return self._judge(trial, program, x, y)

    def _refuse_state(self, x: Tensor) -> None:
        if _key(x) not in self._stateless:
            rows = _rows(x).expand(2, *x.shape[2:])
            if x.is_floating_point():
                rows = rows.to(self._layout.initial(self._module))
            refuse_state(self._module, rows)
            self._stateless.add(_key(x))

    def _trial(
        self,
        module: nn.Module,
        batches: list[Tensor],
        targets: Tensor,
        tolerance: float,
        known: bool,
    ) -> Trial:
        params, sizes = self._made_up(module).unsqueeze(0), SIZES[: 2 if known else None]
        own = module, self._loss, self._layout
        return Trial(*own, params, batches, targets, tolerance, sizes)

    def _made_up(self, module: nn.Module) -> Tensor:
        """`[P]`: parameters none of which is 0; a unit changes by at most about 1, however many
        inputs of at most 1 it has, so that losses of the smallest records are not saturated."""
        start = self._layout.initial(module)
        changes = {
            name: change / max(10, math.prod(change.shape[1:]))
            for name, change in self._layout.unflatten(wave(start)).items()
        }
        return start + self._layout.flatten(changes)

    def _judge(self, trial: Trial, tried: nn.Module | None, x: Tensor, y: Tensor) -> Route:
        """The route, given the program in the trial's type; the general one without gradients."""
        batches, floors = zip(*trial.independent(), strict=True)
        self._independent.add((_key(x), _key(y)))
        program, loss = self.program(x), self.loss_program(x, y)
        if tried is None or program is None or loss is None or reads_weights(program):
            return self._general_route(x, y)
        pair = trial.targets.repeat(1, 2, *(1,) * (y.dim() - 2))
        looped = Looped(trial.module, self._loss, self._layout)
        expected = [looped.run(trial.params, batch, pair, IDENTITY) for batch in batches]
        if bool((expected[0].squared_norms() == 0).any()):
            return self._general_route(x, y)
        try:
            tapped = Tapped(tried, loss, self._layout, lambda records: records)
            found = [tapped.run(trial.params, batch, pair, IDENTITY) for batch in batches]
        except RuntimeError:  # Untappable, or an operation of the model fails on a tap's output
            return self._general_route(x, y)
        # the smallest records do have gradients, as checked above
        rounding = (torch.zeros_like(floors[0]), *floors[1:])
        if not all(map(partial(_agree, trial.tolerance), rounding, found, expected)):
            return self._general_route(x, y)
        return Route(
            Tapped(program, loss, self._layout, self.arranged, self._bf16), found[0].entries // 2
        )


def needs_single_clients(module: nn.Module) -> bool:
    """Whether to avoid vmap over clients: convolutions with batched weights are slow grouped
    kernels on a CPU, and recurrent kernels have no batching rule."""
    on_cpu = all(p.device.type == "cpu" for p in module.parameters())
    slow = (nn.RNNBase, nn.modules.conv._ConvNd) if on_cpu else (nn.RNNBase,)
    return any(isinstance(layer, slow) for layer in module.modules())


def _rows(x: Tensor) -> Tensor:
    """`[1, ...]`: a made-up record like those of `x [K, B, ...]`."""
    rows = x.new_zeros(1, *x.shape[2:])
    return wave(rows) if x.is_floating_point() else rows


def _key(x: Tensor) -> tuple[object, ...]:
    """Type and shape of a record of `x [K, B, ...]`."""
    return (x.dtype, *x.shape[2:])


def _agree(tolerance: float, floor: Tensor, found: Pass, expected: Pass) -> bool:
    """Whether norms, and a sum in which each record takes part, are the same.

    Gradients of norm `floor [1, 2]` or less count as rounding, such as those of large records whose
    losses are saturated.
    """
    own, norms = (one.squared_norms().sqrt() for one in (found, expected))
    finite, counts = norms.isfinite(), norms.isfinite() & (norms > floor)
    allowed = torch.where(counts, tolerance * norms, 2.0 * floor)
    near = ((own - norms).abs() <= allowed)[finite]
    same = torch.equal(own.isfinite(), finite) and bool(near.all())
    factors = torch.where(counts, norms.new_tensor([[1.0, 0.5]]) / norms, 0.0)
    sums, due = (one.weighted_sums(factors, counts) for one in (found, expected))
    apart = torch.stack([(sums[name] - due[name]).norm() for name in due]).norm()
    return same and bool(apart <= tolerance)
