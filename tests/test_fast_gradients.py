"""Which models take the fast route, and that it computes what the general one does."""

from collections.abc import Callable
from contextlib import nullcontext
from types import ModuleType

import pytest
import torch
from torch import nn

from mechanisms.gradients import convolution_tap, windows
from mechanisms.gradients.convolution_tap import all_clients, each_client
from mechanisms.gradients.forms import Held, Pass, outer_products
from mechanisms.gradients.image_format import channels_last, keep_format
from mechanisms.gradients.materialised import Vectorized
from mechanisms.gradients.record_gradients import RecordGradients, cross_entropy
from mechanisms.gradients.routes import _agree
from mechanisms.gradients.tapped import Tapped
from mechanisms.gradients.taps import LinearTap, Untappable
from mechanisms.layout import Layout
from mechanisms.metric import IDENTITY
from tests.record_models import (
    GENERAL,
    TAPPED,
    Apply,
    Case,
    averaged,
    plain_gradients,
    problem,
    shared,
)
from tests.test_gradients import ROUNDING, by_case, clip


@by_case(TAPPED)
def test_these_models_take_the_fast_route(case: Case) -> None:
    p = problem(case)
    assert p.gradients.is_tapped(p.x, p.y)


@by_case(GENERAL)
def test_these_models_take_the_general_route(case: Case) -> None:
    p = problem(case)
    assert not p.gradients.is_tapped(p.x, p.y)


