"""A run's workers: which of them hosts which group, and what follows when one dies.

A group that changes its worker is new to it: whoever hosted it before may have written its files.
"""

import warnings
from collections.abc import Callable, Sequence

from sim.engines.worker import Worker, placed

GRACE = 40.0
"""Seconds to wait for a place when no worker is left; Ray takes 20 to notice that a machine is
gone."""


class Workers:
    """Slots for groups, each with a worker: group g is in slot g modulo their number.

    Args:
        workers: one for each slot; they have started.
        start: asks for another one.
    """

    def __init__(self, workers: Sequence[Worker], start: Callable[[], Worker]):
        self._slots, self._start = list(workers), start
        self._coming: dict[int, Worker] = {}
        self._last: dict[int, Worker] = {}

    def host(self, group: int) -> tuple[Worker, bool]:
        """The worker to ask now for a group, and whether the group is new to it."""
        for slot, worker in list(self._coming.items()):
            if worker.is_ready():
                del self._coming[slot]
                self._welcome(slot, worker)
        worker = self._slots[group % len(self._slots)]
        is_new = self._last.get(group) is not worker
        self._last[group] = worker
        return worker, is_new

    def _welcome(self, slot: int, worker: Worker) -> None:
        """Give a slot to the worker that it waited for, if that can work."""
        try:
            worker.check()
            self._slots[slot] = worker
        except ValueError as fault:
            warnings.warn(f"a new worker is left out: {fault}", stacklevel=1)
            worker.end()

    def lose(self, dead: Worker) -> None:
        """Ask for a new worker in a dead one's stead. Idempotent.

        Until that has started the others share its groups: the cluster may have no room for it.

        Raises:
            ValueError: no worker is left, and there is no room for a new one.
        """
        dead.end()
        self._coming = {slot: one for slot, one in self._coming.items() if one is not dead}
        empty = [slot for slot, worker in enumerate(self._slots) if worker is dead]
        for slot in empty:
            if slot not in self._coming:
                self._coming[slot] = self._start()
        left = [worker for worker in self._slots if worker is not dead]
        left = left or placed([self._coming[slot] for slot in empty], 1, GRACE)
        if not left:
            raise ValueError(
                "no Ray worker is left, and the cluster has no room for a new one: add machines, "
                "and resume the run by --resume"
            )
        for slot in empty:
            self._slots[slot] = min(left, key=self._slots.count)
