"""Forms of the per-record gradients of one parameter, which give their norms and their sums.

A form answers `squared_norms(whole) -> [K, B]`, `weighted_sum(factors [K, B], keep) -> [K, *shape]`
in floats and `whole_sum(scales [K, B], keep) -> [K, *shape]` in whole numbers, for which norms are
taken in float64. `keep [K, B]` marks the records that may take part (one outside adds exactly 0
whatever it holds), None stands for all.

- `Held`: the gradients themselves;
- `Outer`: outer products `left right^T` that are not formed, of linear layers at one position;
  Goodfellow 2015 (arXiv 1510.01799). Sums of several outer products are formed and held, so that
  the clipped vector is exactly the one that is added up, however much cancels in it;
- `Looked`: rows of an embedding.

A whole sum is exact. Each record's part, `scale * gradient`, is rounded to whole numbers of norm up
to 2^44 by itself; these are added up without rounding, so the sum depends neither on the order of
the records nor on a record's place, and one record moves it by its own part alone
(`mechanisms/grid.py` has the proof).
"""

from collections.abc import Callable, Iterator
from functools import cached_property, reduce
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from mechanisms.gradients.products import products

# A factor of a product of squared norms below this has lost digits to underflow. It is raised to
# this value: a norm may come out too large, by 1e-15 of its other factor, but never too small.
_SMALLEST_SQUARE = 1e-30
# In float32 a long sum loses small terms, and a norm would come out too small. So it is taken in
# stretches.
_STRETCH = 1024
# Records whose parts float64 adds up without rounding: 2^8 of up to 2^44 make at most 2^52.
_EXACT_RECORDS = 2**8
# Entries of parts made at a time: on a CPU they fit its caches, a GPU is kept busy by them.
_PARTS_ON_CPU = 2**17
_PARTS_ELSEWHERE = 2**26
# Norm of the direction of a whole outer product's right side; the left side has the rest of a
# part's 2^44.
DIRECTION = 2.0**23

Arrange = Callable[[Tensor], Tensor]


def put(total: Tensor, further: bool, part: Tensor) -> None:
    """Sets `total` to `part`, or adds it where `further` is true."""
    if further:
        total.add_(part)
    else:
        total.copy_(part)


class Form(Protocol):
    """The per-record gradients of one parameter for K clients with B records each.

    `entries` is the number of tensor entries that the form holds or was made from.
    """

    entries: int

    def squared_norms(self, whole: bool = False) -> Tensor: ...

    def weighted_sum(self, factors: Tensor, keep: Tensor | None) -> Tensor: ...

    def whole_sum(self, scales: Tensor, keep: Tensor | None) -> Tensor: ...


class Held:
    """Gradients `[K, B, *shape]` that are held, made from `sources` other entries."""

    def __init__(self, gradient: Tensor, sources: int = 0) -> None:
        self._rows = gradient.flatten(2) if gradient.dim() > 2 else gradient.unsqueeze(2)
        self._shape = gradient.shape[2:]
        self.entries = gradient.numel() + sources

    def squared_norms(self, whole: bool = False) -> Tensor:
        """`[K, B]`."""
        return long_norms(self._rows, whole).square()

    def weighted_sum(self, factors: Tensor, keep: Tensor | None) -> Tensor:
        """`[K, *shape]`."""
        total = torch.bmm(factors.unsqueeze(1), _kept(self._rows, keep))
        return total.view(total.shape[0], *self._shape)

    def whole_sum(self, scales: Tensor, keep: Tensor | None) -> Tensor:
        """Int64 `[K, *shape]`: the sum of rounded `scales * gradient`."""
        rows = _kept(self._rows, keep)
        total = rows.new_zeros(len(scales), rows.shape[2], dtype=torch.int64)
        for at in _exact_stretches(scales, len(scales) * rows.shape[2]):
            total += (rows[:, at] * scales[:, at, None]).round_().sum(1).to(torch.int64)
        return total.view(-1, *self._shape)


