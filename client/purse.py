"""A group's purse: pays for a round and is the only source of draws, so all releases are paid for.

The most that the round can cost is on disk before anything is drawn; what was really released is on
disk before the round's upload leaves.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch

from client.messages import Payments, TrainRequest
from mechanisms.accounting.accountant import Charges
from mechanisms.accounting.allotment import Account, AdaptivePlan, check_settlement, payable
from mechanisms.accounting.events import Event
from mechanisms.accounting.ledger import Ledger
from mechanisms.arithmetic import Arithmetic, of_seed
from mechanisms.plan import Plan, PlanTable, alike, kinds_of
from mechanisms.randomness import Draws, draws_of


@dataclass(frozen=True)
class Allowance:
    """What some clients of a round may draw and spend.

    Attributes:
        round: its number.
        clients: their numbers, int64 ``[K]``.
        nth: each client's count of rounds.
        plans: the clients' plans.
        accounts: what each client with an adaptive plan may spend in this round; a replayed round
            of a simulation sees them as they were the first time.
        draws: the clients' random draws, from the seed, or from the system's entropy in a release.
        arithmetic: how sums and noise are computed.
    """

    round: int
    clients: np.ndarray
    nth: list[int]
    plans: list[Plan]
    accounts: list[Account]
    draws: Draws
    arithmetic: Arithmetic


class Opened:
    """A round that is paid for."""

    def __init__(self, purse: "Purse", request: TrainRequest, device: torch.device):
        self._purse, self._request, self._device = purse, request, device
        self._realized: list[tuple[int, Charges]] = []
        self.unpaid: Payments = []
        """After the round: charges that no allotment has paid for, for the server to count."""

    def allow(self, part: np.ndarray) -> Allowance:
        """The allowance of the request's clients at the positions ``part``."""
        ledger, seed, round_ = self._purse.ledger, self._purse.seed, self._request.round
        clients = self._request.clients[part]
        table = self._purse.plans
        plans = [table.plans[number] for number in table.which[clients].tolist()]
        owned = zip(clients.tolist(), plans, strict=True)
        adaptive = [(client, plan) for client, plan in owned if isinstance(plan, AdaptivePlan)]
        return Allowance(
            round=round_,
            clients=clients,
            nth=self._request.nth[part].tolist(),
            plans=plans,
            accounts=[
                ledger.account(client, plan.allotment.order, None if seed is None else round_)
                for client, plan in adaptive
                if ledger is not None
            ],
            draws=draws_of(seed, round_, clients.tolist(), self._device),
            arithmetic=of_seed(seed),
        )

    def note(self, clients: np.ndarray, realized: Sequence[Charges]) -> None:
        """Note what clients released beyond their planned charges, to be written at round's end."""
        owned = zip(clients.tolist(), realized, strict=True)
        self._realized += [(client, charges) for client, charges in owned if charges]

    def settlement(self) -> Payments:
        """The noted charges, with clients of equal charges grouped.

        Raises:
            ValueError: nothing has paid for a release.
        """
        sharing: dict[frozenset[tuple[Event, int]], list[int]] = {}
        for client, charges in self._realized:
            check_settlement(charges)
            sharing.setdefault(frozenset(charges.items()), []).append(client)
        return [(np.array(ids, dtype=np.int64), dict(items)) for items, ids in sharing.items()]


@dataclass(frozen=True)
class Purse:
    """A group's ledger with its clients' plans.

    Attributes:
        ledger: the group's ledger; None where the server has paid for the round.
        plans: all clients' plans for the phase.
        seed: of a simulation; None for a release, which draws from the system's entropy.
    """

    ledger: Ledger | None
    plans: PlanTable
    seed: int | None

    @contextmanager
    def open(self, request: TrainRequest, device: torch.device) -> Iterator[Opened]:
        """Charge a round to each requested client, settle it on exit; a failure leaves the charge,
        and settles what was noted before it, as its message may tell of that.

        A repeated request for a seeded round is the same release (same draws, same sums) and is
        charged once. A release draws anew at each request, each of which has a name of its own.

        Raises:
            ValueError: the request for a release came before, and nothing is charged; or nothing
                has paid for something that clients released.
        """
        name = request.release
        opened, payments = Opened(self, request, device), round_payments(self.plans, request)
        if self.ledger is None:
            yield opened
            return
        if self.seed is None and self.ledger.has(name):
            raise asked_before(name)
        self.ledger.charge_all(name, request.round, payments)
        try:
            yield opened
        finally:
            settlement = opened.settlement()
            self.ledger.charge_all(name, request.round, settlement)
        opened.unpaid = [
            (ids, unpaid) for ids, charges in settlement if (unpaid := payable(charges))
        ]


def asked_before(release: str) -> ValueError:
    """The error of a request for a release whose name was used before."""
    return ValueError(
        f"{release} was asked for before, and is paid for once: ask anew, by another name"
    )


def round_payments(plans: PlanTable, request: TrainRequest) -> Payments:
    """The most that a round can cost each requested client."""
    kinds, place = kinds_of(plans.which[request.clients], request.nth)
    members = [request.clients[positions] for positions in alike(place)]
    charges = [plans.plans[plan].round_charges(nth) for plan, nth in kinds.tolist()]
    return list(zip(members, charges, strict=True))
