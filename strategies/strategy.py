"""Strategies: how the clients' mean upload becomes the next model, as pure functions."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from mechanisms.guide import GuideOf, alone
from mechanisms.updates import UPDATE, Sent

ServerState = dict[str, np.ndarray]
"""A strategy's state between rounds, by name; it goes into checkpoints as it is."""


@dataclass(frozen=True)
class Strategy:
    """A strategy; its part on clients is post-processing of what their mechanism has released.

    Attributes:
        weights: from the public record counts ``[clients]`` to whole-number client weights, int64
            ``[clients]``.
        init: from the model ``[P]`` to the state before the first round.
        aggregate: from (state, model float32 ``[P]``, weighted mean upload float64) to the next
            (state, model).
        guide: what steers the clients' local steps besides their own records.
        sent: what clients send after a local round; by default their update.
        personal: whether each client goes on from its own model, not from the server's.
        each: in place of ``aggregate``, for what looks at clients one by one: from (state, model,
            their uploads float64 ``[K, P]``, their weights int64 ``[K]``) to the next (state,
            model). Groups then have one client each.
    """

    weights: Callable[[np.ndarray], np.ndarray]
    init: Callable[[np.ndarray], ServerState]
    aggregate: Callable[[ServerState, np.ndarray, np.ndarray], tuple[ServerState, np.ndarray]]
    guide: GuideOf = alone
    sent: Sent = UPDATE
    personal: bool = False
    each: (
        Callable[[ServerState, np.ndarray, np.ndarray, np.ndarray], tuple[ServerState, np.ndarray]]
        | None
    ) = None
