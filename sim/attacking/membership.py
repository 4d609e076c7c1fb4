"""What attacks on membership have in common: the split of the records, an attack classifier, and
its guesses.

The split is that of DPSUR's section 6.4 and of Liu et al., "ML-Doctor" (USENIX Security 2022):
target training, target test, shadow training and shadow test in the ratio 2:1:2:1.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.ensemble import RandomForestClassifier
from torch import Tensor

TREES, LEAF = 200, 5
TOP = 10
"""Probabilities that are looked at, the largest first."""

Numbers = NDArray[np.int64]


@dataclass(frozen=True)
class Split:
    """Record numbers of the four parts; those of a test part have been in no training."""

    target_in: Numbers
    target_out: Numbers
    shadow_in: Numbers
    shadow_out: Numbers


def split(records: int, rng: np.random.Generator) -> Split:
    """All records, in the ratio 2:1:2:1.

    Raises:
        ValueError: fewer than six records.
    """
    if records < 6:
        raise ValueError(
            f"records = {records} must be at least 6 for the ratio 2:1:2:1; take a larger data set"
        )
    part = records // 6
    return Split(*np.split(rng.permutation(records)[: 6 * part], [2 * part, 3 * part, 5 * part]))


def balanced(
    members: Numbers, others: Numbers, rng: np.random.Generator
) -> tuple[Numbers, Numbers]:
    """As many members as others, drawn from the larger side: guessing blindly is then right half of
    the time."""
    count = min(len(members), len(others))
    return rng.choice(members, count, replace=False), rng.choice(others, count, replace=False)


def posterior_features(probabilities: Tensor, labels: Tensor) -> NDArray[np.float64]:
    """``[M, at most TOP + 1]``: the largest probabilities ``[M, classes]`` in order; whether the
    label is the first."""
    top = probabilities.sort(dim=1, descending=True).values[:, :TOP]
    right = (probabilities.argmax(dim=1) == labels).to(top)
    return torch.cat([top, right[:, None]], dim=1).numpy()


Features = tuple[NDArray[np.float64], NDArray[np.float64]]
"""Of members and of other records, ``[M, features]`` each."""


@dataclass(frozen=True)
class Tally:
    """Guesses of an attack about records of which half are members, and how many of them were
    right."""

    right: int
    guesses: int


def judge(known: Features, asked: Features, seed: int) -> Tally:
    """The guesses about ``asked`` of an attack that has learnt from ``known``.

    It is a random forest, where the papers take small networks: it needs no tuning.
    """
    (inside, outside), (members, others) = known, asked
    attack = RandomForestClassifier(TREES, min_samples_leaf=LEAF, random_state=seed)
    attack.fit(np.concatenate([inside, outside]), np.repeat([1, 0], [len(inside), len(outside)]))
    hits = attack.predict(members).sum() + (1 - attack.predict(others)).sum()
    return Tally(int(hits), len(members) + len(others))