def network(*tail: nn.Module) -> nn.Sequential:
    """The MNIST network of the DPSUR paper's appendix, with its 26,010 parameters."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 8, 2, 2),
        nn.Tanh(),
        nn.MaxPool2d(2, 1),
        nn.Conv2d(16, 32, 4, 2),
        nn.Tanh(),
        nn.MaxPool2d(2, 1),
    ).extend(tail or [nn.Flatten(), nn.Linear(512, 32), nn.Tanh(), nn.Linear(32, 10)])


def images(clients: int, records: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(clients, records, 1, 28, 28, generator=generator)
    return x, torch.randint(0, 10, (clients, records), generator=generator)


def test_fast_equals_general_in_float32() -> None:
    module, (x, y) = network(), images(2, 8)
    gradients = RecordGradients(module)
    params = gradients.layout.initial(module) * torch.tensor([[1.0], [0.7]])
    total, norms = gradients.scaled_sum(params, x, y, clip)
    general = Vectorized(module, cross_entropy, gradients.layout).run(params, x, y, IDENTITY)
    expected = general.squared_norms().sqrt()
    assert gradients.layout.size == 26_010 and gradients.is_tapped(x, y)
    torch.testing.assert_close(norms, expected, rtol=1e-5, atol=0)
    sums = gradients.layout.flatten(general.weighted_sums(clip(expected), None))
    torch.testing.assert_close(total, sums, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    "name", ["conv2d, stride, padding", "conv2d, groups", "conv2d, same, even kernel", "in place"]
)
def test_images_in_channels_last_layout(name: str) -> None:
    p = problem(TAPPED[name])
    x = channels_last(p.x.flatten(0, 1)).unflatten(0, p.x.shape[:2])
    total, norms = p.gradients.scaled_sum(p.params, x, p.y, clip)
    expected = plain_gradients(p.module, p.params, p.x, p.y)
    torch.testing.assert_close(norms, expected.norm(dim=2), **ROUNDING)
    torch.testing.assert_close(total, (clip(norms).unsqueeze(2) * expected).sum(1), **ROUNDING)


@pytest.mark.parametrize(
    "arrange", [channels_last, torch.Tensor.contiguous], ids=["channels last", "contiguous"]
)
def test_the_gradient_of_flattened_images_keeps_their_format(
    arrange: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    """And is the same gradient."""
    pool, seen = nn.MaxPool2d(2), []
    pool.register_forward_hook(keep_format)
    x = arrange(torch.randn(2, 4, 8, 8)).requires_grad_()
    output = pool(x)
    output.register_hook(seen.append)
    upstream = torch.randn(output.flatten(1).shape)
    output.flatten(1).backward(upstream)
    (plain,) = torch.autograd.grad(nn.functional.max_pool2d(x, 2).flatten(1), x, upstream)
    assert seen[0].stride() == output.stride() and torch.equal(x.grad, plain)


def test_a_model_that_cannot_take_channels_last_is_fast_without() -> None:
    module = network(Apply(lambda h: h.view(-1, 512)), nn.Linear(512, 10))
    gradients, (x, y) = RecordGradients(module), images(1, 3)
    params = gradients.layout.initial(module).unsqueeze(0)
    assert gradients.is_tapped(x, y)
    expected = plain_gradients(module, params, x, y).norm(dim=2)
    torch.testing.assert_close(gradients.norms(params, x, y), expected, rtol=1e-5, atol=0)


@pytest.mark.parametrize("clients", [1, 3])
@pytest.mark.parametrize(
    "options", [{}, {"stride": 2, "padding": 1, "groups": 2}, {"padding": "same", "dilation": 2}]
)
def test_convolutions_of_all_clients_at_once_are_those_of_each(
    clients: int, options: dict[str, object]
) -> None:
    generator = torch.Generator().manual_seed(5)
    layer = nn.Conv2d(4, 6, 3, **options)  # type: ignore[arg-type]
    weight, bias = (
        torch.randn(clients, *p.shape, generator=generator) for p in (layer.weight, layer.bias)
    )
    x = torch.randn(clients * 2, 4, 6, 5, generator=generator)
    rest = ((layer.stride, layer.padding, layer.dilation), layer.groups)
    for shift in (bias, None):
        torch.testing.assert_close(
            all_clients(x, weight, shift, *rest), each_client(x, weight, shift, *rest)
        )


def test_a_tap_follows_one_use_of_its_layer_on_the_records_as_they_come() -> None:
    tap = LinearTap(nn.Linear(2, 2))
    weights = {"weight": torch.ones(1, 2, 2, requires_grad=True), "bias": torch.ones(1, 2)}
    tap.bind(weights, records=3)
    with pytest.raises(Untappable, match="not used"):
        _ = tap.edge
    with pytest.raises(Untappable, match="start with the records"):
        tap.forward(torch.ones(6, 2))
    tap.forward(torch.ones(3, 2))
    with pytest.raises(Untappable, match="more than once"):
        tap.forward(torch.ones(3, 2))


def test_a_weight_that_is_read_around_its_layer_costs_the_fast_route() -> None:
    """Where no trial looks: records beyond its sizes. Kills taps that miss a part of a gradient,
    whose norm would come out too small."""

    class Around(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            beyond = torch.relu(x.amax(dim=1, keepdim=True) - 1e6)
            return self.layer(x) + beyond * self.layer.weight.mean(dim=1)

    gradients = RecordGradients(Around())
    x, y = torch.ones(1, 2, 3), torch.zeros(1, 2, dtype=torch.long)
    assert not gradients.is_tapped(x, y) and RecordGradients(nn.Linear(3, 2)).is_tapped(x, y)


@pytest.mark.parametrize("inputs", [3, 243 * 8 * 8, 3 * 224 * 224])
def test_a_linear_model_takes_the_fast_way_however_many_inputs_it_has(inputs: int) -> None:
    """Kills made-up parameters of one size, with which the losses of wide layers are saturated and
    their gradients are rounding; CIFAR-10's scattering features took 28 times as long."""
    gradients = RecordGradients(nn.Linear(inputs, 10))
    assert gradients.is_tapped(torch.ones(1, 2, inputs), torch.zeros(1, 2, dtype=torch.long))


