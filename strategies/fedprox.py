"""FedProx: Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith, "Federated Optimization in Heterogeneous
Networks", MLSys 2020.

A client works on ``F_k(w) + mu/2 |w - w_t|^2``, w_t the model of the round (Eq. 2), so that its
local steps do not carry it far from the others. The server's side is FedAvg's.

Here a local step's noisy gradient g becomes ``g + mu (w - w_t)``, after clipping and noise: w and
w_t have been released, so this is post-processing and costs nothing. The first step of a round is
FedAvg's: with one local step mu does nothing.

The paper lets a client solve its problem to an accuracy gamma of its own choice. An accuracy that
is measured on the client's records would be a release; here every client takes its planned steps,
whatever accuracy that gives.
"""

from dataclasses import replace

from torch import Tensor

from mechanisms.guide import Guide, Surroundings
from strategies.fedavg import fedavg
from strategies.settings import Aggregation
from strategies.strategy import Strategy


def fedprox(settings: Aggregation) -> Strategy:
    """FedAvg of clients that are drawn to the round's model."""

    def guide(around: Surroundings) -> Guide:
        def pulled(params: Tensor, gradient: Tensor) -> Tensor:
            return gradient + settings.proximal_mu * (params - around.start)

        return pulled

    return replace(fedavg(settings), guide=guide)
