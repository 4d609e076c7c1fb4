"""FedNova: Wang, Liu, Liang, Joshi, Poor, "Tackling the Objective Inconsistency Problem in
Heterogeneous Federated Optimization", NeurIPS 2020.

Clients that take more local steps than others pull FedAvg's mean towards their own optimum. FedNova
divides the update of client k by its pace ``|a_k|_1``, how far its optimizer goes along a constant
gradient of size one, and gives the mean direction the mean pace (section 4, with tau_eff = sum_k
p_k |a_k|_1):

    u = (sum_k p_k |a_k|_1)  (sum_k p_k update_k / |a_k|_1)

p_k are the clients' weights. The server then steps along u as FedAvg does, momentum included. With
equal paces it is FedAvg. Paces differ where clients of different sizes plan different numbers of
steps, and where a mechanism keeps some of its steps only (``dpsur``, ``screening``). A client
without any step adds nothing to either sum.

The number of steps, rates and momentum are known to anyone who sees the released steps, so this is
post-processing and costs nothing (`mechanisms.updates`).
"""

from dataclasses import replace

import numpy as np

from mechanisms.updates import NORMALISED
from strategies.fedavg import fedavg
from strategies.settings import Aggregation
from strategies.strategy import ServerState, Strategy


def fednova(settings: Aggregation) -> Strategy:
    """FedAvg along the mean of normalised updates."""
    average = fedavg(settings)

    def aggregate(
        state: ServerState, params: np.ndarray, upload: np.ndarray
    ) -> tuple[ServerState, np.ndarray]:
        direction, pace = upload[:-1], upload[-1]
        return average.aggregate(state, params, pace * direction)

    return replace(average, aggregate=aggregate, sent=NORMALISED)
