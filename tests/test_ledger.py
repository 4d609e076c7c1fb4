"""The ledger: what was charged is on the disk, once, whatever dies."""

import json
import os
import random
import re
import signal
import subprocess
import sys
import tracemalloc
from collections import Counter
from hashlib import blake2b
from pathlib import Path

import pytest

from mechanisms.accounting.events import SampledGaussian, to_dict
from mechanisms.accounting.ledger import Ledger, read
from mechanisms.journal import sealed, start
from tests.crashing import Noting

A, B = SampledGaussian(0.01, 1.1), SampledGaussian(0.2, 4.0)

WRITER = """
import sys
from mechanisms.accounting.events import SampledGaussian
from mechanisms.accounting.ledger import Ledger

ledger = Ledger(sys.argv[1])
for number in range(10**6):
    events = {SampledGaussian(0.01, 1.0 + part): 2 for part in range(20)}
    ledger.charge(f"release {number}", number, range(0, 4000, 1 + number % 3), events)
    print(number, flush=True)
"""


def charge(path, *charges):
    with Ledger(path) as ledger:
        for release, clients, events in charges:
            ledger.charge(release, 0, clients, events)


def test_every_client_is_charged_with_every_event_of_every_release(tmp_path):
    charge(tmp_path / "g0.jsonl", ("one", range(3), {A: 5, B: 2}), ("two", [1], {A: 7}))
    charge(tmp_path / "g1.jsonl", ("one", [10], {A: 5}))
    expected = {
        0: Counter({A: 5, B: 2}),
        1: Counter({A: 12, B: 2}),
        2: Counter({A: 5, B: 2}),
        10: Counter({A: 5}),
    }
    assert read(tmp_path) == expected


def test_the_lines_are_plain_json(tmp_path):
    charge(tmp_path / "g.jsonl", ("one", [4, 2, 3, 9], {A: 5}))
    line = {"release": "one", "round": 0, "clients": "2-4,9", "event": to_dict(A), "count": 5}
    read_back = json.loads((tmp_path / "g.jsonl").read_text())
    assert {name: read_back[name] for name in line} == line
    assert read_back.keys() - line.keys() == {"number", "chain"}


def test_a_replayed_release_is_charged_once(tmp_path):
    path = tmp_path / "g.jsonl"
    charge(path, ("one", [0, 1], {A: 5}), ("one", [0, 1, 2], {A: 5, B: 1}))
    charge(path, ("one", [2, 3], {A: 5}))
    assert read(tmp_path) == {0: {A: 5, B: 1}, 1: {A: 5, B: 1}, 2: {A: 5, B: 1}, 3: {A: 5}}
    before = path.read_bytes()
    charge(path, ("one", [3, 0], {A: 5}))
    assert path.read_bytes() == before
    paid = [(line["clients"], line["event"]) for line in map(json.loads, before.splitlines())]
    assert paid == [("0-1", to_dict(A)), ("2", to_dict(A)), ("0-2", to_dict(B)), ("3", to_dict(A))]


def test_a_release_in_two_files_counts_once_with_its_largest_count(tmp_path):
    charge(tmp_path / "g0.jsonl", ("one", [0, 1], {A: 5}))
    charge(tmp_path / "g1.jsonl", ("one", [1, 2], {A: 6}), ("two", [1], {A: 1}))
    assert read(tmp_path) == {0: {A: 5}, 1: {A: 7}, 2: {A: 6}}


def test_the_order_of_charges_and_files_does_not_matter(tmp_path):
    charges = [(f"r{n}", range(n, 20, 3), {A: n + 1, B: 2}) for n in range(6)]
    for folder, names in (("x", "ab"), ("y", "ba")):
        shuffled = random.Random(folder).sample(charges, len(charges))
        charge(tmp_path / folder / f"{names[0]}.jsonl", *shuffled[:2])
        charge(tmp_path / folder / f"{names[1]}.jsonl", *shuffled[2:])
    assert read(tmp_path / "x") == read(tmp_path / "y")


def test_another_count_under_the_same_name_is_refused(tmp_path):
    with Ledger(tmp_path / "g.jsonl") as ledger:
        ledger.charge("one", 0, [0, 1], {A: 5})
        with pytest.raises(ValueError) as error:
            ledger.charge("one", 0, [1, 2], {B: 1, A: 6})
    assert str(error.value) == (
        f"release = 'one': count = 6 of {A} for client 1 must be 5 as charged before in "
        f"{tmp_path / 'g.jsonl'}; name a different draw of the noise differently"
    )
    assert read(tmp_path) == {0: {A: 5}, 1: {A: 5}}


