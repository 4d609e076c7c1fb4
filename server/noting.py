"""The server's copy of ledgers that nodes keep to themselves, so that its figures and budgets hold
without a shared folder."""

import functools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from client.messages import TrainRequest, Upload
from client.purse import round_payments
from mechanisms.accounting.ledger import Ledger
from mechanisms.plan import PlanTable
from server import manifest
from server.federation import Exchange


def noting(exchange: Exchange, paths: Mapping[int, Path], plans: PlanTable) -> Exchange:
    """An exchange that also notes what clients pay in the groups that have a path.

    The most that a round can cost is on disk before its request leaves, whether or not the node
    trains; what was paid beyond that, when the answer comes.

    Args:
        exchange: of a release, whose requests have each a name of their own.
        paths: the ledger file of each group, in the server's run directory.
        plans: the clients' plans.
    """

    @functools.cache
    def ledger_of(group: int) -> Ledger:
        manifest.check_there(paths[group].parent)
        return Ledger(paths[group])

    def noted(requests: Sequence[TrainRequest]) -> Iterator[Upload]:
        names = {one.group: one.release for one in requests}
        for one in requests:
            if one.group in paths:
                ledger_of(one.group).charge_all(one.release, one.round, round_payments(plans, one))
        for upload in exchange(requests):
            if upload.group in paths:
                name = names[upload.group]
                ledger_of(upload.group).charge_all(name, upload.round, upload.realized)
            yield upload

    return noted
