"""The round loop, over real clients in this process: who is asked, what is written down, and how it
goes on."""

import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from mechanisms.accounting import ledger
from mechanisms.accounting.accountant import epsilon
from mechanisms.accounting.events import Gaussian, PaperClaim
from mechanisms.plan import merge, planned
from server import loop
from server.checkpoints import Checkpoint
from server.loop import Standing
from server.store import MODEL, ROUNDS
from sim.engines.inline import inline_exchange
from tests import worlds
from tests.running import best_orders, in_progress

CLIENTS = 10
SETTINGS = {
    "clients": CLIENTS,
    "partition": "iid",
    "groups": 3,
    "rounds": 5,
    "sample_rate": 0.5,
    "engine": "inline",
}

SIZED = {name: value for name, value in SETTINGS.items() if name != "sample_rate"}
"""For clients whose rates follow from a batch size."""


class World(worlds.Loop):
    settings = SETTINGS

    def picks(self) -> dict[int, list[int]]:
        """The clients that were asked, by round."""
        rounds = {request.round for request in self.asked}
        return {
            n: sorted(int(c) for r in self.asked if r.round == n for c in r.clients) for n in rounds
        }

    def lines(self) -> list[dict]:
        return [
            json.loads(line) for line in (self.folder / "rounds.jsonl").read_text().splitlines()
        ]


def outcome(standing: Standing) -> tuple:
    """Everything of a result but the times."""
    records = [
        {k: v for k, v in r.to_json().items() if not k.startswith("seconds")}
        for r in standing.records
    ]
    return standing.now.params.tobytes(), standing.now.taken.tolist(), json.dumps(records)


@pytest.mark.parametrize(
    ("fraction", "expected"), [(0.05, 1), (0.3, 3), (0.7, 7), (0.75, 8), (1.0, 10)]
)
def test_a_fraction_of_the_clients_is_asked_in_each_round(tmp_path, fraction, expected):
    world = World(tmp_path, {"fraction": fraction, "rounds": 3, "max_participations": 3})
    standing = world.run()
    assert [len(set(picked)) for picked in world.picks().values()] == [expected] * 3
    assert [record.participants for record in standing.records] == [expected] * 3


def test_models_are_looked_at_now_and_then_and_the_last_one_always(tmp_path):
    """Also the last before everybody has retired, which no plan foresees."""
    every, seldom = ({"rounds": 5, "evaluate_every": n} for n in (1, 3))
    each, some = World(tmp_path / "1", every).run(), World(tmp_path / "3", seldom).run()
    assert [r.accuracy is None for r in some.records] == [True, True, False, True, False]
    assert (some.now.params == each.now.params).all() and some.records[-1].loss == each.records[
        -1
    ].loss
    short = {"epsilon": 3.0, "noise_multiplier": 3.0, "rounds": 50, "evaluate_every": 50}
    ended = World(tmp_path / "short", short).run()
    assert 0 < len(ended.records) < 50 and ended.records[-1].accuracy is not None


@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning")
def test_a_model_that_is_no_longer_finite_ends_the_run_in_its_last_round_too(tmp_path):
    """No client sees it any more. Kills a finished run whose model is infinite."""
    world = World(tmp_path, {"rounds": 1, "server_lr": 1e300})
    with pytest.raises(ValueError, match="the model of round 1 is not finite"):
        world.run()


def test_a_fraction_is_not_rounded_up_for_its_binary_digits(tmp_path):
    """0.07 * 100 is 7.000000000000001 in floating point."""
    world = World(tmp_path, {"clients": 100, "min_records": 1, "fraction": 0.07, "rounds": 1})
    world.run()
    assert len(world.picks()[1]) == 7


def test_picks_depend_on_the_seed_and_the_round_alone(tmp_path):
    picks = []
    for name, given in (("a", {}), ("b", {"groups": 1}), ("c", {"seed": 1})):
        world = World(tmp_path / name, {"fraction": 0.3, "max_participations": 5} | given)
        world.run()
        picks.append(world.picks())
    assert picks[0] == picks[1] != picks[2]
    assert len({tuple(clients) for clients in picks[0].values()}) > 1


