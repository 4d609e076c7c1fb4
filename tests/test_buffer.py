"""Rounds that end after some answers: who answers when, from which model, and what it counts."""

import math
import re
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

import sim
from client.app import decode_request, encode_request
from client.sums import SCALE
from server import loop
from server.buffer import Buffer, Flight
from sim.config.configuration import load
from sim.phases import training
from sim.phases.build import build
from sim.run import command
from tests.refusing import refusal
from tests.test_dropout import CLIENTS, LOCAL, SINGLE, World

BUFFERED = LOCAL | {"buffer": 3, "rounds": 8, "server_momentum": 0.0}


def flown(buffer: Buffer, rounds: int) -> list[list[tuple[int, int]]]:
    """By round, who answers and how many rounds were finished when it began; all may work."""
    flight, found = Flight(len(buffer.slowness), {}), []
    for done in range(rounds):
        idle = np.flatnonzero(~flight.working)[: buffer.at_once - flight.working.sum()]
        flight.begin(idle, buffer.durations(done + 1), done, np.full(2, done))
        who = flight.next(buffer.size)
        behind, models = flight.models_of(who, done)
        assert {age: model[0] for age, model in models.items()} == {
            int(age): done - age for age in behind if age
        }
        found.append(
            [(int(client), int(done - age)) for client, age in zip(who, behind, strict=True)]
        )
        flight.land(who)
        flight = Flight(len(buffer.slowness), flight.tensors())  # as a checkpoint has it
    return found


def test_answers_come_in_the_order_in_which_they_are_due():
    """By events in time, one after the other. Kills durations that are drawn again each round, a
    clock that stands, and a client that begins twice."""
    rng = np.random.default_rng(0)
    for size, at_once in ((1, 4), (3, 7), (9, 9)):
        buffer = Buffer(size, at_once, rng.uniform(1, 5, 9), seed=4)
        now, at_work, expected = 0.0, {}, []
        for done in range(12):
            lasts = buffer.durations(done + 1)
            idle = [client for client in range(9) if client not in at_work]
            for client in idle[: at_once - len(at_work)]:
                at_work[client] = (now + lasts[client], done)
            answers = sorted(at_work, key=lambda client: at_work[client][0])[:size]
            now = max(at_work[client][0] for client in answers)
            expected.append(sorted((client, at_work.pop(client)[1]) for client in answers))
        assert flown(buffer, 12) == expected


def test_durations_are_half_normal_and_slow_clients_need_longer():
    """False alarm below 1e-6 each. Kills one draw for all rounds, or for all clients."""
    slowness = np.where(np.arange(4000) % 4, 1.0, 7.0)
    first, second = (Buffer(1, 1, slowness, seed=0).durations(number) for number in (1, 2))
    for drawn in (first, second):
        assert stats.kstest(drawn / slowness, stats.halfnorm.cdf).pvalue > 1e-6
    assert stats.kstest(first, stats.halfnorm.cdf).pvalue < 1e-6
    assert abs(stats.spearmanr(first / slowness, second / slowness).statistic) < 0.08
    assert not np.array_equal(first, Buffer(1, 1, slowness, seed=1).durations(1))


@pytest.mark.parametrize("fraction", [1.0, 0.5])
def test_a_buffer_for_all_who_work_is_a_round_that_waits(tmp_path, fraction):
    """The same bits and charges. Kills a wrong model, another pick, and a weight for nobody."""
    given = LOCAL | {"fraction": fraction}
    waits, buffered = (
        World(tmp_path / "waits", given),
        World(
            tmp_path / "buffered", given | {"buffer": round(CLIENTS * fraction), "stragglers": 0.3}
        ),
    )
    one, other = waits.run(), buffered.run()
    assert np.array_equal(one.now.params, other.now.params) and waits.paid == buffered.paid
    assert {record.metrics["staleness"] for record in other.records} == {0.0}
    clocks = [record.metrics["clock"] for record in other.records]
    assert clocks == sorted(clocks) and clocks[0] > 0 and "clock" not in one.records[0].metrics


