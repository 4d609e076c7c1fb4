"""Factors: what each record's gradient is multiplied by in a sum, as a function of the norms."""

from collections.abc import Callable

import torch
from torch import Tensor

Factors = Callable[[Tensor], Tensor]
"""From norms `[K, B]` to factors `[K, B]`, record by record."""


class Unscaled:
    """Factors that do not depend on norms: `weights [K, B]`."""

    def __init__(self, weights: Tensor) -> None:
        self.weights = weights

    def __call__(self, norms: Tensor) -> Tensor:
        """The weights, in the type of `norms [K, B]`."""
        return self.weights.to(norms)


def of_pass(factors: Factors, norms: Tensor, c: slice, b: slice) -> Tensor:
    """The factors of a pass, from norms `[K, B]`; norms of other passes are passed as 0."""
    seen = torch.zeros_like(norms)
    seen[c, b] = norms[c, b]
    scale = factors(seen)
    if scale.shape != seen.shape:
        raise ValueError(
            f"factors returned shape {tuple(scale.shape)}, it must be [K, B] = "
            f"{tuple(seen.shape)}: give one factor per record"
        )
    return scale[c, b]
