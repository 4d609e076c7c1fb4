import pytest
import torch
from torch import nn

from mechanisms.layout import Layout
from tests.record_models import Tied, frozen


def model() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 3), nn.BatchNorm1d(3, affine=False)
    )


@pytest.mark.parametrize("lead", [(), (2,), (2, 5), (0,)])
def test_unflatten_and_flatten_are_inverse(lead: tuple[int, ...]) -> None:
    layout = Layout.of(model())
    flat = torch.arange(float(layout.size)).expand(*lead, -1)
    assert torch.equal(layout.flatten(layout.unflatten(flat)), flat)


def test_a_row_is_in_the_models_order_whatever_the_order_of_the_names() -> None:
    layout = Layout.of(model())
    named = layout.unflatten(torch.arange(float(layout.size)))
    assert torch.equal(
        layout.flatten(dict(reversed(named.items()))), torch.arange(float(layout.size))
    )


@pytest.mark.parametrize(
    "module", [nn.Linear(3, 2, bias=False), nn.Linear(3, 2)], ids=["one", "two"]
)
def test_the_initial_row_is_a_copy(module: nn.Module) -> None:
    row = Layout.of(module).initial(module)
    kept = row.clone()
    with torch.no_grad():
        module.weight.add_(1.0)
    assert torch.equal(row, kept) and not torch.equal(Layout.of(module).initial(module), kept)


def test_order_and_shapes_are_those_of_the_model() -> None:
    layout = Layout.of(model())
    assert layout.names == ("0.weight", "0.bias", "2.weight", "2.bias")
    assert layout.shapes == ((2, 1, 3, 3), (2,), (3, 8), (3,))
    assert layout.offsets == (0, 18, 20, 44) and layout.size == 47


def test_unflatten_gives_views() -> None:
    layout = Layout.of(model())
    flat = torch.zeros(2, layout.size)
    layout.unflatten(flat)["2.bias"][1, 2] = 5.0
    assert flat[1, -1] == 5.0 and flat.sum() == 5.0


def test_initial_is_a_copy_of_the_trainable_parameters() -> None:
    module = model()
    layout = Layout.of(module)
    start = layout.initial(module)
    assert torch.equal(start, nn.utils.parameters_to_vector(module.parameters()))
    start.zero_()
    assert module[0].weight.abs().sum() > 0


def test_frozen_parameters_are_left_out_and_shared_ones_count_once() -> None:
    assert Layout.of(frozen(model(), "0.weight")).names == ("0.bias", "2.weight", "2.bias")
    assert Layout.of(Tied()).size == 20


def test_scalar_parameter() -> None:
    module = nn.ParameterList([nn.Parameter(torch.tensor(2.0))])
    layout = Layout.of(module)
    assert layout.size == 1 and layout.unflatten(torch.ones(3, 1))["0"].shape == (3,)
    assert layout.flatten({"0": torch.ones(3)}).shape == (3, 1)


def test_wrong_input_is_refused_by_name() -> None:
    layout = Layout.of(nn.Linear(2, 1))
    with pytest.raises(ValueError, match=r"\(4,\).*P = 3"):
        layout.unflatten(torch.zeros(4))
    with pytest.raises(ValueError, match="bias"):
        layout.flatten({"weight": torch.zeros(1, 2)})
    with pytest.raises(ValueError, match=r"weight has shape \(2, 1\)"):
        layout.flatten({"weight": torch.zeros(2, 1), "bias": torch.zeros(1)})
    with pytest.raises(ValueError, match="0 trainable"):
        Layout.of(nn.ReLU())


def test_a_frozen_layer_may_stand_at_two_places():
    """It keeps its parameters, as none of them is replaced in a forward pass."""
    twice = nn.Linear(3, 3).requires_grad_(False)
    module = nn.Sequential(twice, nn.ReLU(), twice, nn.Linear(3, 2))
    layout, x = Layout.of(module), torch.ones(4, 3)
    before = module(x)
    named = layout.unflatten(layout.initial(module))
    torch.testing.assert_close(torch.func.functional_call(module, named, (x,)), before)
    torch.testing.assert_close(module(x), before)
    assert layout.names == ("3.weight", "3.bias") and twice.weight is module[2].weight
