"""A run's guarantees: against whom, of what, at which certified epsilon."""

from server.records import Epsilon, finite

Guarantee = dict[str, str | Epsilon]
"""``adversary``, what it ``sees``, the protected ``unit``, and its ``epsilon``: None for none."""

SERVER, CLIENT, READER = "the server", "other clients", "anyone else"
SEEN = {SERVER: "what clients send", CLIENT: "every round's model", READER: "the final model"}
UNITS = {"record": "one record", "client": "one whole client"}


def guarantees(trust: str, unit: str, clients: int, epsilon: Epsilon) -> tuple[Guarantee, ...]:
    """A row for each adversary, the strongest guarantee first.

    Args:
        trust: the setting.
        unit: the setting.
        clients: their number; a client that is alone is its own server.
        epsilon: the clients' largest certified epsilon; None or infinite without privacy.
    """
    against = (SERVER, CLIENT, READER) if trust == "local" else (CLIENT, READER, SERVER)
    return tuple(
        {
            "adversary": who,
            "sees": SEEN[who],
            "unit": UNITS[unit],
            "epsilon": None if trust == "server" and who == SERVER else finite(epsilon),
        }
        for who in (against if clients > 1 else (READER,))
    )
