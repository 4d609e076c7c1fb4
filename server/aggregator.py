"""The server behind secure aggregation: it learns the sum of a round's uploads, and nothing else.

The sum has the noise of all who answered (`mechanisms/shares.py`). If fewer than planned answered,
it has too little of it and is not opened: the model stays as it is, and the round stays paid.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from client.messages import Upload
from mechanisms.shares import Shares


@dataclass(frozen=True)
class Aggregator:
    """The server's side of securely aggregated rounds.

    Attributes:
        shares: how the clients make the noise.
        bound: C, clip norm of a contribution, in the first round.
        expected: float64 ``[clients]``, how many contributions of norm C each of them is expected
            to make in a round.
        factor: from a round's number to what the mean is multiplied by.
    """

    shares: Shares
    bound: float
    expected: np.ndarray
    factor: Callable[[int], float]

    def enough(self, answers: int) -> bool:
        """Whether a sum of so many uploads has the noise that it is charged for."""
        return answers >= self.shares.least

    def mean(
        self, number: int, uploads: Sequence[Upload], clip_norm: float | None = None
    ) -> np.ndarray | None:
        """The noisy mean contribution times the factor, float64 ``[P]``; None if too few clients
        have answered.

        Args:
            number: the round's.
            uploads: the groups' sums, modulo 2^b.
            clip_norm: C, if it has moved.
        """
        answers = sum(upload.weight for upload in uploads)
        if not self.enough(answers):
            return None
        total = sum(torch.from_numpy(upload.total) for upload in uploads)  # modulo 2^64
        asked = np.concatenate([upload.clients for upload in uploads])
        expected = self.expected[asked].mean() * answers
        noisy = self.shares.opened(torch.as_tensor(total)).numpy() * (clip_norm or self.bound)
        return np.asarray(noisy * (self.factor(number) / expected))

    def metrics(self, uploads: Sequence[Upload]) -> dict[str, float]:
        """How many of those who were asked have answered, and whether the sum was opened."""
        answers = sum(upload.weight for upload in uploads)
        asked = sum(len(upload.clients) for upload in uploads)
        return {"answered": answers / asked, "opened": float(self.enough(answers))}
