"""Clip factors: what one record adds to a sum has norm at most C."""

import math

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from mechanisms.clipping import CLIPPING

NORMS = st.floats(0, width=32) | st.sampled_from([0.0, 1e-30, 1.0, math.inf, math.nan])
BOUNDS = st.floats(2**-20, 2**40, width=32) | st.just(math.inf)


def factor(norm: float, bound: float, clipping: str = "flat") -> float:
    return float(CLIPPING[clipping](torch.tensor([[norm]]), torch.tensor([bound])))


@pytest.mark.parametrize("clipping", CLIPPING)
@example(norm=1.9574989580290706e37, bound=2**-7)
@given(norm=NORMS, bound=BOUNDS.filter(math.isfinite))
def test_a_scaled_record_is_within_the_bound(clipping, norm, bound):
    """Kills a factor without its minimum, one that lets a NaN or infinite record through, and a
    subnormal one."""
    scale = factor(norm, bound, clipping)
    assert scale == 0 if not math.isfinite(norm) else 0 <= scale * norm <= bound * (1 + 1e-6)


@given(NORMS.filter(math.isfinite), BOUNDS)
def test_flat_clipping_does_no_more_than_it_must(norm, bound):
    """Kills scaling every record to norm C, a clip at less than C, and a factor above 1."""
    expected = 1.0 if norm <= bound else bound / norm
    assert math.isclose(factor(norm, bound), expected, rel_tol=1e-6, abs_tol=1e-37)


@given(st.floats(2**-20, 2**40, width=32), BOUNDS.filter(math.isfinite))
def test_automatic_clipping_brings_every_record_near_the_bound(norm, bound):
    """By the share that its stabiliser 0.01 leaves; AUTO-S, equation 4."""
    assert math.isclose(
        factor(norm, bound, "auto") * norm,
        bound * norm / (norm + 0.01),
        rel_tol=1e-5,
        abs_tol=1e-37,
    )


@pytest.mark.parametrize("wrong", [math.inf, math.nan])
def test_a_record_without_a_finite_norm_counts_for_nothing_even_unclipped(wrong):
    assert factor(wrong, math.inf) == 0


@pytest.mark.parametrize("clipping", CLIPPING)
def test_every_client_has_its_own_bound(clipping):
    """Kills a bound along the wrong axis."""
    factors = CLIPPING[clipping](torch.full((2, 2), 4.0), torch.tensor([1.0, 2.0]))
    assert torch.equal(2 * factors[0], factors[1]) and factors[0, 0] == factors[0, 1] > 0.24


@pytest.mark.parametrize("clipping", CLIPPING)
def test_no_clients_and_no_records(clipping):
    assert CLIPPING[clipping](torch.ones(0, 3), torch.ones(0)).shape == (0, 3)
    assert CLIPPING[clipping](torch.ones(2, 0), torch.ones(2)).shape == (2, 0)
