"""FedFed's feature distillation (Yang et al., NeurIPS 2023, section 3): the part of a record that
tells its class.

A generator q reproduces the robust part of a record; the rest, x_s = x - q(x), is
performance-sensitive. The published objective, min CE(f(x_s), y) subject to |x_s|^2 <= rho, is here
its Lagrangian

    CE(f(x_s), y) + penalty |x_s|^2 / D + beta |z|^2 / 2

with z the generator's code: |z|^2 / 2 is the divergence of N(z, I) from N(0, I), the regulariser of
a beta-VAE whose code has unit variance. The code's own noise is left out, for the gradients are
noisy already. f is a small classifier.
"""

from collections.abc import Callable, Sequence
from math import prod

import torch
from torch import Tensor, nn
from torch.nn import functional as F

HIDDEN = 64
CODE_WEIGHT = 0.01
"""beta, the weight of the code's divergence."""


class Splitter(nn.Module):
    """From records ``[B, ...]`` to sensitive parts x_s ``[B, D]`` and codes ``[B, latent]``."""

    def __init__(self, width: int, latent: int) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Flatten(), nn.Linear(width, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, latent)
        )
        self.decoder = nn.Sequential(nn.Linear(latent, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, width))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        code = self.encoder(x)
        return x.flatten(1) - self.decoder(code), code


class Distiller(nn.Module):
    """Splitter and classifier: the logits of x_s, ``|x_s|^2 / D`` and ``|z|^2 / 2``, as ``[B,
    classes + 2]``."""

    def __init__(self, shape: Sequence[int], classes: int, latent: int) -> None:
        super().__init__()
        width = prod(shape)
        self.splitter = Splitter(width, latent)
        self.classifier = nn.Sequential(
            nn.Linear(width, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, classes)
        )

    def forward(self, x: Tensor) -> Tensor:
        sensitive, code = self.splitter(x)
        size, divergence = sensitive.square().mean(dim=1), code.square().sum(dim=1) / 2
        return torch.cat([self.classifier(sensitive), size[:, None], divergence[:, None]], dim=1)


def objective(penalty: float) -> Callable[[Tensor, Tensor], Tensor]:
    """The loss ``[B]`` of a distiller's output at labels ``[B]``."""

    def loss(output: Tensor, y: Tensor) -> Tensor:
        logits, size, divergence = output[:, :-2], output[:, -2], output[:, -1]
        return (
            F.cross_entropy(logits, y, reduction="none") + penalty * size + CODE_WEIGHT * divergence
        )

    return loss


def sensitive(splitter: Splitter) -> Callable[[Tensor], Tensor]:
    """From records ``[M, ...]`` to their sensitive parts ``[M, D]``.

    They go one at a time: in a batch their last bits would depend on how many there are.
    """

    @torch.no_grad()
    def features(x: Tensor) -> Tensor:
        parts = torch.empty_like(x.flatten(1))
        for part, record in zip(parts, x, strict=True):
            part.copy_(splitter(record[None])[0][0])
        return parts

    return features
