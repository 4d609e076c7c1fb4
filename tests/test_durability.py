"""Whatever writes a file of a run: once it has returned, nothing of it is lost; within it, the old
or the new is there.

Each writer runs alone, and every crash within it is laid out: the program's death, or the
machine's.
"""

import contextlib
import errno
import json
import os
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch

from client.client_state import ClientState
from client.messages import Upload
from client.uploads import Uploads
from mechanisms import durable
from mechanisms.accounting.events import Gaussian
from mechanisms.accounting.ledger import Ledger, read
from mechanisms.cohort import LocalState
from server.checkpoints import Checkpoint, Checkpoints
from server.records import RoundRecord
from server.store import Store
from sim.config import configuration as config
from sim.data import given
from sim.job import inputs, manifest, rundir
from sim.phases.build import build
from tests.crashing import Crash, Noting, crashes, lay_out, tree_of

PARAMS = np.arange(5, dtype=np.float32)
EVENT = Gaussian(2.0)


def round_record(round_: int) -> RoundRecord:
    return RoundRecord(round_, 0.5, 1.0, 1.0, 1.0, 1.0, 0, 4, 0.1, 0.1, {"norm": float(round_)})


def state(round_: int) -> LocalState:
    rows = torch.full((1, 3), float(round_))
    return LocalState(rows, (rows,), rows[:, 0], {})


def carry(root: Path, round_: int) -> None:
    kept = ClientState(root / "clients" / "group-0000", ())
    with kept.round(round_):
        kept.keep(np.array([3]), lambda resume: state(round_))


def carried(root: Path) -> int:
    """The round whose state a next one would go on from."""
    kept = ClientState(root / "clients" / "group-0000", ())
    with kept.round(99):
        found = kept.keep(np.array([3]), lambda resume: resume(state(0)))
    kept._path(99).unlink()
    return int(found.optimizer[0][0, 0])


def charge(root: Path, round_: int) -> None:
    with Ledger(root / "run" / "ledger" / "group.jsonl") as ledger:
        ledger.charge_all(f"round-{round_}", round_, [([0], {EVENT: 1}), ([1], {EVENT: 1})])


def charged(root: Path) -> int:
    """How often the last client has paid."""
    folder = root / "run" / "ledger"
    return read(folder).get(1, {EVENT: 0})[EVENT] if folder.exists() else 0


def upload(round_: int) -> Upload:
    return Upload(round_, 0, np.array([3]), np.full(2, round_), 1, {"norm": [1.0, 1.0]})


def uploaded(root: Path) -> int:
    found = [u for n in (1, 2) for u in Uploads(root / "share" / "uploads").finished(n, PARAMS)]
    assert all(one.total.tolist() == [one.round] * 2 for one in found)
    return max((one.round for one in found), default=0)


def checkpointed(root: Path) -> int:
    now = Checkpoints(root / "share" / "checkpoints", 2).newest()
    assert now is None or now.params[0] == now.round
    return now.round if now else 0


def checkpoint(root: Path, round_: int) -> None:
    now = Checkpoint(round_, PARAMS + np.float32(round_), {"m": PARAMS}, np.arange(3))
    Checkpoints(root / "share" / "checkpoints", 2).save(now, {})


def recorded(root: Path) -> int:
    found = Store(root / "share", 2).records(first=1), Store(root / "share", 2).records(first=0)
    assert found[1] == [] and found[0] in ([], [round_record(1)])
    return len(found[0])


def written(root: Path) -> int:
    path = root / "file"
    return ["", "1" * 40, "2" * 40].index(path.read_text()) if path.exists() else 0


@dataclass(frozen=True)
class Writer:
    """Writes the state of a round; ``read`` says of which round the newest whole state is, or 0."""

    write: Callable[[Path, int], object]
    read: Callable[[Path], int]


WRITERS = {
    "a file": Writer(lambda root, n: durable.write(root / "file", str(n).encode() * 40), written),
    "what clients keep": Writer(carry, carried),
    "a charge": Writer(charge, charged),
    "an upload": Writer(
        lambda root, n: Uploads(root / "share" / "uploads").keep(upload(n), PARAMS), uploaded
    ),
    "a checkpoint": Writer(checkpoint, checkpointed),
}


def every_crash(root: Path, write: Callable[[], object]) -> tuple[Noting, list[Crash]]:
    with Noting(root) as noting:
        write()
    return noting, crashes(noting.start, noting.operations)


