"""Sums of updates are exact, so that neither the order nor the grouping of clients changes a
bit."""

from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from client.sums import BLOCK, LIMIT, SCALE, WeightedSum, mean

CLIENTS, SIZE = 6, 3
UPDATES = arrays(np.float32, (CLIENTS, SIZE), elements=st.floats(-1000, 1000, width=32))
WEIGHTS = arrays(np.int64, CLIENTS, elements=st.integers(1, 10_000))


def summed(updates: np.ndarray, weights: np.ndarray, *chunks: np.ndarray) -> WeightedSum:
    total = WeightedSum(updates.shape[1])
    for chunk in chunks or [np.arange(len(updates))]:
        total.add(torch.from_numpy(updates[chunk]), weights[chunk])
    return total


@given(UPDATES, WEIGHTS, st.permutations(range(CLIENTS)), st.integers(1, CLIENTS - 1))
def test_order_and_grouping_change_no_bit(updates, weights, order, cut):
    """Chunks within a group, and groups: kills a sum in floating point anywhere on the way."""
    whole = summed(updates, weights)
    parts = [np.array(order[:cut]), np.array(order[cut:])]
    chunked, groups = (
        summed(updates, weights, *parts),
        [summed(updates, weights, part) for part in parts],
    )
    assert (chunked.total == whole.total).all() and chunked.weight == whole.weight == weights.sum()
    expected = mean([whole.total], whole.weight)
    assert (mean([g.total for g in groups], sum(g.weight for g in groups)) == expected).all()


@given(UPDATES, WEIGHTS)
def test_the_mean_is_the_weighted_mean(updates, weights):
    """Half a unit of 2^-32 for each client, and the rounding of one division."""
    total = summed(updates, weights)
    for column, value in zip(updates.T, mean([total.total], total.weight), strict=True):
        exact = sum(
            Fraction(float(u)) * int(w) for u, w in zip(column, weights, strict=True)
        ) / int(weights.sum())
        assert abs(float(exact) - value) <= 0.5 / SCALE + 1e-15 * abs(value)


def test_long_updates_are_summed_in_whole():
    """Several blocks of coordinates, the last of them shorter."""
    size = BLOCK + 3
    updates = np.random.default_rng(0).normal(size=(2, size)).astype(np.float32)
    units = np.rint(updates * np.float64(SCALE)).astype(np.int64)
    assert (summed(updates, np.array([3, 5])).total == 3 * units[0] + 5 * units[1]).all()


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf, LIMIT, -1e30])
def test_what_cannot_be_summed_is_refused(wrong):
    updates = np.ones((3, 2), np.float32)
    updates[1, 1] = wrong
    with pytest.raises(
        ValueError, match=r"client 1 of this chunk .* training diverged.* lower --lr"
    ):
        summed(updates, np.ones(3, np.int64))


@pytest.mark.parametrize("weight", [1, 1000])
def test_the_limit_is_on_the_weighted_sum_of_a_group(weight):
    """Each client alone fits. Kills a check of single clients, which lets the sum wrap around."""
    updates = np.full((3, 2), np.float32(0.4 * LIMIT / weight))
    weights = np.full(3, weight)
    assert summed(updates[:2], weights[:2]).total[0] == pytest.approx(0.8 * LIMIT * SCALE)
    with pytest.raises(ValueError, match="training diverged"):
        summed(updates, weights, np.arange(2), np.array([2]))


@pytest.mark.parametrize("sign", [1, -1])
def test_the_limit_is_on_the_sum_of_all_groups_too(sign):
    """Each group alone fits. Kills a sum of groups that wraps around to a model of the wrong
    sign."""
    groups = [
        summed(np.full((1, 2), np.float32(sign * 0.6 * LIMIT)), np.ones(1, np.int64)).total
    ] * 2
    with pytest.raises(ValueError, match="training diverged"):
        mean(groups, 2)


def test_a_mean_is_of_whole_numbers_to_the_last_unit():
    """Kills a mean in floating point: a unit vanishes beside 2^60 of them, and comes back when
    those are gone."""
    groups = [np.array([2**60]), np.array([1]), np.array([-(2**60)])]
    assert (mean(groups, 1) == 1 / SCALE).all() and sum(float(group[0]) for group in groups) == 0.0
    ones = summed(np.full((3, 1), np.float32(2.0**-32)), np.array([2**28, 1, 2**28]))
    assert ones.total.tolist() == [2**29 + 1] and ones.weight == 2**29 + 1


def test_an_update_is_rounded_to_the_nearest_unit():
    """Kills cutting, which draws every coordinate towards 0."""
    parts = np.float32([[0.75, -0.75, 0.25, 1.25]]) / np.float32(SCALE)
    assert summed(parts, np.ones(1, np.int64)).total.tolist() == [1, -1, 0, 1]


def test_no_parameters_and_no_clients():
    assert summed(np.zeros((2, 0), np.float32), np.ones(2, np.int64)).total.shape == (0,)
    assert summed(np.zeros((0, 2), np.float32), np.ones(0, np.int64)).total.tolist() == [0, 0]
