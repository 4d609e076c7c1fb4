"""Forms in which the per-record gradients of one parameter are known, and the two things asked of each.

A form answers `squared_norms() -> [K, B]` and `weighted_sum(factors [K, B], keep) -> [K, *shape]`. `keep [K, B]` marks
the records that may take part (one outside adds exactly 0 whatever it holds), None stands for all.

- `Held`: the gradients themselves;
- `Outer`: sums of outer products that are not formed, `sum_t left_t right_t^T`: linear layers (t: positions of a
  sequence) and convolutions (t: pixels of the output, right: patches of the input); Goodfellow 2015 (arXiv 1510.01799)
  for one position, Rochette et al. 2019 (arXiv 1912.06015), Li et al. 2022 (arXiv 2110.05679, section 4) for many;
- `Looked`: rows of an embedding.
"""

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from mechanisms.gradients.products import products
from mechanisms.layout import Layout

# A factor of a product of squared norms below this has lost digits to underflow. It is raised to this value: a norm
# may come out too large, by 1e-15 of its other factor, but never too small.
_SMALLEST_SQUARE = 1e-30
# In float32 a long sum loses small terms, and a norm would come out too small. So it is taken in stretches.
_STRETCH = 1024
# The Gram form takes float64, whose products cost a few float32 ones; it must save that much to be chosen.
_GRAM_ADVANTAGE = 4

Arrange = Callable[[Tensor], Tensor]


class Form(Protocol):
    """The per-record gradients of one parameter for K clients with B records each.

    `entries` is the number of tensor entries that the form holds or was made from.
    """

    entries: int

    def squared_norms(self) -> Tensor: ...

    def weighted_sum(self, factors: Tensor, keep: Tensor | None) -> Tensor: ...


class Held:
    """Gradients `[K, B, *shape]` that are held, made from `sources` other entries."""

    def __init__(self, gradient: Tensor, sources: int = 0) -> None:
        self._rows = gradient.flatten(2) if gradient.dim() > 2 else gradient.unsqueeze(2)
        self._shape = gradient.shape[2:]
        self.entries = gradient.numel() + sources

    def squared_norms(self) -> Tensor:
        """`[K, B]`."""
        return long_norms(self._rows).square()

    def weighted_sum(self, factors: Tensor, keep: Tensor | None) -> Tensor:
        """`[K, *shape]`."""
        total = torch.bmm(factors.unsqueeze(1), _kept(self._rows, keep))
        return total.view(total.shape[0], *self._shape)


class Outer:
    """Gradients `sum_t left_t right_t^T [K, B, G, out, in]` that are not formed; see `outer_products`."""

    def __init__(self, left: Tensor, right: Tensor) -> None:
        self._left, self._right = left, right
        self.entries = left.numel() + right.numel()

    def squared_norms(self) -> Tensor:
        """`[K, B]`: for T = 1 from the two norms, else `sum_{t,t'} (left_t . left_t') (right_t . right_t')`."""
        if self._left.shape[3] == 1:
            left, right = (long_norms(t.flatten(3)).square() for t in (self._left, self._right))
            return (left.clamp(min=_SMALLEST_SQUARE) * right.clamp(min=_SMALLEST_SQUARE)).sum(2)
        left, right = self._left.double(), self._right.double()
        gram = (left @ left.transpose(-1, -2)) * (right @ right.transpose(-1, -2))
        return gram.sum((2, 3, 4)).clamp(min=0).to(self._left.dtype)

    def weighted_sum(self, factors: Tensor, keep: Tensor | None) -> Tensor:
        """`[K, G, out, in]`: one product per client, with the factors in its left side."""
        scaled = _kept(self._left, keep) * factors[:, :, None, None, None]
        left, right = (t.transpose(1, 2).flatten(2, 3) for t in (scaled, _kept(self._right, keep)))
        return products(left.transpose(-1, -2), right)


class Arranged:
    """A form whose sums `[K, ...]` are brought into the parameter's shape; norms do not depend on it."""

    def __init__(self, form: Form, arrange: Arrange) -> None:
        self._form, self._arrange = form, arrange
        self.entries = form.entries

    def squared_norms(self) -> Tensor:
        """`[K, B]`."""
        return self._form.squared_norms()

    def weighted_sum(self, factors: Tensor, keep: Tensor | None) -> Tensor:
        """`[K, *shape]`."""
        return self._arrange(self._form.weighted_sum(factors, keep))


