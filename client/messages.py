"""What travels between the server and a node, free of any transport."""

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from mechanisms.accounting.accountant import Charges

Payments = list[tuple[np.ndarray, Charges]]
"""Pairs of clients (int64, ascending) and the charges that each of them paid."""


@dataclass(frozen=True)
class TrainRequest:
    """Asks some clients of one group to do their part of a round.

    Attributes:
        round: number, from 1 in training; 0 and below in the phases that prepare it.
        group: number of the group, and so the node that is asked.
        release: the name of the round's draws; the ledger charges it once.
        clients: int64 client numbers, all of this group, ascending.
        nth: int64, each client's count of rounds, this one included.
        params: the model, float32 ``[P]``, and the clip norm of updates, if it moves.
        phase: what the clients do: train the model (``train``), or a phase that prepares training.
        behind: int64, how many models each client's own is older than ``params``; None for clients
            that all work on that.
        earlier: the older models ``[P]`` of these clients, by how many models they are behind.

    Raises:
        ValueError: clients are not whole numbers in ascending order, or have not one count each: a
            client that is named twice would release twice and pay once.
    """

    round: int
    group: int
    release: str
    clients: np.ndarray
    nth: np.ndarray
    params: np.ndarray
    phase: str = "train"
    behind: np.ndarray | None = None
    earlier: dict[int, np.ndarray] = field(default_factory=dict)

    def __post_init__(self) -> None:
        whole = all(array.dtype == np.int64 for array in (self.clients, self.nth))
        listed = self.clients.ndim == 1 and self.clients.shape == self.nth.shape
        if not (whole and listed and (np.diff(self.clients) > 0).all()):
            raise ValueError(
                f"clients of a request for round {self.round} must be whole numbers in ascending "
                "order, each once and with its count of rounds: the server has to ask anew"
            )


@dataclass(frozen=True)
class Upload:
    """A group's answer: the exact weighted sum of its clients' updates.

    Attributes:
        round, group, clients: as asked.
        total: int64 ``[P]``, or wider (`mechanisms.updates`), in fixed-point units
            (client/sums.py).
        weight: sum of the clients' weights.
        metrics: the mechanism's public metrics, each as (sum over clients, number of clients).
        realized: charges in the clients' ledgers beyond the round's planned ones.
        shared: arrays by name of records that are released individually, not as a sum.
    """

    round: int
    group: int
    clients: np.ndarray
    total: np.ndarray
    weight: int
    metrics: dict[str, tuple[float, int]] = field(default_factory=dict)
    realized: Payments = field(default_factory=list)
    shared: dict[str, np.ndarray] = field(default_factory=dict)


class Answering(Protocol):
    """A node that answers requests, in any phase of a run."""

    def train(self, request: TrainRequest) -> Upload:
        """Do the clients' part of a round."""
