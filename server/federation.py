"""A run's fixed inputs on the server's side."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from client.messages import TrainRequest, Upload
from mechanisms.plan import PlanTable
from server import orders
from server.aggregator import Aggregator
from server.buffer import Buffer
from server.curator import Curator
from strategies.strategy import Strategy

Exchange = Callable[[Sequence[TrainRequest]], Iterable[Upload]]
"""Sends requests to the groups and returns their uploads, in any order; engines differ in this."""


def asked(fraction: float, clients: int) -> int:
    """How many clients are picked in a round, if so many are left."""
    return min(clients, math.ceil(round(fraction * clients, 9)))


@dataclass(frozen=True)
class Federation:
    """The inputs of the round loop.

    Attributes:
        group_of: int64 ``[clients]``, the node that hosts each client.
        plans: the clients' privacy plans.
        course: what is known in advance of the whole run.
        strategy: how uploads become the next model.
        initial: the first model, float32 ``[P]``.
        evaluate: from a model to (accuracy, mean loss) on the test set.
        rounds: number of the last round.
        fraction: share of all clients to pick in each round among the eligible ones, in (0, 1].
        target: each client's epsilon, float64 ``[clients]``, ``inf`` for none.
        delta: per client.
        column: the epsilon that the target bounds, ``certified`` or ``published``.
        seed: of a simulation; None for a release, which draws from the operating system's entropy.
        before: number of the round before the first; phases that prepare training count up to 0.
        phase: what the clients are asked to do.
        collect: called with the uploads of a round before the round counts as finished.
        evaluate_every: rounds from one evaluation to the next; the last model is always evaluated.
        timed: whether records say how long rounds took.
        curator: the server's part in each round if the clients trust it, else None.
        aggregator: the server's part if it learns sums of the clients alone, else None.
        buffer: when clients answer, if the server does not wait for all; else None.
    """

    group_of: np.ndarray
    plans: PlanTable
    course: orders.Course
    strategy: Strategy
    initial: np.ndarray
    evaluate: Callable[[np.ndarray], tuple[float, float]]
    rounds: int
    fraction: float
    target: np.ndarray
    delta: float
    column: str
    seed: int | None
    before: int = 0
    phase: str = "train"
    collect: Callable[[Sequence[Upload]], None] = lambda uploads: None
    evaluate_every: int = 1
    timed: bool = True
    curator: Curator | None = None
    aggregator: Aggregator | None = None
    buffer: Buffer | None = None

    @property
    def clients(self) -> int:
        """How many clients there are."""
        return len(self.group_of)

    @property
    def is_last(self) -> bool:
        """Whether the run ends with this phase: those that prepare training count up to 0."""
        return self.rounds > 0

    def write_orders(self, folder: Path) -> None:
        """Fix the Renyi orders of each client's epsilon in a run directory."""
        orders.write(folder, self.course, self.target, self.delta, self.column)
