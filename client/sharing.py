"""A Flower node's work before training: its clients release once what all clients will share."""

from collections.abc import Callable

import numpy as np
import torch

from client.charging import charge_round, draws, name_draw
from client.messages import TrainRequest, Upload
from client.node import GroupData
from client.sums import WeightedSum
from client.uploads import Uploads
from mechanisms.accounting.ledger import Ledger
from mechanisms.arithmetic import of_seed
from mechanisms.plan import PlanTable
from mechanisms.sharing import Release


class SharingNode:
    """One group of clients with its ledger.

    Args:
        release_of: what is released, from the model ``[P]`` that a request brings.
        seed: of a simulation, or None for a release from the operating system's entropy.
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
        self._release_of, self._data, self._plans = release_of, data, plans
        self._ledger, self._uploads, self._seed = ledger, uploads, seed

    def train(self, request: TrainRequest) -> Upload:
        """Charge the release to every asked client, on disk, then draw it; what is drawn twice is charged twice.

        Records that leave one by one carry their client's number; sums are added up over the group.
        """
        name = name_draw(request, self._seed)
        charge_round(self._ledger, self._plans, request, name)
        release = self._release_of(request.params)
        total, records = WeightedSum(release.size), []
        for part in self._data.parts(request.clients):
            clients = request.clients[part]
            own = [torch.from_numpy(self._data.records(int(c))).to(self._data.x.device) for c in clients]
            streams = draws(self._seed, request.round, clients, self._data.x.device)
            mine = [self._data.x[i] for i in own], [self._data.y[i] for i in own]
            released = release(*mine, streams, of_seed(self._seed))
            total.add(released.sums, np.ones(len(clients), dtype=np.int64))
            if released.records:
                records.append(released.records | {"client": clients[released.records["client"]]})
        shared = {name: np.concatenate([part[name] for part in records]) for name in records[0]} if records else {}
        head = (request.round, request.group, request.clients, total.total, total.weight)
        upload = Upload(*head, shared=shared)
        if self._seed is None:
            self._uploads.keep(upload, request.params)
        return upload
