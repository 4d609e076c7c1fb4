"""NumPy's hyperbolic tangent is that of torch, with its gradient, its format and its manners."""

import warnings

import pytest
import torch
from torch import nn

from mechanisms.gradients.hyperbolic import tanh, tanh_into
from mechanisms.gradients.record_gradients import RecordGradients
from tests import small

X = torch.linspace(-20, 20, 2 * 3 * 5 * 7).view(2, 3, 5, 7)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_values_are_those_of_torch_in_every_format(dtype: torch.dtype) -> None:
    for x in (X, X.contiguous(memory_format=torch.channels_last), X[..., ::2], X[:0]):
        found = tanh(x.to(dtype))
        torch.testing.assert_close(found, x.to(dtype).tanh(), rtol=1e-6, atol=0)
        assert found.stride() == x.to(dtype).tanh().stride()


def test_the_gradient_is_that_of_its_differences() -> None:
    x = X[0, 0].double().div(10).requires_grad_()
    assert torch.autograd.gradcheck(tanh, x)


def test_it_is_quiet_about_numbers_that_are_not_finite() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = tanh_into(torch.empty(4), torch.tensor([torch.nan, torch.inf, -torch.inf, 1e30]))
    assert found[0].isnan() and found[1:].tolist() == [1, -1, 1]


def test_a_value_does_not_depend_on_its_place() -> None:
    x = X.flatten()
    whole = tanh(x)
    for shift in range(1, 20):
        assert torch.equal(tanh(x[shift:].clone()), whole[shift:])


def test_models_with_the_layer_compute_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """And the caller's own module does not."""
    module, calls = small.model(), []
    monkeypatch.setattr(
        "mechanisms.gradients.tapped.tanh", lambda x: calls.append(len(x)) or x.tanh()
    )
    gradients = RecordGradients(module)
    gradients.norms(gradients.layout.initial(module)[None], small.X[None, :7], small.Y[None, :7])
    assert 7 in calls and module[1].forward.__func__ is nn.Tanh.forward
