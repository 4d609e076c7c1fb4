"""Clients whose answers are lost in the rounds of a trace, in place of coins."""

import itertools
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from client import trace
from mechanisms import grid
from server import loop
from sim import central, run
from sim.config import caveats, configuration
from sim.engines import policy
from tests.refusing import refusal
from tests.test_curator import CLIENT_UNIT, CLIENTS, ROUNDS
from tests.test_dropout import LOCAL, SINGLE, SUMMED, World, uploads

ROWS = [(0, 2, 4), (5, 1, 1), (5, 3, 3), (7, 3, 3), (8, 3, 3), (9, 4, 99), (9, 5, 7)]
TEXT = "0@2-4;5@1,3;7-8@3;9@4-99"
LOST = {1: {5}, 2: {0}, 3: {0, 5, 7, 8}, 4: {0, 9}}
"""Round -> who does not answer."""
TRACED = {"dropout_trace": TEXT}
ANSWERED = [1 - len(LOST[round_]) / CLIENTS for round_ in range(1, ROUNDS + 1)]


def file_of(folder: Path) -> Path:
    """The trace as a file, with its rows in another order, a comment and a further column."""
    path = folder / "trace.CSV"
    lines = [f"x,{last},{client},{first}" for client, first, last in reversed(ROWS)]
    lines[:0] = ["# from a log", "other,last_round,client,first_round"]
    path.write_text("\ufeff" + "\n".join([*lines, ""]), encoding="utf-8")
    return path


def lost(text: str, clients: int, round_: int) -> set[int]:
    """Who does not answer, of all clients at once and of each by itself."""
    found, who = trace.parse(text, clients), np.arange(clients)
    mask = found.lost(SimpleNamespace(clients=who, round=round_))
    assert mask.tolist() == [
        bool(found.lost(SimpleNamespace(clients=who[k : k + 1], round=round_))[0]) for k in who
    ]
    return set(np.flatnonzero(mask).tolist())


@pytest.mark.parametrize("kind", ["text", "file"])
@pytest.mark.parametrize("release", [False, True])
def test_exactly_those_of_the_trace_do_not_answer(tmp_path, kind, release):
    """In exactly those rounds. Kills rounds or clients that are counted from another number, an end
    that is left out, and rounds as clients."""
    given = {"dropout_trace": TEXT if kind == "text" else str(file_of(tmp_path))}
    world = World(tmp_path / "run", LOCAL | SINGLE | given | {"release": release, "steps": 1})
    real, silent = world.exchange(world.folder, None), {}

    def exchange(requests):
        for upload in real(requests):
            if not upload.weight:
                silent.setdefault(upload.round, set()).update(upload.clients.tolist())
                assert not upload.total.any()
            yield upload

    federation, store = world.federation, world.store
    standing = loop.run(federation, exchange, store, loop.restore(federation, store), [])
    assert silent == LOST and world.job.config.rounds.dropout_trace == TEXT
    answered = [record.metrics["answered"] for record in standing.records]
    assert answered == pytest.approx(ANSWERED)


def test_the_model_is_the_one_without_their_updates(tmp_path):
    """Of clients of unequal weights. Kills an update or a weight that is kept, or another's."""
    world = World(tmp_path / "all", LOCAL | SINGLE)
    assert len({*world.job.partition.sizes.tolist()}) > 3
    real = world.exchange(world.folder, None)

    def exchange(requests):
        for upload in real(requests):
            gone = LOST[upload.round] & {*upload.clients.tolist()}
            empty = {"weight": 0, "total": np.zeros_like(upload.total)}
            yield replace(upload, **empty) if gone else upload

    federation, store = world.federation, world.store
    without = loop.run(federation, exchange, store, loop.restore(federation, store), [])
    traced = World(tmp_path / "traced", LOCAL | SINGLE | TRACED).run()
    assert np.array_equal(traced.now.params, without.now.params)
    whole = World(tmp_path / "whole", LOCAL | SINGLE).run()
    assert not np.array_equal(traced.now.params, whole.now.params)


