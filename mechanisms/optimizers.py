"""First-order optimizers on the client axis: pure functions of (gradient, state), one row of
parameters per client."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

State = tuple[torch.Tensor, ...]
"""Tensors whose first axis is K, so that a client's row can be kept or restored on its own."""


@dataclass(frozen=True)
class Optimizer:
    """``init(params [K, P]) -> state`` and ``update(gradient [K, P], state) -> (direction [K, P],
    state)``.

    The step is ``params - lr * direction``.
    """

    init: Callable[[torch.Tensor], State]
    update: Callable[[torch.Tensor, State], tuple[torch.Tensor, State]]


def sgd(momentum: float = 0.0) -> Optimizer:
    """SGD with heavy-ball momentum: ``m <- momentum * m + g``, direction m."""

    def init(params: torch.Tensor) -> State:
        return (torch.zeros_like(params),) if momentum else ()

    def update(gradient: torch.Tensor, state: State) -> tuple[torch.Tensor, State]:
        if not state:
            return gradient, state
        velocity = torch.add(gradient, state[0], alpha=momentum)
        return velocity, (velocity,)

    return Optimizer(init, update)


def adam(beta1: float = 0.9, beta2: float = 0.999, epsilon: float = 1e-8) -> Optimizer:
    """Adam (Kingma and Ba 2015, Algorithm 1) with bias correction; the step counter is per client,
    ``[K, 1]``."""

    def init(params: torch.Tensor) -> State:
        return torch.zeros_like(params), torch.zeros_like(params), params.new_zeros(len(params), 1)

    def update(gradient: torch.Tensor, state: State) -> tuple[torch.Tensor, State]:
        mean, square, count = state[0], state[1], state[2] + 1
        mean = beta1 * mean + (1 - beta1) * gradient
        square = beta2 * square + (1 - beta2) * gradient**2
        corrected = (square / (1 - beta2**count)).sqrt() + epsilon
        return mean / (1 - beta1**count) / corrected, (mean, square, count)

    return Optimizer(init, update)


OPTIMIZERS: dict[str, Callable[[float], Optimizer]] = {
    "sgd": sgd,
    "adam": lambda momentum: adam(momentum or 0.9),
}
"""Optimizers by name, from the ``momentum`` setting (Adam's beta1; 0 means its usual 0.9)."""

SCHEDULES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "constant": torch.ones_like,
    "linear": lambda done: 1 - done,
    "cosine": lambda done: 0.5 * (1 + torch.cos(torch.pi * done)),
}
"""The learning rate's factor at a fraction ``done`` in [0, 1) of the run's planned local steps."""