@pytest.mark.parametrize("strategy", ["fedavg", "fednova"])
def test_a_late_update_is_that_of_its_model_and_counts_less(tmp_path, strategy):
    """Its pace does not. Kills the newest model, and a weight of 1 / (1 + tau)."""
    given = LOCAL | SINGLE | {"strategy": strategy}
    plain, late = (World(tmp_path / name, given) for name in ("plain", "late"))
    begun = plain.federation.initial
    number, who = np.array([0]), np.ones(1, dtype=np.int64)
    group = int(plain.job.group_of[0])
    ask = loop.TrainRequest(5, group, "round-5", number, who, begun)
    behind = replace(ask, params=begun + 1, behind=np.array([2]), earlier={2: begun})
    (one,), (other,) = (
        plain.exchange(plain.folder, None)([ask]),
        late.exchange(late.folder, None)([behind]),
    )
    size = len(begun)
    assert other.total[:size] == pytest.approx(one.total[:size] / math.sqrt(3), rel=1e-6, abs=600)
    assert np.abs(one.total[:size]).max() > 1e-3 * SCALE
    assert np.array_equal(one.total[size:], other.total[size:]) and one.weight == other.weight
    assert other.metrics["staleness"] == (2.0, 1) and "staleness" not in one.metrics
    assert plain.paid == late.paid != {}


def test_each_late_client_counts_in_the_mean_of_how_late_they_are(tmp_path):
    """Of a group with several of one age. Kills a client that stands for all of its age."""
    world = World(tmp_path, LOCAL | {"groups": 1})
    begun = world.federation.initial
    who, nth = np.arange(3), np.ones(3, dtype=np.int64)
    ask = loop.TrainRequest(5, 0, "round-5", who, nth, begun)
    late = replace(ask, behind=np.array([2, 0, 2]), earlier={2: begun})
    (upload,) = world.exchange(world.folder, None)([late])
    assert upload.metrics["staleness"] == (4.0, 3)


def test_the_model_is_that_of_answers_one_by_one(tmp_path):
    """Each by itself, from the model of the round in which it began, over the weight of all that
    came. Kills a step along a sum of other rounds' answers, and a wrong divisor."""
    world = World(tmp_path / "run", BUFFERED | SINGLE)
    federation, models = world.federation, []
    store = world.store
    models.append(federation.initial)
    standing = loop.run(
        federation,
        world.exchange(world.folder, None),
        store,
        loop.restore(federation, store),
        [lambda record: models.append(store.checkpoints.newest().params)],
    )
    by_round = {}
    for request in world.asked:
        by_round.setdefault(request.round, []).append(request)
    assert {sum(len(one.clients) for one in asked) for asked in by_round.values()} == {3}
    alone = World(tmp_path / "alone", BUFFERED | SINGLE)
    exchange = alone.exchange(alone.folder, None)
    ages, weights = [], alone.job.partition.sizes
    for number, asked in sorted(by_round.items()):
        step, weight = 0.0, 0
        for one in asked:
            (age,), (client,) = one.behind, one.clients
            ages.append(int(age))
            (own,) = exchange(
                [replace(one, params=models[number - 1 - age], behind=None, earlier={})]
            )
            step = step + own.total / SCALE / math.sqrt(1 + age)
            weight += weights[client]
        moved = models[number] - models[number - 1]
        assert moved == pytest.approx(step / weight, rel=1e-3, abs=1e-6)
        mean = np.mean(ages[-3:])
        assert standing.records[number - 1].metrics["staleness"] == pytest.approx(mean)
    assert len(set(ages)) > 3 and standing.now.round == 8
    assert world.paid == alone.paid


def test_whoever_answers_pays_once_and_nobody_else_does(tmp_path):
    """A client at work when the run ends has released nothing. Kills a charge at the beginning."""
    world = World(tmp_path, BUFFERED)
    standing = world.run()
    answers = np.zeros(CLIENTS, dtype=int)
    for request in world.asked:
        answers[request.clients] += 1
    paid = [sum(world.paid.get(client, {}).values()) for client in range(CLIENTS)]
    assert paid == (answers * LOCAL["steps"]).tolist()
    assert standing.now.taken.tolist() == answers.tolist() and answers.sum() == 8 * 3


