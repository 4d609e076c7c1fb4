"""Per-record gradients by automatic differentiation, held in memory: correct for every module, and
the reference for taps.

One pass holds every gradient `[K, B, P]` of its records; `RecordGradients` cuts a batch into passes
that fit. Gradients, losses and outputs are those of each record as a batch of its own, whatever the
module does with a batch. `after` is called when the module has run, and may raise.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from mechanisms.gradients.forms import Held, Pass
from mechanisms.layout import Layout
from mechanisms.metric import Metric, transform_parameter

Loss = Callable[[Tensor, Tensor], Tensor]
Named = dict[str, Tensor]


class _General:
    """What both ways share: each record as a batch of its own."""

    def __init__(
        self,
        module: nn.Module,
        loss: Loss,
        layout: Layout,
        after: Callable[[], None] = lambda: None,
    ) -> None:
        self._layout, self._module, self._loss, self._after = layout, module, loss, after

    def _output(self, named: Named, x: Tensor) -> Tensor:
        return functional_call(self._module, named, (x.unsqueeze(0),)).squeeze(0)

    def _loss_of(self, output: Tensor, y: Tensor) -> Tensor:
        return self._loss(output.unsqueeze(0), y.unsqueeze(0)).squeeze(0)

    def _record_loss(self, named: Named, x: Tensor, y: Tensor) -> Tensor:
        output = functional_call(self._module, named, (x.unsqueeze(0),))
        return self._loss(output, y.unsqueeze(0)).squeeze(0)

    def _held(self, gradients: Named, metric: Metric) -> Pass:
        mapped = {name: transform_parameter(metric, name, g) for name, g in gradients.items()}
        return Pass({name: Held(g) for name, g in mapped.items()})


class Vectorized(_General):
    """Computes passes with `torch.func`, all records and all clients at once."""

    def run(self, params: Tensor, x: Tensor, y: Tensor, metric: Metric) -> Pass:
        """The pass over `params [K, P]`, `x [K, B, ...]`, `y [K, B, ...]`, with K, B >= 1."""
        of_client = vmap(grad(self._record_loss), (None, 0, 0))
        with sdpa_kernel(SDPBackend.MATH):  # vmap has no rule for the fused attention of a CPU
            if params.shape[0] > 1:
                named = self._layout.unflatten(params.detach())
                gradients = vmap(of_client, (0, 0, 0))(named, x, y)
            else:
                single = of_client(self._layout.unflatten(params[0].detach()), x[0], y[0])
                gradients = {name: g.unsqueeze(0) for name, g in single.items()}
        self._after()
        return self._held(gradients, metric)

    def outputs(self, params: Tensor, x: Tensor) -> Tensor:
        """`[K, B, ...]`: the module's output for each record of `x [K, B, ...]`; K, B >= 1."""
        of_client = vmap(self._output, (None, 0))
        with sdpa_kernel(SDPBackend.MATH):
            if params.shape[0] > 1:
                output = vmap(of_client, (0, 0))(self._layout.unflatten(params), x)
            else:
                output = of_client(self._layout.unflatten(params[0]), x[0]).unsqueeze(0)
        self._after()
        return output

    def losses(self, output: Tensor, y: Tensor) -> Tensor:
        """`[K, B]`: the losses of outputs `[K, B, ...]`, each as a batch of its own."""
        return vmap(self._loss_of)(output.flatten(0, 1), y.flatten(0, 1)).view(y.shape[:2])


class Looped(_General):
    """Computes passes by plain automatic differentiation, record by record: slow, always correct.

    It takes models that `torch.func` has no rules for (recurrent kernels), and taps are compared
    with it.
    """

    def run(self, params: Tensor, x: Tensor, y: Tensor, metric: Metric) -> Pass:
        """The pass over `params [K, P]`, `x [K, B, ...]`, `y [K, B, ...]`, with K, B >= 1."""
        places = [(k, b) for k in range(y.shape[0]) for b in range(y.shape[1])]
        rows = [self._gradient(params[k], x[k, b], y[k, b]) for k, b in places]
        self._after()
        gradients = self._layout.unflatten(torch.stack(rows).unflatten(0, y.shape[:2]))
        return self._held(gradients, metric)

    def outputs(self, params: Tensor, x: Tensor) -> Tensor:
        """`[K, B, ...]`: the module's output for each record of `x [K, B, ...]`; K, B >= 1."""
        named = [self._layout.unflatten(row) for row in params]
        places = [(k, b) for k in range(x.shape[0]) for b in range(x.shape[1])]
        rows = [self._output(named[k], x[k, b]) for k, b in places]
        self._after()
        return torch.stack(rows).unflatten(0, x.shape[:2])

    def losses(self, output: Tensor, y: Tensor) -> Tensor:
        """`[K, B]`: the losses of outputs `[K, B, ...]`, each as a batch of its own."""
        pairs = zip(output.flatten(0, 1), y.flatten(0, 1), strict=True)
        return torch.stack([self._loss_of(*pair) for pair in pairs]).view(y.shape[:2])

    def _gradient(self, row: Tensor, x: Tensor, y: Tensor) -> Tensor:
        row = row.detach().requires_grad_()
        with torch.enable_grad():
            loss = self._record_loss(self._layout.unflatten(row), x, y)
        return torch.autograd.grad(loss, row)[0]
