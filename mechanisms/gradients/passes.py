"""Passes: which records of which clients are computed together.

Passes fit into memory and into caches. For exact sums they also have one shape, whoever was drawn, and a record's place
in them makes no difference: then nothing that is computed of a record depends on which other records are there.
"""

import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.nn import functional as F

from mechanisms.gradients.record_trial import wave

# Bytes of tensors held in one pass. On a CPU larger tensors cost page faults and cache misses.
_HELD_ON_CPU = 2**26
_HELD_ELSEWHERE = 2**30
# Rows that kernels for products take together, at most; those that are left over are added up in another order.
_ROWS = 16

Alike = Callable[[Tensor, Tensor], bool]
"""From one record at all places `[K, B, ...]`, with its targets, to whether the same is computed of it everywhere."""


class Passes:
    """Cuts cohorts of K clients with B records into passes of `max_records` that hold `memory_limit` bytes, at most.

    `entry_size` is the number of bytes of a tensor entry. None stands for no limit, and for one by the device.

    Raises ValueError if a limit is below 1.
    """

    def __init__(self, max_records: int | None, memory_limit: int | None, entry_size: int) -> None:
        if max_records is not None and max_records < 1:
            raise ValueError(f"max_records is {max_records}, it must be at least 1: give the records of one pass")
        if memory_limit is not None and memory_limit < 1:
            raise ValueError(f"memory_limit is {memory_limit}, it must be at least 1: give the bytes of one pass")
        self._max_records, self._memory_limit, self._entry_size = max_records, memory_limit, entry_size
        self._alike: dict[tuple[object, ...], bool] = {}

    def held(self, x: Tensor) -> int:
        """Tensor entries that one pass may hold."""
        default = _HELD_ON_CPU if x.device.type == "cpu" else _HELD_ELSEWHERE
        return (self._memory_limit or default) // self._entry_size

    def cut(self, x: Tensor, entries: int, alone: bool, width: int | None = None) -> Iterator[tuple[slice, slice]]:
        """Cuts `[K, B]` into whole clients where several fit a pass, else into stretches of one client's records.

        A pass holds `entries` for each record, and one client if `alone`. Without `width`, stretches are about equal
        and end with the records. With it, their length does not depend on B, and the last may go beyond the records.
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
                yield slice(c, min(c + together, clients)), slice(b, b + step if width else min(b + step, records))

    def of_shape(
        self, x: Tensor, y: Tensor, b: slice, name: str, alike: Alike
    ) -> Iterator[tuple[slice, Tensor, Tensor]]:
        """Records and targets `[K, n, ...]` of a stretch `b`, filled up with zeros to its length; or one by one.

        One by one where a made-up record has other bits at another place. Kernels choose the order of their operations
        by shapes and places alone, so what holds for its numbers holds for all. Tried once for each `name` and shape.
        """
        length = b.stop - b.start
        key = (name, x.dtype, len(x), length, *x.shape[2:])
        if key not in self._alike:
            self._alike[key] = length == 1 or alike(_everywhere(x, length), torch.zeros_like(_filled(y, length)))
        if self._alike[key]:
            yield b, _filled(x, length), _filled(y, length)
            return
        for n in range(x.shape[1]):
            yield slice(b.start + n, b.start + n + 1), x[:, n : n + 1], y[:, n : n + 1]


def _even(records: int, fitting: int) -> int:
    """Records of a pass of fixed shape: a multiple of 16, or a power of 2 where fewer fit."""
    if fitting < _ROWS:
        return 2 ** (fitting.bit_length() - 1)
    most = fitting // _ROWS * _ROWS
    return math.ceil(records / math.ceil(records / most) / _ROWS) * _ROWS


def _filled(part: Tensor, length: int) -> Tensor:
    lacking = length - part.shape[1]
    return F.pad(part, (*(0, 0) * (part.dim() - 2), 0, lacking)) if lacking else part


def _everywhere(x: Tensor, length: int) -> Tensor:
    """A made-up record at all places of a pass `[K, length, ...]`."""
    record = wave(x[:1, :1]) if x.is_floating_point() else torch.zeros_like(x[:1, :1])
    return record.expand(len(x), length, *x.shape[2:]).contiguous()