def test_a_layer_with_a_forward_of_its_own_has_no_tap() -> None:
    class Doubled(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return 2 * super().forward(x)

    for layer, taken in ((nn.Linear(3, 2), True), (Doubled(3, 2), False)):
        module = nn.Sequential(layer)
        with nullcontext() if taken else pytest.raises(Untappable, match="of no kind"):
            Tapped(module, cross_entropy, Layout.of(module), lambda records: records)


def test_gradients_of_equal_norms_and_other_directions_do_not_agree() -> None:
    """Kills a comparison of norms alone."""
    own = torch.randn(1, 2, 1, 3, generator=torch.Generator().manual_seed(0))
    one, same, other = (Pass({"weight": Held(g)}) for g in (own, own.clone(), -own))
    floor = torch.zeros(1, 2)
    assert _agree(1e-6, floor, one, same) and not _agree(1e-6, floor, one, other)


def test_gradients_of_equal_sums_and_other_norms_do_not_agree() -> None:
    """Also where the norm of one record alone differs. Kills a comparison of sums alone."""
    floor = torch.zeros(1, 2)
    rows = [[[1.0, 0.0], [1.0, 0.0]], [[0.0, 1.0], [3.0, -2.0]]]
    one, other = (Pass({"weight": Held(torch.tensor(g).view(1, 2, 1, 2))}) for g in rows)
    factors = torch.tensor([[1.0, 0.5]])
    sums = [either.weighted_sums(factors, None)["weight"] for either in (one, other)]
    assert torch.equal(*sums)
    assert not _agree(1e-6, floor, other, one)


@pytest.mark.parametrize("wrong", [torch.nan, torch.inf])
def test_gradients_of_which_one_alone_is_finite_do_not_agree(wrong: float) -> None:
    """Also where only the other way's is. Kills a comparison of what is finite alone."""
    floor = torch.zeros(1, 2)
    rows = [[[1.0, 0.0], [2.0, 1.0]], [[1.0, 0.0], [2.0, wrong]]]
    one, other = (Pass({"weight": Held(torch.tensor(g).view(1, 2, 1, 2))}) for g in rows)
    assert _agree(1e-6, floor, one, one)
    assert not _agree(1e-6, floor, one, other) and not _agree(1e-6, floor, other, one)


@pytest.mark.parametrize("name", [name for name in TAPPED if "wide" in name])
def test_wide_convolutions_in_float32(name: str) -> None:
    """Many pixels and channels: sums of many terms; and a record that is not finite must not reach
    others."""
    case = TAPPED[name]
    module, generator = case.model(), torch.Generator().manual_seed(3)
    x, y = torch.randn(2, 3, *case.shape, generator=generator), torch.zeros(2, 3, dtype=torch.long)
    gradients = RecordGradients(module)
    params = gradients.layout.initial(module) * torch.tensor([[1.0], [0.7]])
    total, norms = gradients.scaled_sum(params, x, y, clip)
    general = Vectorized(module, cross_entropy, gradients.layout).run(params, x, y, IDENTITY)
    expected = general.squared_norms().sqrt()
    torch.testing.assert_close(norms, expected, rtol=1e-4, atol=0)
    sums = gradients.layout.flatten(general.weighted_sums(clip(expected), None))
    torch.testing.assert_close(total, sums, rtol=1e-4, atol=1e-6)
    x[0, 1] = torch.inf
    finite = gradients.norms(params, x, y).isfinite()
    assert not finite[0, 1] and finite.sum() == 5


CONVOLUTIONS = [name for name in TAPPED if name.startswith("conv")]


@pytest.mark.parametrize(
    ("module", "constant", "value"),
    [(convolution_tap, "_STRETCH", 1), (windows, "_RUN", 0), (windows, "_RUN", 2**62)],
)
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_how_windows_are_copied_changes_no_bit(
    name: str, module: ModuleType, constant: str, value: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Record by record, with windows laid out all at once, or one dimension after the other."""
    p = shared(TAPPED[name])
    expected = p.gradients.scaled_sum(p.params, p.x, p.y, clip)
    monkeypatch.setattr(module, constant, value)
    found = p.gradients.scaled_sum(p.params, p.x, p.y, clip)
    assert p.gradients.is_tapped(p.x, p.y)
    assert all(map(torch.equal, found, expected))


@pytest.mark.parametrize(
    ("constant", "value"),
    [("_WIDE", 1), ("_WIDE", 2**62), ("_rows_aside", lambda layer: layer.kernel_size[0])],
)
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_shifts_along_no_one_and_all_dimensions_give_the_same_gradients(
    name: str, constant: str, value: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    p = problem(TAPPED[name])
    monkeypatch.setattr(windows, constant, value)
    expected = plain_gradients(p.module, p.params, p.x, p.y)
    total, norms = p.gradients.scaled_sum(p.params, p.x, p.y, clip)
    assert p.gradients.is_tapped(p.x, p.y)
    torch.testing.assert_close(norms, expected.norm(dim=2), **ROUNDING)
    summed = (clip(norms).unsqueeze(2) * expected).sum(1)
    torch.testing.assert_close(total, summed, **ROUNDING)


def test_gradients_leave_the_callers_module_and_the_global_generator_alone() -> None:
    module, (x, y) = network(), images(1, 2)
    before, state = [p.clone() for p in module.parameters()], torch.random.get_rng_state()
    gradients = RecordGradients(module)
    gradients.scaled_sum(gradients.layout.initial(module).unsqueeze(0), x, y, clip)
    assert all(
        torch.equal(p, q) and p.grad is None
        for p, q in zip(module.parameters(), before, strict=True)
    )
    assert torch.equal(torch.random.get_rng_state(), state)
    assert type(module[0]).forward is nn.Conv2d.forward and "forward" not in vars(module[0])


def test_equal_inputs_give_equal_bits() -> None:
    module, (x, y) = network(), images(3, 5)
    runs = []
    for _ in range(2):
        gradients = RecordGradients(module)
        params = gradients.layout.initial(module).expand(3, -1)
        runs.append(torch.cat(gradients.scaled_sum(params, x, y, clip), dim=1))
    assert torch.equal(*runs)


def test_an_embedding_scaled_by_frequency_is_not_tapped_though_a_probe_without_repeats_agrees() -> (
    None
):
    gradients = RecordGradients(averaged(nn.Embedding(7, 3, scale_grad_by_freq=True)))
    assert not gradients.is_tapped(
        torch.arange(6).view(1, 3, 2), torch.zeros(1, 3, dtype=torch.long)
    )


def test_outputs_that_are_asked_for_first_do_not_decide_how_losses_are_computed() -> None:
    """A loss that looks at values in Python cannot be vectorized, though the model can."""

    def branching(output: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        losses = cross_entropy(output, y)
        return losses * 2 if bool((losses > -1).all()) else losses

    reverse = Apply(lambda h: torch.flip(h, [-1]))  # not on the list of operations
    module = nn.Sequential(reverse, nn.Linear(4, 3))
    gradients, plain = RecordGradients(module, branching), RecordGradients(module)
    params, x = gradients.layout.initial(module)[None], torch.randn(1, 3, 4)
    y = torch.tensor([[0, 2, 1]])
    gradients.logits(params, x)
    torch.testing.assert_close(gradients.norms(params, x, y), 2 * plain.norms(params, x, y))
    torch.testing.assert_close(gradients.losses(params, x, y), 2 * plain.losses(params, x, y))


def test_a_model_that_branches_on_its_parameters_takes_those_of_several_clients() -> None:
    """One client's could be vectorized: a round of several was paid for, and failed."""

    class Bounded(nn.Linear):
        def forward(self, input: torch.Tensor) -> torch.Tensor:
            output = super().forward(input)
            return output / 2 if bool(self.weight.abs().amax() > 1) else output

    module = Bounded(4, 3)
    gradients, x = RecordGradients(module), torch.randn(2, 3, 4)
    params = gradients.layout.initial(module) * torch.tensor([[1.0], [100.0]])
    y = torch.tensor([[0, 2, 1], [1, 1, 0]])
    alone = [gradients.norms(params[k : k + 1], x[k : k + 1], y[k : k + 1]) for k in range(2)]
    torch.testing.assert_close(gradients.norms(params, x, y), torch.cat(alone))


def test_a_loss_bound_to_its_type_is_fast_too() -> None:
    weights = torch.tensor([1.0, 2.0, 0.5])
    gradients = RecordGradients(
        nn.Linear(4, 3),
        lambda output, y: nn.functional.cross_entropy(output, y, weights, reduction="none"),
    )
    assert gradients.is_tapped(torch.ones(1, 2, 4), torch.zeros(1, 2, dtype=torch.long))


def test_a_loss_without_gradient_takes_the_general_route() -> None:
    """Nothing can be compared there: the made-up targets are 1."""
    gradients = RecordGradients(nn.Linear(4, 3), lambda output, y: output.sum(1) * (y - 1))
    assert not gradients.is_tapped(torch.ones(1, 2, 4), torch.zeros(1, 2))
    assert RecordGradients(nn.Linear(4, 3), lambda output, y: output.sum(1) * y).is_tapped(
        torch.ones(1, 2, 4), torch.zeros(1, 2)
    )


def test_products_whose_terms_cancel_are_clipped_as_they_are_added_up() -> None:
    """Two positions that cancel but for rounding: what is added up has the norm that was clipped.
    Kills norms from Gram matrices, which are right about real numbers and not about the sum.
    """
    for size in (1.0, 1e8, 1.7e9, 1e15):
        left = torch.randn(1, 1, 1, 2, 40, generator=torch.Generator().manual_seed(1))
        left[..., 1, :] = -left[..., 0, :]
        right = size * torch.randn(
            1, 1, 1, 1, 40, generator=torch.Generator().manual_seed(2)
        ).expand(-1, -1, -1, 2, -1)
        form = outer_products(left, right.contiguous(), lambda total: total)
        norm = form.squared_norms().sqrt()
        total = form.weighted_sum(torch.ones(1, 1), None)
        torch.testing.assert_close(total.norm(), norm.squeeze(), rtol=1e-6, atol=0)


@pytest.mark.parametrize("records", [1, 5])
def test_products_at_one_position_are_not_formed_and_others_are(records: int) -> None:
    def entries(positions: int, width: int) -> int:
        left = torch.ones(1, records, 1, positions, width)
        return outer_products(left, left, lambda total: total).entries // records

    assert entries(1, 40) == 80
    assert entries(2, 40) == 160 + 1600


def test_a_tensor_with_two_names_that_is_written_into_is_what_the_model_makes_of_it() -> None:
    """A graph of operations knows one of the names only. Kills a graph that is not compared with
    the model."""

    class Aliased(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            h = self.layer(x)
            kept = h
            h += 1.0 + torch.relu(h)
            return kept

    module, generator = Aliased(), torch.Generator().manual_seed(6)
    x, y = torch.randn(1, 5, 4, generator=generator), torch.arange(5)[None] % 3
    gradients = RecordGradients(module)
    params, output = gradients.layout.initial(module)[None], module(x[0])
    torch.testing.assert_close(gradients.logits(params, x)[0], output)
    torch.testing.assert_close(gradients.losses(params, x, y)[0], cross_entropy(output, y[0]))
    expected = plain_gradients(module, params, x, y)
    torch.testing.assert_close(gradients.norms(params, x, y), expected.norm(dim=2))


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("hidden", [nn.Linear(4, 4), nn.GRUCell(4, 4)], ids=["fast", "general"])
def test_later_changes_of_the_callers_module_change_nothing(hidden: nn.Module) -> None:
    """Its constants are those that it had."""
    module = nn.Sequential(hidden.requires_grad_(False), nn.Linear(4, 3))
    x, y = torch.ones(1, 2, 4), torch.tensor([[0, 2]])
    gradients = RecordGradients(module)
    params = gradients.layout.initial(module)[None]
    before = gradients.norms(params, x, y), gradients.logits(params, x)
    with torch.no_grad():
        for constant in hidden.parameters():
            constant.mul_(3.0).add_(0.5)
    assert torch.equal(gradients.norms(params, x, y), before[0]) and torch.equal(
        gradients.logits(params, x), before[1]
    )
    assert not torch.equal(RecordGradients(module).norms(params, x, y), before[0])