NAME = "must be a non-empty name; it identifies one draw of the noise"
ROUND = (
    "must be an integer, at most 1000000000 from 0; training counts from 1, what comes before from "
    "0 down"
)
TWICE = "must be named once in a charge; one release costs a client once"
COUNT = f"of {A} must be an integer from 1 to 1000000000; leave unused events out"


@pytest.mark.parametrize(
    ("message", "arguments"),
    [
        (f"release = '' {NAME}", ("", 0, [0], {A: 1})),
        (f"release = ' ' {NAME}", (" ", 0, [0], {A: 1})),
        (f"release = 7 {NAME}", (7, 0, [0], {A: 1})),
        (f"round = 1.5 {ROUND}", ("r", 1.5, [0], {A: 1})),
        (f"round = True {ROUND}", ("r", True, [0], {A: 1})),
        (f"count = {10**9 + 1} {COUNT}", ("r", 0, [0], {A: 10**9 + 1})),
        (f"round = {-(10**9) - 1} {ROUND}", ("r", -(10**9) - 1, [0], {A: 1})),
        ("client = 10000000 must be below 10000000; use fewer clients", ("r", 0, [10**7], {A: 1})),
        ("client = -1 must be at least 0; ids count from 0", ("r", 0, [3, -1], {A: 1})),
        (f"client = 2 {TWICE}", ("r", 0, [2, 2], {A: 1})),
        (f"client = 2 {TWICE}", ("r", 0, [2, 3, 2], {A: 1})),
        (f"count = 0 {COUNT}", ("r", 0, [0], {A: 0})),
        (f"count = -3 {COUNT}", ("r", 0, [0], {A: -3})),
        (f"count = 1.0 {COUNT}", ("r", 0, [0], {A: 1.0})),
        (f"count = True {COUNT}", ("r", 0, [0], {A: True})),
    ],
)
def test_a_bad_argument_is_refused_by_name_and_nothing_is_written(tmp_path, message, arguments):
    with Ledger(tmp_path / "g.jsonl") as ledger, pytest.raises(ValueError) as error:
        ledger.charge(*arguments)
    assert str(error.value) == message and (tmp_path / "g.jsonl").read_bytes() == b""


def test_a_client_is_named_once_for_an_event_of_a_release(tmp_path):
    """The lines of a release are read as one charge, so that the second would cost nothing."""
    with Ledger(tmp_path / "g.jsonl") as ledger:
        for second in ({A: 1}, {B: 2, A: 1}):
            with pytest.raises(ValueError, match=f"^client = 2 {TWICE}$"):
                ledger.charge_all("one", 1, [([1, 2], {A: 1}), ([2, 3], second)])
        assert (tmp_path / "g.jsonl").read_bytes() == b""
        ledger.charge_all("one", 1, [([1, 2], {A: 1}), ([2, 3], {B: 1})])
    assert read(tmp_path) == {1: {A: 1}, 2: {A: 1, B: 1}, 3: {B: 1}}


def test_the_lines_and_the_files_name_are_flushed_before_charge_returns(tmp_path, monkeypatch):
    flushed = {}
    real = os.fsync

    def fsync(handle):
        real(handle)
        flushed[os.fstat(handle).st_ino] = os.fstat(handle).st_size

    monkeypatch.setattr(os, "fsync", fsync)
    path = tmp_path / "new" / "ledger" / "g.jsonl"
    with Ledger(path) as ledger:
        assert {
            folder.stat().st_ino for folder in (tmp_path, tmp_path / "new", path.parent)
        } <= set(flushed)
        for number in range(3):
            ledger.charge(f"r{number}", number, range(100), {A: 1, B: 2})
            assert flushed[path.stat().st_ino] == path.stat().st_size > 0


def test_a_disk_that_takes_a_few_bytes_at_a_time_gets_them_all(tmp_path):
    """A short write is no error, so nobody says that the rest is missing. Kills one that is taken
    for the whole."""
    for folder, longest in (("whole", 2**30), ("short", 7)):
        (tmp_path / folder).mkdir()
        with Noting(tmp_path / folder, longest=longest):
            charge(
                tmp_path / folder / "g.jsonl", ("one", [0, 1], {A: 5, B: 2}), ("two", [1], {A: 7})
            )
    files = [tmp_path / folder / "g.jsonl" for folder in ("whole", "short")]
    assert files[0].read_bytes() == files[1].read_bytes() and read(tmp_path / "short")[1] == {
        A: 12,
        B: 2,
    }


