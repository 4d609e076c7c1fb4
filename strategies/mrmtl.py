"""MR-MTL, mean-regularised multi-task learning: Liu, Hu, Wu, Smith, "On Privacy and Personalization
in Cross-Silo Federated Learning", NeurIPS 2022.

A client k has a model w_k of its own and works on ``F_k(w_k) + lambda/2 |w_k - w|^2``, w the mean
of the clients' models of the last round (their Algorithm A1). It goes on from w_k, not from w.
With lambda 0 it trains alone; the larger lambda is, the nearer it stays to the mean.

Here a local step's noisy gradient g becomes ``g + lambda (w_k - w)``, after clipping and noise: w_k
and w are made from what has been released, so this is post-processing and costs nothing. The
clients' updates are ``w_k - w``: their mean added to w is the next w, without a server's rate or
momentum. Of clients that are picked, w is the mean of these alone; the paper asks all of them.
"""

import numpy as np

from strategies.fedavg import WEIGHTS
from strategies.fedprox import fedprox
from strategies.settings import Aggregation
from strategies.strategy import ServerState, Strategy


def mrmtl(settings: Aggregation) -> Strategy:
    """The mean of personal models, to which each of them is drawn."""

    def aggregate(
        state: ServerState, params: np.ndarray, update: np.ndarray
    ) -> tuple[ServerState, np.ndarray]:
        return state, (params + update).astype(np.float32)

    pulled = fedprox(settings).guide
    return Strategy(
        WEIGHTS[settings.weighting], lambda params: {}, aggregate, guide=pulled, personal=True
    )
