"""Guides: what may steer a client's step besides its own records (public data, the server's model).

A guide turns a released gradient into the one that the optimizer takes. It uses only what is public
or already released and never sees a client's records, so it is post-processing: it costs no privacy
and adds nothing to the sensitivity of a private sum.
"""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from mechanisms.gradients.record_gradients import RecordGradients
from mechanisms.randomness import Draws

Guide = Callable[[Tensor, Tensor], Tensor]
"""From parameters ``[K, P]`` and a released mean gradient ``[K, P]`` to a gradient ``[K, P]``."""


@dataclass(frozen=True)
class Surroundings:
    """All that a guide may know of a local round.

    Attributes:
        gradients: per-record gradients of the model.
        streams: the clients' random streams for this round.
        start: the server's model ``[P]``.
        shared: records ``[M, ...]`` and labels ``[M]`` of the globally shared data set, if any.
    """

    gradients: RecordGradients
    streams: Draws
    start: Tensor
    shared: tuple[Tensor, Tensor] | None


GuideOf = Callable[[Surroundings], Guide]


def alone(around: Surroundings) -> Guide:
    """No guide: the released gradient as it is."""
    return unguided


def unguided(params: Tensor, gradient: Tensor) -> Tensor:
    """The released gradient as it is."""
    return gradient