def test_a_disk_that_refuses_leaves_no_charge_and_a_closed_ledger(tmp_path, monkeypatch):
    path = tmp_path / "g.jsonl"
    with Ledger(path) as ledger:
        ledger.charge("one", 0, [0], {A: 1})
        before = path.read_bytes()
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError("no space")))
            with pytest.raises(OSError, match="no space"):
                ledger.charge("two", 1, [0], {A: 1})
        assert path.read_bytes() == before
        with pytest.raises(ValueError) as error:
            ledger.charge("two", 1, [0], {A: 1})
    closed = f"ledger = {path} is closed and must be open to charge; open it again"
    assert str(error.value) == closed


def test_a_disk_that_refuses_even_to_cut_a_charge_off_leaves_a_closed_ledger(tmp_path, monkeypatch):
    """What is left of the charge counts, and nothing follows it. Kills the second fault in place of
    the first, and a ledger that stays open."""
    path = tmp_path / "g.jsonl"
    with Ledger(path) as ledger:
        ledger.charge("one", 0, [0], {A: 1})
        with monkeypatch.context() as patch:
            for name, said in (("fsync", "input/output error"), ("ftruncate", "read-only")):
                patch.setattr(os, name, lambda *_, said=said: (_ for _ in ()).throw(OSError(said)))
            with pytest.raises(OSError, match="input/output error"):
                ledger.charge("two", 1, [0], {A: 2})
        with pytest.raises(ValueError, match="is closed and must be open to charge"):
            ledger.charge("three", 2, [0], {A: 1})
    assert read(tmp_path) == {0: {A: 3}}


@pytest.mark.parametrize(
    "torn", [b'{"release": "two", "ro', b"\0\0\0\0", b'{"release": "tw\0\0\n', b"\0\0\n"]
)
def test_a_torn_last_line_is_cut_off_with_a_warning(tmp_path, torn):
    path = tmp_path / "g.jsonl"
    charge(path, ("one", [0], {A: 1}))
    whole = path.read_bytes()
    path.write_bytes(whole + torn)
    where, what = re.escape(str(path)), rf"a torn end \({len(torn)} bytes\)$"
    with pytest.warns(UserWarning, match=f"{where}: skipped {what}"):
        assert read(tmp_path) == {0: {A: 1}}
    assert path.read_bytes() == whole + torn
    with pytest.warns(UserWarning, match=f"{where}: cut off {what}"):
        charge(path, ("two", [0], {A: 2}))
    assert path.read_bytes().startswith(whole + b'{"release": "two"')
    assert read(tmp_path) == {0: {A: 3}}


def test_a_line_cut_at_any_byte_loses_itself_alone(tmp_path):
    path = tmp_path / "g.jsonl"
    charge(path, ("one", [0], {A: 1}), ("two", [0], {A: 2}))
    data = path.read_bytes()
    first = data.index(b"\n") + 1
    for cut in range(first + 1, len(data) - 1):
        path.write_bytes(data[:cut])
        with pytest.warns(UserWarning, match="torn end"):
            assert read(tmp_path) == {0: {A: 1}}


@pytest.mark.parametrize(
    "change",
    [
        lambda line: line[:-10],
        lambda line: line.replace('"count": 2', '"count": 0'),
        lambda line: line.replace('"count": 2', '"count": true'),
        lambda line: line.replace("sampled_gaussian", "sampled_gausian"),
        lambda line: line.replace('"clients": "0"', '"clients": "1-0"'),
        lambda line: line.replace('"clients": "0"', '"clients": 0'),
        lambda line: line.replace('"round"', '"rounds"'),
        lambda line: line.replace('"round"', '"extra": 1, "round"'),
        lambda line: "[]",
        lambda line: "",
    ],
)
def test_a_damaged_line_elsewhere_is_an_error_with_file_and_line(tmp_path, change):
    """Even if its checksum matches, as no program of ours would have written it."""
    path = tmp_path / "g.jsonl"
    charge(path, ("one", [0], {A: 1}), ("two", [0], {A: 2}), ("three", [0], {A: 3}))
    place, data = start(path), b""
    for number, line in enumerate(path.read_text().splitlines()):
        plain = line[: line.index(', "number"')] + "}"
        now = change(plain) if number == 1 else plain
        assert number != 1 or now != plain
        try:
            line, place = sealed(json.loads(now), place)
        except (ValueError, TypeError):
            line = now.encode() + b"\n"
        data += line
    path.write_bytes(data)
    for action in (lambda: read(tmp_path), lambda: Ledger(path)):
        with pytest.raises(
            ValueError, match=r"g\.jsonl, line 2 is damaged \(.+\); restore the file from a copy$"
        ):
            action()


