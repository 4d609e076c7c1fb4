"""The audit of one training: many canaries, each in or out by a fair coin, and an attacker who
guesses the coins.

Steinke, Nasr, Jagielski, "Privacy Auditing with One (1) Training Run", NeurIPS 2023. Canaries are
some of the clients' records; a null record stands in for one that is out, so that public sizes do
not change (zero-out adjacency). They are gradient canaries, scored by what every upload adds along
them (white box), or records with a wrong label, scored by the final model's loss (black box). The
attacker knows everything but the coins and the noise, and may abstain.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mechanisms.accounting.accountant import Charges
from mechanisms.cohort import Cohort, LocalState
from mechanisms.gradients.record_gradients import RecordGradients
from mechanisms.randomness import generator
from mechanisms.registry import Mechanism
from sim.auditing.bounds import Floats, one_run_epsilon
from sim.auditing.canaries import Planted

SHARES = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
"""Shares of the coins that are guessed; each is tried, with its part of the error."""
LENGTH = 10.0
"""Of a gradient canary, in clip norms: far beyond the bound in every mechanism's geometry."""
MAX_CANARIES = 1_000
"""Canaries, where the user has not said."""


@dataclass(frozen=True)
class Guesses:
    """The attacker's best choice of how many coins to guess.

    Attributes:
        coins: canaries.
        guesses: coins guessed.
        right: of them.
        epsilon: the lower bound.
    """

    coins: int
    guesses: int
    right: int
    epsilon: float


def guess(scores: Floats, included: NDArray[np.bool_], delta: float, confidence: float) -> Guesses:
    """Guess "in" for the highest scores ``[m]``, "out" for the lowest, nothing between; half of
    each.

    How many are guessed is tried over `SHARES`. Each choice has an equal part of the error, so the
    best one's bound holds at the stated confidence.
    """
    coins, order = len(scores), np.argsort(scores, kind="stable")
    each = 1 - (1 - confidence) / len(SHARES)
    tried = []
    for share in SHARES:
        side = int(share * coins / 2)
        right = int(included[order[coins - side :]].sum() + (~included[order[:side]]).sum())
        tried.append(
            Guesses(coins, 2 * side, right, one_run_epsilon(2 * side, right, coins, delta, each))
        )
    return max(tried, key=lambda one: one.epsilon)


@dataclass(frozen=True)
class Canaries:
    """The canaries of a run.

    Attributes:
        records: int64 ``[m]``, record numbers.
        included: bool ``[m]``, the coins.
        labels: int64 ``[m]``, wrong ones, or those that stand for a coordinate.
        coordinates: int64 ``[m]``, along which gradient canaries lie; empty where labels are wrong.
        planted: how they stand among the others.
    """

    records: NDArray[np.int64]
    included: NDArray[np.bool_]
    labels: NDArray[np.int64]
    coordinates: NDArray[np.int64]
    planted: Planted

    def places(self, records: NDArray[np.int64]) -> NDArray[np.int64]:
        """Which canaries ``[...]`` are among these record numbers."""
        return np.flatnonzero(np.isin(self.records, records))


