"""Clients that differ in everything: whose number a round prints, whose order is fixed, and whose
weight is whose."""

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest

from client.messages import Upload
from client.sums import SCALE
from mechanisms.accounting import ledger
from mechanisms.accounting.accountant import epsilon
from mechanisms.plan import planned
from server import loop, orders
from server.loop import Standing
from server.records import RoundRecord
from sim.engines.inline import inline_exchange
from tests.running import best_orders, in_progress
from tests.test_loop import World

DELTA, CLIENTS, ROUNDS, BATCH = 1e-5, 5, 3, 3


@dataclass
class Unequal(World):
    """A run of clients of different sizes, and so of different rates."""

    settings: ClassVar[dict] = {
        "clients": CLIENTS,
        "partition": "quantity",
        "dirichlet": 0.7,
        "min_records": 4,
        "batch_size": BATCH,
        "rounds": ROUNDS,
        "noise_multiplier": 1.5,
        "epsilon": None,
        "steps": 4,
        "seed": 4,
        "groups": 2,
        "engine": "inline",
    }


def watched(world: World) -> tuple[Standing, list[RoundRecord], list[Upload]]:
    """A run with all its records and all its uploads."""
    uploads, records, store = [], [], world.store
    federation = replace(world.federation, collect=uploads.extend)
    exchange = inline_exchange(world.job, world.folder)
    return (
        loop.run(federation, exchange, store, loop.restore(federation, store), [records.append]),
        records,
        uploads,
    )


def test_the_figures_of_a_round_are_the_largest_and_the_median_of_all_clients(tmp_path):
    """Five different numbers, none of them both. Kills the first client's, a mean, and another
    column's."""
    world = Unequal(tmp_path)
    _, records, _ = watched(world)
    plans = [world.job.plans.of(client) for client in range(CLIENTS)]
    fixed = [best_orders(plan, ROUNDS, DELTA) for plan in plans]
    for number, record in enumerate(records, 1):
        over = number == ROUNDS
        certified = [
            epsilon(planned(plan, number), DELTA).epsilon
            if over
            else in_progress(planned(plan, number), DELTA, orders)
            for plan, orders in zip(plans, fixed, strict=True)
        ]
        published = [epsilon(planned(plan, number), DELTA, "published").epsilon for plan in plans]
        largest, middle = max(certified), float(np.median(certified))
        assert (record.epsilon_certified_max, record.epsilon_certified_median) == (largest, middle)
        assert record.epsilon_published_max == max(published) != min(published)
        assert len(set(certified)) == CLIENTS and largest not in (
            certified[0],
            certified[-1],
            middle,
        )
        assert middle != pytest.approx(np.mean(certified), rel=1e-3)


def test_every_client_has_the_order_of_its_own_plan_written_down(tmp_path):
    world = Unequal(tmp_path)
    world.federation.write_orders(tmp_path)
    plans = [world.job.plans.of(client) for client in range(CLIENTS)]
    own = {c: best_orders(plan, ROUNDS, DELTA) for c, plan in enumerate(plans)}
    found = {client: tuple(sorted(fixed)) for client, fixed in orders.read(tmp_path).items()}
    assert found == own and len(set(own.values())) >= 3


def test_every_client_has_the_rate_of_its_own_size(tmp_path):
    job = Unequal(tmp_path).job
    rates = [job.plans.of(client).sample_rate for client in range(CLIENTS)]
    assert rates == [BATCH / size for size in job.partition.sizes] and len(set(rates)) == CLIENTS


@pytest.mark.parametrize("weighting", ["records", "uniform"])
def test_a_round_moves_the_model_by_the_weighted_mean_of_all_clients(tmp_path, weighting):
    """Over groups of different weight. Kills a mean over groups, and weights that are not the
    strategy's."""
    world = Unequal(tmp_path, {"weighting": weighting, "rounds": 1, "server_momentum": 0.0})
    standing, _, uploads = watched(world)
    sizes = world.job.partition.sizes
    expected = [
        int(sizes[u.clients].sum()) if weighting == "records" else len(u.clients) for u in uploads
    ]
    assert [u.weight for u in uploads] == expected and len(set(expected)) == 2
    mean = sum(u.total for u in uploads) / SCALE / sum(expected)
    assert (standing.now.params == (world.federation.initial + mean).astype(np.float32)).all()


def test_the_servers_momentum_goes_on_from_round_to_round(tmp_path):
    """v <- 0.9 v + u, model <- model + v, over three rounds. Kills a state that begins anew."""
    world = Unequal(tmp_path, {"server_momentum": 0.9})
    standing, _, uploads = watched(world)
    model, velocity = world.federation.initial, 0.0
    for number in range(1, ROUNDS + 1):
        own = [upload for upload in uploads if upload.round == number]
        velocity = 0.9 * velocity + sum(u.total for u in own) / SCALE / sum(u.weight for u in own)
        model = (model + velocity).astype(np.float32)
    assert np.allclose(standing.now.params, model, rtol=1e-6, atol=1e-6)
    assert np.allclose(standing.now.state["velocity"], velocity)


def test_a_fraction_is_one_of_all_clients_however_many_have_retired(tmp_path):
    """And what the ledger says is spent retires a client that never took part. Kills a fraction of
    those left."""
    world = World(tmp_path, {"fraction": 0.5, "rounds": 2, "max_participations": 2, "groups": 1})
    with ledger.Ledger(tmp_path / "ledger" / "group-0000.jsonl") as file:
        file.charge("before", 0, range(4), planned(world.job.plans.of(0), 2))
    standing = world.run()
    assert [len(picked) for picked in world.picks().values()] == [5, 5]
    assert all(min(picked) >= 4 for picked in world.picks().values())
    assert standing.records[0].retired == 4


def test_a_target_for_what_papers_claim_bounds_that_column(tmp_path):
    """One that pays for a round in one of the columns alone. Kills a column that is forgotten on
    the way."""
    given = {
        "mechanism": "dpsur",
        "dpsur_accounting": "every-trial",
        "noise_multiplier": 2.0,
        "epsilon": None,
    }
    world = World(tmp_path, given)
    once = {
        c: epsilon(planned(world.job.plans.of(0), 1), DELTA, c).epsilon
        for c in ("certified", "published")
    }
    federation = world.federation
    between = sum(once.values()) / 2
    federation = replace(federation, target=np.full(federation.clients, between))
    assert abs(once["certified"] - once["published"]) > 0.02
    for column, cost in once.items():
        standing = loop.restore(replace(federation, column=column), world.store)
        assert standing.budgets.eligible().tolist() == [cost <= between] * federation.clients


def test_what_is_settled_after_a_round_counts(tmp_path):
    """Claims for accepted steps are in the figures of the round, and in those of a run that goes
    on."""
    world = World(
        tmp_path,
        {
            "mechanism": "dpsur",
            "noise_multiplier": 2.0,
            "epsilon": None,
            "rounds": 2,
            "dpsur_beta": 1.0,
        },
    )
    standing, records, _ = watched(world)
    paid = ledger.read(tmp_path / "ledger")
    published = [epsilon(paid[client], DELTA, "published").epsilon for client in range(10)]
    assert records[-1].epsilon_published_max == max(published) > 0
    again = loop.restore(world.federation, world.store).budgets
    for column in ("certified", "published"):
        assert again.epsilons(column).tolist() == standing.budgets.epsilons(column).tolist()