G = {"kind": "gaussian", "noise_multiplier": 2.0}
LINE = {"release": "r", "round": 1, "clients": "0-1", "event": G, "count": 1}
C = {"kind": "covered", "order": 2.0, "event": G}
FORGED = {
    "more clients than a run can have": LINE | {"clients": "0-999999999999999999"},
    "a count whose sums wrap": LINE | {"count": 2**62},
    "a huge count": LINE | {"count": 10**400},
    "a negative count": LINE | {"count": -5},
    "a huge round": LINE | {"round": -(10**400)},
    "a huge noise": LINE | {"event": G | {"noise_multiplier": 10**400}},
    "no number": LINE | {"event": G | {"noise_multiplier": float("nan")}},
    "no finite number": LINE | {"event": G | {"noise_multiplier": float("inf")}},
    "an event in an event in an event": LINE | {"event": C | {"event": C}},
    "a kind of a million letters": LINE | {"event": {"kind": "k" * 10**6}},
    "a field of a million letters": LINE | {"f" * 10**6: 1},
    "a million ids": LINE | {"clients": ",".join(["5"] * 500_000)},
}
TEXTS = {
    "a field given twice": json.dumps(LINE)[:-1] + ', "count": 200',
    "an event's field given twice": json.dumps(LINE)[:-1].replace("2.0}", '2.0, "kind": "x"}'),
    "lists in lists": '{"release": ' + "[" * 10**5,
    "events in events": json.dumps(LINE)[:-1].replace(
        json.dumps(G), '{"kind": "covered", "order": 2.0, "event": ' * 900 + "1" + "}" * 900
    ),
    "a number of a million digits": json.dumps(LINE)[:-1].replace("1", "1" * 10**6),
}


@pytest.mark.parametrize("what", [*FORGED, *TEXTS])
def test_what_no_run_can_have_charged_is_refused_under_any_checksum(tmp_path, what):
    """Ranges took all memory, the sums of counts became negative, and the last field counted."""
    path = tmp_path / "g.jsonl"
    text = TEXTS.get(what) or json.dumps(FORGED[what])[:-1]
    text += ', "number": 1'
    chain = blake2b(path.name.encode() + text.encode(), digest_size=8).hexdigest()
    path.write_text(f'{text}, "chain": "{chain}"}}\n')
    for reads in (lambda: read(tmp_path), lambda: Ledger(path)):
        with pytest.raises(ValueError, match=r"g\.jsonl, line 1 is damaged .*restore") as caught:
            reads()
        assert "\n" not in str(caught.value) and len(str(caught.value)) < 1000


def test_many_lines_with_the_same_clients_share_them(tmp_path):
    """A line's clients took 8 bytes each, in each line."""
    charge(tmp_path / "g.jsonl", *((f"r{n}", range(1000), {A: n + 1}) for n in range(300)))
    tracemalloc.start()
    try:
        assert read(tmp_path) == {client: {A: 300 * 301 // 2} for client in range(1000)}
        assert tracemalloc.get_traced_memory()[1] < 1_500_000
    finally:
        tracemalloc.stop()


def test_a_missing_folder_is_an_error(tmp_path):
    with pytest.raises(ValueError) as error:
        read(tmp_path / "none")
    assert str(error.value) == (
        f"ledger = {tmp_path / 'none'} must be an existing folder; name the folder that holds the "
        ".jsonl files"
    )


def test_every_acknowledged_charge_survives_the_death_of_the_writer(tmp_path):
    """The child is killed at random moments, mostly while it writes; each charge that returned must
    be in the file."""
    path, rng = tmp_path / "g.jsonl", random.Random(7)
    acknowledged = -1
    for _ in range(5):
        child = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", WRITER, str(path)],
            stdout=subprocess.PIPE,
            cwd=Path(__file__).parent.parent,
            text=True,
        )
        target = acknowledged + rng.randrange(1, 12)
        while acknowledged < target:
            acknowledged = max(acknowledged, int(child.stdout.readline()))
        signal.sigtimedwait([], rng.random() * 0.004)
        child.send_signal(signal.SIGKILL)
        acknowledged = max([acknowledged, *map(int, child.stdout.read().split())])
        child.wait()
    with pytest.warns(UserWarning) if not path.read_bytes().endswith(b"\n") else open(os.devnull):
        spent = read(tmp_path)
    for client in (0, 1, 2, 6, 3999):
        paid = sum(client % (1 + number % 3) == 0 for number in range(acknowledged + 1))
        for part in range(20):
            assert spent[client][SampledGaussian(0.01, 1.0 + part)] >= 2 * paid