def test_who_is_slow_says_nothing_of_who_attacks():
    """Shares that are alike are drawn apart."""
    shares = {"stragglers": 0.3, "attackers": 0.3, "fraction": 0.5}
    config = load(None, {"clients": 60, "buffer": 4, **shares})
    slow = set(np.flatnonzero(training.buffer_of(config).slowness > 1).tolist())
    attacking = training.attackers(config)
    assert len(slow) == len(attacking) == 18 and slow != attacking


def test_groups_and_resumption_change_no_bit(tmp_path):
    """Kills a flight that a checkpoint forgets, and clients of a chunk that are all as late as its
    first."""
    given = BUFFERED | {"stragglers": 0.3}
    whole = World(tmp_path / "a", given)
    params = whole.run().now.params
    one = World(tmp_path / "b", given | {"groups": 1, "chunk_clients": 4}).run()
    two = World(tmp_path / "c", given | {"groups": 2, "chunk_clients": 4}).run()
    assert np.array_equal(one.now.params, two.now.params)
    single = World(tmp_path / "d", given | {"groups": CLIENTS}).run()
    assert single.now.params == pytest.approx(one.now.params, rel=1e-4, abs=1e-5)
    for number in (2, 6):
        world = World(tmp_path / str(number), given)
        group = next(r.group for r in reversed(whole.asked) if r.round == number)
        resumed = world.crashed(number, group).run()
        assert np.array_equal(params, resumed.now.params) and world.paid == whole.paid
        assert resumed.records[-1].metrics == whole.run().records[-1].metrics


def test_a_budget_is_planned_for_the_answers_that_there_are(tmp_path):
    """And nobody exceeds it: fast clients retire, and rounds end when nobody is left to answer."""
    given = {"steps": 1, "epsilon": 2.0, "buffer": 4, "rounds": 30, "trust": "local"}
    world = World(tmp_path, given | {"stragglers": 0.3, "straggler_factor": 20.0})
    assert world.job.plans.of(0).noise_multiplier == pytest.approx(
        World(tmp_path / "b", given | {"max_participations": 10}).job.plans.of(0).noise_multiplier
    )
    standing = world.run()
    assert standing.now.taken.max() == 10 and standing.now.taken.min() < 10
    assert max(standing.budgets.epsilons("certified")) <= 2.0
    longer = World(
        tmp_path / "c", given | {"max_participations": 3, "straggler_factor": 20.0}
    ).run()
    assert longer.now.taken.tolist() == [3] * CLIENTS and longer.now.round < 30
    assert longer.records[-1].retired == CLIENTS
    assert not longer.flight.working.any() and not longer.flight.models