@pytest.mark.parametrize("given", [LOCAL, SUMMED, SUMMED | CLIENT_UNIT])
def test_a_trace_changes_no_charge(tmp_path, given):
    """Kills a charge of those alone who answer, and a plan that knows the trace."""
    whole, traced = World(tmp_path / "a", given), World(tmp_path / "b", given | TRACED)
    one, other = whole.run(), traced.run()
    assert whole.paid == traced.paid and len(traced.paid) == CLIENTS
    assert whole.job.plans.plans == traced.job.plans.plans
    for column in ("certified", "published"):
        epsilons = [standing.budgets.epsilons(column).tolist() for standing in (one, other)]
        assert epsilons[0] == epsilons[1]
    assert not np.array_equal(one.now.params, other.now.params)


@pytest.mark.parametrize("given", [LOCAL, SUMMED, {**SUMMED, "trust": "aggregate", "honest": 0.5}])
def test_groups_and_resumption_change_no_bit(tmp_path, given):
    given = given | TRACED
    one, three = (
        World(tmp_path / str(groups), given | {"groups": groups, "chunk_clients": 4}).run()
        for groups in (1, 3)
    )
    assert np.array_equal(one.now.params, three.now.params)
    whole = World(tmp_path / "whole", given).run()
    resumed = World(tmp_path / "crashed", given).crashed(3, 1).run()
    assert np.array_equal(whole.now.params, resumed.now.params)


def test_a_run_is_resumed_without_the_file(tmp_path, no_report, monkeypatch, capsys):
    """Its configuration has the whole trace, and it ends with the same bits."""
    path, line = file_of(tmp_path), ["--engine=inline", f"--clients={CLIENTS}", "--rounds=4"]
    line += [f"--dropout-trace={path}", f"--out={tmp_path}"]
    run.command([*line, "--name=whole"])
    assert caveats.TRACED in capsys.readouterr().out
    advance = loop._advance

    def dies(federation, standing, received):
        if standing.now.round == 2:
            raise KeyboardInterrupt
        return advance(federation, standing, received)

    with monkeypatch.context() as patch:
        patch.setattr(loop, "_advance", dies)
        with pytest.raises(KeyboardInterrupt):
            run.command([*line, "--name=crashed"])
    path.unlink()
    run.command([f"--resume={tmp_path / 'crashed'}"])
    whole, crashed = tmp_path / "whole", tmp_path / "crashed"
    assert f'dropout_trace = "{TEXT}"' in (crashed / "config.toml").read_text()
    rounds = [json.loads(text) for text in (crashed / "rounds.jsonl").read_text().splitlines()]
    assert [one["metrics"]["answered"] for one in rounds] == pytest.approx(ANSWERED)
    model = "model.safetensors"
    assert (whole / model).read_bytes() == (crashed / model).read_bytes()


def test_a_trusted_server_divides_by_what_the_trace_leaves_and_hides_how_many(tmp_path):
    """Of all rounds of the run, weighted by what clients are expected to send. Kills a divisor that
    counts all, those of one round, clients that hold much as others, or rounds after the end."""
    given = SUMMED | SINGLE | TRACED | {"sample_rate": 1.0, "noise_multiplier": 1e-6}
    world = World(tmp_path / "a", given)
    sizes = world.job.partition.sizes
    left = sum(
        sizes[[client not in gone for client in range(CLIENTS)]].sum() for gone in LOST.values()
    )
    assert left / ROUNDS / sizes.sum() != pytest.approx(np.mean(ANSWERED), rel=1e-3)
    curator = world.federation.curator
    assert curator.expected == pytest.approx(left / ROUNDS)
    found = uploads(world)
    total = sum(upload.total.astype(np.float64) for upload in found) / grid.PART
    released = curator.release(1, 1, len(total), found)
    scale = curator.bound * curator.factor(1) * ROUNDS / left
    assert released == pytest.approx(total * scale, abs=1e-6)
    few = World(tmp_path / "c", given | {"max_participations": 1})
    answers = few.federation.curator.expected / sizes.sum()
    assert answers == pytest.approx(
        sizes[[client not in LOST.get(1, ()) for client in range(CLIENTS)]].sum() / sizes.sum()
    )  # no other round is paid for
    standing = World(tmp_path / "b", given).run()
    assert all("answered" not in record.metrics for record in standing.records)
    assert all(record.participants is None for record in standing.records)


