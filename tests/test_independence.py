"""A record's gradient is its own: what is computed together, what one by one, and what is refused.

The laws are of programs (no operation of a batch reaches from record to record) and of twin batches
(a record that is replaced changes nothing of the others).
"""

from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mechanisms.gradients import program
from mechanisms.gradients.materialised import Vectorized
from mechanisms.gradients.module_state import close, refuse_state
from mechanisms.gradients.placements import Unknown
from mechanisms.gradients.program import (
    loss_acts_alone,
    marked_outputs,
    place_of_difference,
    reads_weights,
    traced,
    traced_loss,
)
from mechanisms.gradients.record_gradients import RecordGradients, cross_entropy
from mechanisms.gradients.record_trial import SCALES
from strategies.distillation import Distiller, objective
from tests.record_models import Apply

WIDTH = 3
"""Of records, so that a batch of three has as many records as a record has numbers."""


class Net(nn.Module):
    """A layer, a function of its output and of the records, and another layer."""

    def __init__(
        self, function: Callable[..., Tensor], shape: tuple[int, ...] = (WIDTH,), end: int = WIDTH
    ) -> None:
        super().__init__()
        self.function, self.shape = function, shape
        self.first, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(end, 3)
        self.register_buffer("row", torch.tensor([0.5, -1.0, 2.0]))
        self.register_buffer("table", torch.arange(9.0).view(3, 3))

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.function(self, self.first(x)))


def together(module: nn.Module, shape: tuple[int, ...] = (WIDTH,)) -> bool:
    """Whether a batch of records of such a shape is computed as one."""
    graph = traced(module)
    return graph is not None and marked_outputs(graph, torch.rand(1, *shape)) is not None


def impute(x: Tensor) -> Tensor:
    """Missing entries, coded 0, are filled in with the mean of the batch."""
    return torch.where(x == 0, x.mean(0, keepdim=True), x)


MIXES = {
    "mean of the batch": lambda m, h: h - h.mean(0),
    "mean of everything": lambda m, h: h - h.mean(),
    "negative dimension": lambda m, h: h - h.mean(-2, keepdim=True),
    "dimension by name": lambda m, h: h - h.sum(dim=(0, 1)),
    "records by name": lambda m, h: h - torch.mean(input=h, dim=0),
    "size of the batch": lambda m, h: h.div(h.size(0)),
    "size of the batch by name": lambda m, h: torch.div(h, other=h.size(0)),
    "imputed": lambda m, h: impute(h),
    "row against column": lambda m, h: h - h.mean(1),
    "constant by record": lambda m, h: h + m.table,
    "product of records": lambda m, h: h @ h.T @ h,
    "product from the left": lambda m, h: m.table @ h,
    "transposed": lambda m, h: m.last(h.T).T,
    "flat": lambda m, h: h.view(-1).cumsum(0).view(-1, WIDTH),
    "records folded": lambda m, h: h.reshape(1, -1).roll(1, 1).reshape(-1, WIDTH),
    "records by their width": lambda m, h: h.reshape(WIDTH, -1).cumsum(1).reshape(-1, WIDTH),
    "records by their number": lambda m, h: h.view(-1, h.size(0)).cumsum(1).view(-1, WIDTH),
    "neighbour": lambda m, h: torch.cat([h[1:], h[:1]]),
    "rolled": lambda m, h: h.roll(1, 0),
    "rolled flat": lambda m, h: h.roll(1),
    "sorted by record": lambda m, h: h.sort(dim=0).values,
    "first record": lambda m, h: h - h[0],
    "first record as a column": lambda m, h: h - h[0].unsqueeze(1),
    "chosen records": lambda m, h: h[[0, 0, 0]] + h,
    "first records": lambda m, h: h[:3],
    "first record behind a new dimension": lambda m, h: h - h.T[None, :, 0].T,
    "shape of another": lambda m, h: h.t() + h,
    "normalized": lambda m, h: F.normalize(h, dim=0),
    "softmax of the batch": lambda m, h: h.softmax(0),
    "softmax by negative dimension": lambda m, h: h.softmax(-2),
    "softmax of unnamed dimension": lambda m, h: F.softmax(h.unsqueeze(0), None).squeeze(0),
    "batch statistics": lambda m, h: F.batch_norm(h, None, None, training=True),
    "sequence layer norm": lambda m, h: F.layer_norm(h.unsqueeze(0), (3, WIDTH)).squeeze(0),
    "squeezed": lambda m, h: h.squeeze() - h.squeeze().sum(0),
    "squeezed by the records": lambda m, h: h.squeeze(0),
    "distances": lambda m, h: torch.cdist(h, h) @ h,
    "records as channels": lambda m, h: F.conv1d(h, m.table.view(3, 3, 1)),
    "pooled over records": lambda m, h: F.avg_pool1d(h.T, 2, 1, 1)[:, :-1].T,
    "padded by records": lambda m, h: F.pad(h, (0, 0, 1, 0))[:-1],
    "einsum over records": lambda m, h: torch.einsum("bi,ci->ci", h, h),
    "largest label": lambda m, h: h * F.one_hot((h > 0).long().sum(1)).amax(),
    "expanded records": lambda m, h: h.unsqueeze(0).expand(2, -1, -1).reshape(-1, 2, WIDTH).mean(1),
    "gathered": lambda m, h: h.gather(0, (h > 0).long()),
    "gathered by another's numbers": lambda m, h: h.gather(1, (h > 0).long().T),
    "largest records": lambda m, h: h[:, :, None, None].topk(3, 0).values.flatten(1),
    "noise": lambda m, h: h + torch.rand_like(h),
    "in place on a buffer": lambda m, h: m.row.add_(h.sum()) * h,
    "product with a constant over records": lambda m, h: (h.T @ m.table).T,
    "constant matrices": lambda m, h: (h @ m.table.expand(3, 3, 3)).mean(1),
    "constant matrices by record": lambda m, h: (
        m.table.view(3, 3, 1) * m.row @ h.unsqueeze(2)
    ).squeeze(2),
    "product of unlike places": lambda m, h: (
        (h.unsqueeze(1) @ h.unsqueeze(0).mT).sum(0).T.expand(-1, WIDTH)
    ),
    "flattened with the records": lambda m, h: h.unsqueeze(0).flatten(0, 1).cumsum(0).T,
    "einsum with a constant by record": lambda m, h: torch.einsum("bi,b->bi", h, m.row),
    "einsum without the records": lambda m, h: torch.einsum("bi,bj->ij", h, h),
    "attention over records": lambda m, h: F.scaled_dot_product_attention(
        h[None], h[None], h[None]
    )[0],
    "attention with a mask": lambda m, h: F.scaled_dot_product_attention(
        h.unsqueeze(1), h.unsqueeze(1), h.unsqueeze(1), attn_mask=m.table.view(3, 3, 1)[:, :1]
    ).squeeze(1),
    "dropout": lambda m, h: F.dropout(h, 0.5, True),
    "dropout by default": lambda m, h: F.dropout(h, training=True),
    "embedding by frequency": lambda m, h: F.embedding(
        (h > 0).long(), m.table, scale_grad_by_freq=True
    ).sum(1),
    "embedding that is rewritten": lambda m, h: F.embedding(
        (h > 0).long(), m.table, max_norm=0.5
    ).sum(1),
    "stacked over records": lambda m, h: torch.stack([h, h.T], 1).sum(2),
    "repeated records": lambda m, h: h.repeat(2, 1)[:3],
    "records as channels of three": lambda m, h: F.conv1d(
        h.unsqueeze(0).expand(3, -1, -1), m.table.view(3, 3, 1)
    ).mean(1),
}


