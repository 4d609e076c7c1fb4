"""White-Box/Partial: an attack with the model and some of its records.

Nasr, Shokri, Houmansadr, S&P 2019; Liu et al. 2022. The attacker holds the target model and half of
its training records, and learns to tell these from other records. For each record it sees the
sorted probabilities, the loss, the label, the norm of the gradient, and the gradient of the loss
with respect to the logits (which, with the activations, gives the last layer's gradient).
"""

import numpy as np
import torch
from torch.nn import functional as F

from mechanisms.randomness import generator
from sim.attacking.membership import Numbers, Split, Tally, balanced, judge, posterior_features
from sim.auditing.trainings import Trained


def partial_attack(target: Trained, parts: Split, key: bytes) -> Tally:
    """The guesses of the attack about a balanced set of records that it was not trained on.

    Args:
        target: one model, trained on ``parts.target_in``.
        parts: the split of all records.
        key: key of the attack's draws.
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
    """What the attacker sees of each record, float64 ``[M, features]``."""
    data = target.job.dataset
    y = torch.from_numpy(data.y[records])
    probabilities, gradients = target.probabilities(records)[0], target.job.gradients
    label = F.one_hot(y, probabilities.shape[1]).double()
    own = torch.from_numpy(data.x[records])[None], y[None]
    params, (xs, ys) = target.params, (part.to(target.params.device) for part in own)
    loss = gradients.losses(params, xs, ys)[0].cpu().double()
    length = gradients.norms(params, xs, ys)[0].cpu().double()
    seen = [torch.from_numpy(posterior_features(probabilities, y)), label, probabilities - label]
    return torch.cat([*seen, loss[:, None], length[:, None]], dim=1).numpy()