@contextlib.contextmanager
def only_torn_lines():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", message=".*torn (end|last line)")
        yield


@pytest.mark.parametrize("name", WRITERS)
def test_what_was_written_survives_any_crash_and_before_that_the_old_one_does(tmp_path, name):
    """The first state and the second, at each crash in writing them; the second is written again
    after the crash."""
    writer = WRITERS[name]
    before = tmp_path / "disk"
    before.mkdir()
    for round_ in (1, 2):
        noting, found = every_crash(before, lambda n=round_: writer.write(before, n))
        whole = tree_of(before)
        for crash in found:
            lay_out(before, crash.tree)
            with only_torn_lines():
                got = writer.read(before)
                assert got in (round_ - 1, round_) and (
                    got == round_ or crash.done < len(noting.operations)
                )
                writer.write(before, round_)
                assert writer.read(before) == round_
        lay_out(before, whole)


@pytest.mark.parametrize("name", WRITERS)
def test_what_a_dead_process_had_written_survives_once_another_has_gone_on_with_it(tmp_path, name):
    """Killed between write and flush; the next one finds the files and goes on; then the power
    fails."""
    root, writer = tmp_path / "disk", WRITERS[name]
    root.mkdir()
    noting, _ = every_crash(root, lambda: writer.write(root, 1))
    for done in range(len(noting.operations) + 1):
        dead = noting.start.copy()
        dead.do(*noting.operations[:done])
        lay_out(root, dead.tree())
        with Noting(root, dead) as again, only_torn_lines():
            durable.sync_folders(root)
            writer.write(root, 1)
        dead.do(*again.operations)
        lay_out(root, dead.tree(False, False))
        assert writer.read(root) == 1


def test_a_write_that_fails_changes_nothing_and_says_so(tmp_path):
    path = tmp_path / "file"
    durable.write(path, b"old")
    with pytest.raises(OSError, match="disk is full"), durable.writing(path) as file:
        file.write(b"half of the n")
        raise OSError("disk is full")
    assert tree_of(tmp_path) == {"file": b"old"}


def failing(*_: object) -> None:
    raise OSError(errno.EIO, "Input/output error")


FAILING = {
    "a file": lambda path: durable.write(path, b"new"),
    "lines": lambda path: durable.append(path, b"new"),
    "a new file": lambda path: durable.create(path, b"new"),
    "a folder": lambda path: durable.sync_folder(path.parent),
    "a ledger": lambda path: Ledger(path),
}


@pytest.mark.parametrize("what", FAILING)
def test_a_flush_that_fails_names_the_file(tmp_path, monkeypatch, what):
    """The system says which error it is and not where."""
    (tmp_path / "run").mkdir()
    monkeypatch.setattr(os, "fsync", failing)
    with pytest.raises(OSError) as caught:
        FAILING[what](tmp_path / "run" / "file")
    assert caught.value.errno == errno.EIO and str(tmp_path) in str(caught.value.filename)


def test_a_ledger_that_nobody_closed_ends_without_a_word(tmp_path, monkeypatch):
    """Closing can fail where nobody hears of it; what was charged is on the disk."""
    said = []
    monkeypatch.setattr(sys, "unraisablehook", said.append)
    ledger = Ledger(tmp_path / "ledger.jsonl")
    with monkeypatch.context() as patch:
        patch.setattr(os, "close", failing)
        del ledger
    assert said == []


def test_a_lock_is_no_link(tmp_path):
    """What the link leads to stays as it is."""
    (tmp_path / "ledger.jsonl").write_text("paid")
    (tmp_path / "lock").symlink_to("ledger.jsonl")
    with pytest.raises(ValueError, match="lock"), durable.locked(tmp_path / "lock"):
        pass
    assert (tmp_path / "ledger.jsonl").read_text() == "paid"


def test_nothing_is_written_through_a_link_of_the_unfinished_file_s_name(tmp_path):
    """Nor into one that a crash has left, which others may read or hold open."""
    (tmp_path / "own").write_text("precious")
    (tmp_path / "file.part").symlink_to("own")
    durable.write(tmp_path / "file", b"new")
    assert tree_of(tmp_path) == {"own": b"precious", "file": b"new"}
    assert not (tmp_path / "file").is_symlink()
    (tmp_path / "file.part").write_text("torn")
    durable.write(tmp_path / "file", b"newer", private=True)
    assert tree_of(tmp_path) == {"own": b"precious", "file": b"newer"}
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o600


