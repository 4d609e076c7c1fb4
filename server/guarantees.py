"""A run's guarantees: against whom, of what, at which certified epsilon."""

from server.records import Epsilon, finite

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
