"""FedFed: two-level aggregation with a globally shared data set D^s.

Algorithm 3 of DP-Hero, with the shared data set of FedFed (Yang et al., "FedFed: Feature
Distillation against Data Heterogeneity in Federated Learning", NeurIPS 2023):

    the clients release what makes up D^s, once                      (mechanisms/sharing.py)
    the server distributes the model and D^s
    in each round, every picked client trains on its own records joined with D^s, by any mechanism
    updates are aggregated within groups, then between groups        (FedAvg's two levels)

D^s has been released, so its records need no clipping, no noise and no charge, and they are kept
out of the private sum: a mechanism releases its gradient g of the client's own records alone, and
only then the gradient of D^s is joined,

    g'  =  (1 - w) g  +  w 1/m sum_{j in S} grad(x_j, y_j)

    S: m records of D^s, drawn anew in each step

so that the sensitivity of what is released is that of g. Without D^s this is FedAvg.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from mechanisms.gradients.factors import Unscaled
from mechanisms.guide import Guide, Surroundings, unguided
from mechanisms.placing import place
from strategies.fedavg import fedavg
from strategies.settings import Aggregation, FedFed
from strategies.strategy import Strategy

SharedSet = tuple[np.ndarray, np.ndarray]
"""Records float32 ``[M, ...]`` and labels int64 ``[M]``."""


def fedfed(settings: Aggregation, own: FedFed) -> Strategy:
    """Two-level FedAvg of clients that train on their own records joined with D^s."""

    def guide(around: Surroundings) -> Guide:
        if around.shared is None:
            return unguided
        x, y = around.shared

        def joined(params: Tensor, gradient: Tensor) -> Tensor:
            rows = draw(around, len(y), own.shared_batch, len(params))
            ones = Unscaled(torch.ones_like(rows, dtype=params.dtype))
            total, _ = around.gradients.scaled_sum(params, x[rows], y[rows], ones)
            return (1 - own.shared_weight) * gradient + own.shared_weight * total / rows.shape[1]

        return joined

    return replace(fedavg(settings), guide=guide)


def draw(around: Surroundings, records: int, wanted: int, clients: int) -> Tensor:
    """Indices into D^s, int64 ``[K, m]``: all if at most ``wanted``, else a draw per client."""
    if records <= wanted:
        return torch.arange(records, device=around.start.device).expand(clients, -1)
    rows = np.stack(
        [stream.choice(records, wanted, replace=False) for stream in around.streams.of("shared")]
    )
    return place(torch.from_numpy(rows), around.start.device)


def prototypes(mean: np.ndarray, records: float, shape: Sequence[int]) -> SharedSet:
    """One record for each class, from the clients' mean noisy class sums ``[classes * D]``.

    The number of records in a class is secret, so every sum is divided by the average over classes,
    for clients of ``records`` records; the prototype of a rare class is shorter than its mean.
    """
    rows = mean.reshape(-1, *shape)
    return (rows * (len(rows) / records)).astype(np.float32), np.arange(len(rows))


def union(groups: Sequence[Mapping[str, np.ndarray]], shape: Sequence[int]) -> SharedSet:
    """All groups' released records ``x``, ``y``, sorted by ``client``: no trace of the grouping."""
    parts = {
        name: np.concatenate([group[name] for group in groups]) for name in ("x", "y", "client")
    }
    order = np.argsort(parts["client"], kind="stable")
    return parts["x"][order].reshape(-1, *shape), parts["y"][order]
