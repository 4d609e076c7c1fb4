"""What a strategy is: how the clients' mean update becomes the next model, as pure functions."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

ServerState = dict[str, np.ndarray]
"""A strategy's state between rounds, by name; it goes into checkpoints as it is."""


@dataclass(frozen=True)
class Strategy:
    """A strategy.

    Attributes:
        weights: from the public record counts ``[clients]`` to whole-number client weights, int64 ``[clients]``.
        init: from the model ``[P]`` to the state before the first round.
        aggregate: from (state, model float32 ``[P]``, weighted mean update float64 ``[P]``) to the next (state, model).
    """

    weights: Callable[[np.ndarray], np.ndarray]
    init: Callable[[np.ndarray], ServerState]
    aggregate: Callable[[ServerState, np.ndarray, np.ndarray], tuple[ServerState, np.ndarray]]
