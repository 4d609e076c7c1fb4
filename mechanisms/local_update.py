"""A client's whole update behind Gaussian noise: local privacy of all that a client holds, around a
training of which nothing is known.

With w the model that the client received, w' what its training made of it, clip norm C and noise
multiplier s:

    u = (w' - w) min(1, C / |w' - w|),      Y = u + 2 s C N(0, I)

The norm is over all parameters together. An update that is not finite counts as 0.

Guarantee: everything that one client holds, in the local model. Adjacency: any two data sets, of
any sizes, that the client could hold. Whatever the training does with them, both clipped updates
have norm at most C, so they differ by at most 2 C: a release is a Gaussian of noise multiplier s
(`Gaussian`), whoever sees it. Trainings may depend on all earlier releases, as the models that
they start from do, since the bound holds for each of them; s is fixed before the first one.

Y is computed on the grid (`mechanisms/grid.py`). There two clients' updates differ by at most twice
what one record's part and no part do: each of the two parts is within the bound, and the points of
both are rounded once. So deviation over sensitivity is at least half of 2 s.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from mechanisms.accounting.accountant import Charges
from mechanisms.accounting.calibration import smallest
from mechanisms.accounting.events import Gaussian
from mechanisms.arithmetic import GRID
from mechanisms.contributions import clipped
from mechanisms.grid import slack
from mechanisms.randomness import Source
from mechanisms.settings import Privacy


@dataclass(frozen=True)
class UpdatePlan:
    """A client's plan.

    Attributes:
        noise_multiplier: s, noise standard deviation over the sensitivity 2 C.
        clip_norm: C, bound on an update's L2 norm over all parameters.
    """

    noise_multiplier: float
    clip_norm: float

    @classmethod
    def of(cls, privacy: Privacy, rounds: int) -> "UpdatePlan":
        """The plan with the smallest noise whose ``rounds`` releases cost at most (epsilon, delta).

        Raises:
            ValueError: no noise multiplier is large enough, or epsilon is none.
        """
        target = math.inf if privacy.epsilon is None else privacy.epsilon
        noise = smallest(lambda s: {Gaussian(s): rounds}, target, privacy.delta)
        return cls(noise, privacy.clip_norm)

    @property
    def steps(self) -> int:
        """A round is one release."""
        return 1

    @property
    def deviation(self) -> float:
        """The noise's standard deviation in each parameter."""
        return 2.0 * self.noise_multiplier * self.clip_norm

    def round_charges(self, nth: int) -> Charges:
        """One Gaussian release, in every round."""
        return {Gaussian(self.noise_multiplier): 1}

    def check_size(self, parameters: int) -> None:
        """Refuse models for which the grid is too coarse.

        Raises:
            ValueError: so many parameters that rounding would double the noise.
        """
        slack(parameters, self.deviation / self.clip_norm)

    def release(self, moved: Tensor, source: Source) -> Tensor:
        """The released update Y, float64 ``[P]``, of an update ``moved`` float64 ``[P]``.

        The guarantee holds for a ``source`` of uniform draws that nobody can repeat
        (`mechanisms.entropy.SystemEntropy`).
        """
        bound = torch.tensor([self.clip_norm], dtype=torch.float64)
        whole = clipped(moved[None], bound)
        return GRID.noised_from(source, whole, self.clip_norm, self.deviation)[0]
