"""The clients' privacy budgets: who may still take part; a client retires rather than overspend."""

from collections.abc import Callable, Mapping

import numpy as np

from mechanisms.accounting.accountant import Charges, epsilon, precompute, within
from mechanisms.accounting.allotment import payable
from mechanisms.accounting.events import Event
from mechanisms.plan import Plan, PlanTable, kinds_of, merge, most
from server.orders import Course, Orders, orders_in_advance, running


class Budgets:
    """What every client has spent, and what a further round would cost it.

    Clients with the same history of charges share it, so that a round costs as many evaluations as
    there are distinct histories, not clients.

    Args:
        plans: the clients' plans.
        course: what is known in advance of the whole run.
        target: epsilon, of all clients or of each, ``[clients]``; ``inf`` never retires anybody.
        delta: per client.
        spent: charges so far by client, from the ledger's files; those that an allotment has paid
            for cost nothing more.
        taken: int64 ``[clients]``, finished rounds of each client.
        column: the epsilon that the target bounds, ``certified`` or ``published``.
    """

    def __init__(
        self,
        plans: PlanTable,
        course: Course,
        target: float | np.ndarray,
        delta: float,
        spent: Mapping[int, Mapping[Event, int]],
        taken: np.ndarray,
        column: str = "certified",
    ):
        self._plans, self._course = plans, course
        self._delta, self._column = delta, column
        everybody = np.broadcast_to(target, plans.which.shape)
        self._targets, self._target_of = np.unique(everybody, return_inverse=True)
        self.taken = taken.copy()
        self._histories: list[Charges] = []
        self._numbers: dict[frozenset[tuple[Event, int]], int] = {}
        self._able: np.ndarray | None = None
        self._history = np.full(len(plans.which), self._number({}))
        for client, charges in spent.items():
            self._history[client] = self._number(payable(charges))

    def _number(self, charges: Charges) -> int:
        number = self._numbers.setdefault(frozenset(charges.items()), len(self._histories))
        if number == len(self._histories):
            self._histories.append(charges)
        return number

    def _after_a_round(
        self, cost: Callable[[Plan, int], Charges]
    ) -> tuple[list[Charges], np.ndarray]:
        """The distinct histories after one more round of all clients, and each client's index.

        ``cost`` gives the charges of a plan's ``nth`` round.
        """
        kinds, place = kinds_of(self._history, self._plans.which, self.taken + 1)
        after = [merge(self._histories[h], cost(self._plans.plans[p], int(n))) for h, p, n in kinds]
        return after, place

    def charge(self, clients: np.ndarray) -> None:
        """Note that these clients (int64, distinct) have paid for their next round."""
        after, place = self._after_a_round(lambda plan, nth: plan.round_charges(nth))
        numbers = np.array([self._number(charges) for charges in after])
        self._history[clients] = numbers[place[clients]]
        self.count(clients)

    def count(self, clients: np.ndarray) -> None:
        """Note that these clients (int64, distinct) have finished a round, paid for or not yet."""
        self.taken[clients] += 1
        self._able = None

    def add(self, clients: np.ndarray, charges: Charges) -> None:
        """Note what these clients (int64, distinct) have paid beyond the plan of their round."""
        used, place = np.unique(self._history[clients], return_inverse=True)
        numbers = np.array([self._number(merge(self._histories[h], charges)) for h in used])
        self._history[clients] = numbers[place]
        self._able = None

    def check(self, spent: Mapping[int, Mapping[Event, int]]) -> None:
        """Compare what was noted with what the ledger's files say: charges by client.

        Raises:
            ValueError: they differ, as another process has charged the same files.
        """
        for client, number in enumerate(self._history):
            if payable(spent.get(client, {})) != self._histories[number]:
                raise ValueError(
                    f"the ledger says something else of client {client} than this process has "
                    "charged: another one has gone on with the same run; end it, and resume the run"
                )

    def eligible(self) -> np.ndarray:
        """Bool ``[clients]``: whether the client's next round stays within the target."""
        if self._able is None:
            after, place = self._after_a_round(most)
            precompute(after, self._column)
            terms = self._delta, self._column
            kinds, where = kinds_of(place, self._target_of)
            able = [within(after[n], self._targets[t], *terms) for n, t in kinds]
            self._able = np.array(able, dtype=bool)[where]
        return self._able.copy()

    def epsilons(self, column: str) -> np.ndarray:
        """Float64 ``[clients]``: epsilon spent so far, ``certified`` or ``published``."""
        used, place = np.unique(self._history, return_inverse=True)
        histories = [self._histories[h] for h in used]
        precompute(histories, column)
        return np.array([epsilon(one, self._delta, column).epsilon for one in histories])[place]

    def so_far(self) -> np.ndarray:
        """Float64 ``[clients]``: certified epsilon so far, valid even if outputs decide the end
        (`orders.running`)."""
        kinds, place = kinds_of(self._history, self._course.plans.which, self._target_of)
        proved = self._column == "certified"
        bounds = [float(target) if proved else np.inf for target in self._targets]
        spent = [
            running(self._histories[h], self._delta, self._orders(int(p), int(t)), bounds[t])
            for h, p, t in kinds
        ]
        return np.array([one.epsilon for one in spent])[place]

    def _orders(self, plan: int, target: int) -> Orders:
        """The orders at which epsilon is taken while the run goes on, by the number of a client's
        plan in training and that of its target."""
        course = self._course
        own = course.plans.plans[plan], course.rounds, float(self._targets[target]), self._delta
        return orders_in_advance(*own, self._column, course.prior)

    def events(self) -> np.ndarray:
        """Int64 ``[clients]``: privacy events charged so far, counted with multiplicity."""
        return np.array([sum(charges.values()) for charges in self._histories])[self._history]

    def histories(self) -> list[Charges]:
        """What clients have paid so far, each distinct history once."""
        return [self._histories[h] for h in np.unique(self._history)]

    def charges_of(self, client: int) -> Charges:
        """What one client has paid so far."""
        return self._histories[self._history[client]]
