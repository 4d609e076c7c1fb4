"""The audit by one training: many canaries, each in or out by a fair coin that an attacker guesses.

Steinke, Nasr, Jagielski, "Privacy Auditing with One (1) Training Run", NeurIPS 2023. Canaries are
some of the clients' records; one that is out is replaced by a null record, so that public sizes do
not change (zero-out adjacency). They are gradient canaries, scored by every upload's movement along
them (white box), or by the model's where sums of clients alone are seen, or records with a wrong
label, scored by the final model's loss (black box). `sim.auditing.clients` has canaries that are
clients. The attacker knows everything but the coins and the noise, and may abstain.
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
from mechanisms.mechanism import Mechanism
from mechanisms.randomness import generator
from sim.auditing.bounds import Floats, one_run_epsilon
from sim.auditing.canaries import Planted

SHARES = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
"""Fractions of the coins that are guessed; all are tried, each with an equal part of the error."""
LENGTH = 10.0
"""Length of a gradient canary in clip norms: far above the bound in every mechanism's geometry."""
MAX_CANARIES = 1_000
"""Maximum default number of canaries."""


@dataclass(frozen=True)
class Guesses:
    """The attacker's best choice of how many coins to guess.

    Attributes:
        coins: number of canaries.
        guesses: number of coins guessed.
        right: number of right guesses.
        epsilon: the lower bound.
    """

    coins: int
    guesses: int
    right: int
    epsilon: float


def guess(scores: Floats, included: NDArray[np.bool_], delta: float, confidence: float) -> Guesses:
    """Guess "in" for the highest scores ``[m]``, "out" for as many of the lowest, none in between.

    The number of guesses is the best of `SHARES`, and the bound holds at the stated confidence.
    """
    coins, order = len(scores), np.argsort(scores, kind="stable")
    # union bound: each share has an equal part of the error, so the best bound is valid
    each = 1 - (1 - confidence) / len(SHARES)
    tried = []
    for share in SHARES:
        side = int(share * coins / 2)
        right = int(included[order[coins - side :]].sum() + (~included[order[:side]]).sum())
        epsilon = one_run_epsilon(2 * side, right, coins, delta, each)
        tried.append(Guesses(coins, 2 * side, right, epsilon))
    return max(tried, key=lambda one: one.epsilon)


@dataclass(frozen=True)
class Canaries:
    """The canaries of a run.

    Attributes:
        records: int64 ``[m]``, record numbers.
        included: bool ``[m]``, the coins.
        labels: int64 ``[m]``, wrong labels, or those that encode a coordinate.
        coordinates: int64 ``[m]``, the gradient canaries' coordinates; empty for wrong labels.
        planted: the canaries among the other records.
    """

    records: NDArray[np.int64]
    included: NDArray[np.bool_]
    labels: NDArray[np.int64]
    coordinates: NDArray[np.int64]
    planted: Planted

    def places(self, records: NDArray[np.int64]) -> NDArray[np.int64]:
        """Indices ``[...]`` of the canaries among these record numbers."""
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
    """Choose gradient canaries of length ``size``, or records with a wrong label if that is 0.

    The canaries of one client lie along different coordinates.

    Args:
        y: the labels ``[N]``.
        classes: the number of true labels.
        owned: every client's record numbers.
        parameters: the number of parameters P.
        count: the number of canaries.
        key: key of the random draws.
        size: length of a canary's gradient.
        device: the device of the records.

    Raises:
        ValueError: fewer records than canaries, or fewer parameters than a client's canaries.
    """
    everybody = np.sort(np.concatenate(owned))
    if not (isinstance(count, int | np.integer) and 1 <= count <= len(everybody)):
        raise ValueError(
            f"canaries = {count!r} must be a whole number from 1 to {len(everybody)}, the number "
            "of records: correct --canaries"
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
        # one coordinate per rank: clients may share coordinates, as each is scored on its own
        table = rng.permutation(parameters)[: ranks.max() + 1]
        own_labels, coordinates = classes + ranks, table[ranks]
    else:  # a shift by 1 .. classes - 1 never gives the true label
        own_labels, coordinates = (y[records] + rng.integers(1, classes, count)) % classes, table
    labels = y.copy()
    labels[records] = own_labels
    all_labels, places = (torch.from_numpy(each).to(device) for each in (labels, table))
    planted = Planted(all_labels, absent, places, classes, size)
    return Canaries(records, included, own_labels, coordinates, planted)


def _ranks(records: NDArray[np.int64], owned: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    """The rank of each canary ``[m]`` among those of its client, from 0."""
    ranks = np.empty(len(records), dtype=np.int64)
    for own in owned:
        inside = np.flatnonzero(np.isin(records, own))
        ranks[inside] = np.arange(len(inside))
    return ranks


class Watched:
    """A mechanism that sees canaries among its records, and whose uploads are observed.

    Attributes:
        mechanism: the mechanism to train with.
        scores: float64 ``[m]``: how far each canary's client moved along it in all rounds, each
            round in units of its learning rate over the client's number of records; 0 without
            gradient canaries.
    """

    def __init__(self, row: Mechanism, canaries: Canaries):
        self._row, self._canaries, self._start = row, canaries, torch.empty(0)
        self.scores = np.zeros(len(canaries.records))
        seen, goes_on = canaries.planted.seen, row.active
        self.mechanism = replace(
            row,
            start=self._begin,
            step=lambda cohort, state: row.step(seen(cohort), state),
            active=goes_on and (lambda cohort, state: goes_on(seen(cohort), state)),
            metrics=lambda cohort, state: row.metrics(seen(cohort), state),
            realized=self._end,
        )

    def _begin(self, cohort: Cohort, params: Tensor) -> LocalState:
        self._start = params
        return self._row.start(self._canaries.planted.seen(cohort), params)

    def _end(self, cohort: Cohort, state: LocalState) -> Sequence[Charges]:
        if len(self._canaries.coordinates):
            # rate / size is the scale of a step: dividing by it makes rounds and clients comparable
            rate = cohort.learning_rate(torch.zeros_like(state.taken))
            pace = rate / cohort.data.sizes().to(state.taken)
            moves = ((state.params - self._start) / pace[:, None]).double().cpu().numpy()
            for move, records in zip(moves, cohort.data.records, strict=True):
                mine = self._canaries.places(records)
                self.scores[mine] += move[self._canaries.coordinates[mine]]
        return self._row.realized(self._canaries.planted.seen(cohort), state)


def losses(
    gradients: RecordGradients, canaries: Canaries, x: Tensor, first: Tensor, last: Tensor
) -> Floats:
    """Scores ``[m]`` of mislabelled canaries: the fall of their loss from ``first`` to ``last``.

    Records ``x [N, ...]`` are on the device of the models ``[P]``.
    """
    chosen, labels = (torch.from_numpy(n).to(x.device) for n in (canaries.records, canaries.labels))
    records, labels = x[chosen][None], labels[None]
    before, after = (gradients.losses(params[None], records, labels)[0] for params in (first, last))
    return np.asarray((before - after).double().cpu().numpy())


def by_client(
    canaries: Canaries,
    scores: Floats,
    owned: Sequence[NDArray[np.int64]],
    delta: float,
    confidence: float,
) -> dict[int, Guesses]:
    """The guesses about each client's own canaries, for clients that hold any."""
    places = {client: canaries.places(records) for client, records in enumerate(owned)}
    return {
        client: guess(scores[mine], canaries.included[mine], delta, confidence)
        for client, mine in places.items()
        if len(mine)
    }