def test_picks_of_a_release_follow_no_seed(tmp_path):
    """Whoever knew them would know which clients a round is about: two runs agree with probability
    120^-5."""
    given = {"fraction": 0.3, "max_participations": 5, "epsilon": None, "noise_multiplier": 1.0}
    worlds_ = [World(tmp_path / str(n), given | {"release": n < 2}) for n in range(3)]
    for world in worlds_:
        world.run()
    picks = [tuple(map(tuple, world.picks().values())) for world in worlds_]
    assert len(set(picks)) == 3


def test_figures_of_a_run_that_goes_on_are_at_the_orders_that_were_fixed_in_advance(tmp_path):
    """And those of its end at the best one. Kills the best order of the moment, which stopping may
    exploit."""
    world = World(tmp_path, {})
    standing, plan = world.run(), world.job.plans.of(0)
    orders = best_orders(plan, 5, 1e-5)
    shown = [record.epsilon_certified_max for record in standing.records]
    fixed = [min(in_progress(planned(plan, n), 1e-5, orders), 8.0) for n in range(1, 6)]
    best = [epsilon(planned(plan, n), 1e-5).epsilon for n in range(1, 6)]
    assert shown == [*fixed[:4], best[4]] and best[0] < 0.9 * fixed[0]


def test_figures_of_a_round_are_over_all_clients(tmp_path):
    """Clients of unlike sizes, whose rates differ: the largest of each column, and the middle."""

    class Sized(World):
        settings = SIZED

    given = {"partition": "dirichlet", "batch_size": 4, "rounds": 2}
    noise = {"epsilon": None, "noise_multiplier": 2.0}
    standing = Sized(tmp_path, given | noise).run()
    certified, published = map(standing.budgets.epsilons, ("certified", "published"))
    for spent in (certified, published):
        assert spent.min() < np.median(spent) < spent.max()
    record = standing.records[-1]
    assert record.epsilon_certified_max == certified.max()
    assert record.epsilon_certified_median == np.median(certified)
    assert record.epsilon_published_max == published.max()


def test_a_round_s_seconds_are_those_that_pass_in_it(tmp_path, monkeypatch):
    """By a clock of the test's own: half a second for each upload, eight for each evaluation."""
    world, clock = World(tmp_path, {"rounds": 3, "evaluate_every": 2}), [100.0]
    federation, real = world.federation, world.exchange(tmp_path, None)

    def exchange(requests):
        for upload in real(requests):
            clock[0] += 0.5
            yield upload

    def evaluate(params):
        clock[0] += 8.0
        return federation.evaluate(params)

    timed = replace(federation, evaluate=evaluate)
    monkeypatch.setattr(loop, "time", SimpleNamespace(perf_counter=lambda: clock[0]))
    store = world.store
    records = loop.run(timed, exchange, store, loop.restore(timed, store), []).records
    assert [record.seconds for record in records] == [1.5, 9.5, 9.5]
    assert [record.seconds_training for record in records] == [1.5] * 3
    silent = replace(timed, timed=False)
    (tmp_path / "silent").mkdir()
    store = World(tmp_path / "silent").store
    records = loop.run(silent, exchange, store, loop.restore(silent, store), []).records
    assert {(record.seconds, record.seconds_training) for record in records} == {(None, None)}


def test_what_each_client_has_paid_beyond_its_plan_counts_for_it_alone(tmp_path):
    """Two kinds of payers in each upload: kills a count of the first kind, or of the first
    upload."""
    world, claim = World(tmp_path, {"rounds": 1}), PaperClaim(0.5, 2.0)
    federation, real = world.federation, world.exchange(tmp_path, None)
    times = np.ones(CLIENTS, dtype=int)

    def exchange(requests):
        for upload in real(requests):
            times[upload.clients[1:]] = 3
            parts = (upload.clients[:1], upload.clients[1:])
            paid = [(part, {claim: n}) for part, n in zip(parts, (1, 3), strict=True)]
            yield replace(upload, realized=paid)

    store = world.store
    spent = loop.run(federation, exchange, store, loop.restore(federation, store), []).budgets
    expected = [
        epsilon(merge(world.job.plans.of(0).round_charges(1), {claim: int(n)}), 1e-5, "published")
        for n in times
    ]
    assert sorted(times) == [1] * 3 + [3] * 7
    assert spent.epsilons("published").tolist() == [one.epsilon for one in expected]


