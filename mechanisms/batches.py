"""What batches cost, by how they are drawn: the names of the setting ``sampling``.

- ``poisson``: each record enters each batch by a coin of its own.
- ``fixed``: each batch is b of the client's n records without replacement, drawn afresh.
- ``shuffled``: as a shuffling data loader does. The records are put into random order and cut into
  batches of b, the last of which is what remains; after all of them the order is drawn again, and
  in each round anew.

In a shuffled pass a record is in one batch. Given the order, which both neighbours share, all other
batches are the same with and without it, whatever was released before; so by joint convexity the
whole pass is at most one Gaussian release. If a round ends within a pass, the record was in one of
its k batches with probability k b / n, and untouched otherwise. Nothing smaller is proved for an
adversary who sees every step (docs/decisions/0035).
"""

import math
from collections.abc import Callable

from mechanisms.accounting.accountant import Charges
from mechanisms.accounting.events import FixedBatchGaussian, Gaussian, PartialPass, SampledGaussian
from mechanisms.settings import whole


def passes(rate: float, records: int, steps: int) -> tuple[int, float]:
    """The passes over the records that a round's steps begin, and the share of records in the last
    one's batches."""
    batches = math.ceil(records / whole(rate, records))
    begun = math.ceil(steps / batches)
    seen = (steps - (begun - 1) * batches) * whole(rate, records)
    return begun, min(1.0, seen / records)


def _poisson(rate: float, records: int, noise: float, steps: int) -> Charges:
    return {SampledGaussian(rate, noise): steps}


def _fixed(rate: float, records: int, noise: float, steps: int) -> Charges:
    return {FixedBatchGaussian(whole(rate, records), records, noise): steps}


def _shuffled(rate: float, records: int, noise: float, steps: int) -> Charges:
    begun, share = passes(rate, records, steps)
    if share == 1.0:
        return {Gaussian(noise): begun}
    ended: Charges = {Gaussian(noise): begun - 1} if begun > 1 else {}
    return {**ended, PartialPass(share, noise): 1}


CHARGES: dict[str, Callable[[float, int, float, int], Charges]] = {
    "poisson": _poisson,
    "fixed": _fixed,
    "shuffled": _shuffled,
}
"""From rate, number of records, noise multiplier and steps of a round to its charges."""