def test_an_unfinished_file_is_made_and_never_found(tmp_path, monkeypatch):
    """Whoever plants one in the last moment has nothing written into it."""
    monkeypatch.setattr(Path, "unlink", lambda *_, **__: None)
    (tmp_path / "own").write_text("precious")
    (tmp_path / "file.part").symlink_to("own")
    with pytest.raises(FileExistsError):
        durable.write(tmp_path / "file", b"new")
    assert (tmp_path / "own").read_text() == "precious"


def test_a_shared_file_is_whole_whoever_else_writes_it(tmp_path):
    """Under one temporary name, one process would rename what another is still writing."""
    path = tmp_path / "file"
    with durable.writing(path, shared=True) as one:
        one.write(b"one")
        durable.write(path, b"other", shared=True)
        assert path.read_bytes() == b"other"
    assert path.read_bytes() == b"one" and list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("kind", ["device", "folder", "link to a device"])
def test_what_is_no_file_is_not_replaced_by_one(tmp_path, kind):
    """Kills a rename onto it: as root, /dev/null would be a file from then on."""
    path = tmp_path / "there"
    if kind == "device":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to(os.devnull)
    before = os.lstat(path)
    with pytest.raises(ValueError, match="there is no file, and would be replaced by one: give an"):
        durable.write(path, b"new")
    assert os.lstat(path) == before and [p.name for p in tmp_path.iterdir()] == ["there"]


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo])
def test_what_is_no_file_is_not_read(tmp_path, make):
    """A pipe was waited for, without an end."""
    make(tmp_path / "a")
    with pytest.raises(ValueError, match="a is no file: restore it"):
        durable.read(tmp_path / "a")


def test_copies_beside_the_files_of_rounds_are_nobody_s(tmp_path):
    """One that a sync client had left ended each command without naming it."""
    names = ("round-000002.json", "round--00001.json", "round-1000000.json")
    others = ("round-000003 (1).json", "round-x.json", "round-.json", "round-000004.json.part")
    others += ("round-000007.json.old.json",)
    for name in (*names, *others, "around-000005.json", "round-000006.safetensors"):
        (tmp_path / name).touch()
    found = durable.numbered(tmp_path, ".json")
    assert {number: path.name for number, path in found.items()} == dict(
        zip((2, -1, 1_000_000), names, strict=True)
    )


def test_a_copy_of_an_upload_is_not_added_a_second_time(tmp_path):
    upload = Upload(2, 1, np.array([0]), np.array([5]), 1, {})
    uploads = Uploads(tmp_path)
    uploads.keep(upload, PARAMS)
    (path,) = tmp_path.iterdir()
    for name in (f"{path.stem} (1).safetensors", path.name.replace("0001.", "0000.")):
        (tmp_path / name).write_bytes(path.read_bytes())
    assert len(uploads.finished(2, PARAMS)) == 1


def test_a_file_that_was_created_is_there_whole_after_any_crash(tmp_path):
    """Such as that which says into how many shares the data of ledgers are divided."""
    root, whole = tmp_path / "disk", b"7" * 40
    root.mkdir()
    noting, found = every_crash(root, lambda: durable.create(root / "file", whole))
    for crash in found:
        lay_out(root, crash.tree)
        left = (root / "file").read_bytes() if (root / "file").exists() else None
        assert left == whole or (left is None and crash.done < len(noting.operations))


def test_of_two_that_create_a_file_the_first_has_its_content(tmp_path):
    for content in (b"first", b"second"):
        durable.create(tmp_path / "key", content, private=True)
    assert tree_of(tmp_path) == {"key": b"first"}
    assert (tmp_path / "key").stat().st_mode & 0o777 == 0o600


FLUSHES = {
    "all folders of a run": lambda run: durable.sync_folders(run),
    "a folder": lambda run: durable.make_folder(run / "there" / "below"),
    "a folder in it": lambda run: durable.make_folder(run / "there" / "below" / "new"),
}


@pytest.mark.parametrize("name", FLUSHES)
def test_folders_that_a_dead_process_had_made_survive_once_they_are_flushed(tmp_path, name):
    """Whoever goes on finds them there, though no flush has named them."""
    first = [] if name == "all folders of a run" else [tmp_path, tmp_path / "run"]
    with Noting(tmp_path) as noting:
        for folder in ("run", "run/there", "run/there/below"):
            (tmp_path / folder).mkdir()
        for folder in first:
            durable.sync_folder(folder)
        FLUSHES[name](tmp_path / "run")
    after = noting.start.copy()
    after.do(*noting.operations)
    assert after.tree(False, False) == tree_of(tmp_path)


