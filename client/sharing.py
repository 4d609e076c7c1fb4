"""A Flower node's work before training: its clients release, once, what all clients will share."""

from collections.abc import Callable

import numpy as np
import torch

from client.messages import TrainRequest, Upload
from client.node import GroupData
from client.purse import Purse
from client.sums import WeightedSum
from client.uploads import Uploads
from mechanisms.accounting.ledger import Ledger
from mechanisms.arithmetic import Arithmetic
from mechanisms.plan import PlanTable
from mechanisms.randomness import Draws
from mechanisms.sharing import Release, Released, Tensors


class Nothing:
    """A release of nothing, where a phase pays for what leaves later."""

    size = 0

    def __call__(self, x: Tensors, y: Tensors, streams: Draws, arithmetic: Arithmetic) -> Released:
        """No number for each client, and no draw."""
        return Released(torch.zeros(len(x), 0), {})


class SharingNode:
    """One group of clients with its purse.

    Args:
        release_of: from the model ``[P]`` of a request to what is released.
        seed: of a simulation; None for a release, which draws from the operating system's entropy.
    """

    def __init__(
        self,
        release_of: Callable[[np.ndarray], Release],
        data: GroupData,
        plans: PlanTable,
        ledger: Ledger,
        uploads: Uploads,
        seed: int | None,
    ):
        self._release_of, self._data, self._uploads = release_of, data, uploads
        self._purse = Purse(ledger, plans, seed)

    def train(self, request: TrainRequest) -> Upload:
        """Draw the release of every requested client; a repeated draw is charged again.

        Individually released records carry their client's number; sums are added over the group.

        Raises:
            ValueError: a client is not of this group; nothing is charged.
        """
        data, device = self._data, self._data.x.device
        release = self._release_of(request.params)
        total, records, parts = WeightedSum(release.size), [], data.parts(request.clients)
        with self._purse.open(request, device) as opened:
            for part in parts:
                allowed = opened.allow(part)
                own = [
                    torch.from_numpy(data.records(c)).to(device) for c in allowed.clients.tolist()
                ]
                mine = [data.x[i] for i in own], [data.y[i] for i in own]
                released = release(*mine, allowed.draws, allowed.arithmetic)
                total.add(released.sums, np.ones(len(own), dtype=np.int64))
                if released.records:
                    records.append(
                        released.records | {"client": allowed.clients[released.records["client"]]}
                    )
        names = records[0] if records else ()
        shared = {name: np.concatenate([part[name] for part in records]) for name in names}
        head = (request.round, request.group, request.clients, total.total, total.weight)
        upload = Upload(*head, shared=shared)
        if self._purse.seed is None:
            self._uploads.keep(upload, request.params)
        return upload
