"""The common parts of membership-inference attacks: split, features, and attack classifier.

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
"""Number of largest probabilities used as features."""
LARGEST = 1e30
"""Largest feature: norms of gradients may overflow."""

Numbers = NDArray[np.int64]


@dataclass(frozen=True)
class Split:
    """Record numbers of the four parts; no model is trained on those of a test part."""

    target_in: Numbers
    target_out: Numbers
    shadow_in: Numbers
    shadow_out: Numbers


def split(records: int, rng: np.random.Generator) -> Split:
    """Split all records at random in the ratio 2:1:2:1.

    Raises:
        ValueError: fewer than six records.
    """
    if records < 6:
        raise ValueError(
            f"records = {records} must be at least 6 for the ratio 2:1:2:1; use a larger data set"
        )
    part = records // 6
    return Split(*np.split(rng.permutation(records)[: 6 * part], [2 * part, 3 * part, 5 * part]))


def balanced(
    members: Numbers, others: Numbers, rng: np.random.Generator
) -> tuple[Numbers, Numbers]:
    """Equally many random members and others: blind guessing is right half of the time."""
    count = min(len(members), len(others))
    return rng.choice(members, count, replace=False), rng.choice(others, count, replace=False)


def posterior_features(probabilities: Tensor, labels: Tensor) -> NDArray[np.float64]:
    """Features ``[M, <= TOP + 1]``: the largest probabilities, and whether the label is on top."""
    top = probabilities.sort(dim=1, descending=True).values[:, :TOP]
    right = (probabilities.argmax(dim=1) == labels).to(top)
    return torch.cat([top, right[:, None]], dim=1).numpy()


Features = tuple[NDArray[np.float64], NDArray[np.float64]]
"""Features of members and of other records, ``[M, features]`` each."""


@dataclass(frozen=True)
class Tally:
    """The guesses of an attack about records of which half are members, and the right ones."""

    right: int
    guesses: int


def judge(known: Features, asked: Features, seed: int) -> Tally:
    """The guesses about ``asked`` of an attack trained on ``known``.

    It is a random forest, which needs no tuning; the papers use small networks.
    """
    inside, outside, members, others = (_finite(features) for features in (*known, *asked))
    attack = RandomForestClassifier(TREES, min_samples_leaf=LEAF, random_state=seed)
    attack.fit(np.concatenate([inside, outside]), np.repeat([1, 0], [len(inside), len(outside)]))
    hits = attack.predict(members).sum() + (1 - attack.predict(others)).sum()
    return Tally(int(hits), len(members) + len(others))


def _finite(features: NDArray[np.float64]) -> NDArray[np.float64]:
    """The features in the range of a forest, which compares values alone; NaN becomes 0."""
    return np.clip(np.nan_to_num(features), -LARGEST, LARGEST)
