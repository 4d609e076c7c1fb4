"""A node's own budget: what all runs together may cost any record that it holds, whoever asks.

Records are not followed from run to run: the server chooses the partition, so a client's number
says nothing about whose records they are in another run. In each run every record counts as the
client's that has paid most, at each order, and runs add up.

What a later run asks for may depend on all outputs before it. So the budget is a Renyi filter
(Feldman and Zrnic 2021, "Individual Privacy Accounting via a Renyi Filter") at orders that epsilon
and delta fix in advance: at each, the whole is (epsilon, delta / number of orders)-DP if all
charges stay within its bound. A request is admitted if they do so at one order; by a union bound
what is ever admitted is (epsilon, delta)-DP.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from client import places
from client.messages import Answering, Payments, TrainRequest, Upload
from client.purse import asked_before, round_payments
from mechanisms import durable
from mechanisms.accounting import ledger
from mechanisms.accounting.accountant import ORDERS, Charges, cap_delta, conversion, convert, rdp
from mechanisms.journal import last_place, start
from mechanisms.plan import PlanTable, merge

LEDGER, LOCK = "ledger", "lock"
"""The folder of a run's ledger, in the run's folder; the file by which requests wait."""
PLACES = "places.json"
"""The file that says where the ledgers of all runs ended after the last answer."""
PARTS = (1.0, 2.0, 4.0)
"""Orders: the best for Gaussians of all records, and those this many times as near to 1, which are
better for sampled ones."""


@dataclass(frozen=True)
class OwnBudget:
    """A node's budget over all runs.

    Attributes:
        folder: has a folder for each run, with its ledger.
        epsilon, delta: of any record of the node.
    """

    folder: Path
    epsilon: float
    delta: float

    @property
    def orders(self) -> tuple[float, ...]:
        """The filter's orders, from `ORDERS`."""
        share = self.delta / len(PARTS)
        bounds = self.epsilon - conversion(ORDERS, share)
        best = ORDERS[int(np.argmax(bounds / np.array(ORDERS)))]
        near = {1.0 + (best - 1.0) / part for part in PARTS}
        return tuple(sorted({min(ORDERS, key=lambda order: abs(order - one)) for one in near}))

    def used(self) -> float:
        """The share of the budget that all runs have used so far, at the order where it is least;
        infinite if the budget is too small for any release.

        Raises:
            ValueError: a ledger is damaged, missing, or older than the last answer.
        """
        bounds = self.epsilon - conversion(self.orders, self.delta / len(PARTS))
        total, able = self._total(self.folder / "none", []), bounds > 0.0
        return float(np.min(total[able] / bounds[able], initial=math.inf))

    def after(self, run: Path, payments: Payments) -> float:
        """Epsilon of all runs in the folder after further payments in the run at ``run``. As the
        orders are fixed it does not begin at 0, but it reaches the budget no earlier.

        Raises:
            ValueError: a ledger is damaged, missing, or older than the last answer.
        """
        total = self._total(run, payments)
        return convert(total, self.orders, self.delta / len(PARTS)).epsilon

    def _total(self, run: Path, payments: Payments) -> np.ndarray:
        """Divergence of all runs at each order."""
        orders, known = self.orders, places.known(self.folder / PLACES)
        total = np.zeros(len(orders))
        charged = {path.parent.parent for path in known}
        for folder in sorted({*self.runs(), *charged, run}):
            own = folder / LEDGER
            passed = {path.name: place for path, place in known.items() if path.parent == own}
            there = own.is_dir() or passed
            paid: dict[int, Charges] = dict(ledger.read(own, None, [passed])) if there else {}
            for clients, charges in payments if folder == run else ():
                paid |= {c: merge(paid.get(c, {}), charges) for c in clients.tolist()}
            histories = {frozenset(charges.items()) for charges in paid.values()}
            costs = [_divergences(dict(one), orders) for one in histories]
            total += np.max(costs, axis=0, initial=0.0)
        return total

    def runs(self) -> list[Path]:
        """The folders of all runs that have a ledger."""
        return [path.parent for path in self.folder.glob(f"*/{LEDGER}")]

    def begin(self) -> None:
        """Write the file of places before the first charge, so that it is missed if it is lost.

        Raises:
            ValueError: it is lost.
        """
        if not (file := self.folder / PLACES).exists():
            if any(last_place(path).number for path in self.folder.glob(f"*/{LEDGER}/*.jsonl")):
                raise ValueError(
                    f"{file} is missing, which says where ledgers ended: restore it from a copy"
                )
            places.remember(file, {})

    def check_new(self, run: Path, release: str) -> None:
        """Refuse a request of the run at ``run`` that came before, also for another group, as the
        server divides clients into groups: a name that several ledgers hold is counted once.

        Raises:
            ValueError: it came before, or a ledger is damaged.
        """
        for path in (run / LEDGER).glob("*.jsonl"):
            if any(one.release == release for one in ledger.entries(path, {})):
                raise asked_before(release)

    def remember(self, run: Path) -> bool:
        """Write down where ledgers end that have more lines than is known, as after an answer in
        the run at ``run``; whether one of that run has. Others have if the file of places is an
        older one, which would miss what they lose from now on."""
        known = places.known(self.folder / PLACES)
        now = {path: last_place(path) for path in self.folder.glob(f"*/{LEDGER}/*.jsonl")}
        longer = {
            path: place
            for path, place in now.items()
            if place.number > known.get(path, start(path)).number
        }
        if longer:
            places.remember(self.folder / PLACES, known | longer)
        return any(path.parent == run / LEDGER for path in longer)


def _divergences(charges: Charges, orders: tuple[float, ...]) -> np.ndarray:
    """One client's divergence at each order; infinite if a curve may fail, which uses up delta."""
    if cap_delta(charges):
        return np.full(len(orders), math.inf)
    return rdp(charges, orders, "certified")


@dataclass(frozen=True)
class Budgeted:
    """A node that answers what its own budget pays for, one request at a time.

    Attributes:
        budget: of the node.
        run: the folder of the run, in that of the budget.
        plans: the clients' plans.
        node: builds the node that keeps its files in that folder.
    """

    budget: OwnBudget
    run: Path
    plans: PlanTable
    node: Callable[[], Answering]

    def train(self, request: TrainRequest) -> Upload:
        """The node's answer.

        Raises:
            ValueError: the node's own budget does not pay for it, or it came before; nothing is
                charged or released. Or the ledger was put back meanwhile.
        """
        durable.make_folder(self.budget.folder, private=True)
        with durable.locked(self.budget.folder / LOCK):  # also from other runs
            self.budget.begin()
            self.budget.check_new(self.run, request.release)
            after = self.budget.after(self.run, round_payments(self.plans, request))
            if not after <= self.budget.epsilon:
                less = "ask for less, or have the node's owner raise epsilon in its policy file"
                other = "use a mechanism whose steps have a bound at fixed orders, such as dpsgd"
                raise ValueError(
                    f"epsilon of this node would be {after:.4g} at delta = {self.budget.delta:g} "
                    f"after round {request.round}, but its own policy allows "
                    f"{self.budget.epsilon:g} over all runs: {other if after == math.inf else less}"
                )
            try:
                upload = self.node().train(request)
            finally:  # a failure has been charged, too, and the server is told of it
                is_longer = self.budget.remember(self.run)
            if not is_longer:
                charged = self.run / LEDGER
                raise ValueError(f"{charged} was put back while it was in use: restore it")
            return upload