class Outer:
    """Gradients `left right^T [K, B, G, out, in]` that are not formed, of `left [K, B, G, out]` and
    `right [K, B, G, in]`."""

    def __init__(self, left: Tensor, right: Tensor) -> None:
        self._left, self._right = left, right
        self.entries = left.numel() + right.numel()

    def squared_norms(self, whole: bool = False) -> Tensor:
        """`[K, B]`, from the norms of both sides."""
        # |left right^T| = |left| |right|; squares of groups, which share no entry, add up
        if whole:
            # rounding moves each entry of a direction by at most 1/2
            longer = 1.0 + self._right.shape[3] ** 0.5 / 2.0 / DIRECTION
            lengths = long_norms(self._left, whole) * long_norms(self._right, whole) * longer
            return reduce(torch.add, lengths.square().unbind(2))
        left, right = (long_norms(t).square() for t in (self._left, self._right))
        return (left.clamp(min=_SMALLEST_SQUARE) * right.clamp(min=_SMALLEST_SQUARE)).sum(2)

    def weighted_sum(self, factors: Tensor, keep: Tensor | None) -> Tensor:
        """`[K, G, out, in]`: one product per client, with the factors in its left side."""
        scaled = _kept(self._left, keep) * factors[:, :, None, None]
        return products(scaled.permute(0, 2, 3, 1), _kept(self._right, keep).transpose(1, 2))

    def whole_sum(self, scales: Tensor, keep: Tensor | None) -> Tensor:
        """Int64 `[K, G, out, in]`: the sum of whole outer products near `scales * gradient`.

        The right side becomes a direction of norm 2^23, the left side takes the rest: at most 2^21.
        """
        # a length that is not finite is that of a record that is left out
        lengths = torch.nan_to_num(long_norms(self._right, whole=True), posinf=0.0)
        ups = torch.where(lengths > 0, DIRECTION / lengths, 0.0)
        downs = scales[:, :, None] * lengths / DIRECTION
        clients, _, groups, rows = self._left.shape
        total = scales.new_zeros(clients, groups, rows, self._right.shape[3], dtype=torch.int64)
        for at in _exact_stretches(scales, clients * groups * self._right.shape[3]):
            kept = None if keep is None else keep[:, at]
            left, right = (
                (_kept(side[:, at], kept) * scale[:, at].unsqueeze(3)).round_()
                for side, scale in ((self._left, downs), (self._right, ups))
            )
            total += products(left.permute(0, 2, 3, 1), right.transpose(1, 2)).to(torch.int64)
        return total


class Arranged:
    """A form whose sums `[K, ...]` get the parameter's shape, on which norms do not depend."""

    def __init__(self, form: Form, arrange: Arrange) -> None:
        self._form, self._arrange = form, arrange
        self.entries = form.entries

    def squared_norms(self, whole: bool = False) -> Tensor:
        """`[K, B]`."""
        return self._form.squared_norms(whole)

    def weighted_sum(self, factors: Tensor, keep: Tensor | None) -> Tensor:
        """`[K, *shape]`."""
        return self._arrange(self._form.weighted_sum(factors, keep))

    def whole_sum(self, scales: Tensor, keep: Tensor | None) -> Tensor:
        """Int64 `[K, *shape]`."""
        return self._arrange(self._form.whole_sum(scales, keep))


def outer_products(left: Tensor, right: Tensor, arrange: Arrange) -> Form:
    """The form of `sum_t left_t right_t^T` from `left [K, B, G, T, out]`, `right [K, B, G, T, in]`.

    G counts groups. `arrange` maps a sum `[K, G, out, in]` to the parameter's shape `[K, *shape]`.
    """
    if left.shape[3] == 1:
        return Arranged(Outer(left.squeeze(3), right.squeeze(3)), arrange)
    sources = right.numel() + left.numel()
    return Arranged(Held(products(left.transpose(-1, -2), right), sources), arrange)