def test_no_more_work_at_once_than_the_fraction_says(tmp_path):
    """After each round, those who have answered are away until the next."""
    world, at_work = World(tmp_path, BUFFERED | {"fraction": 0.5, "buffer": 2}), []
    federation, store = world.federation, world.store
    start, exchange = loop.restore(federation, store), world.exchange(world.folder, None)

    def watch(record):
        begun = store.checkpoints.newest().flight["begun"]
        at_work.append(int((begun != -1).sum()))

    loop.run(federation, exchange, store, start, [watch])
    assert at_work == [CLIENTS // 2 - 2] * 8


def test_who_is_slow_is_drawn_once_and_a_buffer_waits_for_them_less(tmp_path):
    given = BUFFERED | {"rounds": 10}
    slow = training.buffer_of(World(tmp_path, given | {"stragglers": 0.2}).job.config)
    assert sorted(slow.slowness) == [1.0] * (CLIENTS - 3) + [10.0] * 3
    other = {"seed": 1, "stragglers": 0.2, "straggler_factor": 3.0}
    another = training.buffer_of(World(tmp_path, given | other).job.config)
    assert set(another.slowness) == {1.0, 3.0}
    assert not np.array_equal(another.slowness > 1, slow.slowness > 1)
    assert (another.seed, another.size, another.at_once) == (1, 3, CLIENTS)
    times = {
        size: World(tmp_path / str(size), given | {"buffer": size, "stragglers": 0.2}).run()
        for size in (3, CLIENTS)
    }
    clock = {size: run.records[-1].metrics["clock"] / size for size, run in times.items()}
    assert clock[3] < 0.5 * clock[CLIENTS]


def test_a_request_with_earlier_models_travels_whole():
    clients, models = np.array([3, 5]), {1: np.ones(4, np.float32), 12: np.zeros(4, np.float32)}
    numbers, params = (clients, clients + 1), np.full(4, 2, np.float32)
    request = loop.TrainRequest(
        2, 1, "round-2", *numbers, params, behind=np.array([12, 1]), earlier=models
    )
    found = decode_request(encode_request(request, {}))
    assert found.behind.tolist() == [12, 1] and set(found.earlier) == {1, 12}
    assert all(np.array_equal(found.earlier[age], models[age]) for age in models)
    plain = decode_request(encode_request(replace(request, behind=None, earlier={}), {}))
    assert plain.behind is None and plain.earlier == {}


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--buffer", "11", "--clients", "10"], "use at most --buffer 10"),
        (["--buffer", "6", "--clients", "10", "--fraction", "0.5"], "use at most --buffer 5"),
        (["--buffer", "2", "--release"], "--buffer or --release"),
        (["--buffer", "2", "--strategy", "mrmtl"], "must be of one round"),
        (["--buffer", "2", "--trust", "server"], "--trust local"),
        (["--stragglers", "0.2"], "--buffer"),
        (["--buffer", "2", "--straggler-factor", "3"], "--stragglers above 0"),
    ],
)
def test_what_a_buffer_does_not_go_with_is_refused(capsys, argv, words):
    said = refusal(capsys, command, argv)
    assert words in said and re.match(r"error: (buffer|stragglers|straggler_factor) is \d", said)


def test_python_knows_it(tmp_path, no_report):
    """Less time for as many answers."""
    common = {"clients": 12, "engine": "inline", "out": tmp_path, "epsilon": 20, "stragglers": 0.25}
    waits = sim.train(**common, buffer=12, rounds=3, name="waits")
    late = sim.train(**common, buffer=4, rounds=9, name="late")
    clock = [run.rounds[-1].metrics["clock"] for run in (waits, late)]
    assert clock[1] < clock[0] and max(one.metrics["staleness"] for one in late.rounds) > 0
    assert max(late.summary.epsilon_certified) <= 20


def owned_by(folder, clients: int) -> str:
    """The path of a data set whose records belong to so many clients, ten to each."""
    x = np.random.default_rng(0).normal(size=(10 * clients, 3)).astype(np.float32)
    y, owner = np.arange(10 * clients) % 2, np.repeat(np.arange(clients), 10)
    np.savez(folder / "owned.npz", x=x, y=y, client=owner, x_test=x[:4], y_test=y[:4])
    return str(folder / "owned.npz")


def test_a_price_is_for_the_clients_that_there_are(tmp_path, no_report):
    """Kills a plan for the answers of 100 clients where a data set has five."""
    given = {"dataset": owned_by(tmp_path, 5), "partition": "given", "buffer": 2, "rounds": 10}
    run = sim.train(**given, engine="inline", out=tmp_path, name="run")
    for records in ({}, {"records": [10] * 5}):
        found = sim.price(**given, **records)
        assert found["noise_multiplier"] == pytest.approx(run.summary.noise_multiplier[0])
    assert run.summary.rounds == 10


def test_the_clients_of_a_data_set_bound_a_buffer(tmp_path, capsys):
    words = [f"--dataset={owned_by(tmp_path, 5)}", "--partition=given", f"--out={tmp_path}"]
    said = refusal(capsys, command, [*words, "--buffer=6"])
    assert said.startswith("error: buffer is 6, but only 5 clients work at the same time")
    many = {"dataset": owned_by(tmp_path, 120), "partition": "given", "buffer": 110}
    assert build(load(None, many)).config.rounds.buffer == 110
