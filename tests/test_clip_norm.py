"""A clip norm that follows what clients vote: what they contribute, and what comes of it."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from client.messages import TrainRequest
from mechanisms import contributions, grid
from mechanisms.mechanism import local_round
from server import clip_norm
from strategies.registry import strategy_of
from strategies.settings import Aggregation, FedFed
from tests import small, worlds
from tests import test_curator as curated

SHARE, RATE = 0.01, 0.2
"""As `docs/trust.md` says: the vote's share of a contribution, and the norm's learning rate."""
GIVEN = {"unit": "client", "clip_quantile": 0.4, "clip_norm": 1.3, "steps": 3}
EXACT = {"noise_multiplier": 1e-6, "epsilon": None, "server_momentum": 0.0}
TRUST = {
    "server": {"trust": "server", "fraction": 0.6},
    "aggregate": {"trust": "aggregate", "aggregate_bits": 62},
}


def rows(bound: float, ends: list[list[float]], clipping: str = "flat") -> np.ndarray:
    """What clients contribute whose models end there, in units of the clip norm."""
    plans = [curated.plan_of(1.0, clip=9.0, clipping=clipping)] * len(ends)
    world, start = small.cohort(plans), torch.zeros(len(small.start(small.model())))
    moved = torch.zeros(len(ends), len(start))
    moved[:, :2] = torch.tensor(ends)
    mechanism, sent = contributions.of_unit("client", 1.0, votes=True)
    end = replace(local_round(mechanism, world, start), params=moved)
    found = sent.rows(world, torch.cat([start, torch.tensor([bound])]), end)
    assert found.dtype == torch.int64 and found.shape == (len(ends), len(start) + sent.extra)
    return found.double().numpy() / grid.PART


@pytest.mark.parametrize("clipping", ["flat", "auto"])
def test_update_and_vote_together_are_within_the_clip_norm(clipping):
    """Whatever a client holds. Kills a vote that is added to a whole update."""
    nothing, beyond = math.nan, math.inf
    moved = [[0.0, 0.0], [2.0, 0.0], [1.9, 0.5], [3e4, 4e4], [nothing, 1.0], [beyond, 0.0]]
    for bound, ends in itertools.product((2.0, 1e-3), (moved[:4], moved[2:])):
        found = rows(bound, ends, clipping)
        assert (np.linalg.norm(found, axis=1) <= 1.0 + 1e-6).all()
        assert set(found[:, -1].round(6)) <= {0.0, 0.1}


def test_a_client_votes_on_the_norm_that_it_was_told():
    """And clips to it. Kills the norm of its plan."""
    found = rows(2.0, [[0.6, 0.8], [2.0, 0.0], [3.0, 4.0], [math.nan, 0.0]])
    assert found[:, -1] == pytest.approx(math.sqrt(SHARE) * np.array([0, 0, 1, 1]))
    expected = np.array([[0.3, 0.4], [1.0, 0.0], [0.6, 0.8], [0.0, 0.0]])
    assert found[:, :2] == pytest.approx(math.sqrt(1 - SHARE) * expected, abs=1e-6)


def test_a_client_whose_own_coin_fails_does_not_vote():
    plan = curated.ContributionPlan(1.0, 1, 0.0, 1.0, "flat", 0.0, 1e-6, own_rate=1e-6)
    world = small.cohort([plan] * 4)
    start = small.start(small.model())
    mechanism, sent = contributions.of_unit("client", 1.0, votes=True)
    told = torch.cat([start, torch.full((1,), 1e-6)])
    assert not sent.rows(world, told, local_round(mechanism, world, start)).any()


@pytest.mark.parametrize("trust", TRUST)
def test_the_norm_moves_towards_the_wanted_share(tmp_path, trust):
    """By equation 3 of Andrew et al., from the clients' votes; and the model by the mean of what
    the clients have clipped to it. Two rounds, nearly without noise."""
    world = curated.World(tmp_path, GIVEN | EXACT | TRUST[trust] | {"rounds": 2, "fraction": 1.0})
    end = world.run()
    federation = world.federation
    bound, params, clients = 1.3, federation.initial, curated.CLIENTS
    again = curated.World(tmp_path / "again", GIVEN | EXACT | {"trust": "server", "rounds": 2})
    exchange = again.exchange(again.folder, None)
    for number in (1, 2):
        assert end.records[number - 1].metrics["clip_norm"] == pytest.approx(bound, rel=1e-5)
        told = np.append(params, np.float32(bound))
        total = np.zeros(len(told))
        for group in np.unique(again.job.group_of):
            members = np.flatnonzero(again.job.group_of == group)
            nth = np.full(len(members), number)
            name = f"round-{number}"
            request = TrainRequest(number, int(group), name, members, nth, told)
            total += sum(upload.total.astype(np.float64) for upload in exchange([request]))
        mean = total * bound / grid.PART / clients
        within = 1 - mean[-1] / (math.sqrt(SHARE) * bound)
        assert 0 < round(within * clients) < clients
        assert within * clients == pytest.approx(round(within * clients))
        params = (params + mean[:-1] / math.sqrt(1 - SHARE)).astype(np.float32)
        bound *= math.exp(-RATE * (within - 0.4))
    assert bound != pytest.approx(1.3, rel=0.01)
    assert clip_norm.current(end.now.state) == pytest.approx(bound, rel=1e-4)
    assert end.now.params == pytest.approx(params, abs=1e-4)


def test_the_noise_has_the_scale_of_the_norm_as_it_is(tmp_path):
    """On all numbers, the vote's too. Kills noise of the first norm."""
    world = curated.World(tmp_path, GIVEN | TRUST["server"])
    server = world.federation.curator
    fixed, moved = (server.release(3, 1, 20_000, [], norm) for norm in (None, 3.0))
    assert moved == pytest.approx(fixed * 3.0 / 1.3)
    expected = server.multiplier(1) * 3.0 / (0.6 * curated.CLIENTS)
    assert moved.std() == pytest.approx(expected, rel=0.03)