class Looked:
    """Zeros `[K, B, V, D]` with `gradient [K, B, T, D]` added at rows `index [K, B, T]`."""

    def __init__(self, index: Tensor, gradient: Tensor, rows: int) -> None:
        self._index, self._gradient, self._size = index, gradient, rows
        self.entries = 3 * gradient.numel()

    def squared_norms(self, whole: bool = False) -> Tensor:
        """`[K, B]`, from distinct rows: those that occur several times in a record are summed."""
        return long_norms(self._rows[1].flatten(2), whole).square()

    def weighted_sum(self, factors: Tensor, keep: Tensor | None) -> Tensor:
        """`[K, V, D]`."""
        scaled = _kept(self._gradient, keep) * factors[:, :, None, None]
        return _add_rows(self._index.flatten(1), scaled.flatten(1, 2), self._size)

    def whole_sum(self, scales: Tensor, keep: Tensor | None) -> Tensor:
        """Int64 `[K, V, D]`."""
        index, rows = self._rows
        parts = (_kept(rows, keep) * scales[:, :, None, None]).round_().to(torch.int64)
        return _add_rows(index.flatten(1), parts.flatten(1, 2), self._size)

    @cached_property
    def _rows(self) -> tuple[Tensor, Tensor]:
        """Each record's distinct rows `[K, B, T]` and their sums `[K, B, T, D]`; places left over
        have sums of 0."""
        order = self._index.argsort(dim=2, stable=True)
        sorted_index = self._index.gather(2, order)
        ranks = F.pad(sorted_index.diff(dim=2) != 0, (1, 0)).long().cumsum(2)
        # gathered: with deterministic kernels the host waits for a GPU in scatter_
        rank = ranks.gather(2, order.argsort(dim=2))
        slots = self._gradient.shape[2]
        summed = _add_rows(rank.flatten(0, 1), self._gradient.flatten(0, 1), slots)
        slot = torch.arange(slots, device=rank.device).expand_as(rank).contiguous()
        first = torch.searchsorted(ranks, slot).clamp(max=slots - 1)
        return sorted_index.gather(2, first), summed.view(self._gradient.shape)


def long_norms(rows: Tensor, whole: bool = False) -> Tensor:
    """The L2 norms `[...]` of `rows [..., N]`, in float64 if `whole`, else in their own type."""
    length = rows.shape[-1]
    if whole:
        return torch.linalg.vector_norm(rows, dim=-1, dtype=torch.float64)
    if length <= _STRETCH:
        return torch.linalg.vector_norm(rows, dim=-1)
    stretches = length // _STRETCH * _STRETCH
    parts = torch.linalg.vector_norm(rows[..., :stretches].unflatten(-1, (-1, _STRETCH)), dim=-1)
    if stretches < length:
        rest = torch.linalg.vector_norm(rows[..., stretches:], dim=-1, keepdim=True)
        parts = torch.cat([parts, rest], dim=-1)
    return long_norms(parts)


class Pass:
    """Norms and sums of whole gradients, from the forms `{parameter name: form}` of one pass."""

    def __init__(self, forms: dict[str, Form]) -> None:
        self._forms = forms

    @property
    def entries(self) -> int:
        """The number of tensor entries that the forms hold or were made from."""
        return sum(form.entries for form in self._forms.values())

    def squared_norms(self, whole: bool = False) -> Tensor:
        """`[K, B]`: the squared L2 norm of each record's whole gradient."""
        # added one by one: a reduction's order of additions may depend on a record's place
        return reduce(torch.add, (form.squared_norms(whole) for form in self._forms.values()))

    def weighted_sums(self, factors: Tensor, keep: Tensor | None) -> dict[str, Tensor]:
        """`{name: [K, *shape]}`: the sums over records of `factors [K, B]` times gradient; records
        outside `keep` are absent."""
        return {name: form.weighted_sum(factors, keep) for name, form in self._forms.items()}

    def whole_sums(self, scales: Tensor, keep: Tensor | None) -> dict[str, Tensor]:
        """Int64 `{name: [K, *shape]}`: the exact sums over records of rounded `scales [K, B]` times
        gradient."""
        return {name: form.whole_sum(scales, keep) for name, form in self._forms.items()}


def _exact_stretches(scales: Tensor, entries: int) -> Iterator[slice]:
    """Cuts the B records of `scales [K, B]`, of `entries` for all clients, into stretches that are
    added up exactly."""
    most = _PARTS_ON_CPU if scales.device.type == "cpu" else _PARTS_ELSEWHERE
    step = max(1, min(_EXACT_RECORDS, most // entries))
    return (slice(start, start + step) for start in range(0, scales.shape[1], step))


def _kept(values: Tensor, keep: Tensor | None) -> Tensor:
    """`values [K, B, ...]` with records outside `keep [K, B]` set to 0, as 0 * NaN is NaN."""
    if keep is None:
        return values
    return torch.where(keep.view(*keep.shape, *(1,) * (values.dim() - 2)), values, 0)


def _add_rows(index: Tensor, values: Tensor, rows: int) -> Tensor:
    """`[N, rows, D]`: `values [N, T, D]` added up at `index [N, T]`, always in the same order."""
    batch = torch.arange(index.shape[0], device=index.device).unsqueeze(1).expand_as(index)
    total = values.new_zeros(index.shape[0], rows, values.shape[2])
    return total.index_put_((batch, index), values, accumulate=True)
