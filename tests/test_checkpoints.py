"""Checkpoints: whole or passed over, and the newest ones kept."""

import errno
import json
import os
import warnings
from pathlib import Path

import numpy as np
import pytest

import server.checkpoints
from mechanisms import durable
from server import paid, sealed_json
from server.checkpoints import Checkpoint, Checkpoints
from server.settings import Rounds


def checkpoint(round_: int) -> Checkpoint:
    params = np.random.default_rng(round_).normal(size=50).astype(np.float32)
    state = {"velocity": np.full(50, float(round_)), "steps": np.arange(round_)}
    return Checkpoint(round_, params, state, taken=np.arange(7) + round_)


def saved(folder: Path, rounds: int, keep: int = 3) -> Checkpoints:
    checkpoints = Checkpoints(folder / "checkpoints", keep)
    for round_ in range(1, rounds + 1):
        checkpoints.save(checkpoint(round_), {})
    return checkpoints


def same(a: Checkpoint, b: Checkpoint) -> bool:
    return (
        a.round == b.round
        and np.array_equal(a.params, b.params)
        and np.array_equal(a.taken, b.taken)
        and (a.params.dtype, a.taken.dtype) == (b.params.dtype, b.taken.dtype)
        and a.state.keys() == b.state.keys()
        and all(np.array_equal(a.state[name], b.state[name]) for name in a.state)
    )


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "checkpoints").iterdir())


def test_the_newest_comes_back_as_it_was(tmp_path):
    assert same(saved(tmp_path, 11).newest(), checkpoint(11))
    assert same(Checkpoints(tmp_path / "checkpoints", 3).newest(), checkpoint(11))


def test_there_may_be_none(tmp_path):
    assert Checkpoints(tmp_path / "nowhere", 2).newest() is None


def test_the_newest_few_are_kept_and_nothing_else(tmp_path):
    saved(tmp_path, 5, keep=2)
    assert files(tmp_path) == [
        f"round-00000{n}.{kind}" for n in (4, 5) for kind in ("json", "safetensors")
    ]


def test_a_run_keeps_two_of_them_at_least():
    """Of one alone a damage would be the end of the run."""
    with pytest.raises(ValueError, match="keep_checkpoints"):
        Rounds(keep_checkpoints=1)
    assert Rounds(keep_checkpoints=2).keep_checkpoints == 2


