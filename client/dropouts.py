"""Dropouts: clients that train and pay for a round, but whose answer is lost."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from client.purse import Allowance
from mechanisms.sampling import threshold


class Dropouts(Protocol):
    """Which answers are lost."""

    def lost(self, allowed: Allowance) -> np.ndarray:
        """Bool ``[K]``: whose answers, of the allowed clients."""

    def share(self, parts: np.ndarray, rounds: int) -> float:
        """The expected share that arrives of what clients send in so many rounds, if each of them
        sends ``parts [clients]`` a round."""


@dataclass(frozen=True)
class Coins:
    """Each client is lost by a coin of its own in each round, with probability ``rate``."""

    rate: float

    def lost(self, allowed: Allowance) -> np.ndarray:
        """Bool ``[K]``: whose answers are lost."""
        coins = [draws.random(1)[0] for draws in allowed.draws.of("dropout")]
        return np.array(coins) < threshold(self.rate)

    def share(self, parts: np.ndarray, rounds: int) -> float:
        """The expected share that arrives."""
        return 1 - self.rate
