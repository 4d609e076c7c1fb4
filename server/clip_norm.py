"""A clip norm of clients' updates that follows a quantile of their norms (Andrew, Thakkar, McMahan,
Ramaswamy 2021), behind any strategy.

Clients vote on it beside their update (`mechanisms/contributions.py`). The clip norm of the next
round is a function of the released sums, and part of the strategy's state, so that it is in
checkpoints, and goes to clients after the model's parameters.
"""

import math
from dataclasses import replace

import numpy as np
import torch

from mechanisms.quantile import SHARE, adapt
from strategies.strategy import ServerState, Strategy

NAME = "moving clip norm"
"""Its entry of the state, float32 ``[1]``."""


def moving(strategy: Strategy, first: float, wanted: float) -> Strategy:
    """The strategy along sums whose last entry is the vote.

    Args:
        strategy: how a mean update becomes the next model.
        first: the clip norm of the first round.
        wanted: share of the clients whose update it is to leave whole, in (0, 1).
    """

    configured = torch.tensor([first], dtype=torch.float64)
    quantile = torch.tensor([wanted], dtype=torch.float32)

    def init(params: np.ndarray) -> ServerState:
        return {**strategy.init(params), NAME: np.array([first], dtype=np.float32)}

    def aggregate(
        state: ServerState, params: np.ndarray, mean: np.ndarray
    ) -> tuple[ServerState, np.ndarray]:
        bound = torch.from_numpy(state[NAME]).double()
        within = 1.0 - mean[-1] / (math.sqrt(SHARE) * bound)
        following = adapt(bound, configured, quantile, within).float()
        own = {name: one for name, one in state.items() if name != NAME}
        after, params = strategy.aggregate(own, params, mean[:-1] / math.sqrt(1.0 - SHARE))
        return {**after, NAME: following.numpy()}, params

    return replace(strategy, init=init, aggregate=aggregate)


def current(state: ServerState) -> float | None:
    """The clip norm of the next round; None, if it does not move."""
    return float(state[NAME][0]) if NAME in state else None


def told(params: np.ndarray, state: ServerState) -> np.ndarray:
    """What clients are sent: the model ``[P]``, and the clip norm, if it moves."""
    return np.concatenate([params, state[NAME]]) if NAME in state else params