def test_a_sum_of_too_few_stays_closed(tmp_path):
    """With secure aggregation: four of twelve are lost in round 3 alone."""
    given = {**SUMMED, "trust": "aggregate", "honest": 0.75} | TRACED
    standing = World(tmp_path, given).run()
    assert [record.metrics["opened"] for record in standing.records] == [1.0, 1.0, 0.0, 1.0]
    answered = [record.metrics["answered"] for record in standing.records]
    assert answered == pytest.approx(ANSWERED)


ranges = st.tuples(st.integers(0, 6), st.integers(1, 12), st.integers(0, 5))


@settings(max_examples=60)
@given(st.lists(ranges, min_size=1, max_size=12), st.integers(1, 15))
def test_ranges_in_any_order_mean_what_each_says(found, rounds):
    """Overlapping, touching and repeated ones, too; and their text says the same. Kills a range
    that hides a longer one, and rounds that count twice."""
    rows = [(client, first, first + more) for client, first, more in found]
    said = {(client, r) for client, first, last in rows for r in range(first, last + 1)}
    within = {pair for pair in said if pair[1] <= rounds}
    given = ";".join(f"{client}@{first}-{last}" for client, first, last in rows)
    text = str(trace.parse(given, 8))
    assert text == trace.resolved(text, 8, rounds) == trace.resolved(given, 8, rounds)
    for round_ in range(1, 20):
        assert lost(text, 8, round_) == {client for client, r in said if r == round_}
    parts = np.arange(1.0, 9.0)
    missed = sum(parts[client] for client, _ in within) / (parts.sum() * rounds)
    assert trace.parse(text, 8).share(parts, rounds) == pytest.approx(1 - missed, abs=1e-12)
    assert text.count("@") == len(
        {frozenset(r for c, r in said if c == client) for client, _ in said}
    )


def test_clients_of_equal_rounds_share_a_part():
    """So that an outage of many is a short text."""
    rows = ";".join(f"{client}@3,5-6" for client in range(9_000))
    assert trace.resolved(rows, 10_000, 10) == "0-8999@3,5-6"


FILES = {
    "far": "client,first_round,last_round\n3,1,2\n",
    "signed": "client,first_round,last_round\n-1,1,2\n",
    "zero": "client,first_round,last_round\n1,0,2\n",
    "word": "client,first_round,last_round\n1,1,soon\n",
    "short": "client,first_round,last_round\n1,1\n",
    "wide": "client,first_round,last_round\n1,1,2,3\n",
    "reversed": "client,first_round,last_round\n1,3,2\n",
    "head": "client,first,last_round\n1,1,2\n",
    "none": "client,first_round,last_round\n",
    "many": "client,first_round,last_round\n" + "1,1,2\n" * 6,
    "empty": "",
    "bytes": b"client,first_round,last_round\n\xff\xfe\n",
}
FAULTS = {
    "much": ["'much'", "CLIENTS@ROUNDS", ".csv"],
    "0@": ["'0@'"],
    "@1": ["'@1'"],
    "0@1;": ["''"],
    "3@1": ["'3@1'", "clients below 3"],
    "0-3@1": ["'0-3@1'", "clients below 3"],
    "0@0-2": ["'0@0-2'", "rounds from 1 to 9999999"],
    "0@3-2": ["'0@3-2'", "ascending"],
    "0@1@2": ["'0@1@2'"],
    "-1@2": ["'-1@2'"],
    "0@12345678": ["from 1 to 9999999"],
    "0-2@1,3,5": ["has 9 ranges", "at most 5"],
    "0-2@1-9": ["'0-2@1-9'", "no answer of 3 clients in 4 rounds", "--rounds"],
    "nowhere.csv": ["nowhere.csv", "No such file", "client, first_round and last_round"],
    "far.csv": ["client '3' is no number below 3", "correct the file"],
    "signed.csv": ["client '-1'"],
    "zero.csv": ["first_round of client 1 is '0'", "from 1 to 9999999"],
    "word.csv": ["last_round of client 1 is 'soon'"],
    "wide.csv": ["more cells than the first one"],
    "~nobody/of/this/name.csv": ["dropout_trace = ~nobody"],
    "short.csv": ["last_round of client 1 is ''"],
    "reversed.csv": ["client 1 has first_round 3, which is above last_round 2"],
    "head.csv": ["head.csv", "lacks the columns client, first_round and last_round"],
    "none.csv": ["no row"],
    "many.csv": ["more than 5"],
    "empty.csv": ["lacks the columns"],
    "bytes.csv": ["bytes.csv", "utf-8"],
}
ARGV = ["--engine=inline", "--quiet", "--clients=3", "--rounds=4", "--out=runs"]


