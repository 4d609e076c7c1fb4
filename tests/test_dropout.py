"""Clients that train and pay, but whose answer is lost."""

import math

import numpy as np
import pytest
from scipy import stats

from client.sums import SCALE
from mechanisms import grid
from server import loop
from sim import central
from sim.commands.guard import main_guard
from tests import test_curator as curated

CLIENTS, ROUNDS = curated.CLIENTS, curated.ROUNDS
LOCAL = {"trust": "local", "steps": 2, "epsilon": None, "noise_multiplier": 1.0}
SUMMED = {"trust": "server", "epsilon": None, "noise_multiplier": 1.0}
SINGLE = {"groups": CLIENTS, "partition": "quantity", "dirichlet": 0.7, "min_records": 3}
World = curated.World


def uploads(world: World) -> list:
    """Of the first round, a group each."""
    found = world.exchange(world.folder, None)(curated.requests(world))
    return sorted(found, key=lambda upload: upload.group)


@pytest.mark.parametrize("given", [LOCAL, SUMMED, SUMMED | curated.CLIENT_UNIT])
def test_whoever_drops_out_has_paid(tmp_path, given):
    """Dropouts change no charge: they are no sampling, and come after the training. Kills a charge
    of those alone who answer, and a rate that dropouts lower."""
    all_, few = (World(tmp_path / str(rate), given | {"dropout": rate}) for rate in (0.0, 0.6))
    assert not np.array_equal(all_.run().now.params, few.run().now.params)
    assert all_.paid == few.paid and len(few.paid) == CLIENTS
    assert all_.job.plans.plans == few.job.plans.plans


def test_the_mean_is_that_of_the_answers(tmp_path):
    """Of unequal weights. Kills a dropout that keeps its weight, or its update."""
    whole = uploads(World(tmp_path / "all", LOCAL | SINGLE))
    world = World(tmp_path / "few", LOCAL | SINGLE | {"dropout": 0.5})
    found = uploads(world)
    answered = [upload.metrics["answered"][0] == 1.0 for upload in found]
    assert 2 < sum(answered) < CLIENTS - 2
    for one, other, here in zip(found, whole, answered, strict=True):
        assert one.weight == (other.weight if here else 0)
        assert np.array_equal(one.total, other.total if here else np.zeros_like(one.total))
        assert np.abs(other.total).max() > 0 and "answered" not in other.metrics
    federation = world.federation
    together = {"groups": 1, "chunk_clients": 4, "dropout": 0.5, "rounds": 1}
    standing = World(tmp_path / "run", LOCAL | SINGLE | together).run()
    mean = sum(upload.total for upload in found) / sum(upload.weight for upload in found) / SCALE
    moved = standing.now.params - federation.initial
    assert moved == pytest.approx(mean, rel=1e-4, abs=1e-6)
    assert standing.records[0].metrics["answered"] == pytest.approx(sum(answered) / CLIENTS)


def test_each_client_has_a_coin_in_each_round(tmp_path):
    """Of the configured probability: false alarm below 1e-6."""
    world = World(tmp_path, LOCAL | {"steps": 1, "rounds": 40, "dropout": 0.3})
    shares = [record.metrics["answered"] * CLIENTS for record in world.run().records]
    law = stats.binom(CLIENTS * 40, 0.7)
    assert 5e-7 < law.cdf(round(sum(shares))) < 1 - 5e-7 and len(set(shares)) > 3


@pytest.mark.parametrize("given", [LOCAL, SUMMED])
def test_groups_and_resumption_change_no_bit(tmp_path, given):
    given = given | {"dropout": 0.4}
    whole = World(tmp_path / "a", given).run()
    one = World(tmp_path / "b", given | {"groups": 1, "chunk_clients": 4}).run()
    two = World(tmp_path / "c", given | {"groups": 2, "chunk_clients": 4}).run()
    assert np.array_equal(one.now.params, two.now.params)
    resumed = World(tmp_path / "d", given).crashed(3, 1).run()
    assert np.array_equal(whole.now.params, resumed.now.params)


def test_a_round_without_an_answer_leaves_the_model_and_is_paid(tmp_path):
    """Kills a mean over nothing."""
    given = LOCAL | {"dropout": math.nextafter(1, 0)}
    world, paid = World(tmp_path / "none", given), World(tmp_path / "all", LOCAL)
    standing = world.run()
    paid.run()
    assert np.array_equal(standing.now.params, world.federation.initial)
    assert len(standing.records) == ROUNDS and world.paid == paid.paid
    assert {record.metrics["answered"] for record in standing.records} == {0.0}


def test_the_model_moves_if_and_only_if_somebody_has_answered(tmp_path):
    """Kills a step of server momentum in a round without an answer."""
    world = World(tmp_path, LOCAL | {"dropout": 0.88, "rounds": 16, "steps": 1})
    federation, store = world.federation, world.store
    models, moved = [federation.initial], []

    def watch(record):
        models.append(store.checkpoints.newest().params)
        moved.append(not np.array_equal(models[-2], models[-1]))

    start = loop.restore(federation, store)
    standing = loop.run(federation, world.exchange(tmp_path, None), store, start, [watch])
    answered = [record.metrics["answered"] > 0 for record in standing.records]
    assert moved == answered and not all(answered[answered.index(True) :])


def test_a_trusted_server_divides_by_the_answers_it_expects_and_hides_how_many(tmp_path):
    """Kills a divisor that counts all, or those who answered, and a count that is written down."""
    given = SUMMED | {"sample_rate": 1.0, "noise_multiplier": 1e-6, "dropout": 0.4, "rounds": 1}
    world = World(tmp_path / "a", given)
    found = uploads(world)
    total = sum(upload.total.astype(np.float64) for upload in found) / grid.PART
    federation = world.federation
    released = federation.curator.release(1, 1, len(total), found)
    scale = federation.curator.bound * federation.curator.factor(1)
    assert released == pytest.approx(total * scale / (0.6 * curated.worlds.RECORDS), abs=1e-6)
    assert 2 < sum(upload.weight for upload in found) < CLIENTS
    standing = World(tmp_path / "b", given).run()
    assert "answered" not in standing.records[0].metrics
    assert standing.records[0].participants is None


def test_central_training_has_no_dropouts(capsys):
    """A lost round of the only client would be paid for nothing."""
    assert main_guard(central.command, ["--dropout", "0.5"]) == 2
    assert "--dropout" in capsys.readouterr().err


def test_a_strategy_that_looks_at_each_client_sees_those_who_answered(tmp_path):
    """Kills an update of zero, or of no number, for whoever did not."""
    given = LOCAL | SINGLE | {"dropout": 0.5, "rounds": 1}
    found = [one for one in uploads(World(tmp_path / "few", given)) if one.weight]
    median = given | {"strategy": "flwr.serverapp.strategy:FedMedian"}
    world = World(tmp_path / "median", median)
    standing = world.run()
    start = world.federation.initial
    middle = np.median([start + one.total / one.weight / SCALE for one in found], axis=0)
    assert 2 < len(found) < CLIENTS
    assert standing.now.params == pytest.approx(middle, rel=1e-4, abs=1e-6)