def test_uploads_are_collected_before_their_round_counts_as_finished(tmp_path):
    """A crash after it would lose what clients have shared and paid for. Groups stand in their
    order, whichever answers first."""
    world, before = World(tmp_path, {"rounds": 2}), []
    store, exchange = world.store, world.exchange(tmp_path, None)

    def collect(uploads):
        newest = store.checkpoints.newest()
        groups = [upload.group for upload in uploads]
        before.append((groups, len(store.records(9)), newest and newest.round))

    def last_first(requests):
        return list(exchange(requests))[::-1]

    federation = replace(world.federation, collect=collect)
    loop.run(federation, last_first, store, loop.restore(federation, store), [])
    assert before == [([0, 1, 2], 0, None), ([0, 1, 2], 1, 1)]


def test_every_group_is_asked_for_its_own_clients_alone(tmp_path):
    world = World(tmp_path, {"fraction": 0.5})
    world.run()
    group_of = world.federation.group_of
    assert all((group_of[request.clients] == request.group).all() for request in world.asked)
    assert all(
        (np.diff(request.clients) > 0).all() and len(request.clients) for request in world.asked
    )


def test_clients_are_told_which_of_their_rounds_it_is(tmp_path):
    world = World(tmp_path, {"fraction": 0.5, "max_participations": 5})
    standing, seen = world.run(), np.zeros(CLIENTS, dtype=int)
    for request in world.asked:
        seen[request.clients] += 1
        assert request.nth.tolist() == seen[request.clients].tolist()
    assert standing.now.taken.tolist() == seen.tolist()


def test_the_run_ends_when_every_client_has_retired(tmp_path):
    """A budget for two rounds and some: three rounds would overspend, so there are two, and no
    client passes it."""
    world = World(tmp_path, {"rounds": 9, "epsilon": 1.5, "noise_multiplier": 3.0})
    standing = world.run()
    assert 0 < len(standing.records) < 9 and standing.records[-1].retired == CLIENTS
    assert standing.records[-2].retired == 0 and standing.records[-1].epsilon_certified_max <= 1.5
    assert outcome(world.run()) == outcome(standing)


def test_a_run_that_nobody_could_join_ends_without_a_round(tmp_path):
    """A release that died in every client's only round."""
    world = World(tmp_path, {"release": True, "rounds": 1}).crashed(1, 0)
    for group in range(3):
        ledger.Ledger(tmp_path / "ledger" / f"group-{group:04d}.jsonl").charge(
            "lost", 1, range(CLIENTS), world.job.plans.of(0).round_charges(1)
        )
    assert world.run().records == ()


@pytest.mark.parametrize("crash", [(1, 0), (1, 2), (3, 1), (5, 2)])
def test_an_interrupted_run_goes_on_to_the_same_result(tmp_path, crash):
    """Before the first group's charge, between two groups, in the first round and the last."""
    straight, broken = World(tmp_path / "a"), World(tmp_path / "b")
    expected = straight.run()
    assert outcome(broken.crashed(*crash).run()) == outcome(expected)
    assert ledger.read(broken.folder / "ledger") == ledger.read(straight.folder / "ledger")


def test_after_a_crash_the_round_file_is_cut_back_to_the_checkpoint(tmp_path):
    """A record whose checkpoint was not written, a torn line, and both."""
    world = World(tmp_path).crashed(3, 0)
    whole = (tmp_path / "rounds.jsonl").read_text()
    for left in (
        '{"round": 3, "accu',
        '{"round": 3, "metrics": {}',
        world.lines()[1] | {"round": 3, "participants": 0},
    ):
        extra = left if isinstance(left, str) else json.dumps(left) + '\n{"rou'
        (tmp_path / "rounds.jsonl").write_text(whole + extra)
        standing = loop.restore(world.federation, world.store)
        assert (tmp_path / "rounds.jsonl").read_text() == whole and len(standing.records) == 2
    world.run()
    assert [line["round"] for line in world.lines()] == [1, 2, 3, 4, 5]


