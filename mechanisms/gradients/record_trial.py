"""A trial of a model on made-up records: does it treat each record of a batch as if it were alone?

Records are given to the model together and one by one, at made-up parameters. Some mixing occurs
only above a size (numbers divided by the largest of the batch, if that is above 1), with entries 0
(missing ones that are filled in), with equal records, or in larger batches. So there are records of
several sizes, alike and unlike, and batches of several sizes. A trial is no proof:
`gradients.program` decides what cannot mix.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call

from mechanisms.gradients.materialised import Loss
from mechanisms.layout import Layout

SCALES = (1.0, 1e2, 1e4)
"""Sizes of the numbers in trial records."""

EXTREMES = (1e-30, 1e30)
"""Further sizes, for models that compute in float64."""

SIZES = (3, 8, 64)
"""Sizes of trial batches, besides 1 and 2."""


@dataclass(frozen=True)
class Trial:
    """What is tried, all tensors in the module's type and on its device.

    Attributes:
        module: the module that is tried.
        loss: from outputs and targets to the losses `[B]` of records.
        layout: of the module's parameters.
        params: `[1, P]`.
        batches: pairs of records of similar size, each `[1, 2, ...]`; the first is the smallest.
        targets: `[1, 1, ...]`, the target of every record.
        tolerance: relative difference allowed between two ways of computing a number.
        sizes: sizes of the batches besides the pairs.
    """

    module: nn.Module
    loss: Loss
    layout: Layout
    params: Tensor
    batches: list[Tensor]
    targets: Tensor
    tolerance: float
    sizes: tuple[int, ...] = SIZES

    def independent(self) -> list[tuple[Tensor, Tensor]]:
        """The batches that the model accepts, with the norms `[1, 2]` below which each record's
        gradient may be rounding.

        The model may refuse larger records; on the smallest its errors pass through.

        Raises:
            ValueError: a record has changed another's output or loss.
        """
        taken: list[tuple[Tensor, Tensor]] = []
        alone: dict[bytes, tuple[Tensor, Tensor]] = {}
        for batch in self.batches:
            sizes = self._tried(batch, (2,), alone)
            if sizes is None and batch is self.batches[0]:
                self._results(batch)  # which raises
            if sizes is not None:
                taken.append((batch, self.tolerance * sizes.unsqueeze(0)))
        if self.sizes:
            self._tried(_mixture(self.batches), self.sizes, alone)
        return taken

    def _tried(
        self, records: Tensor, counts: Sequence[int], known: dict[bytes, tuple[Tensor, Tensor]]
    ) -> Tensor | None:
        """Compares records `[1, n, ...]`, repeated in batches of `counts`, with each one alone.

        Gives their sizes `[n]`, by their own numbers and their outputs; None if the model does not
        accept them. `known` caches the results of records alone.
        """
        try:
            keys = [one.cpu().numpy().tobytes() for one in records[0]]
            for i, key in enumerate(keys):
                known[key] = known[key] if key in known else self._results(records[:, [i]])
            alone = [known[key] for key in keys]
            indices = [torch.arange(count) % records.shape[1] for count in counts]
            together = [self._results(records[:, index]) for index in indices]
        except Exception:  # the user's code can raise anything
            return None
        sizes = torch.stack([1.0 + _largest(one.to(self.params)) for one in records[0]])
        for index, parts in zip(indices, together, strict=True):
            for place, i in enumerate(index.tolist()):
                found, expected = [part[place] for part in parts], [part[0] for part in alone[i]]
                self._refuse_difference(sizes[i], found, expected)
        return sizes + torch.stack([_largest(output[0]) for output, _ in alone])

    @torch.no_grad()
    def _results(self, batch: Tensor) -> tuple[Tensor, Tensor]:
        """Outputs `[B, ...]` and losses `[B]` of a batch `[1, B, ...]`."""
        output = functional_call(self.module, self.layout.unflatten(self.params[0]), (batch[0],))
        targets = self.targets[0].expand(batch.shape[1], *self.targets.shape[2:])
        return output, self.loss(output, targets)

    def _refuse_difference(self, size: Tensor, found: list[Tensor], expected: list[Tensor]) -> None:
        """Compare output and loss of a record; a loss has no more digits than its output."""
        size = self.tolerance * size
        for one, other in zip(found, expected, strict=True):
            finite = other.isfinite()
            size = torch.maximum(size, _largest(other))
            same = one.shape == other.shape and torch.equal(one.isfinite(), finite)
            if not same or bool(((one - other)[finite].abs() > self.tolerance * size).any()):
                raise ValueError(
                    f"the model ({type(self.module).__name__}) gives a record another output or "
                    "loss in a batch than alone, so a record's influence cannot be bounded: "
                    "compute each record from its own numbers, without random draws "
                    "(batch_first=True for attention and recurrent layers, GroupNorm or LayerNorm "
                    "for statistics of a batch)"
                )


def trial_batches(x: Tensor) -> list[Tensor]:
    """Pairs of made-up records `[1, 2, ...]` shaped as those of `x [K, B, ...]`, CPU, float64.

    Integers index embeddings: there is one pair, of the indices 0 and 1, swapped in the second
    record.
    """
    if not x.is_floating_point():
        ones = torch.arange(x.shape[2:].numel()).view(x.shape[2:]) % 2
        return [torch.stack([1 - ones, ones]).to(x.dtype).unsqueeze(0)]
    pair = wave(torch.empty(1, 2, *x.shape[2:], dtype=torch.float64))
    return [scale * pair for scale in SCALES]


def _mixture(pairs: list[Tensor]) -> Tensor:
    """Eight records `[1, 8, ...]`: small, large, with some or all entries 0, and equal ones.

    Records of indices are those of the pair, in turn.
    """
    one, other = pairs[0][0]
    if not one.is_floating_point():
        return torch.stack([one, other] * 4).unsqueeze(0)
    gaps = one * (torch.arange(one.numel(), device=one.device) % 2).view(one.shape)
    large = [other * size for size in SCALES[1:]]
    extreme = [other, other / 10]
    if one.dtype == torch.float64:
        extreme = [other * size for size in EXTREMES]
    return torch.stack([one, gaps, one, *large, torch.zeros_like(one), *extreme]).unsqueeze(0)


def wave(like: Tensor) -> Tensor:
    """Numbers in [-1, 1] in the shape of `like`, with no pattern that a model could be blind to."""
    return torch.sin(12.9898 * torch.arange(1, like.numel() + 1).to(like)).view(like.shape)


def _largest(values: Tensor) -> Tensor:
    """The largest absolute value among the finite `values`, as a scalar."""
    return torch.where(values.isfinite(), values, 0.0).abs().amax()
