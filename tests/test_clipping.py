"""Clip factors: what one record adds to a sum has norm at most C."""

import math

import torch
from hypothesis import given
from hypothesis import strategies as st

from mechanisms.clipping import clip_factors

NORMS = st.floats(0, width=32) | st.sampled_from([0.0, 1e-30, 1.0, math.inf, math.nan])
BOUNDS = st.floats(2**-20, 2**40, width=32) | st.just(math.inf)


def factor(norm: float, bound: float) -> float:
    return float(clip_factors(torch.tensor([[norm]]), torch.tensor([bound])))


@given(NORMS, BOUNDS)
def test_a_scaled_record_is_within_the_bound(norm, bound):
    """Kills a factor without its minimum, and one that lets a NaN or infinite record through."""
    scale = factor(norm, bound)
    assert 0 <= scale <= 1
    assert not math.isfinite(norm) or scale * norm <= bound * (1 + 1e-6)


@given(NORMS.filter(math.isfinite), BOUNDS)
def test_clipping_does_no_more_than_it_must(norm, bound):
    """Kills scaling every record to norm C, and a clip at less than C."""
    expected = 1.0 if norm <= bound else bound / norm
    assert math.isclose(factor(norm, bound), expected, rel_tol=1e-6, abs_tol=1e-37)


@given(st.sampled_from([math.inf, math.nan]), BOUNDS)
def test_a_record_without_a_finite_norm_counts_for_nothing(norm, bound):
    assert factor(norm, bound) == 0


def test_every_client_has_its_own_bound():
    """Kills a bound along the wrong axis."""
    factors = clip_factors(torch.full((2, 2), 4.0), torch.tensor([1.0, 2.0]))
    assert factors.tolist() == [[0.25, 0.25], [0.5, 0.5]]


def test_no_clients_and_no_records():
    assert clip_factors(torch.ones(0, 3), torch.ones(0)).shape == (0, 3)
    assert clip_factors(torch.ones(2, 0), torch.ones(2)).shape == (2, 0)