def test_a_damaged_newest_checkpoint_costs_a_round_of_time_and_nothing_else(tmp_path):
    expected = World(tmp_path / "a").run()
    world = World(tmp_path / "b").crashed(4, 0)
    (world.folder / "checkpoints" / "round-000003.safetensors").write_bytes(b"torn")
    with pytest.warns(UserWarning, match="round-000003 is damaged"):
        assert outcome(world.run()) == outcome(expected)
    assert ledger.read(world.folder / "ledger") == ledger.read(tmp_path / "a" / "ledger")


def test_the_final_model_belongs_to_no_checkpoint(tmp_path):
    """A finished run whose last checkpoint is damaged repeats its last round, and writes the model
    again after it."""
    store = World(tmp_path).store
    (tmp_path / MODEL).write_bytes(b"of the first end")
    store.save(Checkpoint(1, np.zeros(2, np.float32), {}, np.ones(1, np.int64)))
    (tmp_path / MODEL).write_bytes(b"of the second one")
    assert store.newest().round == 1


def test_a_finished_run_is_left_as_it_is(tmp_path):
    world = World(tmp_path)
    standing, asked = world.run(), len(world.asked)
    assert outcome(world.run()) == outcome(standing) and len(world.asked) == asked


def test_a_resumed_release_uses_finished_uploads_and_asks_the_others_again(tmp_path):
    """Kills paying twice for an upload that is on disk, forgetting that its clients took part, and
    a second try under the first one's name, which a ledger charges once."""
    world = World(tmp_path, {"release": True, "epsilon": None, "noise_multiplier": 1.0}).crashed(
        2, 2
    )
    asked = len(world.asked)
    standing = world.run()
    assert [r.group for r in world.asked[asked:] if r.round == 2] == [2]
    assert len({(r.round, r.release) for r in world.asked}) == 5 + 1
    assert [record.participants for record in standing.records] == [CLIENTS] * 5
    assert standing.now.taken.tolist() == [5] * CLIENTS
    assert set(ledger.read(tmp_path / "ledger")[0].values()) == {5}


def test_a_resumed_release_asks_as_many_clients_as_are_missing(tmp_path):
    """Others are drawn in place of those who had not answered. Kills a round that is larger than
    the fraction, and costs more. Who is drawn is not seeded: of a group of three, one at least is
    among eight of ten, and in one of eight runs not all of them."""
    given = {"release": True, "epsilon": None, "noise_multiplier": 1.0, "fraction": 0.8}
    for number in range(8):
        world = World(tmp_path / str(number), given | {"max_participations": 5}).crashed(2, 2)
        assert min(len(np.concatenate(group)) for group in world.job.groups) == 3
        standing = world.run()
        assert [record.participants for record in standing.records] == [8] * 5
        assert standing.now.taken.sum() == 8 * 5


def test_an_upload_whose_charge_is_lost_is_refused(tmp_path):
    """The ledger's line of round 2 is torn, and cut off as if nothing had left: nobody has paid for
    what is kept. Kills a reused upload that nobody has charged."""
    given = {"release": True, "epsilon": None, "noise_multiplier": 1.0}
    world = World(tmp_path, given).crashed(2, 2)
    path = tmp_path / "ledger" / "group-0000.jsonl"
    path.write_bytes(path.read_bytes()[:-20])
    with (
        pytest.warns(UserWarning, match="torn"),
        pytest.raises(ValueError, match=r"0000\.jsonl has 1 lines, but had 2 before: restore"),
    ):
        world.run()


@pytest.mark.parametrize("resumed", [False, True])
@pytest.mark.parametrize("back", ["shorter", "another", "gone"])
def test_a_ledger_that_is_put_back_while_a_run_goes_on_is_missed(tmp_path, back, resumed):
    """Of a group that is not asked any more, nobody writes to it: the next checkpoint had taken it
    as it was."""
    world = World(tmp_path).crashed(3, 0)
    store, path = world.store, tmp_path / "ledger" / "group-0000.jsonl"
    now, lines = store.newest(), path.read_bytes().splitlines(keepends=True)
    if not resumed:
        store = world.store
        store.save(now)
    if back == "gone":
        path.unlink()
    else:
        path.write_bytes(b"".join(lines[:-1]))
    if back == "another":
        with ledger.Ledger(path) as other:
            other.charge("another", 2, [0], {Gaussian(1.0): 1})
    with pytest.raises(ValueError, match=r"group-0000\.jsonl was put back .* restore it"):
        store.save(now)


