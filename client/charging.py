"""Charge first: what a round can cost is on disk before anything is drawn; and where the draws come from."""

import secrets

import numpy as np
import torch

from client.messages import TrainRequest
from mechanisms.accounting.ledger import Ledger
from mechanisms.plan import PlanTable
from mechanisms.randomness import Draws, Streams, SystemStreams, seed_key


def name_draw(request: TrainRequest, seed: int | None) -> str:
    """The name under which the ledger knows a request's draws.

    A seeded round that is asked again is the same draw. A release draws anew each time, under a name of its own.
    """
    return request.release if seed is not None else f"{request.release}-{secrets.token_hex(8)}"


def draws(seed: int | None, round_: int, clients: np.ndarray, device: torch.device) -> Draws:
    """The draws of some clients in a round: named by the seed, or of the system's entropy in a release."""
    if seed is None:
        return SystemStreams(len(clients), device)
    return Streams(seed_key(seed), round_, clients.tolist(), device)


def charge_round(ledger: Ledger, plans: PlanTable, request: TrainRequest, release: str) -> None:
    """Write the planned maximum of the round to the ledger, for every asked client."""
    kinds, place = np.unique(np.stack([plans.which[request.clients], request.nth]), axis=1, return_inverse=True)
    payments = [
        (request.clients[place.reshape(-1) == n], plans.plans[plan].round_charges(int(nth)))
        for n, (plan, nth) in enumerate(kinds.T)
    ]
    ledger.charge_all(release, request.round, payments)
