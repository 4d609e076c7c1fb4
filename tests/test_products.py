"""Products of many small matrices are what torch gives, in every layout, and leave the process as
it was."""

import itertools
import warnings

import pytest
import torch

from mechanisms.gradients import products as module
from mechanisms.gradients.products import products, small_products
from tests.devices import CPU, META, on

SIZES = [
    ((3,), 4, 5, 6),
    ((2, 3, 1), 32, 25, 16),
    ((2,), 1, 7, 3),
    ((2,), 3, 7, 1),
    ((2,), 4, 1, 5),
    ((), 3, 4, 2),
]


def matrices(
    lead: tuple[int, ...], m: int, t: int, n: int, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    left, right = (
        torch.randn(*lead, m, t, generator=generator),
        torch.randn(*lead, t, n, generator=generator),
    )
    return left.to(dtype), right.to(dtype)


def layouts(matrix: torch.Tensor) -> list[torch.Tensor]:
    """By rows, by columns, and neither."""
    return [matrix, matrix.mT.contiguous().mT, torch.stack([matrix, matrix], -1)[..., 0]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("size", SIZES)
def test_products_are_those_of_torch_in_every_layout(size: tuple, dtype: torch.dtype) -> None:
    left, right = matrices(*size, dtype)
    expected = left.double() @ right.double()
    tolerance = (
        {"rtol": 0.05, "atol": 0.1} if dtype == torch.bfloat16 else {"rtol": 1e-5, "atol": 1e-5}
    )
    for one, other in itertools.product(layouts(left), layouts(right)):
        found = products(one, other)
        assert found.dtype == dtype and found.shape == expected.shape
        torch.testing.assert_close(found.double(), expected, **tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_result_is_written_where_it_is_wanted(dtype: torch.dtype) -> None:
    left, right = matrices((4,), 3, 5, 2, dtype)
    whole = torch.zeros(6, 3, 2, dtype=dtype)
    found = products(left, right, whole[1:5])
    assert found.data_ptr() == whole[1:5].data_ptr() and torch.equal(
        whole[1:5], products(left, right)
    )
    assert not whole[0].any() and not whole[5].any()


@pytest.mark.parametrize(
    "size", [((0,), 2, 3, 4), ((2,), 0, 3, 4), ((2,), 2, 3, 0), ((2,), 2, 0, 4)]
)
def test_empty_products_are_zero(size: tuple) -> None:
    left, right = matrices(*size, torch.float32)
    assert torch.equal(products(left, right), left @ right)


def test_a_matrix_that_is_not_finite_spoils_its_own_product_only_and_without_a_warning() -> None:
    left, right = matrices((3,), 4, 5, 6, torch.float32)
    expected = products(left, right)
    left[1, 0, 0], right[1, 0, 1] = torch.inf, 0.0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = products(left, right)
    assert found[1, 0].isnan().any() and torch.equal(found[::2], expected[::2])


@pytest.mark.parametrize("rows", [31, 32, 33, 64, 96, 100, 132])
def test_products_in_parts_are_those_of_the_whole(
    rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever a processor's kernels for small matrices take; kills rows that no parts add up
    to."""
    monkeypatch.setattr(module, "small_product", lambda: 1.0)
    left, right = matrices((2,), rows, 5, 3, torch.float32)
    found = torch.empty(2, rows, 3)
    small_products(left, right, found)
    torch.testing.assert_close(found, left @ right)


def test_a_gpu_takes_products_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch copies the right side for each part, and a GPU's products gain nothing by that."""
    monkeypatch.setattr(module, "small_product", lambda: 1.0)
    parts: list[int] = []
    monkeypatch.setattr(module, "products", lambda left, right, out: parts.append(left.shape[-3]))
    given = (*matrices((2,), 64, 5, 3, torch.float32), torch.empty(2, 64, 3))
    for device in (CPU, META):
        small_products(*on(device, *given))
    assert parts == [4, 1]
