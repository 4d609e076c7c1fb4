"""What clients send after a local round, a row each: their update, or their update over their pace.

Both are made from released states, the public learning rate and the number of released steps, so
they cost no privacy.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from mechanisms.cohort import Cohort, LocalState
from mechanisms.placing import place


@dataclass(frozen=True)
class Sent:
    """What clients send.

    Attributes:
        rows: from the cohort, what the server has told (its model ``[P]``, and the clip norm, if
            it moves) and the state at the round's end to ``[K, P + extra]``.
        extra: number of columns besides the parameters'.
        whole: whether the rows are int64, in units of their own, and not to be weighted.
    """

    rows: Callable[[Cohort, Tensor, LocalState], Tensor]
    extra: int = 0
    whole: bool = False


def update(cohort: Cohort, start: Tensor, end: LocalState) -> Tensor:
    """How the parameters have changed, ``[K, P]``."""
    return end.params - start


def normalised(cohort: Cohort, start: Tensor, end: LocalState) -> Tensor:
    """Updates over their pace, and the pace in the last column: ``[K, P + 1]``; 0 for a client
    without steps."""
    length = pace(cohort, end.taken)[:, None]
    return torch.cat(
        [torch.where(length > 0, update(cohort, start, end) / length, 0.0), length], dim=1
    )


def without(sent: Sent, own: Tensor) -> Sent:
    """What is sent, with 0 in place of the parameters that are clients' ``own``, bool ``[P]``."""

    def rows(cohort: Cohort, start: Tensor, end: LocalState) -> Tensor:
        found = sent.rows(cohort, start, end)
        found[:, : len(own)].masked_fill_(place(own, found.device), 0.0)
        return found

    return replace(sent, rows=rows)


UPDATE, NORMALISED = Sent(update), Sent(normalised, extra=1)


def pace(cohort: Cohort, taken: Tensor) -> Tensor:
    """How far ``taken [K]`` steps go along a constant gradient of size one from a fresh optimizer:
    float32 ``[K]``.

    For SGD with learning rates eta_t and momentum beta it is the sum over steps t of ``eta_t (1 +
    beta + ... + beta^(t-1))``, |a_k|_1 of FedNova (Wang et al. 2020) with the rates within.
    Momentum kept from earlier rounds is not in it.
    """
    unit = torch.ones_like(taken)[:, None]
    memory, length = cohort.optimizer.init(unit), torch.zeros_like(taken)
    for done in range(int(taken.max())):
        direction, memory = cohort.optimizer.update(unit, memory)
        rate = cohort.learning_rate(torch.full_like(taken, done))
        length = torch.where(taken > done, length + rate * direction[:, 0], length)
    return length