def plant(
    y: NDArray[np.int64],
    classes: int,
    owned: Sequence[NDArray[np.int64]],
    parameters: int,
    count: int,
    key: bytes,
    size: float,
    device: torch.device,
) -> Canaries:
    """Gradient canaries of length ``size``, or, where that is 0, records with a wrong label.

    The canaries of one client lie along different coordinates.

    Args:
        y: the labels ``[N]``.
        classes: how many there are.
        owned: every client's record numbers.
        parameters: P.
        count: of canaries.
        key: of the draws.
        size: length of a canary's gradient.
        device: that of the records.

    Raises:
        ValueError: fewer records or, for gradient canaries, fewer parameters than that.
    """
    everybody = np.sort(np.concatenate(owned))
    if not 1 <= count <= len(everybody):
        raise ValueError(
            f"canaries = {count} must be from 1 to {len(everybody)}, the number of records: lower "
            "--canaries"
        )
    rng = generator(key, "canaries")
    records = np.sort(rng.choice(everybody, count, replace=False))
    included = generator(key, "canary coins").random(count) < 0.5
    absent = np.zeros(len(y), dtype=bool)
    absent[records[~included]] = True
    table = np.empty(0, dtype=np.int64)
    if size:
        ranks = _ranks(records, owned)
        if ranks.max() >= parameters:
            raise ValueError(
                f"canaries = {count} are up to {ranks.max() + 1} in a client, more than the "
                f"model's {parameters} parameters: lower --canaries, use a larger --model, or "
                "give --black-box"
            )
        table = rng.permutation(parameters)[: ranks.max() + 1]
        own_labels, coordinates = classes + ranks, table[ranks]
    else:
        own_labels, coordinates = (y[records] + rng.integers(1, classes, count)) % classes, table
    labels = y.copy()
    labels[records] = own_labels
    all_labels, places = (torch.from_numpy(each).to(device) for each in (labels, table))
    planted = Planted(all_labels, absent, places, classes, size)
    return Canaries(records, included, own_labels, coordinates, planted)


def _ranks(records: NDArray[np.int64], owned: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    """The number of each canary ``[m]`` among those of its client, from 0."""
    ranks = np.empty(len(records), dtype=np.int64)
    for own in owned:
        inside = np.flatnonzero(np.isin(records, own))
        ranks[inside] = np.arange(len(inside))
    return ranks


class Watched:
    """A mechanism among whose records canaries stand, and whose uploads are watched.

    Attributes:
        mechanism: to train with.
        scores: float64 ``[m]``: how far each canary's client moved along it, over all rounds, each
            round in units of its learning rate over the client's number of records; 0 where there
            are no gradient canaries.
    """

    def __init__(self, row: Mechanism, canaries: Canaries):
        self._row, self._canaries, self._start = row, canaries, torch.empty(0)
        self.scores = np.zeros(len(canaries.records))
        seen = canaries.planted.seen
        self.mechanism = replace(
            row,
            start=self._begin,
            step=lambda cohort, state: row.step(seen(cohort), state),
            active=lambda cohort, state: row.active(seen(cohort), state),
            report=lambda cohort, state: row.report(seen(cohort), state),
            realized=self._end,
        )

    def _begin(self, cohort: Cohort, params: Tensor) -> LocalState:
        self._start = params
        return self._row.start(self._canaries.planted.seen(cohort), params)

    def _end(self, cohort: Cohort, state: LocalState) -> Sequence[Charges]:
        if len(self._canaries.coordinates):
            pace = cohort.learning_rate(torch.zeros_like(state.taken)) / cohort.data.sizes().to(
                state.taken
            )
            moves = ((state.params - self._start) / pace[:, None]).double().cpu().numpy()
            for move, records in zip(moves, cohort.data.records, strict=True):
                mine = self._canaries.places(records)
                self.scores[mine] += move[self._canaries.coordinates[mine]]
        return self._row.realized(self._canaries.planted.seen(cohort), state)


def losses(
    gradients: RecordGradients, canaries: Canaries, x: Tensor, first: Tensor, last: Tensor
) -> Floats:
    """Scores ``[m]`` of wrongly labelled canaries: how far their loss fell from the first model
    ``[P]`` to the last."""
    records, labels = (
        x[torch.from_numpy(canaries.records)][None],
        torch.from_numpy(canaries.labels)[None],
    )
    before, after = (gradients.losses(params[None], records, labels)[0] for params in (first, last))
    return np.asarray((before - after).double().cpu().numpy())


def by_client(
    canaries: Canaries,
    scores: Floats,
    owned: Sequence[NDArray[np.int64]],
    delta: float,
    confidence: float,
) -> dict[int, Guesses]:
    """What the canaries of each client alone show, by client number; for clients that hold any."""
    places = {client: canaries.places(records) for client, records in enumerate(owned)}
    return {
        client: guess(scores[mine], canaries.included[mine], delta, confidence)
        for client, mine in places.items()
        if len(mine)
    }
