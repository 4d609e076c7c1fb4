"""Models whose records mix are refused; all others are not, at any size of the numbers."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from mechanisms.gradients import record_trial
from mechanisms.gradients.forms import long_norms
from mechanisms.gradients.record_gradients import RecordGradients
from sim.data.words import Words
from sim.models.networks import NAMES, build
from tests.record_models import GENERAL, MIXING, TAPPED, Apply, Case, plain_gradients
from tests.test_gradients import by_case, clip

SHAPES = {
    "cnn-scattering": (81, 7, 7),
    "cnn-scattering-cifar": (243, 8, 8),
    "cnn-cifar": (3, 32, 32),
    "lstm": (80,),
}


def drawn(case: Case, records: int = 3) -> tuple[nn.Module, Tensor, Tensor]:
    """A model of the case, records `[1, records, ...]` and targets."""
    with torch.random.fork_rng():
        torch.manual_seed(7)
        shape = (1, records, *case.shape)
        x = torch.randint(0, 7, shape) if case.indices else torch.randn(shape)
        return case.model(), x, torch.randint(0, 3, (1, records))


@by_case(MIXING)
@pytest.mark.parametrize("ask", ["losses", "norms", "scaled_sum", "refuse_mixing"])
def test_records_that_mix_are_refused_before_any_loss_or_gradient_is_given(
    case: Case, ask: str
) -> None:
    """Kills a trial of small records only, of gradients only, and losses without one."""
    module, x, y = drawn(case)
    gradients = RecordGradients(module)
    params = gradients.layout.initial(module)[None]
    arguments = {
        "losses": (params, x, y),
        "norms": (params, x, y),
        "scaled_sum": (params, x, y, clip),
    }.get(ask, (x, y))
    for _ in range(2):
        with pytest.raises(ValueError, match="influence cannot be bounded"):
            getattr(gradients, ask)(*arguments)


@by_case({**TAPPED, **GENERAL})
def test_records_that_do_not_mix_are_not_refused(case: Case) -> None:
    module, x, y = drawn(case)
    RecordGradients(module).refuse_mixing(x, y)


@pytest.mark.parametrize(
    ("activation", "wide"), [("tanh", False), ("relu", False), ("relu", True)], ids=str
)
@pytest.mark.parametrize("name", NAMES)
def test_every_model_of_the_table_is_tried_and_takes_the_fast_route(
    name: str, activation: str, wide: bool
) -> None:
    """Also where a loss allows no other type than the model's own, so that there are fewer
    digits."""
    shape, words = SHAPES.get(name, (1, 28, 28)), Words(50) if name == "lstm" else None
    module, rng = build(name, shape, 10, 0, activation, words), np.random.default_rng(0)
    weights = torch.linspace(0.5, 2, 10)

    def loss(output: Tensor, y: Tensor) -> Tensor:
        return nn.functional.cross_entropy(
            output, y, weights.to(output) if wide else weights, reduction="none"
        )

    x = (
        torch.from_numpy(rng.integers(0, 50, (1, 2, *shape)))
        if words
        else torch.zeros(1, 2, *shape)
    )
    assert RecordGradients(module, loss).is_tapped(x, torch.zeros(1, 2, dtype=torch.long))


@pytest.mark.parametrize(
    "operation",
    [
        torch.exp,
        lambda h: h / h.norm(dim=1, keepdim=True),
        lambda h: h.clamp(-50, 50),
        lambda h: h.softmax(1),
    ],
    ids=["exp", "norm", "clamp", "softmax"],
)
def test_operations_of_a_record_alone_are_allowed(operation) -> None:
    """Also where a large record's result is no number, or its gradient is nothing but rounding."""
    for seed in range(5):
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            module = nn.Sequential(nn.Linear(20, 8), Apply(operation), nn.Linear(8, 3))
        assert RecordGradients(module).is_tapped(
            torch.zeros(1, 2, 20), torch.zeros(1, 2, dtype=torch.long)
        )


def test_a_model_may_refuse_large_records() -> None:
    def within(x: Tensor) -> Tensor:
        if bool((x.abs() > 50).any()):
            raise IndexError("too large")
        return x

    x, y = torch.zeros(1, 2, 4), torch.zeros(1, 2, dtype=torch.long)
    assert not RecordGradients(nn.Sequential(Apply(within), nn.Linear(4, 3))).is_tapped(x, y)
    mixes = nn.Sequential(Apply(within), Apply(lambda x: x - x.mean(0)), nn.Linear(4, 3))
    with pytest.raises(ValueError, match="influence cannot be bounded"):
        RecordGradients(mixes).refuse_mixing(x, y)


