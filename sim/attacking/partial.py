"""White-Box/Partial (Nasr, Shokri, Houmansadr, S&P 2019; Liu et al. 2022): the model itself, and
some of its records.

The attacker holds the target model and half of its training records, and learns to tell them from
records that were not in it. Of each record it sees the sorted probabilities, the loss, the label,
the length of the whole gradient, and the gradient of the loss by the logits (from which, with the
activations, the last layer's gradient is made).
"""

import numpy as np
import torch
from torch.nn import functional as F

from mechanisms.randomness import generator
from sim.attacking.membership import Numbers, Split, Tally, balanced, judge, posterior_features
from sim.auditing.trainings import Trained


def partial_attack(target: Trained, parts: Split, key: bytes) -> Tally:
    """The guesses of the attack about a balanced set of records that it has not learnt from.

    Args:
        target: one model, trained on ``parts.target_in``.
        parts: of all records.
        key: of the attack's draws.
    """
    rng = generator(key, "partial attack")
    members, others = balanced(parts.target_in, parts.target_out, rng)
    half = len(members) // 2
    known, asked = (
        (_features(target, members[some]), _features(target, others[some]))
        for some in (slice(half), slice(half, None))
    )
    return judge(known, asked, int(rng.integers(2**32)))


def _features(target: Trained, records: Numbers) -> np.ndarray:
    """Float64 ``[M, features]``."""
    x, y = (
        torch.from_numpy(array[records]) for array in (target.job.dataset.x, target.job.dataset.y)
    )
    probabilities, gradients = target.probabilities(records)[0], target.job.gradients
    label = F.one_hot(y, probabilities.shape[1]).double()
    loss = gradients.losses(target.params, x[None], y[None])[0].double()
    length = gradients.norms(target.params, x[None], y[None])[0].double()
    seen = [torch.from_numpy(posterior_features(probabilities, y)), label, probabilities - label]
    return torch.cat([*seen, loss[:, None], length[:, None]], dim=1).numpy()
