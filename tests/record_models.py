"""Small models that use their parameters in every way the per-record gradients must get right, and
plain autograd."""

import copy
import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from mechanisms.gradients.record_gradients import RecordGradients
from mechanisms.layout import Layout


class Apply(nn.Module):
    """A function as a layer."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


class Residual(nn.Module):
    """In-place operations on the output of layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(2, 4, 3), nn.Conv2d(4, 4, 3, padding=1)
        self.norm = nn.GroupNorm(2, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu_(self.first(x))
        out = self.norm(self.second(h))
        out += h
        return torch.relu_(out).mean((2, 3))


class Tied(nn.Module):
    """One weight under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(4, 4), nn.Linear(4, 4, bias=False)
        self.outer.weight = self.inner.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.outer(torch.tanh(self.inner(x)))


class Idle(nn.Module):
    """A layer whose output nobody needs."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.idle = nn.Linear(4, 3), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) + 0 * self.idle(x).detach()


class Twice(nn.Module):
    """One layer used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(torch.tanh(self.layer(x)))


class ReadAround(nn.Module):
    """A layer's weight read around the layer: a tap on the layer alone would miss half of the
    gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.layer(x)) @ self.layer.weight


class Scaled(nn.Module):
    """A parameter of the model's own, and a constant."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.scale = nn.Linear(4, 3), nn.Parameter(torch.tensor(1.5))
        self.register_buffer("shift", torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) * self.scale + self.shift


class Stretched(nn.Linear):
    """A layer of a known kind with a parameter more."""

    def __init__(self) -> None:
        super().__init__(4, 3)
        self.stretch = nn.Parameter(torch.ones(3))


class Bounded(nn.Linear):
    """A layer of a known kind with a forward of its own, which differs where no probe may look."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).clamp(-30, 30)


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.RNNBase], **options: object) -> None:
        super().__init__()
        self.cells = kind(3, 4, **{"batch_first": True, **options})

    def forward(self, x: Tensor) -> Tensor:
        return self.cells(x)[0][:, -1]


class Ends(Recurrent):
    """The states after the last step of both directions, and nothing else."""

    def __init__(self) -> None:
        super().__init__(nn.LSTM, bidirectional=True)

    def forward(self, x: Tensor) -> Tensor:
        _, (h, c) = self.cells(x)
        return torch.cat([h, c.tanh()]).transpose(0, 1).flatten(1)


class Started(Recurrent):
    """States that do not start at 0."""

    def forward(self, x: Tensor) -> Tensor:
        start = torch.ones(1, len(x), 4).to(x)
        return self.cells(x, (start, start))[0].mean(1)


class Tokens(nn.Module):
    """A little language model: repeated tokens, positions, a layer on sequences."""

    def __init__(self, centred: bool = False) -> None:
        super().__init__()
        self.words, self.norm = nn.Embedding(7, 4, padding_idx=0), nn.LayerNorm(4)
        self.out, self.centred = nn.Linear(4, 3), centred

    def forward(self, x: Tensor) -> Tensor:
        h = self.words(x)
        h = h - h.mean(0) if self.centred else h
        return self.out(torch.tanh(self.norm(h))).mean(1)


def mixing() -> nn.Module:
    """Batch statistics in plain operations: no layer shows it."""
    return nn.Sequential(nn.Linear(4, 4), Apply(lambda x: x - x.mean(0)), nn.Linear(4, 3))


def frozen(model: nn.Module, *names: str) -> nn.Module:
    for name in names:
        model.get_parameter(name).requires_grad_(False)
    return model


def averaged(layer: nn.Module) -> nn.Module:
    return nn.Sequential(layer, nn.Tanh(), Apply(lambda x: x.mean(1)))


def convolution(layer: nn.Module) -> nn.Module:
    return nn.Sequential(layer, nn.Tanh(), nn.Flatten(2), Apply(lambda x: x.mean(2)))


@dataclass(frozen=True)
class Case:
    """A model, the shape of its records, and whether they are indices below 7."""

    model: Callable[[], nn.Module]
    shape: tuple[int, ...]
    indices: bool = False


def _plane(*args: int, **options: Any) -> Case:
    return Case(lambda: convolution(nn.Conv2d(*args, **options)), (4, 8, 7))


def _beside(operation: Callable[[Tensor], Tensor]) -> Case:
    return Case(
        lambda: nn.Sequential(Apply(operation), nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 3)), (4,)
    )


