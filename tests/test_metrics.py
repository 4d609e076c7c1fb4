"""Metrics of rounds: means over clients, however these are grouped."""

import numpy as np
import pytest
import torch

from client.metrics import Metrics, means

VALUES = {"rate": [0.5, 2.0, -1.0, 4.0, 0.25], "bound": [1.0, 1.0, 3.0, 7.0, 2.0]}


@pytest.mark.parametrize(
    "groups", [[[[0, 1, 2, 3, 4]]], [[[0], [1, 2]], [[3, 4]]], [[[4, 0, 2]], [[1]], [[3]]]], ids=str
)
def test_a_figure_is_the_mean_over_all_clients_whatever_their_chunks_and_groups(groups):
    """Kills a mean of means, a count of chunks, and figures of the last chunk alone."""
    parts = []
    for chunks in groups:
        own = Metrics()
        for chunk in chunks:
            own.add({name: torch.tensor(values)[chunk] for name, values in VALUES.items()})
        parts.append(own.pairs)
    found = means(parts)
    assert found == {name: pytest.approx(np.mean(values)) for name, values in VALUES.items()}


def test_a_figure_that_some_clients_lack_is_the_mean_over_the_others():
    one, other = Metrics(), Metrics()
    one.add({"rate": torch.tensor([1.0, 2.0])})
    other.add({"bound": torch.tensor([5.0])})
    assert means([one.pairs, other.pairs, {}]) == {"rate": 1.5, "bound": 5.0} and means([]) == {}