@pytest.mark.parametrize("text", FAULTS)
def test_a_bad_trace_is_one_line_and_leaves_nothing(tmp_path, capsys, monkeypatch, text):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(trace, "MAX_RANGES", 5)
    for name, content in FILES.items():
        own = content if isinstance(content, bytes) else content.encode()
        (tmp_path / f"{name}.csv").write_bytes(own)
    said = refusal(capsys, run.command, [*ARGV, f"--dropout-trace={text}"])
    assert [part for part in FAULTS[text] if part not in said] == [] and "dropout_trace" in said
    assert not list(tmp_path.glob("runs/*"))


def test_coins_and_a_trace_exclude_each_other(tmp_path, capsys):
    """In one place; else the later one counts, as everywhere."""
    said = refusal(capsys, run.command, [*ARGV, "--dropout=0.3", "--dropout-trace=0@1"])
    assert "dropout is 0.3 and dropout_trace is '0@1'" in said and "drop one" in said
    path = tmp_path / "c.toml"
    for in_file, by_flag in itertools.permutations((("dropout", 0.3), ("dropout_trace", "0@1"))):
        path.write_text(f"[rounds]\n{in_file[0]} = {json.dumps(in_file[1])}\n")
        rounds = configuration.load(path, dict([by_flag])).rounds
        usual = {"dropout": 0.0, "dropout_trace": None} | dict([by_flag])
        assert {name: getattr(rounds, name) for name in usual} == usual
    assert configuration.load(None, {"dropout": 0.0, **TRACED}).rounds.dropout_trace == TEXT


def test_central_training_has_no_trace(capsys):
    said = refusal(capsys, central.command, ["--dropout-trace=0@1"])
    assert "--dropout-trace has no effect with one client" in said


def test_a_node_reads_no_trace_outside_its_folder(tmp_path, monkeypatch):
    monkeypatch.setenv(policy.FOLDER, str(tmp_path / "node"))
    config = configuration.load(None, {"dropout_trace": str(tmp_path / "secret.csv")})
    with pytest.raises(ValueError, match=r"dropout_trace = .*secret\.csv is not below"):
        policy.check(config, tmp_path / "node" / "run")
    inside = configuration.load(None, {"dropout_trace": str(tmp_path / "node" / "own.csv")})
    policy.check(inside, tmp_path / "node" / "run")


def test_by_turns_a_run_is_as_long_as_its_clients_can_take_part(tmp_path):
    """Kills a divisor for as many rounds as one client takes part in, and for all that are asked
    for."""
    turns = {**SUMMED, **CLIENT_UNIT, "fraction": 1.0, "noise_bands": 2}
    given = turns | {"max_participations": 3, "rounds": 10, "dropout_trace": f"0-{CLIENTS - 1}@5-6"}
    world = World(tmp_path, given)
    curator = world.federation.curator
    assert curator.expected == pytest.approx(CLIENTS / 2 * 4 / 6)