TAPPED = {
    "linear": Case(lambda: nn.Linear(4, 3), (4,)),
    "no bias": Case(lambda: nn.Linear(4, 3, bias=False), (4,)),
    "mlp": Case(
        lambda: nn.Sequential(nn.Flatten(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3)), (2, 3)
    ),
    "long sequence": Case(lambda: averaged(nn.Linear(3, 4)), (9, 3)),
    "gram": Case(lambda: averaged(nn.Linear(40, 40)), (2, 40)),
    "positions in two axes": Case(
        lambda: nn.Sequential(nn.Linear(3, 3), Apply(lambda x: x.sin().sum((1, 2)))), (2, 5, 3)
    ),
    "conv2d": _plane(4, 6, 3),
    "conv2d, no bias": _plane(4, 6, (2, 3), bias=False),
    "conv2d, stride, padding": _plane(4, 6, (3, 2), stride=(2, 3), padding=(2, 1)),
    "conv2d, same, even kernel": _plane(4, 6, (4, 3), padding="same"),
    "conv2d, valid": _plane(4, 6, 3, padding="valid"),
    "conv2d, dilation": _plane(4, 6, (3, 2), dilation=(2, 3), padding=2, stride=2),
    "conv2d, dilated, stride": _plane(4, 6, (4, 2), dilation=(2, 1), padding=3, stride=2),
    "conv2d, same, dilation": _plane(4, 6, 2, dilation=3, padding="same"),
    "conv2d, groups": _plane(4, 6, 3, groups=2, padding=1),
    "conv2d, depthwise": _plane(4, 8, 3, groups=4),
    "conv2d, groups at one pixel": Case(
        lambda: nn.Sequential(nn.Conv2d(4, 6, (3, 4), groups=2), nn.Flatten()), (4, 3, 4)
    ),
    "conv2d, reflect": _plane(4, 6, 3, padding=(2, 1), padding_mode="reflect"),
    "conv2d, circular, same": _plane(4, 6, 4, padding="same", padding_mode="circular"),
    "conv2d, one pixel": Case(lambda: convolution(nn.Conv2d(4, 6, (3, 2))), (4, 3, 2)),
    "conv2d, gram": Case(lambda: convolution(nn.Conv2d(16, 40, 3)), (16, 3, 4)),
    "conv2d, wide": Case(lambda: convolution(nn.Conv2d(16, 20, 3, padding=1)), (16, 14, 14)),
    "conv2d, wide, groups": Case(
        lambda: convolution(nn.Conv2d(32, 48, (3, 2), (2, 1), 2, 2, 2)), (32, 28, 17)
    ),
    "conv2d, wide, circular": Case(
        lambda: convolution(nn.Conv2d(17, 16, 3, padding=(1, 2), padding_mode="circular")),
        (17, 14, 14),
    ),
    "conv1d, wide": Case(lambda: convolution(nn.Conv1d(16, 16, 5, stride=2)), (16, 400)),
    "conv3d, wide": Case(lambda: convolution(nn.Conv3d(16, 16, 2, padding=1)), (16, 5, 6, 6)),
    "conv1d": Case(
        lambda: convolution(nn.Conv1d(4, 6, 3, stride=2, padding=1, dilation=2, groups=2)), (4, 9)
    ),
    "conv3d": Case(
        lambda: convolution(nn.Conv3d(2, 3, 2, stride=(1, 2, 1), padding=1)), (2, 3, 4, 3)
    ),
    "groupnorm": Case(
        lambda: nn.Sequential(nn.Conv2d(2, 4, 2), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten()),
        (2, 4, 3),
    ),
    "groupnorm on vectors": Case(
        lambda: nn.Sequential(nn.Linear(3, 4), nn.GroupNorm(2, 4, eps=0.2)), (3,)
    ),
    "layernorm": Case(lambda: nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4, eps=0.3)), (3,)),
    "layernorm on planes": Case(
        lambda: nn.Sequential(nn.LayerNorm([3, 4], bias=False), nn.Flatten()), (2, 3, 4)
    ),
    "embedding": Case(Tokens, (6,), indices=True),
    "one index": Case(lambda: nn.Sequential(nn.Embedding(7, 3), nn.Tanh()), (), indices=True),
    "lstm": Case(lambda: Recurrent(nn.LSTM), (5, 3)),
    "lstm, both ways": Case(lambda: Recurrent(nn.LSTM, bidirectional=True), (5, 3)),
    "lstm, no bias": Case(lambda: Recurrent(nn.LSTM, bias=False, bidirectional=True), (5, 3)),
    "lstm, last states": Case(Ends, (5, 3)),
    "lstm, one step": Case(lambda: Recurrent(nn.LSTM, bidirectional=True), (1, 3)),
    "lstm, frozen input weights": Case(
        lambda: frozen(Recurrent(nn.LSTM), "cells.weight_ih_l0"), (5, 3)
    ),
    "lstm, one weight": Case(
        lambda: frozen(
            Recurrent(nn.LSTM), *(f"cells.{n}_l0" for n in ("weight_ih", "bias_ih", "bias_hh"))
        ),
        (5, 3),
    ),
    "in place": Case(Residual, (2, 6, 5)),
    "frozen layer": Case(
        lambda: frozen(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3)), "0.weight", "0.bias"), (4,)
    ),
    "frozen bias": Case(
        lambda: frozen(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3)), "0.bias", "1.weight"), (4,)
    ),
}
GENERAL = {
    "tied": Case(Tied, (4,)),
    "idle": Case(Idle, (4,)),
    "twice": Case(Twice, (4,)),
    "read around": Case(ReadAround, (4,)),
    "own parameter": Case(Scaled, (4,)),
    "parameter more": Case(Stretched, (4,)),
    "forward of its own": Case(lambda: Bounded(4, 3), (4,)),
    "scaled by frequency": Case(
        lambda: averaged(nn.Embedding(7, 3, scale_grad_by_freq=True)), (6,), indices=True
    ),
    "lstm, two layers": Case(lambda: Recurrent(nn.LSTM, num_layers=2), (5, 3)),
    "lstm, projection": Case(lambda: Recurrent(nn.LSTM, proj_size=3), (5, 3)),
    "lstm, given states": Case(lambda: Started(nn.LSTM), (5, 3)),
    "gru": Case(lambda: Recurrent(nn.GRU), (5, 3)),
    "transposed": Case(lambda: convolution(nn.ConvTranspose2d(2, 3, 2)), (2, 3, 3)),
    "attention": Case(
        lambda: averaged(nn.TransformerEncoderLayer(4, 2, 6, 0.0, batch_first=True)), (3, 4)
    ),
}
MIXING = {
    "centred": Case(mixing, (4,)),
    "centred tokens": Case(lambda: Tokens(centred=True), (6,), indices=True),
    "scaled by the largest": _beside(lambda x: x / x.abs().amax().clamp(min=1)),
    "scaled by a large one": _beside(lambda x: x / x.abs().amax().clamp(min=5e3)),
    "scaled by the smallest of the large": _beside(
        lambda x: x / x.abs().mean(1).amin().clamp(min=1e3)
    ),
    "centred where large": _beside(
        lambda x: x - torch.where(x.mean(0).abs() > 1e3, x.mean(0), 0.0)
    ),
    "shared by a batch": _beside(lambda x: x / len(x)),
    "not a number beside a large one": _beside(lambda x: x / (x.abs().amax() < 1e3)),
    "by chance": _beside(lambda x: x + 1e-3 * torch.randn_like(x)),
    "attention along the batch": Case(
        lambda: averaged(nn.TransformerEncoderLayer(4, 2, 6, 0.0)), (3, 4)
    ),
    "lstm along the batch": Case(lambda: Recurrent(nn.LSTM, batch_first=False), (5, 3)),
}


