"""Charge first: what a round can cost is on disk before anything is drawn."""

import secrets

import numpy as np

from client.messages import TrainRequest
from mechanisms.accounting.ledger import Ledger
from mechanisms.plan import PlanTable
from mechanisms.randomness import fresh_key, seed_key


def name_draw(request: TrainRequest, seed: int | None) -> tuple[bytes, str]:
    """The key of a request's draws, and the name under which the ledger knows them.

    A seeded round that is asked again is the same draw. A release draws anew each time, under a name of its own.
    """
    if seed is None:
        return fresh_key(), f"{request.release}-{secrets.token_hex(4)}"
    return seed_key(seed), request.release


def charge_round(ledger: Ledger, plans: PlanTable, request: TrainRequest, release: str) -> None:
    """Write the planned maximum of the round to the ledger, for every asked client."""
    kinds, place = np.unique(np.stack([plans.which[request.clients], request.nth]), axis=1, return_inverse=True)
    payments = [
        (request.clients[place.reshape(-1) == n], plans.plans[plan].round_charges(int(nth)))
        for n, (plan, nth) in enumerate(kinds.T)
    ]
    ledger.charge_all(release, request.round, payments)
