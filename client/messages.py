"""What travels between the server and a node, free of any transport."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class TrainRequest:
    """Train these clients of a group for one round.

    Attributes:
        round: from 1.
        group: the node that is asked.
        release: the name of the round's draws; the ledger charges it once.
        clients: int64 client numbers, all of this group, ascending.
        params: the model, float32 ``[P]``.
    """

    round: int
    group: int
    release: str
    clients: np.ndarray
    params: np.ndarray


@dataclass(frozen=True)
class Upload:
    """A group's answer: the exact weighted sum of its clients' updates.

    Attributes:
        round, group, clients: as asked.
        total: int64 ``[P]`` in fixed-point units (client/sums.py).
        weight: sum of the clients' weights.
        seconds: time spent training.
    """

    round: int
    group: int
    clients: np.ndarray
    total: np.ndarray
    weight: int
    seconds: float
