"""Per-record scale factors that bound what one record adds to a sum."""

import torch


def clip_factors(norms: torch.Tensor, clip_norm: torch.Tensor) -> torch.Tensor:
    """``min(1, C / |g|)`` (Abadi et al. 2016, Algorithm 1): a record's scaled gradient has norm at most C.

    Args:
        norms: ``[K, B]`` gradient norms over all parameters of the model. A non-finite norm gives factor 0.
        clip_norm: ``[K]``; ``inf`` clips nothing.

    Returns:
        ``[K, B]`` factors in [0, 1].
    """
    bound = clip_norm[:, None]
    factors = torch.where(norms <= bound, torch.ones_like(norms), bound / norms)
    return torch.where(torch.isfinite(norms), factors, torch.zeros_like(norms))
