"""Clients that are canaries send what the auditor has them send, through the run's own clipping."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from mechanisms import contributions, grid
from mechanisms.contributions import ContributionPlan
from mechanisms.mechanism import local_round
from mechanisms.randomness import generator, seed_key
from sim.auditing.clients import ClientCanaries, choose
from tests import small

OWNER = np.empty(60, dtype=np.int64)
for number, own in enumerate(small.OWNED):
    OWNER[own] = number
KEY, CLIP, PARAMETERS = seed_key(0), 0.4, 53


def canaries(included: list[bool]) -> ClientCanaries:
    """Clients 0 and 2 of four, along coordinates 7 and 30."""
    of_client = np.array([0, -1, 1, -1])
    return ClientCanaries(of_client, np.array(included), np.array([7, 30]), 10 * CLIP, OWNER)


@pytest.mark.parametrize("included", [[True, False], [False, True], [True, True], [False, False]])
def test_a_canary_sends_one_clip_norm_along_its_coordinate_or_nothing(included):
    """And nobody else moves there, in several steps; the others train as without canaries but for
    these coordinates. Kills a coin that is ignored, a canary that trains, one that is not clipped,
    and one of another client."""
    mechanism, sent = contributions.of_unit("client", 1.0)
    plan = ContributionPlan(1.0, 3, 0.0, CLIP, "flat", 0.0, 1.0)
    world, start = small.cohort([plan] * 4), small.start(small.model())
    found = canaries(included)
    end = local_round(found.watched(mechanism), world, start)
    rows = sent.rows(world, start, end).double() / grid.PART
    for client, coin, place in ((0, included[0], 7), (2, included[1], 30)):
        expected = torch.zeros(PARAMETERS, dtype=torch.float64)
        expected[place] = coin
        torch.testing.assert_close(rows[client], expected, atol=1e-6, rtol=0)
    others = rows[[1, 3]]
    assert (others[:, [7, 30]] == 0).all() and (others.norm(dim=1) > 0.1).all()


def test_canaries_are_clients_with_records_and_have_coordinates_of_their_own():
    owner = np.where(OWNER == 1, -1, OWNER)
    found = choose(owner, 4, PARAMETERS, 3, KEY, 1.0)
    assert found.of_client.tolist() == [0, -1, 1, 2] and len(set(found.coordinates.tolist())) == 3
    assert np.array_equal(found.included, generator(KEY, "canary coins").random(3) < 0.5)
    assert len(choose(OWNER, 4, PARAMETERS, None, KEY, 1.0).included) == 2
    assert len(choose(OWNER, 4, 3, None, KEY, 1.0).included) == 1
    for count, parameters in ((0, 53), (4, 53), (3, 2)):
        with pytest.raises(
            ValueError, match=f"canaries = {count} must be a whole number from 1 to "
        ):
            choose(owner, 4, parameters, count, KEY, 1.0)


def test_a_client_without_records_is_no_canary():
    """Its first record would be somebody else's, such as the last one of all, a canary's."""
    found = replace(canaries([True, True]), of_client=np.array([0, -1, -1, 1]))
    assert OWNER[-1] == 3
    cohort = small.cohort([ContributionPlan(1.0, 1, 0.0, CLIP, "flat", 0.0, 1.0)] * 4)
    assert found.in_(cohort).tolist() == [0, -1, -1, 1]
    for client in (0, 2):
        cohort.data.records[client] = np.empty(0, dtype=np.int64)
    assert found.in_(cohort).tolist() == [-1, -1, -1, 1]