@pytest.mark.parametrize("trust", TRUST)
def test_what_is_charged_does_not_depend_on_it(tmp_path, trust):
    """Nor on where a run was broken off; and a resumed run goes on with the norm that it had."""
    given = GIVEN | TRUST[trust]
    fixed = curated.World(tmp_path / "fixed", given | {"clip_quantile": None})
    moving = curated.World(tmp_path / "moving", given)
    fixed.run()
    end = moving.run()
    assert moving.paid == fixed.paid
    broken = curated.World(tmp_path / "broken", given)
    with pytest.raises(worlds.Crash):
        broken.run(crash=(3, 1))
    again = broken.run()
    assert clip_norm.current(again.now.state) == clip_norm.current(end.now.state)
    assert (again.now.params == end.now.params).all() and broken.paid == moving.paid


def test_any_strategy_is_behind_it():
    """With its own state as it would be alone; the norm has a floor and a ceiling."""
    inner = strategy_of(Aggregation(strategy="fedadam", server_lr=0.1), FedFed())
    outer = clip_norm.moving(inner, 2.0, 0.5)
    params = np.array([1.0, -1.0], dtype=np.float32)
    state, own = outer.init(params), inner.init(params)
    for mean in ([0.3, 0.1], [-0.2, 0.4]):
        sent = np.append(np.array(mean) * math.sqrt(1 - SHARE), 0.0)
        state, found = outer.aggregate(state, params, sent)
        own, expected = inner.aggregate(own, params, np.array(mean))
        assert found == pytest.approx(expected)
        params = found
    assert own and {name: value.tolist() for name, value in own.items()} == {
        name: pytest.approx(value.tolist())
        for name, value in state.items()
        if name != clip_norm.NAME
    }
    for beyond, limit in ((-1.0, 1e-3), (1.0, 1e3)):
        for _ in range(90):
            vote = beyond * clip_norm.current(state)
            state, params = outer.aggregate(state, params, np.array([0.0, 0.0, vote]))
        assert clip_norm.current(state) == pytest.approx(2.0 * limit)


def test_a_client_that_holds_nothing_contributes_nothing():
    """As a null client does in the proof, and a canary that is left out of an audit."""
    assert not rows(1e-9, [[0.0, 0.0]] * 4).any()


def test_a_round_that_is_not_opened_leaves_the_norm(tmp_path):
    given = GIVEN | TRUST["aggregate"] | {"dropout": 0.9, "honest": 0.99}
    end = curated.World(tmp_path, given).run()
    assert [one.metrics["opened"] for one in end.records] == [0.0] * curated.ROUNDS
    assert clip_norm.current(end.now.state) == pytest.approx(1.3)


def test_a_norm_that_stays_is_told_to_nobody(tmp_path):
    params, state = np.zeros(3, dtype=np.float32), {"momentum": np.ones(3)}
    assert clip_norm.told(params, state) is params and clip_norm.current(state) is None
    end = curated.World(tmp_path, GIVEN | TRUST["server"] | {"clip_quantile": None}).run()
    assert not any("clip_norm" in one.metrics for one in end.records)