DAMAGES = {
    "empty": lambda content: b"",
    "cut": lambda content: content[: len(content) // 2],
    "one byte short": lambda content: content[:-1],
    "zeros": lambda content: bytes(len(content)),
    "one bit": lambda content: content[:-20] + bytes([content[-20] ^ 1]) + content[-19:],
    "no object": lambda content: b"[]",
    "an object without fields": lambda content: b"{}",
    "whole, without fields": lambda content: sealed_json.dumps({}),
}


@pytest.mark.parametrize("kind", ["json", "safetensors"])
@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_checkpoint_gives_way_to_the_one_before(tmp_path, kind, damage):
    checkpoints = saved(tmp_path, 3)
    path = tmp_path / "checkpoints" / f"round-000003.{kind}"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.warns(UserWarning, match="checkpoint round-000003 is damaged .* the one before"):
        assert same(checkpoints.newest(), checkpoint(2))


def test_a_label_of_another_round_is_damage(tmp_path):
    """A copy of an old one under a new name is whole, and still no newer state."""
    checkpoints = saved(tmp_path, 3)
    for path in (tmp_path / "checkpoints").glob("round-000003.*"):
        path.rename(path.with_stem("round-000007"))
    with pytest.warns(UserWarning, match="round-000007 is damaged"):
        assert checkpoints.newest().round == 2


@pytest.mark.parametrize(
    "edit",
    [
        lambda entries: entries | {"ledger": {"g.jsonl": [9, ""]}},
        lambda entries: {name: entries[name] for name in entries if name != sealed_json.DIGEST},
    ],
    ids=["another place", "no digest"],
)
def test_a_label_that_was_edited_is_damage(tmp_path, edit):
    """It says where the ledger was, which the digest of the tensors does not cover."""
    checkpoints = saved(tmp_path, 3)
    path = tmp_path / "checkpoints" / "round-000003.json"
    path.write_text(json.dumps(edit(json.loads(path.read_text()))))
    with pytest.warns(UserWarning, match="round-000003 is damaged"):
        assert checkpoints.newest().round == 2


def test_missing_tensors_are_damage_and_all_damaged_is_none(tmp_path):
    checkpoints = saved(tmp_path, 2)
    (tmp_path / "checkpoints" / "round-000002.safetensors").unlink()
    with pytest.warns(UserWarning, match="round-000002 is damaged"):
        assert checkpoints.newest().round == 1
    (tmp_path / "checkpoints" / "round-000001.safetensors").write_bytes(b"")
    with pytest.warns(UserWarning, match="is damaged"):
        assert checkpoints.newest() is None


def test_a_checkpoint_that_the_disk_does_not_give_is_no_damage(tmp_path, monkeypatch):
    """It may be whole, and to go on from the one before would repeat a finished round."""
    checkpoints, real = saved(tmp_path, 2), Path.read_bytes

    def failing(path: Path) -> bytes:
        if path.stem == "round-000002":
            raise OSError(errno.EIO, "Input/output error")
        return real(path)

    monkeypatch.setattr(Path, "read_bytes", failing)
    with pytest.raises(OSError, match="round-000002"):
        checkpoints.newest()
    (tmp_path / "manifest.json").write_bytes(sealed_json.dumps({"ledger": {}}))
    with pytest.raises(OSError, match="round-000002"):
        paid.known(tmp_path)


def test_a_run_that_goes_on_meanwhile_has_a_newest_checkpoint(tmp_path, monkeypatch):
    """Those that had been listed were gone when they were read, and the run had none."""
    checkpoints, later, real = saved(tmp_path, 2, keep=2), [3, 4], server.checkpoints.read

    def goes_on(label: Path) -> Checkpoint:
        while later:
            checkpoints.save(checkpoint(later.pop(0)), {})
        return real(label)

    monkeypatch.setattr(server.checkpoints, "read", goes_on)
    assert same(checkpoints.newest(), checkpoint(4))


@pytest.mark.parametrize("damaged", [1, 2, 3])
def test_a_damaged_label_does_not_hide_what_others_know(tmp_path, damaged):
    saved(tmp_path, 3)
    (tmp_path / "checkpoints" / f"round-{damaged:06d}.json").write_bytes(b"{}")
    assert len(paid.known(tmp_path)) == 2


def test_an_old_checkpoint_of_which_a_part_is_gone_is_removed_all_the_same(tmp_path):
    """Whoever deleted its tensors to save room does not stop the run."""
    checkpoints = saved(tmp_path, 2, keep=2)
    (tmp_path / "checkpoints" / "round-000001.safetensors").unlink()
    checkpoints.save(checkpoint(3), {})
    assert {name[:12] for name in files(tmp_path)} == {"round-000002", "round-000003"}


def test_what_a_crash_leaves_behind_is_no_checkpoint(tmp_path):
    """A death before the label is written, or under a temporary name; the round is then saved
    anew."""
    checkpoints, folder = saved(tmp_path, 2), tmp_path / "checkpoints"
    for name in (
        "round-000003.safetensors",
        "round-000003.json.part",
        "round-000003.safetensors.part",
    ):
        (folder / name).write_bytes(b"half")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert same(checkpoints.newest(), checkpoint(2))
        checkpoints.save(checkpoint(3), {})
        assert same(checkpoints.newest(), checkpoint(3))


def test_a_file_is_replaced_whole_and_flushed_before_its_name_is(tmp_path, monkeypatch):
    """At every flush the name holds the old content or the new one. Kills writing in place and
    renaming unflushed."""
    path, seen, flush = tmp_path / "file", [], os.fsync
    durable.write(path, b"old")

    def watch(handle: int) -> None:
        flush(handle)
        seen.append((path.read_bytes(), os.path.samestat(os.fstat(handle), os.stat(tmp_path))))

    monkeypatch.setattr(os, "fsync", watch)
    durable.write(path, b"new content")
    assert seen == [(b"old", False), (b"new content", True)]
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_no_file_and_no_folder_stays_open(tmp_path):
    """A run writes files for days. Kills a handle that is not given back."""

    def free() -> int:
        handle = os.dup(0)
        os.close(handle)
        return handle

    first = free()
    for number in range(3):
        durable.make_folder(tmp_path / "new" / str(number))
        durable.write(tmp_path / "new" / "file", b"content")
        durable.sync_folders(tmp_path)
    assert free() == first
