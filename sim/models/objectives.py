"""What models are trained for and judged by: losses and metrics by name, or the user's own.

A loss is one number for each record, ``[B]``, from outputs ``[B, ...]`` and targets ``[B, ...]``
alone: its gradient is what clipping bounds. A metric of the user's own gets the outputs and targets
of all test records and returns one number, or one for each, whose mean is shown.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor
from torch.nn import functional as F

from mechanisms.gradients.record_gradients import cross_entropy
from mechanisms.gradients.record_trial import wave
from mechanisms.plugins import one_line, plugin
from sim.config.names import suggest
from sim.config.settings import BINARY_CROSS_ENTROPY, CROSS_ENTROPY, NEXT_WORD, SQUARED_ERROR, Data

Measure = Callable[[Tensor, Tensor], Tensor]
"""Function from outputs ``[B, ...]`` and targets ``[B, ...]`` to a number for each record."""

PADDING = 0
"""The word that fills up sequences: predicting it is neither trained nor judged."""
TOLERANCE = 1e-4


@dataclass(frozen=True)
class Objective:
    """A loss and a metric.

    Attributes:
        loss: the loss ``[B]`` of each record.
        metric: from outputs and targets to ``[B]``, or to one number for all of them.
        whole: whether the metric is to see all test records at once.
    """

    loss: Measure
    metric: Measure
    whole: bool


def several_labels(output: Tensor, targets: Tensor) -> Tensor:
    """The mean binary cross-entropy of each record's labels [nats]."""
    return F.binary_cross_entropy_with_logits(output, targets, reduction="none").mean(1)


def squared_error(output: Tensor, targets: Tensor) -> Tensor:
    """The mean squared error of each record's numbers."""
    return F.mse_loss(output, targets, reduction="none").mean(1)


def next_word(output: Tensor, targets: Tensor) -> Tensor:
    """The mean cross-entropy of each record's words ``[B, T, V]``, without padding [nats]."""
    losses = F.cross_entropy(output.transpose(1, 2), targets, reduction="none")
    real = (targets != PADDING).type_as(losses)
    return (losses * real).sum(1) / real.sum(1).clamp(min=1.0)


def right(output: Tensor, targets: Tensor) -> Tensor:
    """1 for each record whose class is found, else 0."""
    return (output.argmax(1) == targets).double()


def right_labels(output: Tensor, targets: Tensor) -> Tensor:
    """The share of each record's labels that are found."""
    return ((output > 0) == (targets > 0)).double().mean(1)


def right_words(output: Tensor, targets: Tensor) -> Tensor:
    """The share of each record's words that are found, without padding."""
    real = targets != PADDING
    found = (output.argmax(2) == targets) & real
    return found.sum(1).double() / real.sum(1).clamp(min=1)


def absolute_error(output: Tensor, targets: Tensor) -> Tensor:
    """The mean absolute error of each record's numbers."""
    return (output.double() - targets).abs().mean(1)


LOSSES: dict[str, tuple[Measure, Measure]] = {
    CROSS_ENTROPY: (cross_entropy, right),
    BINARY_CROSS_ENTROPY: (several_labels, right_labels),
    SQUARED_ERROR: (squared_error, absolute_error),
    NEXT_WORD: (next_word, right_words),
}
"""Name of a loss -> the loss, and its own metric."""


def objective(data: Data) -> Objective:
    """The configured loss and metric.

    Raises:
        ValueError: an unknown name, or a function that cannot be imported.
    """
    if data.loss in LOSSES:
        loss, metric = LOSSES[data.loss]
    elif ":" in data.loss:
        loss = _own("loss", data.loss, "a function from (outputs, targets) to losses [B]")
        metric = loss
    else:
        raise ValueError(
            f"loss = {data.loss!r} is unknown: {suggest(data.loss, LOSSES)}, or "
            "package.module:function"
        )
    if data.metric is None:
        return Objective(loss, metric, whole=False)
    if ":" not in data.metric:
        raise ValueError(
            f"metric = {data.metric!r} is unknown: leave --metric out for the loss's own, or give "
            "package.module:function"
        )
    own = _own("metric", data.metric, "a function from (outputs, targets) to a number or to [B]")
    return Objective(loss, own, whole=True)


def _own(setting: str, name: str, form: str) -> Measure:
    found = plugin(setting, name, form)
    if not callable(found):
        raise ValueError(f"{setting} = {name!r} is a {type(found).__name__}: name {form}")
    return cast(Measure, found)


def refuse_mixing(name: str, loss: Measure, output: Tensor, targets: Tensor) -> None:
    """Refuse a loss that is not a number for each record, from that record alone.

    Args:
        name: its name, for messages.
        loss: the loss.
        output: outputs ``[B, ...]`` for B >= 2 records, which are replaced by made-up ones.
        targets: targets ``[B, ...]``.

    Raises:
        ValueError: it fails, has another shape or no gradient, mixes records, or writes into its
            targets.
    """
    output, written = wave(output).requires_grad_(), targets._version
    try:
        with torch.enable_grad():
            together = loss(output, targets)
            alone = [loss(output[[i]], targets[[i]]) for i in range(len(output))]
    except (Exception, SystemExit) as error:  # the user's code can raise anything
        raise ValueError(
            f"loss = {name!r} fails ({one_line(error)}) on outputs of shape "
            f"{tuple(output.shape)} and targets of shape {tuple(targets.shape)}, "
            f"{targets.dtype}: correct it"
        ) from error
    if targets._version != written:
        raise ValueError(
            f"loss = {name!r} writes into its targets, which are the records': compute from copies"
        )
    shapes = [tuple(one.shape) if isinstance(one, Tensor) else () for one in (together, *alone)]
    if shapes != [(len(output),), *[(1,)] * len(output)] or not together.is_floating_point():
        raise ValueError(
            f"loss = {name!r} gives {shapes[0]} for {len(output)} records, and must give one "
            f"number for each, ({len(output)},): leave out what sums or averages over records "
            "(reduction='none')"
        )
    if not all(one.requires_grad for one in (together, *alone)):
        raise ValueError(
            f"loss = {name!r} has no gradient: compute it from the outputs by operations of "
            "PyTorch, without detach(), item() or numpy()"
        )
    if not torch.allclose(together, torch.cat(alone), TOLERANCE, TOLERANCE, equal_nan=True):
        raise ValueError(
            f"loss = {name!r} gives a record another loss in a batch than alone, so a record's "
            "influence cannot be bounded: compute each record's loss from its own output and target"
        )