class Around(nn.Module):
    """The weight is read around the layer where a record is large."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = self.layer(x)
        return h + torch.where(
            h.abs().amax(1, keepdim=True) > 30, 1e-3 * h @ self.layer.weight, 0.0
        )


class Renamed(Around):
    """A tensor is changed under another name, which a graph of operations does not show."""

    def forward(self, x: Tensor) -> Tensor:
        h = output = self.layer(x)
        h += torch.where(h.abs().amax(1, keepdim=True) > 30, 0.5 * h, 0.0)
        return output


class Unfollowed(Around):
    """A part that has no gradient, which a graph of operations does not show."""

    def forward(self, x: Tensor) -> Tensor:
        h = self.layer(x)
        with torch.no_grad():
            more = torch.where(h.abs().amax(1, keepdim=True) > 30, 0.5 * h, 0.0)
        return h + more


@pytest.mark.parametrize("model", [Around, Renamed, Unfollowed])
def test_a_difference_of_the_fast_route_at_large_records_costs_that_route(
    model: type[nn.Module],
) -> None:
    """Gradients that the fast route would get wrong above a size only."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        module = model()
    gradients, x, y = RecordGradients(module), 1e3 * torch.ones(1, 2, 4), torch.tensor([[0, 2]])
    assert not gradients.is_tapped(x, y)
    params = gradients.layout.initial(module)[None]
    expected = plain_gradients(module, params, x, y).norm(dim=2)
    torch.testing.assert_close(gradients.norms(params, x, y), expected, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(gradients.logits(params, x)[0], module(x[0]).detach())


def test_what_is_tried_does_not_depend_on_the_records() -> None:
    """Equal records of words, of any label: a model that mixes is refused all the same, another one
    is tapped.

    Kills a trial on the records themselves, whose outcome would tell whether two of them are equal.
    """
    x, y = torch.arange(6).expand(2, 4, 6), torch.tensor([[0, 1, 2, 0]] * 2)
    mixing = RecordGradients(
        nn.Sequential(nn.Embedding(7, 3), Apply(lambda h: h.mean(1) / len(h)), nn.Linear(3, 3))
    )
    with pytest.raises(ValueError, match="influence cannot be bounded"):
        mixing.losses(torch.zeros(2, mixing.layout.size), x, y)
    for labels in (y, torch.zeros_like(y)):
        assert RecordGradients(
            nn.Sequential(nn.Embedding(7, 3), nn.Flatten(), nn.Linear(18, 3))
        ).is_tapped(x, labels)


@pytest.mark.parametrize("length", [5, 1024, 1025, 26_010, 3_000_000])
def test_long_norms_are_not_too_small(length: int) -> None:
    """Equal entries beside a few large ones: one sum over all loses 2e-5 of 26,010 and 3e-3 of
    3,000,000 in float32."""
    for value in (2.0**-12.6, 2.0**-11.8, 0.7312):
        rows = torch.full((2, 1, length), value)
        rows[1, :, :16] = 1.0
        exact = rows.double().norm(dim=2)
        torch.testing.assert_close(long_norms(rows).double(), exact, rtol=5e-6, atol=0)
    assert long_norms(torch.tensor([3.0, torch.nan]).repeat(700)).isnan()
    short = torch.randn(3, 7)
    assert torch.equal(long_norms(short), torch.linalg.vector_norm(short, dim=1))


def test_a_little_mixing_of_large_records_whose_outputs_are_small_is_seen() -> None:
    """An error allowed is one of rounding, also where numbers of size 1 are made from large ones.
    Kills an error that may be as large as a record."""

    def saturated(x: Tensor) -> Tensor:
        mixed = (x.amax(dim=0, keepdim=True) > 2e3) & (x < -2e3)
        return x / (1 + x.abs()) + 1e-4 * mixed

    gradients = RecordGradients(nn.Sequential(Apply(saturated), nn.Linear(4, 3)))
    with pytest.raises(ValueError, match="gives a record another output or loss in a batch"):
        gradients.refuse_mixing(torch.ones(1, 2, 4), torch.zeros(1, 2, dtype=torch.long))


def test_the_size_of_numbers_has_no_sign() -> None:
    """Rounding of large negative outputs is no mixing."""
    assert record_trial._largest(torch.tensor([-5.0, 2.0, torch.nan, torch.inf])) == 5.0
