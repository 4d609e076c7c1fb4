"""The trusted server: it pays for all clients, draws those of a round, and noises the sum of what
they contribute (`mechanisms/contributions.py`).

Clients enter a round by independent coins, which nobody but the server may see. A round that no
client has entered releases noise all the same. What a round costs is in the server's ledger file
before a request leaves, for every client, whether it enters the round or not. With correlated noise
clients take turns instead, as everybody knows, and those whose turn it is pay.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from client.messages import Upload
from mechanisms.accounting.ledger import Ledger, release_name
from mechanisms.arithmetic import of_seed
from mechanisms.bands import Correlated
from mechanisms.entropy import SystemEntropy
from mechanisms.grid import PART
from mechanisms.plan import PlanTable
from mechanisms.randomness import SERVER, Draws, draws_of, generator, seed_key
from mechanisms.sampling import threshold
from server import manifest

LEDGER = "server.jsonl"
"""The server's file in the folder of ledgers."""
CPU = torch.device("cpu")


@dataclass(frozen=True)
class Curator:
    """A trusted server's side of rounds.

    Attributes:
        path: its ledger file.
        plans: the clients' plans.
        bound: C, clip norm of a contribution, the same for all, in the first round.
        multiplier: from the clients' count of rounds to the noise multiplier s, likewise.
        seed: of a simulation; None for a release, which draws from the operating system's entropy.
        fraction: probability that a client enters a round.
        expected: the divisor, how many contributions of norm C a sum is expected to have.
        factor: from a round's number to what the mean is multiplied by.
        bands: b of `mechanisms.bands`; client k takes part in every b-th round, from the one of
            number k + 1 if that is at most b; 1 for coins, and noise that is independent.
    """

    path: Path
    plans: PlanTable
    bound: float
    multiplier: Callable[[int], float]
    seed: int | None
    fraction: float
    expected: float
    factor: Callable[[int], float]
    bands: int = 1

    @functools.cached_property
    def _ledger(self) -> Ledger:
        manifest.check_there(self.path.parent)
        return Ledger(self.path)

    @functools.cached_property
    def _noise(self) -> Correlated:
        return Correlated(self.bands)

    def paying(self, number: int) -> np.ndarray:
        """The clients that pay for a round: all, or those whose turn it is."""
        clients = np.arange(len(self.plans.which))
        return clients[clients % self.bands == (number - 1) % self.bands]

    def pay(self, number: int, nth: int) -> None:
        """Charge clients for a round, their ``nth``; returns when that is on the disk.

        A replayed round of a simulation is the same release and is charged once.
        """
        name = release_name(number, self.seed)
        payers = self.paying(number)
        which = self.plans.which[payers]
        who = [payers[which == p] for p in range(len(self.plans.plans))]
        costs = [plan.round_charges(nth) for plan in self.plans.plans]
        self._ledger.charge_all(name, number, list(zip(who, costs, strict=True)))

    def entering(self, number: int) -> np.ndarray:
        """The clients that enter a round, by turns or each by a coin of its own; possibly none."""
        clients = len(self.plans.which)
        if self.fraction >= 1.0:
            return self.paying(number)
        coins = (
            SystemEntropy().random(clients)
            if self.seed is None
            else generator(seed_key(self.seed), "entering", number).random(clients)
        )
        return np.flatnonzero(coins < threshold(self.fraction))

    def release(
        self,
        number: int,
        nth: int,
        size: int,
        uploads: Sequence[Upload],
        clip_norm: float | None = None,
    ) -> np.ndarray:
        """The noisy mean contribution times the factor, float64 ``[size]``.

        Args:
            number: the round's.
            nth: the clients' count of rounds, this one included.
            size: of a contribution.
            uploads: the groups' sums, possibly none, in units of ``2^-44 C``.
            clip_norm: C, if it has moved.
        """
        total, arithmetic = torch.zeros(1, size, dtype=torch.int64), of_seed(self.seed)
        for upload in uploads:
            total += torch.from_numpy(upload.total)
        mean, now = self.factor(number) / self.expected, clip_norm or self.bound
        if self.bands > 1:
            return self._correlated(number, self.multiplier(nth), total) * now * mean
        bound = torch.tensor([now], dtype=torch.float64)
        streams = self._streams(number)
        exact = total if self.seed is None else total.double() * (bound / PART)
        noisy = arithmetic.noised(exact, bound, self.multiplier(nth) * bound, streams, "noise")
        return noisy[0].numpy() * mean

    def _correlated(self, number: int, multiplier: float, total: torch.Tensor) -> np.ndarray:
        """A sum with noise that depends on that of the rounds before, in units of C.

        A simulation draws that again where it resumes; a release begins anew, as if its rounds were
        the first ones.
        """
        size = total.shape[1]
        if self._noise.last != number - 1:
            self._noise.begin(number - 1 if self.seed is None else 0)
        if self.seed is None:
            draws = self._streams(number).rounded("noise", size)
            noisy = self._noise.released(total, multiplier, draws)
        while self._noise.last < number:
            draws = self._streams(self._noise.last + 1).normal("noise", size)
            noisy = total.double() / PART + self._noise.found(draws.double() * multiplier)
        return noisy[0].numpy()

    def _streams(self, number: int) -> Draws:
        return draws_of(self.seed, number, [SERVER], CPU)
