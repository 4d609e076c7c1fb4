"""Passes: which records of which clients are computed together.

Passes fit into memory and into caches. For exact sums they also have one shape, whichever records
were drawn, and a record's place in them makes no difference, so that no result for a record depends
on which other records are there.
"""

import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from mechanisms.gradients.record_trial import wave

# Bytes of tensors held in one pass. On a CPU larger tensors cost page faults and cache misses.
_HELD_ON_CPU = 2**26
_HELD_ELSEWHERE = 2**30
# The most rows that product kernels take together; rows left over are added up in another order.
_ROWS = 16

Shown = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""From records `[K, B, ...]` with targets to numbers of each record `[K, B, ...]`, and to a sum
that does not depend on order."""
# By how many places trial records are shifted.
_SHIFTS = (1, 2, 5)
# Sizes of the numbers in trial records, in turn.
_SIZES = (1.0, 1e-3, 30.0)


class Passes:
    """Cuts cohorts of K clients with B records into passes with a limit on records and on bytes.

    `entry_size` is the number of bytes of a tensor entry. A limit is at least 1; None is no limit
    on records, and a limit on bytes that depends on the device.
    """

    def __init__(self, max_records: int | None, memory_limit: int | None, entry_size: int) -> None:
        self._max_records, self._memory_limit = max_records, memory_limit
        self._entry_size = entry_size
        self._alike: dict[tuple[object, ...], bool] = {}

    def held(self, x: Tensor) -> int:
        """Tensor entries that one pass may hold."""
        default = _HELD_ON_CPU if x.device.type == "cpu" else _HELD_ELSEWHERE
        return (self._memory_limit or default) // self._entry_size

    def cut(
        self, x: Tensor, entries: int, alone: bool, width: int | None = None
    ) -> Iterator[tuple[slice, slice]]:
        """Cuts `[K, B]` into whole clients if several fit a pass, else each client into stretches.

        A pass holds `entries` for each record, and one client if `alone`. Without `width`,
        stretches are about equal and end with the records. With it, their length does not depend on
        B, and the last may go beyond the records.
        """
        clients, records = x.shape[:2]
        if clients * records == 0:
            return
        fitting = max(1, self.held(x) // max(1, entries))
        fitting = fitting if self._max_records is None else min(self._max_records, fitting)
        if width:
            step = _even(width, fitting)
            together = 1 if alone else max(1, fitting // step)
        else:
            step = math.ceil(records / math.ceil(records / fitting))
            together = 1 if alone else max(1, fitting // records)
        for c in range(0, clients, together):
            for b in range(0, records, step):
                stop = b + step if width else min(b + step, records)
                yield slice(c, min(c + together, clients)), slice(b, stop)

    def of_shape(
        self, x: Tensor, y: Tensor, b: slice, key: tuple[object, ...], shown: Shown
    ) -> Iterator[tuple[slice, Tensor, Tensor]]:
        """Records and targets `[K, n, ...]` of a stretch `b`, padded with zeros to its length, or
        one record at a time.

        One at a time if a record's bits depend on its place in such a pass. This is tried once for
        each `key` and shape, with made-up records of several sizes that are shifted by some places.
        A pass is always copied, since kernels may also depend on addresses in memory.
        """
        length = b.stop - b.start
        key = (*key, x.dtype, len(x), length, *x.shape[2:])
        if key not in self._alike:
            self._alike[key] = length == 1 or _alike(x, y, length, shown)
        if self._alike[key]:
            yield b, _filled(x, length), _filled(y, length)
            return
        for n in range(x.shape[1]):
            one = slice(n, n + 1)
            at = slice(b.start + n, b.start + n + 1)
            yield at, _filled(x[:, one], 1), _filled(y[:, one], 1)


def _even(records: int, fitting: int) -> int:
    """Records in a pass of fixed shape: one, a multiple of 16, or a power of 2 if fewer fit."""
    if records == 1 or fitting < _ROWS:
        return min(records, 2 ** (fitting.bit_length() - 1))
    most = fitting // _ROWS * _ROWS
    return math.ceil(records / math.ceil(records / most) / _ROWS) * _ROWS


def _filled(part: Tensor, length: int) -> Tensor:
    """A copy of `part [K, n, ...]`, padded with zeros to `[K, length, ...]`."""
    filled = part.new_zeros(len(part), length, *part.shape[2:])
    filled[:, : part.shape[1]] = part
    return filled


def _alike(x: Tensor, y: Tensor, length: int, shown: Shown) -> bool:
    """Whether made-up records give the same bits at any place in a pass of `length` records."""
    records = wave(x.new_empty(len(x), length, *x.shape[2:], dtype=torch.float32))
    if x.is_floating_point():
        sizes = (
            torch.tensor(_SIZES, dtype=torch.float32)
            .repeat(-(-length // len(_SIZES)))[:length]
            .to(x)
        )
        records = records.to(x) * sizes.view(-1, *[1] * (x.dim() - 2))
    else:
        records = (records > 0).to(x.dtype)
    targets = torch.zeros_like(_filled(y[:, :0], length))
    targets[:, 1::2] = 1
    rows, total = shown(records, targets)
    for shift in _SHIFTS:
        moved, again = shown(
            *(torch.roll(t, shift, dims=1).contiguous() for t in (records, targets))
        )
        if not torch.equal(moved, torch.roll(rows, shift, dims=1)) or not torch.equal(again, total):
            return False
    return True