@pytest.mark.parametrize("release", [False, True])
def test_checkpoints_that_are_lost_are_missed(tmp_path, release):
    """By the rounds that are written down, and by what is paid: more than one is ahead of the
    newest checkpoint. One that is damaged is there, and the one before it goes on."""
    given = {"release": release, "epsilon": None, "noise_multiplier": 1.0}
    world = World(tmp_path / "a", given).crashed(4, 0)
    for path in (tmp_path / "a" / "checkpoints").iterdir():
        path.unlink()
    with pytest.raises(
        ValueError, match=r"rounds\.jsonl tells of 3 rounds, .* at most 1 with these"
    ):
        world.run()
    (tmp_path / "a" / ROUNDS).unlink()  # finished rounds were repeated without a word
    with pytest.raises(ValueError, match=r"\.jsonl tells of 3 rounds, .* at most 1 with these"):
        world.run()
    behind = World(tmp_path / "c", given).crashed(4, 1)
    for path in (tmp_path / "c" / "checkpoints").glob("*3.*"):
        path.unlink()
    with pytest.raises(ValueError, match=r"\.jsonl tells of 4 rounds, .* at most 3 with these"):
        behind.run()
    damaged = World(tmp_path / "b", given).crashed(4, 1)
    (tmp_path / "b" / "checkpoints" / "round-000003.safetensors").write_bytes(b"")
    with pytest.warns(UserWarning, match="is damaged"):
        assert len(damaged.run().records) == 5


def test_a_resumed_release_asks_nobody_else_of_a_group_whose_upload_is_there(tmp_path, monkeypatch):
    """Half of the clients in each round. Kills asking those of the group who were not picked, for a
    second upload."""
    monkeypatch.setattr(loop, "fresh_key", lambda: b"the same picks each time")
    given = {"release": True, "fraction": 0.5, "epsilon": None, "noise_multiplier": 1.0}
    world = World(tmp_path, given).crashed(2, 2)
    first, asked = [r for r in world.asked if r.round == 2], len(world.asked)
    others = np.concatenate([chunk for group in world.job.groups[:2] for chunk in group])
    assert [r.group for r in first] == [0, 1] and sum(len(r.clients) for r in first) < len(others)
    world.run()
    assert [r.group for r in world.asked[asked:] if r.round == 2] == [2]


def test_a_release_never_passes_its_target_however_often_it_dies(tmp_path):
    """Two deaths in round 2 after groups 0 and 1 have paid, the first of which loses their uploads:
    a planned round is gone, and their clients retire a round early."""
    world = World(tmp_path, {"release": True}).crashed(2, 2)
    for lost in (tmp_path / "uploads").iterdir():
        lost.unlink()
    standing = world.crashed(2, 2).run()
    paid = ledger.read(tmp_path / "ledger")
    assert {client: sum(paid[client].values()) for client in paid} == dict.fromkeys(
        range(CLIENTS), 5
    )
    last = np.concatenate(world.job.groups[2])
    assert [record.participants for record in standing.records] == [10, 10, 10, 10, len(last)]
    assert 7.9 < standing.budgets.epsilons("certified").max() <= 8.0


def test_a_record_of_every_round_is_on_disk_and_shown(tmp_path):
    seen = []
    world = World(tmp_path)
    federation, store = world.federation, world.store
    exchange = inline_exchange(world.job, tmp_path)

    def watch(record):
        assert world.lines()[-1] == json.loads(json.dumps(record.to_json()))
        seen.append(record)

    standing = loop.run(federation, exchange, store, loop.restore(federation, store), [watch])
    assert tuple(seen) == standing.records and [r.round for r in seen] == [1, 2, 3, 4, 5]
    spent = [record.epsilon_certified_max for record in seen]
    assert spent[:-1] == sorted(spent[:-1]) and 7.9 < spent[-1] <= max(spent) <= 8.0
    assert seen[-1].retired == CLIENTS
