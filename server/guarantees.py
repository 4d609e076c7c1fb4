"""A run's guarantees: against whom, of what, at which certified epsilon; and whose, where clients
have budgets of their own."""

from collections.abc import Sequence
from typing import Any

from mechanisms.personal import Group
from server.records import Epsilon, finite, largest

Guarantee = dict[str, str | Epsilon]
"""``adversary``, what it ``sees``, the protected ``unit``, and its ``epsilon``: None for none."""

SERVER, CLIENT, READER = "the server", "other clients", "anyone else"
AGGREGATION = "the protocol"
UPLOADS, SUM = "what clients send", "each round's sum"
UNITS = {"record": "one record", "client": "one whole client"}


def guarantees(trust: str, unit: str, clients: int, epsilon: Epsilon) -> tuple[Guarantee, ...]:
    """A row for each adversary, the strongest guarantee first.

    Args:
        trust: the setting.
        unit: the setting.
        clients: their number; a client that is alone is its own server.
        epsilon: the clients' largest certified epsilon; None or infinite without privacy.
    """
    seen = {SERVER: UPLOADS} if trust == "local" else {SERVER: SUM} if trust == "aggregate" else {}
    seen |= {CLIENT: "every round's model", READER: "the final model"}
    trusted = {"local": {}, "aggregate": {AGGREGATION: UPLOADS}, "server": {SERVER: UPLOADS}}[trust]
    rows = [(who, sees, finite(epsilon)) for who, sees in seen.items()]
    rows += [(who, sees, None) for who, sees in trusted.items()]
    return tuple(
        {"adversary": who, "sees": sees, "unit": UNITS[unit], "epsilon": spent}
        for who, sees, spent in rows
        if clients > 1 or who == READER
    )


def by_group(groups: Sequence[Group], spent: Sequence[Epsilon]) -> tuple[dict[str, Any], ...]:
    """A row for each group of personal budgets: ``group``, its ``budget``, its number of
    ``clients``, and the ``largest`` certified epsilon of one of them, None for none.

    Args:
        groups: of clients.
        spent: each client's certified epsilon.
    """
    return tuple(
        {
            "group": one.name,
            "budget": one.epsilon,
            "clients": len(one.clients),
            "largest": largest([spent[client] for client in one.clients.tolist()]),
        }
        for one in groups
    )