def is_worth_forming(left: Tensor, features: int) -> bool:
    """Whether `sum_t left_t right_t^T` from `left [..., T, out]`, `right [..., T, features]` is better held.

    For T = 1, and where T is small beside `out` and `features`, it is not: norms come from products of norms and from
    Gram matrices, these in float64 because their terms cancel. Else a weighted sum of what is held is nearly free.
    """
    positions, out = left.shape[-2:]
    return positions > 1 and _GRAM_ADVANTAGE * positions * (out + features) >= out * features


def outer_products(left: Tensor, right: Tensor, arrange: Arrange) -> Form:
    """The cheapest form of `sum_t left_t right_t^T` from `left [K, B, G, T, out]`, `right [K, B, G, T, in]`.

    G counts groups. `arrange` maps a sum `[K, G, out, in]` to the parameter's shape `[K, *shape]`.
    """
    if is_worth_forming(left, right.shape[-1]):
        formed = products(left.transpose(-1, -2), right)
        return Arranged(Held(formed, left.numel() + right.numel()), arrange)
    return Arranged(Outer(left, right), arrange)


class Looked:
    """Gradients `[K, B, V, D]` with `gradient [K, B, T, D]` added to the rows `index [K, B, T]`; the rest is 0."""

    def __init__(self, index: Tensor, gradient: Tensor, rows: int) -> None:
        self._index, self._gradient, self._size = index, gradient, rows
        self.entries = 3 * gradient.numel()

    def squared_norms(self) -> Tensor:
        """`[K, B]`: rows that occur several times in a record are summed first."""
        order = self._index.argsort(dim=2, stable=True)
        sorted_index = self._index.gather(2, order)
        starts = F.pad(sorted_index.diff(dim=2) != 0, (1, 0))
        rank = torch.empty_like(order).scatter_(2, order, starts.long().cumsum(2))
        slots = self._gradient.shape[2]
        summed = _add_rows(rank.flatten(0, 1), self._gradient.flatten(0, 1), slots)
        return long_norms(summed.flatten(1)).square().view(self._index.shape[:2])

    def weighted_sum(self, factors: Tensor, keep: Tensor | None) -> Tensor:
        """`[K, V, D]`."""
        scaled = _kept(self._gradient, keep) * factors[:, :, None, None]
        return _add_rows(self._index.flatten(1), scaled.flatten(1, 2), self._size)


def long_norms(rows: Tensor) -> Tensor:
    """The L2 norms `[...]` of `rows [..., N]`: those of stretches of a row, and then the norm of these."""
    length = rows.shape[-1]
    if length <= _STRETCH:
        return torch.linalg.vector_norm(rows, dim=-1)
    whole = length // _STRETCH * _STRETCH
    parts = torch.linalg.vector_norm(rows[..., :whole].unflatten(-1, (-1, _STRETCH)), dim=-1)
    if whole < length:
        rest = torch.linalg.vector_norm(rows[..., whole:], dim=-1, keepdim=True)
        parts = torch.cat([parts, rest], dim=-1)
    return long_norms(parts)


class Pass:
    """The forms `{parameter name: form}` of all parameters of one pass: norms and sums of whole gradients."""

    def __init__(self, layout: Layout, forms: dict[str, Form]) -> None:
        self._layout, self._forms = layout, forms

    @property
    def entries(self) -> int:
        """The number of tensor entries that the forms hold or were made from."""
        return sum(form.entries for form in self._forms.values())

    def squared_norms(self) -> Tensor:
        """`[K, B]`: the squared L2 norm of each record's whole gradient."""
        return torch.stack([form.squared_norms() for form in self._forms.values()]).sum(0)

    def weighted_sum(self, factors: Tensor, keep: Tensor | None) -> Tensor:
        """`[K, P]`: the sum over records of `factors [K, B]` times gradient; records outside `keep` are absent."""
        return self._layout.flatten({name: form.weighted_sum(factors, keep) for name, form in self._forms.items()})


def _kept(values: Tensor, keep: Tensor | None) -> Tensor:
    """`values [K, B, ...]` with the records outside `keep [K, B]` set to 0: a factor 0 alone would give 0 * NaN."""
    if keep is None:
        return values
    return torch.where(keep.view(*keep.shape, *(1,) * (values.dim() - 2)), values, 0.0)


def _add_rows(index: Tensor, values: Tensor, rows: int) -> Tensor:
    """`[N, rows, D]`: `values [N, T, D]` added up at `index [N, T]`, in an order that is the same in every run."""
    batch = torch.arange(index.shape[0], device=index.device).unsqueeze(1).expand_as(index)
    total = values.new_zeros(index.shape[0], rows, values.shape[2])
    return total.index_put_((batch, index), values, accumulate=True)
