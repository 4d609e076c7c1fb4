"""Clients that multiply what they send, to study which strategies bear it."""

import numpy as np

import sim
from sim.commands.guard import main_guard
from sim.phases.training import attackers
from sim.run import command
from tests.test_dropout import CLIENTS, LOCAL, SINGLE, World, uploads

ATTACKED = {"attackers": 0.3, "attack_factor": -8.0}


def test_attackers_multiply_what_they_send_and_pay_as_others(tmp_path):
    """Of unequal weights, a client in each group. Kills a factor for all or none."""
    world = World(tmp_path / "attacked", LOCAL | SINGLE | ATTACKED)
    honest, found = uploads(World(tmp_path / "honest", LOCAL | SINGLE)), uploads(world)
    attacks = attackers(world.job.config)
    assert 2 < len(attacks) < CLIENTS - 2
    for one, other in zip(found, honest, strict=True):
        factor = -8 if int(one.clients[0]) in attacks else 1
        assert np.array_equal(one.total, other.total * factor) and one.weight == other.weight
        assert np.abs(one.total).max() > 0
    assert world.paid == World(tmp_path / "honest", LOCAL | SINGLE).paid != {}


def test_the_pace_of_fednova_is_not_attacked(tmp_path):
    given = LOCAL | SINGLE | {"strategy": "fednova"}
    honest, found = (
        uploads(World(tmp_path / name, given | more))
        for name, more in (("honest", {}), ("attacked", ATTACKED))
    )
    changed = [one.total != other.total for one, other in zip(found, honest, strict=True)]
    assert any(rows[:-1].any() for rows in changed) and not any(rows[-1] for rows in changed)


def test_groups_change_no_bit(tmp_path):
    given = LOCAL | ATTACKED | {"rounds": 2}
    runs = [
        World(tmp_path / str(groups), given | {"groups": groups, "chunk_clients": 4}).run()
        for groups in (1, 2)
    ]
    assert np.array_equal(*(run.now.params for run in runs))


def test_the_seed_draws_so_many_of_them(tmp_path):
    def of(seed: int, share: float) -> frozenset[int]:
        return attackers(World(tmp_path, LOCAL | {"seed": seed, "attackers": share}).job.config)

    assert [len(of(0, share)) for share in (0.0, 0.01, 0.5)] == [0, 1, CLIENTS // 2]
    drawn = [of(seed, 0.5) for seed in range(20)]
    assert of(3, 0.5) == drawn[3] and frozenset().union(*drawn) == frozenset(range(CLIENTS))


def test_a_median_bears_what_a_mean_does_not(tmp_path, no_report):
    """On the real digits."""
    common = {"clients": 20, "rounds": 8, "epsilon": 20, "engine": "inline", "out": tmp_path}
    mean, median = (
        sim.train(
            **common, **{**ATTACKED, "attackers": 0.2}, strategy=f"flwr.serverapp.strategy:{name}"
        ).accuracy
        for name in ("FedAvg", "FedMedian")
    )
    assert mean < 0.3 < 0.45 < median


def test_a_release_has_none(capsys):
    assert main_guard(command, ["--release", "--attackers=0.1"]) == 2
    said = capsys.readouterr().err
    assert "attackers is 0.1" in said and "--release" in said and said.count("\n") == 1
