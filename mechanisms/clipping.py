"""Per-record scale factors that bound what one record adds to a sum: its scaled gradient has norm
at most C."""

from collections.abc import Callable

import torch

STABILITY = 0.01
"""gamma of AUTO-S, in units of the gradient."""


def clip_factors(norms: torch.Tensor, clip_norm: torch.Tensor) -> torch.Tensor:
    """``min(1, C / |g|)`` (Abadi et al. 2016, Algorithm 1).

    Args:
        norms: ``[K, B]`` gradient norms over all parameters of the model. A norm that is not
            finite, or so large that the factor would lose digits, gives factor 0.
        clip_norm: ``[K]``; ``inf`` clips nothing.

    Returns:
        ``[K, B]`` factors in [0, 1].
    """
    bound = clip_norm[:, None]
    return _whole(torch.where(norms <= bound, torch.ones_like(norms), bound / norms), norms)


def automatic_factors(norms: torch.Tensor, clip_norm: torch.Tensor) -> torch.Tensor:
    """AUTO-S, ``C / (|g| + gamma)`` (Bu, Wang, Zha, Karypis 2023, equation 4): every record is
    scaled to nearly C.

    Shapes and unusable norms as in :func:`clip_factors`.
    """
    return _whole(clip_norm[:, None] / (norms + STABILITY), norms)


def _whole(factors: torch.Tensor, norms: torch.Tensor) -> torch.Tensor:
    """The factors, with 0 for a norm that is not finite and for a subnormal factor, which could be
    rounded up beyond the bound."""
    usable = torch.isfinite(norms) & (factors >= torch.finfo(factors.dtype).tiny)
    return torch.where(usable, factors, torch.zeros_like(factors))


CLIPPING: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "flat": clip_factors,
    "auto": automatic_factors,
}
"""Clipping rules by name: from norms ``[K, B]`` and bounds ``[K]`` to factors ``[K, B]``."""
