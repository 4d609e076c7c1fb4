"""What apps that are not the project's own have paid for their data: rounds of one frozen plan.

The server decides in which rounds a client is asked, and may look at its answers first. So the plan
is fixed before the first round and has a number of rounds, all of which together meet the budget;
whoever is asked less often has released a part of that. A round that a ledger already holds in part
is never used again.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from client import places
from mechanisms import durable
from mechanisms.accounting.ledger import Ledger, entries, release_name
from mechanisms.plan import Plan
from mechanisms.settings import MAX_TIMES

CLIENTS = "clients"
"""The file that says into how many clients' shares the data are divided."""
PLACE = ("partition-id", "num-partitions")
"""Keys of a Flower node's configuration: whose share of the data it has, and of how many."""


@dataclass(frozen=True)
class OwnLedger:
    """The ledger of one client's data, in a folder with those of the others.

    Args:
        folder: absolute, as Flower starts its processes in folders of their own.
        client, clients: the client's number, from 0, and into how many the data are divided.

    Raises:
        ValueError: the folder is relative, or there is no such client.
    """

    folder: Path
    client: int = 0
    clients: int = 1

    def __post_init__(self) -> None:
        if not self.folder.is_absolute():
            raise ValueError(
                f"folder = {self.folder} is relative, but Flower starts processes in folders of "
                "their own, each of which would begin a ledger: give an absolute path"
            )
        if not 0 <= self.client < self.clients:
            raise ValueError(
                f"client = {self.client} must be from 0 to {self.clients - 1}, as there are "
                f"{self.clients}: correct partition-id or num-partitions of the node"
            )

    @classmethod
    def of(cls, folder: Path, node: Mapping[str, object]) -> "OwnLedger":
        """The ledger of a Flower node's configuration; of the only client if it names none.

        Raises:
            ValueError: it names no integers, or one of them alone.
        """
        given = {name: node.get(name) for name in PLACE}
        if not any(name in node for name in PLACE):
            return cls(folder)
        client, clients = given.values()
        if not isinstance(client, int) or not isinstance(clients, int):
            raise ValueError(
                f"the node's configuration has {given}, which must be two integers: start the "
                'SuperNode with, for instance, --node-config "partition-id=0 num-partitions=2"'
            )
        return cls(folder, client, clients)

    @property
    def path(self) -> Path:
        """The ledger's file."""
        return self.folder / "ledger" / f"client-{self.client:06d}.jsonl"

    def pay(self, plan: Plan, rounds: int) -> int:
        """Charge the client's next round of ``rounds``; its number, from 1. The charge is on disk
        on return.

        Raises:
            ValueError: all rounds are used up, or the ledger is of another plan; nothing is
                charged.
        """
        with self.next_round(plan, rounds) as (ledger, nth):
            ledger.charge(release_name(nth, None), nth, [self.client], plan.round_charges(nth))
            return nth

    @contextmanager
    def next_round(self, plan: Plan, rounds: int) -> Iterator[tuple[Ledger, int]]:
        """The ledger, and the number of the round to be charged to it, while others wait.

        Raises:
            ValueError: see `pay`.
        """
        if not self.folder.is_dir():
            raise ValueError(
                f"folder = {self.folder} is not there: make it, unless it is on a disk that is "
                "away, as a new folder begins a new budget"
            )
        self._check_clients()
        with (
            durable.locked(self.folder / f"client-{self.client:06d}.lock"),
            Ledger(self.path) as ledger,
        ):
            nth = self._last_round(plan) + 1
            self._begin(ledger)
            if nth > rounds:
                raise ValueError(
                    f"client {self.client} has used up its budget, all {rounds} rounds of it "
                    f"({self.path}): leave it out from now on"
                )
            try:
                yield ledger, nth
            finally:  # a failure has been charged, too, and the server may be told of it
                places.remember(self._place, {self.path: ledger.place})

    def _begin(self, ledger: Ledger) -> None:
        """Write the place of an empty ledger, so that it is missed if it is lost later.

        Raises:
            ValueError: it is lost.
        """
        if self.path not in places.known(self._place):
            if ledger.place.number:
                raise ValueError(
                    f"{self._place} is missing or damaged, which says where the ledger ended: "
                    "restore it from a copy"
                )
            places.remember(self._place, {self.path: ledger.place})

    @property
    def _place(self) -> Path:
        """The file that says where the ledger ended after the last round; from the first on."""
        return self.folder / f"client-{self.client:06d}.place"

    def _check_clients(self) -> None:
        """Refuse data that are divided otherwise: a client's number would mean other records."""
        file = self.folder / CLIENTS
        is_paid = any(self.path.parent.glob("*.jsonl"))  # looked for first: others may begin now
        if not file.exists():
            if is_paid:
                raise ValueError(
                    f"{file} is missing, which says how the data are divided: restore it"
                )
            durable.create(file, str(self.clients).encode(), private=True)
        if (known := durable.read(file).decode(errors="replace")) != str(self.clients):
            raise ValueError(
                f"num-partitions = {self.clients}, but the ledgers in {self.folder} are of "
                f"{known}: divide the data as before, or use another folder, whose budget adds to "
                "this one"
            )

    def _last_round(self, plan: Plan) -> int:
        """The last round that the ledger holds, whole or in part; 0 for none.

        Raises:
            ValueError: a line is not what this plan charges, or the file is older than the last
                round.
        """
        last = 0
        passed = {place.number: place.chain for place in places.known(self._place).values()}
        for entry in entries(self.path, passed):
            if plan.round_charges(entry.round).get(entry.event) != entry.count:
                raise ValueError(
                    f"{self.path} is of another plan ({entry.event} in round {entry.round}): keep "
                    "the settings, or use another folder, whose budget adds to this one"
                )
            last = max(last, entry.round)
        return last


def check_rounds(rounds: int) -> int:
    """The number of rounds.

    Raises:
        ValueError: it is no integer, or out of its bounds.
    """
    if isinstance(rounds, bool) or not isinstance(rounds, int) or not 1 <= rounds <= MAX_TIMES:
        raise ValueError(
            f"rounds = {rounds!r} must be an integer from 1 to {MAX_TIMES}: give the most rounds "
            "in which a client may be asked"
        )
    return rounds