@pytest.mark.parametrize("function", MIXES.values(), ids=MIXES.keys())
def test_what_may_reach_from_record_to_record_is_not_computed_together(
    function: Callable[..., Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each kills a rule that is too generous: most give the right shapes for a batch of three, and
    rules must do."""
    monkeypatch.setattr(program, "_SIZES", (3,))
    assert not together(Net(function))


@pytest.mark.parametrize("scale", SCALES)
def test_a_graph_that_is_another_function_for_records_of_one_size_is_not_taken(
    scale: float,
) -> None:
    layer, row = nn.Linear(3, 2), torch.ones(3, 3)

    class Other(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return layer(x) * (2 if bool((x == scale).all()) else 1)

    routes = RecordGradients(layer)._routes
    assert routes._faithful(layer, row) and not routes._faithful(Other(), row)


@pytest.mark.parametrize("at", [-1, 0, 2])
def test_a_rule_is_not_believed_where_a_result_has_another_number_of_records(at: int) -> None:
    assert program._marked(torch.zeros(4, 3), 1, 3).at == 1
    with pytest.raises(Unknown, match="the records are not where they should be"):
        program._marked(torch.zeros(4, 3), at, 3)


class Arranged(nn.Module):
    """A layer between two functions."""

    def __init__(
        self, layer: nn.Module, before: Callable[[Tensor], Tensor], after: Callable[..., Tensor]
    ) -> None:
        super().__init__()
        self.layer, self.before, self.after = layer, before, after

    def forward(self, x: Tensor) -> Tensor:
        return self.after(self.layer(self.before(x)))


LAYERS = {
    "LSTM": (nn.LSTM(3, 3, batch_first=True), 1, lambda out: out[0]),
    "GRU": (nn.GRU(3, 3, batch_first=True), 1, lambda out: out[0]),
    "Linear": (nn.Linear(3, 3), 2, lambda out: out),
    "LayerNorm": (nn.LayerNorm(3), 2, lambda out: out),
    "GroupNorm": (nn.GroupNorm(1, 3), 1, lambda out: out),
    "Conv1d": (nn.Conv1d(3, 3, 1), 1, lambda out: out),
}
"""Layers that compute along a dimension, which is given, and their output."""


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_that_takes_the_records_for_something_else_reaches_from_record_to_record(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kills a layer that is known whatever dimension the records are in."""
    monkeypatch.setattr(program, "_SIZES", (3,))
    layer, dim, output = LAYERS[name]
    assert together(Arranged(layer, lambda x: x, output), (3, 3))
    there, back = lambda x: x.transpose(0, dim), lambda out: output(out).transpose(0, dim)
    assert not together(Arranged(layer, there, back), (3, 3))
    if name in ("LSTM", "GRU"):
        times_first = type(layer)(3, 3)
        assert not together(Arranged(times_first, lambda x: x, output), (3, 3))


@pytest.mark.parametrize("option", [{}, {"scale_grad_by_freq": True}])
def test_an_embedding_that_counts_the_words_of_its_batch_is_not_computed_together(option) -> None:
    """Its gradient for a word is divided by how often all records have it."""
    layer = nn.Embedding(7, 3, **option)
    module = Arranged(layer, lambda x: x.long(), lambda out: out.flatten(1))
    assert together(module) == (not option)


def test_a_layer_whose_forward_was_replaced_is_not_that_layer() -> None:
    layer = nn.Linear(3, 3)
    assert together(nn.Sequential(layer))
    layer.forward = lambda x: x - x.mean(0)  # type: ignore[method-assign]
    assert not together(nn.Sequential(layer))


WRITES = {
    "records": Arranged(nn.Linear(3, 3), lambda x: x.mul_(2.0), lambda out: out),
    "a buffer": Net(lambda m, h: h + m.row.mul_(2.0)),
    "a weight": Net(lambda m, h: h * m.last.weight[0].mul_(2.0)),
}


@pytest.mark.parametrize("name", WRITES)
def test_what_writes_into_what_all_records_see_is_not_computed_together(name: str) -> None:
    assert not together(WRITES[name])


def _split_heads(m: nn.Module, h: Tensor) -> Tensor:
    size, width = h.size(0), h.size(1)
    heads = h.view(size, 3, width // 3).transpose(1, 2)
    return F.scaled_dot_product_attention(heads, heads, heads).transpose(1, 2).reshape(size, -1)


def _unpacked(m: nn.Module, h: Tensor) -> Tensor:
    size, width = h.shape
    return h.reshape(size, width)


IDIOMS = {
    "view by size": lambda m, h: h.view(h.size(0), -1),
    "view by shape": lambda m, h: h.view(h.shape[0], WIDTH),
    "view by the rest": lambda m, h: h.view(-1, WIDTH),
    "reshape": lambda m, h: h.reshape(h.shape[0], -1),
    "unpacked shape": _unpacked,
    "flatten": lambda m, h: h.unsqueeze(1).flatten(1),
    "torch.flatten": lambda m, h: torch.flatten(h[:, None], start_dim=1),
    "residual": lambda m, h: h + torch.relu(h),
    "residual in place": lambda m, h: (h * 1.5).add_(h),
    "cat": lambda m, h: torch.cat([h, -h], dim=1)[:, :WIDTH],
    "stack and mean": lambda m, h: torch.stack([h, h.tanh()], dim=1).mean(1),
    "mean of a record": lambda m, h: h - h.mean(1, keepdim=True),
    "mean by negative dimension": lambda m, h: h - h.mean(-1, keepdim=True),
    "softmax": lambda m, h: F.softmax(h, dim=-1),
    "norm": lambda m, h: h / h.norm(dim=1, keepdim=True).clamp(min=1e-6),
    "normalize": lambda m, h: F.normalize(h),
    "largest": lambda m, h: h * h.max(dim=1, keepdim=True).values,
    "sorted": lambda m, h: torch.sort(h, dim=1)[0],
    "gate": lambda m, h: torch.where(h > 0, h, 0.1 * h),
    "constant row": lambda m, h: h * m.row + 1,
    "constant matrix": lambda m, h: h @ m.table,
    "einsum": lambda m, h: torch.einsum("bi,ij->bj", h, m.table),
    "outer product": lambda m, h: torch.bmm(h.unsqueeze(2), h.unsqueeze(1)).sum(2),
    "attention": _split_heads,
    "positions": lambda m, h: h + m.table[0, : h.size(1)],
    "token in front": lambda m, h: torch.cat(
        [m.row.expand(h.size(0), 1, -1), h.unsqueeze(1)], 1
    ).mean(1),
    "new dimension in front": lambda m, h: h[None, :, :].squeeze(0),
    "transposed there and back": lambda m, h: h.T.relu().T,
    "chunks": lambda m, h: torch.cat(h.chunk(3, dim=1)[::-1], dim=1),
    "layer norm": lambda m, h: F.layer_norm(h, (WIDTH,)),
    "convolution": lambda m, h: F.conv1d(h.unsqueeze(1), m.row.view(1, 1, 3), padding=1).squeeze(1),
    "silent dropout": lambda m, h: F.dropout(h, 0.0, m.training),
    "expanded": lambda m, h: h.unsqueeze(2).expand(-1, -1, 2).mean(2),
    "expanded by size": lambda m, h: h.unsqueeze(2).expand(h.size(0), -1, 2).mean(2),
    "repeated": lambda m, h: h.repeat(1, 2)[:, 1 : WIDTH + 1],
    "size of a constant": lambda m, h: h + m.table[0, : m.row.shape[0]] * m.row.dim(),
    "constant repeated by size": lambda m, h: h * m.row.repeat(h.size(0), 1),
}


@pytest.mark.parametrize("function", IDIOMS.values(), ids=IDIOMS.keys())
def test_what_users_write_takes_the_fast_route_and_gives_what_the_model_gives(
    function: Callable[..., Tensor],
) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        module, x = Net(function), torch.randn(1, 4, WIDTH)
    gradients = RecordGradients(module)
    assert gradients.is_tapped(x, torch.zeros(1, 4, dtype=torch.long))
    params = gradients.layout.initial(module)[None]
    expected = torch.cat([module(one[None]) for one in x[0]]).detach()
    torch.testing.assert_close(gradients.logits(params, x)[0], expected)


LABELS, ROWS = torch.zeros(1, 3, dtype=torch.long), torch.zeros(1, 3, 3)
FORMS = {
    "shape of targets": (
        nn.Identity(),
        lambda output, y: (output - y.sum(-1)).square().sum(1),
        (ROWS, ROWS.unsqueeze(-1)),
        (ROWS, LABELS.unsqueeze(-1)),
    ),
    "type of targets": (nn.Identity(), cross_entropy, (ROWS, LABELS), (ROWS, LABELS.float())),
    "shape of records": (
        Apply(lambda h: h - h.mean(-2, keepdim=True)),
        lambda output, y: output.square().flatten(1).sum(1),
        (torch.zeros(1, 3, 3, 3), LABELS),
        (ROWS, LABELS),
    ),
    "type of records": (nn.Identity(), cross_entropy, (ROWS, LABELS), (ROWS.long(), LABELS)),
}
"""Module, loss, and two pairs of records and targets, of which the first alone act alone."""


@pytest.mark.parametrize("name", FORMS)
def test_what_was_found_for_one_form_of_records_and_targets_says_nothing_of_another(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kills what is kept without a part of the form that it was found for."""
    monkeypatch.setattr(program, "_SIZES", (3,))
    module, loss, alone, mixed = FORMS[name]

    def answers(gradients: RecordGradients, x: Tensor, y: Tensor) -> list[object]:
        routes, found = gradients._routes, list[object]()
        asked = (
            lambda: routes.loss_program(x, y) is None,
            lambda: type(routes.general(x, y)),
            lambda: type(routes.of(x, y).engine),
            lambda: routes.independent(x, y),
        )
        for ask in asked:
            try:
                found.append(ask())
            except Exception as error:
                found.append(type(error))
        return found

    fresh, used = (RecordGradients(nn.Sequential(module, nn.Linear(3, 3)), loss) for _ in range(2))
    assert answers(used, *alone) != answers(fresh, *mixed)
    assert answers(used, *mixed) == answers(fresh, *mixed)


LOSSES_THAT_MIX = {
    "mean": lambda output, y: F.cross_entropy(output, y),
    "shared": lambda output, y: F.cross_entropy(output, y, reduction="none") / len(y),
    "centred": lambda output, y: F.cross_entropy(output - output.mean(0), y, reduction="none"),
    "total": lambda output, y: F.cross_entropy(output, y, reduction="none") + output.sum(),
    "weighed by labels": lambda output, y: (
        F.cross_entropy(output, y, reduction="none") * y.float().mean()
    ),
    "contrast": lambda output, y: (output @ output.T).logsumexp(1),
    "transposed": lambda output, y: F.cross_entropy(output.T, y, reduction="none"),
    "targets by place": lambda output, y: F.cross_entropy(
        output, torch.arange(3), reduction="none"
    ),
    "broadcast": lambda output, y: (output - F.one_hot(y, 3).float().sum(1)).square().sum(1),
}


@pytest.mark.parametrize("loss", LOSSES_THAT_MIX.values(), ids=LOSSES_THAT_MIX.keys())
def test_a_loss_that_may_mix_records_is_not_computed_together(
    loss: Callable[[Tensor, Tensor], Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(program, "_SIZES", (3,))
    outputs, graph = marked_outputs(nn.Linear(3, 3), torch.ones(1, 3)), traced_loss(loss)
    assert outputs is not None
    assert graph is None or not loss_acts_alone(graph, outputs, torch.zeros(1, dtype=torch.long))


def test_losses_that_mix_where_no_trial_looks_are_those_of_each_record_alone() -> None:
    """A loss that looks at the batch for label 2 alone, which no trial has. Kills losses of a batch
    as one."""
    module, y = nn.Linear(3, 3), torch.tensor([[0, 2, 2, 1]])

    def mixing(output: Tensor, targets: Tensor) -> Tensor:
        shared = torch.where(targets == 2, output.mean(0).sum(), 0.0)
        return F.cross_entropy(output, targets, reduction="none") + shared

    gradients, x = RecordGradients(module, mixing), torch.randn(1, 4, 3)
    params = gradients.layout.initial(module)[None]
    expected = torch.stack(
        [mixing(module(one[None]), target[None])[0] for one, target in zip(x[0], y[0], strict=True)]
    )
    for width in (None, 4):
        torch.testing.assert_close(gradients.losses(params, x, y, width)[0], expected.detach())


@pytest.mark.parametrize(
    "loss", [cross_entropy, nn.CrossEntropyLoss(reduction="none"), lambda o, y: -o[:, 0] * y]
)
def test_a_loss_of_each_record_is(loss: Callable[[Tensor, Tensor], Tensor]) -> None:
    outputs, graph = marked_outputs(nn.Linear(3, 3), torch.ones(1, 3)), traced_loss(loss)
    assert outputs and graph and loss_acts_alone(graph, outputs, torch.zeros(1, dtype=torch.long))


def test_a_distiller_takes_the_fast_route() -> None:
    gradients = RecordGradients(Distiller((1, 4, 4), 3, 2), objective(0.1))
    assert gradients.is_tapped(torch.zeros(1, 2, 1, 4, 4), torch.zeros(1, 2, dtype=torch.long))


def hidden_imputing(x: Tensor) -> Tensor:
    """The same, of which no trial on waves can know: entries that are exactly 0.125 are the missing
    ones."""
    return torch.where(x == 0.125, x.mean(0, keepdim=True), x)


def looking(x: Tensor) -> Tensor:
    """The same in Python, which no graph and no vmap can follow."""
    return x - x.mean(0) if bool((x == 0.125).any()) else x


@pytest.mark.parametrize("operation", [hidden_imputing, looking], ids=["traceable", "by a branch"])
def test_a_record_that_is_replaced_changes_no_other_though_the_trial_sees_nothing(
    operation,
) -> None:
    """Twin batches, one of which has a record that sets the mixing off: gradients, losses and
    outputs of the others."""
    with torch.random.fork_rng():
        torch.manual_seed(2)
        module, x = nn.Sequential(Apply(operation), nn.Linear(4, 3)), torch.randn(2, 6, 4)
    y = torch.zeros(2, 6, dtype=torch.long)
    x[:, 2, 1] = 0.125
    twin = x.clone()
    twin[:, 0] = torch.tensor([0.125, 500.0, -3.0, 0.125])
    gradients = RecordGradients(module)
    params = gradients.layout.initial(module).expand(2, -1)
    rest = torch.arange(6) > 0
    found = []
    for batch in (x, twin):
        total, norms = gradients.scaled_sum(params, batch, y, lambda n: rest.to(n).expand_as(n))
        losses, logits = gradients.losses(params, batch, y), gradients.logits(params, batch)
        found.append([total, norms[:, 1:], losses[:, 1:], logits[:, 1:]])
    assert not gradients.is_tapped(x, y)
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-7)


class Fitted(nn.Module):
    """ActNorm: its scale and shift are fitted to the first training batch."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.shift = nn.Parameter(torch.ones(4)), nn.Parameter(torch.zeros(4))
        self.initialized = False

    def forward(self, x: Tensor) -> Tensor:
        if self.training and not self.initialized:
            self.shift.data.copy_(-x.mean(0))
            self.scale.data.copy_(1 / (x.std(0) + 1e-6))
            self.initialized = True
        return (x + self.shift) * self.scale


class Stateful(nn.Module):
    """A layer that keeps something, in one way or another."""

    def __init__(self, keep: Callable[["Stateful", Tensor], object]) -> None:
        super().__init__()
        self.keep, self.count, self.seen, self.last = keep, 0, [], None
        self.register_buffer("largest", torch.zeros(4))
        self.register_buffer("unset", torch.full((2,), torch.nan))
        self.array, self.table, self.words = np.arange(3.0), {"mean": [1.0], "none": None}, {"a"}
        self.box, self.spare = SimpleNamespace(count=1, parts=(1, "two")), torch.ones(2)
        self.scale = nn.Parameter(torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        self.keep(self, x.detach())
        return x * self.scale


STATES = {
    "buffer in place": lambda m, x: m.largest.copy_(torch.maximum(m.largest, x.amax(0))),
    "buffer by equal numbers": lambda m, x: m.largest.copy_(
        torch.maximum(m.largest, -x.abs().amax(0))
    ),
    "buffer replaced": lambda m, x: setattr(m, "largest", torch.maximum(m.largest, x.amax(0))),
    "parameter": lambda m, x: m.scale.data.mul_(0.9),
    "counter": lambda m, x: setattr(m, "count", m.count + 1),
    "list": lambda m, x: m.seen.append(x),
    "last record": lambda m, x: setattr(m, "last", x),
    "a new attribute": lambda m, x: setattr(m, "first", x),
    "array in place": lambda m, x: m.array.__iadd__(1.0),
    "dictionary": lambda m, x: m.table["mean"].append(1),
    "set": lambda m, x: m.words.add(f"word {len(m.words)}"),
    "attribute of an object": lambda m, x: setattr(m.box, "count", m.box.count + 1),
    "equal numbers of another type": lambda m, x: setattr(m, "largest", m.largest.double()),
    "array of another shape": lambda m, x: setattr(m, "array", m.array[None]),
    "object for a tensor": lambda m, x: setattr(m, "spare", SimpleNamespace(count=1)),
    "tensor for an object": lambda m, x: setattr(m, "box", torch.ones(2)),
    "nothing for an array": lambda m, x: setattr(m, "array", None),
    "array for nothing": lambda m, x: setattr(m, "last", np.ones(2)),
    "key of a dictionary": lambda m, x: m.table.update({f"key {len(m.table)}": 1}),
}


@pytest.mark.parametrize("keep", STATES.values(), ids=STATES.keys())
@pytest.mark.parametrize("ask", ["losses", "norms", "refuse_mixing"])
def test_a_layer_that_keeps_something_is_refused_by_its_path(
    keep: Callable[..., object], ask: str
) -> None:
    gradients = RecordGradients(
        module := nn.Sequential(nn.Sequential(nn.Linear(4, 4), Stateful(keep)), nn.Linear(4, 3))
    )
    x, y = torch.ones(1, 2, 4), torch.zeros(1, 2, dtype=torch.long)
    arguments = (x, y) if ask == "refuse_mixing" else (gradients.layout.initial(module)[None], x, y)
    with pytest.raises(
        ValueError,
        match=r"layer '0\.1' \(Stateful\) changes its '\w+'.*influence cannot be bounded",
    ):
        getattr(gradients, ask)(*arguments)


@pytest.mark.parametrize("keep", STATES.values(), ids=STATES.keys())
def test_what_a_layer_holds_before_and_after_made_up_records_is_compared(
    keep: Callable[..., object],
) -> None:
    """By its numbers, type and parts alone: kills comparisons that a `Snapshot` makes up for."""
    with pytest.raises(ValueError, match=r"layer '0' \(Stateful\) changes its '\w+'"):
        refuse_state(nn.Sequential(Stateful(keep)), torch.ones(2, 4))


def test_outputs_are_close_up_to_the_rounding_of_their_size() -> None:
    one = torch.tensor([1e6, -3.0, torch.inf])
    assert close(one, one * (1 + 1e-5)) and close(one[:0], one[:0])
    for other in (one * 1.01, one[:2], one.where(one < torch.inf, 1e6)):
        assert not close(one, other) and not close(other, one)


def test_what_a_layer_holds_and_does_not_change_is_no_state() -> None:
    """Numbers that are NaN, arrays, dictionaries, sets and objects. Kills a comparison that takes
    an equal one for another."""
    gradients = RecordGradients(nn.Sequential(Stateful(lambda m, x: None), nn.Linear(4, 3)))
    gradients.refuse_mixing(torch.ones(1, 2, 4), torch.zeros(1, 2, dtype=torch.long))


@pytest.mark.parametrize("layer", [Apply(lambda h: h.mul_(0.5)), nn.ReLU(inplace=True)])
def test_a_model_that_writes_into_its_records_is_refused(layer) -> None:
    """Also where it writes what is there: later steps and scores see the same records. What it
    writes into numbers of its own is nobody's business."""
    with pytest.raises(ValueError, match=r"the model \(Sequential\) writes into the records"):
        refuse_state(nn.Sequential(layer, nn.Linear(4, 3)), torch.ones(2, 4))
    refuse_state(nn.Sequential(nn.Linear(4, 4), layer), torch.ones(2, 4))


def test_a_layer_fitted_to_its_first_batch_is_refused_by_its_path() -> None:
    module = nn.Sequential(nn.Linear(4, 4), Fitted(), nn.Linear(4, 3))
    with pytest.raises(ValueError, match=r"layer '1' \(Fitted\) changes its"):
        RecordGradients(module).refuse_mixing(
            torch.ones(1, 2, 4), torch.zeros(1, 2, dtype=torch.long)
        )


@pytest.mark.parametrize("name", ["count", "late", "box", "largest"])
def test_a_state_that_shows_on_real_records_only_is_refused_when_it_has_changed(name: str) -> None:
    """A number, an attribute that was not there, one that is gone, and a buffer written in place.
    Kills a look at made-up records that is the only one."""

    def keep(m: Stateful, x: Tensor) -> None:
        if bool((x == 0.125).any()):
            m.count += name == "count"
            if name == "late":
                m.late = True
            if name == "largest":
                m.largest.fill_(1.0)
            if name == "box":
                m.__dict__.pop("box", None)

    gradients = RecordGradients(module := nn.Sequential(Stateful(keep), nn.Linear(4, 3)))
    params, y = gradients.layout.initial(module)[None], torch.zeros(1, 2, dtype=torch.long)
    gradients.norms(params, torch.ones(1, 2, 4), y)
    for ask in (lambda x: gradients.norms(params, x, y), lambda x: gradients.logits(params, x)):
        with pytest.raises(ValueError, match=rf"layer '0' \(Stateful\) changes its '{name}'"):
            ask(torch.full((1, 2, 4), 0.125))


def test_a_state_that_begins_late_is_refused_also_where_records_are_vectorized() -> None:
    """The trial has found none. Kills a vectorized pass that does not look for one."""
    late: list[bool] = []

    def keep(m: Stateful, x: Tensor) -> None:
        m.count += bool(late)

    reverse = Apply(lambda h: torch.flip(h, [-1]))  # not on the list
    gradients = RecordGradients(module := nn.Sequential(Stateful(keep), reverse, nn.Linear(4, 3)))
    params, x = gradients.layout.initial(module)[None], torch.ones(1, 2, 4)
    y = torch.zeros(1, 2, dtype=torch.long)
    gradients.norms(params, x, y)
    assert isinstance(gradients._routes.of(x, y).engine, Vectorized)
    late.append(True)
    with pytest.raises(ValueError, match=r"layer '0' \(Stateful\) changes its 'count'"):
        gradients.norms(params, x, y)


def test_a_state_that_shows_where_a_record_is_alone_is_refused_also_for_outputs_alone() -> None:
    """Made-up records come in pairs at first. Kills evaluating a model that has a state."""

    def keep(m: Stateful, x: Tensor) -> None:
        m.count += len(x) == 1

    gradients = RecordGradients(module := nn.Sequential(Stateful(keep), nn.Linear(4, 3)))
    with pytest.raises(ValueError, match=r"layer '0' \(Stateful\) changes its 'count'"):
        gradients.logits(gradients.layout.initial(module)[None], torch.ones(1, 2, 4))


def test_a_layer_that_computes_with_the_size_of_a_batch_is_refused_by_its_path() -> None:
    module = nn.Sequential(nn.Linear(4, 4), Apply(lambda h: h / h.size(0)), nn.Linear(4, 3))
    with pytest.raises(
        ValueError, match=r"layer '1' computes with the number of records.*reshape only"
    ):
        RecordGradients(module).refuse_mixing(
            torch.ones(1, 2, 4), torch.zeros(1, 2, dtype=torch.long)
        )


def test_a_layer_that_works_otherwise_in_training_is_refused_by_its_path() -> None:
    class Noisy(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.clamp(-1e9, 1e9) if self.training else x

    module = nn.Sequential(nn.Linear(4, 4), Noisy(), nn.Linear(4, 3))
    with pytest.raises(
        ValueError, match=r"layer '1' \(Noisy\) computes something else in training mode"
    ):
        RecordGradients(module).refuse_mixing(
            torch.ones(1, 2, 4), torch.zeros(1, 2, dtype=torch.long)
        )


UNLIKE = {
    "function": (torch.sin, torch.tanh),
    "argument": (lambda h: h.clamp(-2.0), lambda h: h.clamp(-3.0)),
    "named argument": (lambda h: h.clamp(max=2.0), lambda h: h.clamp(max=3.0)),
    "dropout": (F.dropout, lambda h: F.dropout(h, training=False)),
    "one more operation": (lambda h: h.tanh().tanh(), lambda h: h.tanh()),
}


@pytest.mark.parametrize(("one", "other"), UNLIKE.values(), ids=UNLIKE.keys())
def test_the_first_layer_whose_operations_differ_is_named(
    one: Callable[[Tensor], Tensor], other: Callable[[Tensor], Tensor]
) -> None:
    """By its whole path; silent dropout differs in nothing."""

    def of(function: Callable[[Tensor], Tensor]) -> nn.Module:
        inner = nn.Sequential(nn.Linear(3, 3), Apply(function))
        graph = traced(nn.Sequential(inner, nn.Linear(3, 3)))
        assert graph is not None
        return graph

    assert place_of_difference(of(one), of(other)) == "0.1"
    assert place_of_difference(of(other), of(one))
    assert place_of_difference(of(one), of(one)) is None
    silent = [of(lambda h, mode=mode: F.dropout(h, 0.0, mode)) for mode in (True, False)]
    assert place_of_difference(*silent) is None


def test_constants_and_weights_of_an_inner_layer_are_found() -> None:
    assert together(nn.Sequential(Net(lambda m, h: h * m.row)))
    for reads, function in ((True, lambda m, h: h @ m.first.weight), (False, lambda m, h: h)):
        graph = traced(nn.Sequential(Net(function)))
        assert graph is not None and reads_weights(graph) is reads


@pytest.mark.parametrize("training", [True, False])
def test_a_model_that_looks_at_values_in_one_mode_only_is_refused(training: bool) -> None:
    """It has a graph in the other mode alone, and made-up records do not tell the two apart."""

    class Looking(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            if self.training is training and bool((x.abs() > 1e9).any()):
                return x.clamp(-1e9, 1e9)
            return x

    with pytest.raises(
        ValueError, match=r"\(Sequential\) computes something else in training mode"
    ):
        refuse_state(nn.Sequential(nn.Linear(4, 4), Looking()), torch.ones(2, 4))


def test_a_model_without_a_graph_is_refused_where_its_modes_differ() -> None:
    class Looking(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            x = x.clamp(-1e9, 1e9) if bool((x.abs() > 1e9).any()) else x
            return 2 * x if self.training else x

    with pytest.raises(ValueError, match="computes something else in training mode"):
        refuse_state(nn.Sequential(nn.Linear(4, 4), Looking()), torch.ones(2, 4))


def test_a_state_that_records_of_one_shape_change_is_found_with_them() -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.seen = nn.Linear(1, 2), 0

        def forward(self, x: Tensor) -> Tensor:
            self.seen += x.shape[1] > 3
            return self.layer(x.sum(1, keepdim=True))

    gradients = RecordGradients(Counting())
    gradients.refuse_mixing(torch.ones(1, 2, 3), torch.zeros(1, 2, dtype=torch.long))
    with pytest.raises(ValueError, match="changes its 'seen'"):
        gradients.refuse_mixing(torch.ones(1, 2, 4), torch.zeros(1, 2, dtype=torch.long))


@pytest.mark.parametrize("records", [3, 8, 64])
def test_mixing_in_larger_batches_only_is_seen(records: int) -> None:
    """By a branch on the size, which leaves no graph: kills a trial of pairs."""
    module = nn.Sequential(
        Apply(lambda h: h - h.mean(0) if len(h) >= records else h), nn.Linear(4, 3)
    )
    with pytest.raises(ValueError, match="influence cannot be bounded"):
        RecordGradients(module).refuse_mixing(
            torch.ones(1, 2, 4), torch.zeros(1, 2, dtype=torch.long)
        )


def test_missing_entries_filled_in_by_the_batch_are_seen() -> None:
    """Also where some of a record is missing, or where only a whole one is filled in: kills a
    trial without entries that are 0 among others, and one without a record of zeros."""
    some = lambda x: torch.where((x != 0).any(1, keepdim=True), impute(x), x)  # noqa: E731
    whole = lambda x: torch.where((x != 0).any(1, keepdim=True), x, impute(x))  # noqa: E731
    x, y = torch.ones(1, 2, 4), torch.zeros(1, 2, dtype=torch.long)
    for operation in (impute, some, whole):
        with pytest.raises(ValueError, match="influence cannot be bounded"):
            RecordGradients(nn.Sequential(Apply(operation), nn.Linear(4, 3))).refuse_mixing(x, y)


def test_a_hook_on_a_layer_is_no_operation_of_the_list() -> None:
    """Kills a program that forgets what a hook does, or runs it unseen."""
    module = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3))
    assert together(module, (4,))
    module[0].register_forward_hook(lambda layer, inputs, output: output - output.mean(0))
    assert not together(module, (4,))


@pytest.mark.parametrize("kind", ["forward", "forward_pre", "full_backward", "full_backward_pre"])
def test_a_layer_with_a_hook_of_any_kind_has_no_program(kind: str) -> None:
    """One on the way back may mix what records send to the weights."""
    module = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3))
    assert program.traced(module) is not None
    getattr(module[0], f"register_{kind}_hook")(lambda *given: None)
    assert program.traced(module) is None


def test_the_program_runs_and_not_the_model() -> None:
    """Real records never meet the model's own Python where they are computed together."""
    calls = []

    class Spy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            calls.append(x)
            return self.layer(x)

    gradients = RecordGradients(module := Spy())
    x, y = torch.ones(2, 5, 4), torch.zeros(2, 5, dtype=torch.long)
    assert gradients.is_tapped(x, y)
    calls.clear()
    params = gradients.layout.initial(module).expand(2, -1)
    gradients.norms(params, x, y), gradients.losses(params, x, y), gradients.logits(params, x)
    assert not calls