def test_a_record_of_a_round_survives_and_a_torn_one_is_removed(tmp_path):
    """Of the records only those of finished rounds count, so what a crash leaves after them
    goes."""
    root = tmp_path / "disk"
    root.mkdir()
    noting, found = every_crash(
        root, lambda: Store(root / "share", 2, root).append(round_record(1))
    )
    for crash in found:
        lay_out(root, crash.tree)
        if crash.done == len(noting.operations):
            assert recorded(root) == 1
        else:
            assert Store(root / "share", 2).records(first=0) == []
            Store(root / "share", 2, root).append(round_record(1))
            assert recorded(root) == 1


def test_a_run_directory_is_whole_or_not_there(tmp_path):
    """Its settings, records of clients and inputs, at any crash in making it."""
    root = tmp_path / "disk"
    root.mkdir()
    given = {
        "out": str(root / "a" / "runs"),
        "name": "run",
        "clients": 2,
        "rounds": 1,
        "model": "linear",
    }
    job = build(config.load(None, given | {"chunk_clients": 2, "groups": 1}))

    def make() -> None:
        rundir.create(rundir.choose(job.config), job)

    noting, found = every_crash(root, make)
    for crash in found:
        lay_out(root, crash.tree)
        folder = root / "a" / "runs" / "run"
        assert folder.exists() or crash.done < len(noting.operations)
        if not folder.exists():
            make()
        assert config.load(folder / "config.toml", {}) == job.config
        inputs.check(folder, job)
        assert np.array_equal(np.load(folder / "partition.npz")["sizes"], job.partition.sizes)
        assert all(path.is_file() for path in manifest.ledger_files(folder, job))
        assert (folder / "checkpoints").is_dir()


def test_arrays_that_are_kept_survive_with_their_key_whoever_had_begun_to_keep_them(tmp_path):
    """A process may be killed anywhere in it; the next one keeps them, and the power fails."""
    root, arrays = tmp_path / "disk", (np.arange(6.0).reshape(3, 2), np.array([0, 1, 0]))
    root.mkdir()
    noting, _ = every_crash(root, lambda: given.keep(arrays, root))
    for done in range(len(noting.operations) + 1):
        dead = noting.start.copy()
        dead.do(*noting.operations[:done])
        lay_out(root, dead.tree())
        with Noting(root, dead) as again:
            path = given.keep(arrays, root)
        dead.do(*again.operations)
        lay_out(root, dead.tree(False, False))
        with np.load(path) as kept:
            assert np.array_equal(kept["x"], arrays[0]) and np.array_equal(kept["y"], arrays[1])
        assert given.keep(arrays, root) == path


def test_the_harness_finds_what_is_not_flushed(tmp_path):
    """Negative control: without a flush a file comes back empty, without its folder's it does not
    come back."""
    root, content = tmp_path / "disk", {"file": b"some content"}
    root.mkdir()

    def careless(flush: bool) -> None:
        with open(root / "file", "wb") as file:
            file.write(content["file"])
            file.flush()
            if flush:
                os.fsync(file.fileno())

    left = []
    for flush in (False, True):
        lay_out(root, {})
        noting, found = every_crash(root, lambda flush=flush: careless(flush))
        left.append(
            sorted((crash.tree for crash in found if crash.done == len(noting.operations)), key=str)
        )
        assert {"file": b"some c"} in [crash.tree for crash in found], (
            "a write is cut in its middle"
        )
    assert left == [[{"file": b""}, content, {}], [content, {}]]


def test_several_lines_of_records_read_back_and_what_follows_is_cut(tmp_path):
    store = Store(tmp_path, 2, tmp_path)
    for number in range(1, 5):
        store.append(round_record(number))
    assert store.records(first=4) == [round_record(n) for n in range(1, 5)]
    assert store.records(first=2) == [round_record(1), round_record(2)]
    kept = (tmp_path / "rounds.jsonl").read_text().splitlines()
    assert [json.loads(line)["round"] for line in kept] == [1, 2]


def test_a_damaged_last_record_is_passed_over(tmp_path):
    store = Store(tmp_path, 2, tmp_path)
    for number in (1, 2):
        store.append(round_record(number))
    path = tmp_path / "rounds.jsonl"
    path.write_bytes(path.read_bytes()[:-20])
    assert store.records(first=2) == [round_record(1)]
