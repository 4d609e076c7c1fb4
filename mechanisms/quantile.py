"""A clip bound that follows a quantile of the records' gradient norms (Andrew, Thakkar, McMahan,
Ramaswamy 2021).

Each step also releases how many of the batch's records have a norm within the bound, centred so
that a record moves the count by 1/2, and moves the bound towards the wanted quantile gamma (their
equation 3, with records for clients):

    b = 1/2 + ( sum_{i in B} (1[|g_i| <= C] - 1/2) + N(0, (s_b / 2)^2) ) / (q n)
    C <- C exp(-eta (b - gamma))

Sum and count come from the same batch, so together they are one sampled Gaussian whose multiplier s
satisfies ``1/s^2 = 1/s_g^2 + 1/s_b^2`` (their Theorem 1). The count gets ``SHARE`` of the
right-hand side, and s is what the plan charges: nothing else has to be charged, and since noise
scales with C, s does not depend on C. C stays within a range around the configured bound: if most
gradients vanish, it would otherwise fall to where norms have no digits left, and if noise is all
that there is in a count, C wanders.
"""

import math

import torch

from mechanisms.sampling import Batch

SHARE = 0.01
"""Share of the step's privacy (of 1/s^2) that the count gets."""
RATE = 0.2
"""eta, the bound's learning rate."""
MIN_BOUND, MAX_BOUND = 1e-3, 1e3
"""Floor and ceiling of the bound, in units of the configured one."""


def split(multiplier: float) -> tuple[float, float]:
    """The multipliers (s_g, s_b) of sum and count that together cost SGM with ``multiplier``."""
    return multiplier / math.sqrt(1 - SHARE), multiplier / math.sqrt(SHARE)


def votes(norms: torch.Tensor, bound: torch.Tensor, batch: Batch) -> torch.Tensor:
    """What each record adds to the count, ``[K, B]``: 1/2 for a norm within ``bound [K]``, else
    -1/2; 0 for padding.

    A record without a finite norm counts as above the bound.
    """
    return torch.where(norms <= bound[:, None], 0.5, -0.5) * batch.mask


def adapt(
    bound: torch.Tensor, configured: torch.Tensor, quantile: torch.Tensor, within: torch.Tensor
) -> torch.Tensor:
    """The next bounds ``[K]``.

    Args:
        bound: C ``[K]``.
        configured: C at the start ``[K]``.
        quantile: gamma ``[K]``, in (0, 1).
        within: b ``[K]``, the noisy share of records within the bound.
    """
    moved = bound * torch.exp(-RATE * (within - quantile))
    return torch.clamp(moved, MIN_BOUND * configured, MAX_BOUND * configured)
