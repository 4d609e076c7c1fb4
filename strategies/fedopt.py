"""FedOpt: Reddi, Charles, Zaheer, Garrett, Rush, Konecny, Kumar, McMahan, "Adaptive Federated
Optimization", ICLR 2021.

Algorithm 2: the clients' mean update u is a pseudo-gradient, and the server takes an adaptive step
along it. With the server's learning rate eta, beta1 (the setting ``server_momentum``), beta2 and
the degree of adaptivity tau:

    m <- beta1 m + (1 - beta1) u
    v <- v + u^2                                    FedAdagrad
    v <- beta2 v + (1 - beta2) u^2                  FedAdam
    v <- v - (1 - beta2) u^2 sign(v - u^2)          FedYogi
    model <- model + eta m / (sqrt(v) + tau)

m starts at 0, v at tau^2; there is no bias correction, as in the paper. With tau far above all
updates v stays constant (FedAdam's slowly forgets its start), and this is FedAvg with the server's
rate ``eta (1 - beta1) / (2 tau)``.

It is post-processing of the clients' uploads and costs no privacy. But u carries the clients'
noise, of equal scale in every coordinate, and v measures it along with the signal.
"""

from collections.abc import Callable

import numpy as np

from strategies.fedavg import WEIGHTS
from strategies.settings import Aggregation
from strategies.strategy import ServerState, Strategy

Second = Callable[[np.ndarray, np.ndarray, float], np.ndarray]
"""From (v ``[P]``, u^2 ``[P]``, beta2) to the next v ``[P]``."""


def adagrad(second: np.ndarray, square: np.ndarray, beta2: float) -> np.ndarray:
    """FedAdagrad's v: the sum of all squares."""
    return second + square


def adam(second: np.ndarray, square: np.ndarray, beta2: float) -> np.ndarray:
    """FedAdam's v: the exponential mean of the squares."""
    return beta2 * second + (1 - beta2) * square


def yogi(second: np.ndarray, square: np.ndarray, beta2: float) -> np.ndarray:
    """FedYogi's v: moves towards the newest square by a step independent of the distance to it."""
    return second - (1 - beta2) * square * np.sign(second - square)


def fedopt(second: Second, usual_rate: float) -> Callable[[Aggregation], Strategy]:
    """The strategy whose v follows ``second``; ``usual_rate`` is the default of eta."""

    def of(settings: Aggregation) -> Strategy:
        rate = usual_rate if settings.server_lr is None else settings.server_lr
        beta1, beta2, tau = settings.server_momentum, settings.server_beta2, settings.server_tau

        def init(params: np.ndarray) -> ServerState:
            return {"first": np.zeros(len(params)), "second": np.full(len(params), tau**2)}

        def aggregate(
            state: ServerState, params: np.ndarray, update: np.ndarray
        ) -> tuple[ServerState, np.ndarray]:
            first = beta1 * state["first"] + (1 - beta1) * update
            scale = second(state["second"], update**2, beta2)
            after = params + rate * first / (np.sqrt(scale) + tau)
            return {"first": first, "second": scale}, after.astype(np.float32)

        return Strategy(WEIGHTS[settings.weighting], init, aggregate)

    return of
