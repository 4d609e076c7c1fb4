"""Black-Box/Shadow (Salem et al., "ML-Leaks", NDSS 2019): attack by a shadow model's outputs.

The attacker sees probabilities only. It has records like the target's, trains a shadow model on
some of them, and learns to tell these from the rest by that model's outputs.
"""

import numpy as np
import torch

from mechanisms.randomness import generator
from sim.attacking.membership import (
    Features,
    Numbers,
    Split,
    Tally,
    balanced,
    judge,
    posterior_features,
)
from sim.auditing.trainings import Trained


def shadow_attack(target: Trained, shadow: Trained, parts: Split, key: bytes) -> Tally:
    """The guesses of the attack about a balanced set of the target's members and other records.

    Args:
        target: one model, trained on ``parts.target_in``.
        shadow: one model, trained on ``parts.shadow_in``.
        parts: the split of all records.
        key: key of the attack's draws.
    """
    rng = generator(key, "shadow attack")

    def features(trained: Trained, records: Numbers) -> np.ndarray:
        return posterior_features(
            trained.probabilities(records)[0], torch.from_numpy(trained.job.dataset.y[records])
        )

    def both(trained: Trained, members: Numbers, others: Numbers) -> Features:
        members, others = balanced(members, others, rng)
        return features(trained, members), features(trained, others)

    known = both(shadow, parts.shadow_in, parts.shadow_out)
    asked = both(target, parts.target_in, parts.target_out)
    return judge(known, asked, int(rng.integers(2**32)))
