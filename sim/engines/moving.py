"""The default engine: groups train in this process, and move to Ray's workers if that pays.

Both engines give the same bits, and a group's state is on disk after each of its answers, so a move
is what the loss of a worker is: another process goes on from the files. Ray starts only when the
rounds that are left would take longer here than with its workers and the move together, and rounds
go on here until it is ready.
"""

import math
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from time import perf_counter

from client.messages import TrainRequest, Upload
from server.federation import Exchange
from sim.engines.cluster import Cluster
from sim.engines.inline import inline_exchange
from sim.job.job import Job
from sim.job.workers import workers_of

MOVE_SECONDS = 15.0
"""What a move costs [s]: Ray's start and end, and the imports of its workers."""


class Moving:
    """An exchange that begins in this process.

    Args:
        job: the run's inputs.
        folder: the run directory.
        cluster: started here if a move pays.
    """

    def __init__(self, job: Job, folder: Path, cluster: Cluster):
        self._job, self._folder, self._cluster = job, folder, cluster
        self._workers = min(workers_of(job.config.run), len(job.groups))
        self._exchange, self._is_here = inline_exchange(job, folder), True
        self._fastest: dict[str, float] = {}
        self.where = "this process"
        """Where clients have trained so far, in words."""

    def __call__(self, requests: Sequence[TrainRequest]) -> Iterator[Upload]:
        for at, request in enumerate(requests):
            if self._is_here and self._pays(request, len(requests) - at, len(requests)):
                self._move(request.round)
            if not self._is_here:
                yield from self._exchange(requests[at:])
                return
            began = perf_counter()
            (upload,) = self._exchange([request])
            self._see(request.phase, perf_counter() - began)
            yield upload

    def _see(self, phase: str, seconds: float) -> None:
        """Note how long a request took; the first of a phase tells nothing, as it sets things
        up."""
        known = self._fastest.get(phase)
        self._fastest[phase] = math.inf if known is None else min(known, seconds)

    def _pays(self, request: TrainRequest, left: int, of_round: int) -> bool:
        """Whether workers save more than the move costs, if all requests of this round (``left`` of
        ``of_round``) and of later ones take as long as the fastest of their phase so far."""
        fastest = self._fastest.get(request.phase, math.inf)
        left += (self._job.config.rounds.rounds - request.round) * of_round
        saved = left * fastest * (1 - 1 / self._workers)
        return math.isfinite(fastest) and saved > MOVE_SECONDS

    def _move(self, number: int) -> None:
        """Move once Ray is ready; until then, and if Ray cannot start, nothing changes."""
        started = self._cluster.begin()
        if not started.done():
            return
        if fault := started.exception():
            self._workers = 1  # so that no move pays any more
            warnings.warn(f"training goes on in this process: {fault}", stacklevel=1)
            return
        self._exchange, self._is_here = self._ray(), False
        self.where = f"this process; from round {number} on, {self._workers} Ray workers"

    def _ray(self) -> Exchange:
        from server.app import exchange_over
        from sim.engines.ray_grid import grid_of

        grid = grid_of(self._job, self._folder, self._cluster)
        return exchange_over(grid, list(grid.get_node_ids()), run={})