@dataclass(frozen=True)
class Problem:
    """A case with K clients' parameters `[K, P]` and records `x [K, B, ...]`, `y [K, B]`, in
    float64."""

    module: nn.Module
    gradients: RecordGradients
    params: Tensor
    x: Tensor
    y: Tensor


def problem(case: Case, clients: int = 2, records: int = 3, **options: int) -> Problem:
    with torch.random.fork_rng():
        torch.manual_seed(7)
        module = case.model().double()
        gradients = RecordGradients(module, **options)
        start = gradients.layout.initial(module)
        params = start + 0.3 * torch.randn(clients, len(start), dtype=torch.float64)
        shape = (clients, records, *case.shape)
        x = torch.randint(0, 7, shape) if case.indices else torch.randn(shape, dtype=torch.float64)
        return Problem(module, gradients, params, x, torch.randint(0, 3, (clients, records)))


def shared(case: Case, clients: int = 2, records: int = 3, **options: int) -> Problem:
    """A problem whose engine all tests share, so that its route is searched once: that takes longer
    than most tests. Tests of routes, and of what is asked first, take `problem`."""
    return replace(problem(case, clients, records, **options), gradients=_engine(case, **options))


@functools.cache
def _engine(case: Case, **options: int) -> RecordGradients:
    return problem(case, **options).gradients


def plain_gradients(module: nn.Module, params: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """`[K, B, P]`: the gradient of the cross-entropy of each record as a batch of its own, by
    `backward`."""
    rows = [
        [plain_gradient(module, row, *one) for one in zip(xs, ys, strict=True)]
        for row, xs, ys in zip(params, x, y, strict=True)
    ]
    return torch.stack([torch.stack(row) for row in rows])


def plain_gradient(module: nn.Module, row: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """``[P]``, at parameters ``[P]``."""
    model = copy.deepcopy(module)
    layout, trained = Layout.of(model), dict(model.named_parameters())
    for name, value in layout.unflatten(row).items():
        trained[name].data = value.clone()
    nn.functional.cross_entropy(model(x[None]), y[None]).backward()
    grads = {name: trained[name].grad for name in layout.names}
    return layout.flatten(
        {name: torch.zeros_like(trained[name]) if g is None else g for name, g in grads.items()}
    )
