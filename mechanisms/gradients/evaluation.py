"""Losses and outputs of a module for cohorts of clients, without gradients."""

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.func import functional_call, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from mechanisms.gradients.fixed_passes import fixed_passes
from mechanisms.gradients.fixed_passes import losses as pass_losses
from mechanisms.gradients.passes import Passes
from mechanisms.gradients.routes import Routes
from mechanisms.layout import Layout

# A forward pass is taken to hold this many entries for each one of its input.
_FORWARD_ENTRIES = 8
_FORWARD_RECORDS = 1024


class Evaluation:
    """The forward passes of `RecordGradients`, which checks all shapes first.

    Passes take one client at a time if `alone`.
    """

    def __init__(self, layout: Layout, routes: Routes, passes: Passes, alone: bool) -> None:
        self._layout, self._routes, self._passes, self._alone = layout, routes, passes, alone

    @torch.no_grad()
    def losses(self, params: Tensor, x: Tensor, y: Tensor, into: Tensor, width: int | None) -> None:
        """Fills `into [K, B]`, K and B at least 1, with the loss of each record."""
        self._routes.independent(x, y)
        if width is None:
            together = self._routes.loss_program(x, y)
            for c, b in self._forward_passes(x):
                output, targets = self._forward(params[c], x[c, b]), y[c, b]
                if together is None:
                    into[c, b] = self._routes.general(x, y).losses(output, targets)
                else:
                    found = together(output.flatten(0, 1), targets.flatten(0, 1))
                    into[c, b] = found.view(output.shape[:2])
            return
        route = self._routes.of(x, y)
        for c, b, xs, ys in fixed_passes(self._passes, params, x, y, width, route):
            found = pass_losses(route.engine, params[c], xs, ys)
            into[c, b] = found[:, : into[c, b].shape[1]]

    def logits(self, params: Tensor, x: Tensor) -> Tensor:
        """The output `[K, B, ...]` of the module; K at least 1."""
        outputs: Tensor | None = None
        for c, b in self._forward_passes(x):
            part = self._forward(params[c], x[c, b])
            if outputs is None:
                outputs = part.new_empty(*x.shape[:2], *part.shape[2:])
            outputs[c, b] = part
        if outputs is None:  # of no records: of the form of one that is made up
            one = self._forward(params[:1], x.new_zeros(1, 1, *x.shape[2:]))
            return one.new_empty(*x.shape[:2], *one.shape[2:])
        return outputs

    @torch.no_grad()
    def _forward(self, params: Tensor, x: Tensor) -> Tensor:
        program = self._routes.program(x)
        if program is None:
            return self._routes.general(x).outputs(params, x)
        if params.shape[0] == 1:
            x = self._routes.arranged(x[0])
            return functional_call(program, self._layout.unflatten(params[0]), (x,)).unsqueeze(0)
        with sdpa_kernel(SDPBackend.MATH):  # vmap has no rule for the fused attention of a CPU
            return vmap(
                lambda row, xs: functional_call(program, self._layout.unflatten(row), (xs,))
            )(params, x)

    def _forward_passes(self, x: Tensor) -> Iterator[tuple[slice, slice]]:
        least = self._passes.held(x) // _FORWARD_RECORDS
        entries = max(_FORWARD_ENTRIES * x.shape[2:].numel(), least)
        return self._passes.cut(x, entries, self._alone)
