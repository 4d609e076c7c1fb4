"""FedAvg (McMahan et al., AISTATS 2017) in two levels, with server momentum (FedAvgM, Hsu, Qi,
Brown 2019).

Level one: a group sums its clients' weighted updates. Level two: the group sums are added. Both
sums are exact, so the mean does not depend on the grouping. The mean update u is a pseudo-gradient:

    v <- momentum v + u,    model <- model + lr v

It is post-processing of the clients' uploads and costs no privacy.
"""

from collections.abc import Callable

import numpy as np

from strategies.settings import Aggregation
from strategies.strategy import ServerState, Strategy

WEIGHTS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "records": lambda sizes: sizes.astype(np.int64),
    "uniform": lambda sizes: np.ones(len(sizes), dtype=np.int64),
}
"""Client weights by name. Record counts are public, so both are post-processing."""


def fedavg(settings: Aggregation) -> Strategy:
    """Two-level FedAvg with the settings' server learning rate (default 1) and momentum."""
    rate = 1.0 if settings.server_lr is None else settings.server_lr

    def init(params: np.ndarray) -> ServerState:
        return {"velocity": np.zeros(len(params))}

    def aggregate(
        state: ServerState, params: np.ndarray, update: np.ndarray
    ) -> tuple[ServerState, np.ndarray]:
        velocity = settings.server_momentum * state["velocity"] + update
        return {"velocity": velocity}, (params + rate * velocity).astype(np.float32)

    return Strategy(WEIGHTS[settings.weighting], init, aggregate)
