"""Whole clients as canaries, for `--unit client`: each is in or out of the run by a fair coin.

A canary that is in sends an update of the auditor's own, along one coordinate of the model and far
longer than the clip norm; one that is out is a null client, which adds nothing. All other clients
keep these coordinates as they are: the attacker in differential privacy knows what they send, and
could subtract it. The updates are crafted before they are clipped, so that clipping, coins, sums
and noise are those of `python -m sim.run`.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from mechanisms.cohort import Cohort, LocalState
from mechanisms.mechanism import Mechanism
from mechanisms.randomness import generator


@dataclass(frozen=True)
class ClientCanaries:
    """The clients of a run that are canaries.

    Attributes:
        of_client: int64 ``[clients]``, each client's number as a canary, or -1.
        included: bool ``[m]``, the coins.
        coordinates: int64 ``[m]``, all different.
        size: length of an update.
        owner: int64 ``[N]``, the client that holds each record.
    """

    of_client: NDArray[np.int64]
    included: NDArray[np.bool_]
    coordinates: NDArray[np.int64]
    size: float
    owner: NDArray[np.int64]

    def in_(self, cohort: Cohort) -> NDArray[np.int64]:
        """Each client's number as a canary, or -1, ``[K]``."""
        first = [int(records[0]) if len(records) else -1 for records in cohort.data.records]
        own = self.of_client[self.owner[first]]
        return np.where(np.array(first) < 0, -1, own)

    def watched(self, row: Mechanism) -> Mechanism:
        """The mechanism by which the clients train, canaries among them."""

        def start(cohort: Cohort, params: Tensor) -> LocalState:
            state = row.start(cohort, params)
            rows, canary = state.params.clone(), self.in_(cohort)
            (sending,) = np.nonzero((canary >= 0) & self.included[canary])
            rows[sending, self.coordinates[canary[sending]]] += self.size
            return replace(state, params=rows)

        def step(cohort: Cohort, state: LocalState) -> LocalState:
            after, (canaries,) = row.step(cohort, state), np.nonzero(self.in_(cohort) >= 0)
            rows = after.params.clone()
            rows[:, self.coordinates] = state.params[:, self.coordinates]
            rows[canaries] = state.params[canaries]
            return replace(after, params=rows)

        return replace(row, start=start, step=step)


def choose(
    owner: NDArray[np.int64],
    clients: int,
    parameters: int,
    count: int | None,
    key: bytes,
    size: float,
) -> ClientCanaries:
    """Choose canaries among the clients that hold a record.

    Args:
        owner: int64 ``[N]``, the client that holds each record; -1 for none.
        clients: their number.
        parameters: the number of parameters P.
        count: the number of canaries; None: half of the clients, or of the parameters if these are
            fewer.
        key: key of the random draws.
        size: length of an update.

    Raises:
        ValueError: fewer clients or parameters than canaries.
    """
    holders = np.unique(owner[owner >= 0])
    room = min(len(holders), parameters)
    chosen = room // 2 if count is None else count
    if not (isinstance(chosen, int | np.integer) and 1 <= chosen <= room):
        raise ValueError(
            f"canaries = {chosen!r} must be a whole number from 1 to {room}, as each is a client "
            "with records and has a coordinate of the model: correct --canaries, or use more "
            "--clients"
        )
    rng, of_client = generator(key, "client canaries"), np.full(clients, -1, dtype=np.int64)
    of_client[np.sort(rng.choice(holders, chosen, replace=False))] = np.arange(chosen)
    coordinates = rng.permutation(parameters)[:chosen]
    included = generator(key, "canary coins").random(chosen) < 0.5
    return ClientCanaries(of_client, included, coordinates, size, owner)
