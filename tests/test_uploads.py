"""Finished uploads of a release: each comes back as it was, for its own round and model, and groups
lose nothing."""

import numpy as np
import pytest

from client.messages import Upload
from client.uploads import Uploads
from mechanisms.accounting.events import Gaussian
from mechanisms.accounting.ledger import Ledger
from server import paid

MODEL = np.array([1.0, 2.0, 3.0], dtype=np.float32)
OTHER = np.array([1.0, 2.0, 4.0], dtype=np.float32)


def upload(round_: int, group: int) -> Upload:
    shared = (
        {"x": np.full((2, 3), group, np.float32), "client": np.array([group, 9])} if group else {}
    )
    total = np.array([2**40 + group, -round_])
    return Upload(
        round_, group, np.array([5, group]), total, 7 + group, {"norm": [0.5, 2.0]}, shared=shared
    )


def same(a: Upload, b: Upload) -> bool:
    heads = [
        (u.round, u.group, u.weight, u.metrics, u.clients.tolist(), u.total.tolist())
        for u in (a, b)
    ]
    arrays = [
        {name: (array.dtype, array.tolist()) for name, array in u.shared.items()} for u in (a, b)
    ]
    return (
        heads[0] == heads[1]
        and arrays[0] == arrays[1]
        and a.total.dtype == b.total.dtype == np.int64
    )


@pytest.fixture
def uploads(tmp_path) -> Uploads:
    return Uploads(tmp_path / "uploads")


def test_every_group_s_upload_comes_back_as_it_was(uploads):
    for group in (12, 0, 3):
        uploads.keep(upload(4, group), MODEL)
    found = uploads.finished(4, MODEL)
    assert [u.group for u in found] == [0, 3, 12] and all(
        same(u, upload(4, u.group)) for u in found
    )


def test_an_upload_is_for_its_own_round_and_model(uploads):
    """From another model it would be another step; in another round its clients would not have
    paid."""
    uploads.keep(upload(4, 1), MODEL)
    assert (
        uploads.finished(3, MODEL) == uploads.finished(5, MODEL) == uploads.finished(4, OTHER) == []
    )


def test_a_group_s_upload_replaces_its_earlier_ones_and_no_other_group_s(tmp_path, uploads):
    uploads.keep(upload(4, 1), MODEL)
    uploads.keep(upload(4, 11), MODEL)
    uploads.keep(upload(5, 1), OTHER)
    assert len(list((tmp_path / "uploads").iterdir())) == 2
    assert uploads.finished(4, MODEL)[0].group == 11 and uploads.finished(5, OTHER)[0].group == 1
    uploads.keep(upload(5, 1), OTHER)
    assert len(uploads.finished(5, OTHER)) == 1


@pytest.mark.parametrize("length", [0, 5, 60, -1])
def test_a_torn_upload_is_none(tmp_path, uploads, length):
    for group in (1, 2):
        uploads.keep(upload(4, group), MODEL)
    path = min((tmp_path / "uploads").iterdir())
    path.write_bytes(path.read_bytes()[:length])
    assert [u.group for u in uploads.finished(4, MODEL)] == [2]
    path.unlink()
    path.symlink_to(path)
    assert [u.group for u in uploads.finished(4, MODEL)] == [2]


def test_a_damaged_upload_is_none(tmp_path, uploads):
    """One flipped bit of a sum, its weight or its clients would be another model, silently."""
    for group in (1, 2):
        uploads.keep(upload(4, group), MODEL)
    path = min((tmp_path / "uploads").iterdir())
    data = path.read_bytes()
    for at in range(8, len(data)):
        path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        assert [u.group for u in uploads.finished(4, MODEL)] == [2], at


def test_an_upload_of_another_run_is_none(tmp_path):
    """Round 1 begins with one model in all runs of a seed: a copy was taken, whatever its noise."""
    one, other = (Uploads(tmp_path / "uploads", run) for run in ("1", "2"))
    one.keep(upload(1, 0), MODEL)
    assert other.finished(1, MODEL) == [] and len(one.finished(1, MODEL)) == 1
    (path,) = (tmp_path / "uploads").iterdir()
    with pytest.raises(ValueError, match=r"group-0000\.safetensors is of another run: restore"):
        other.read(path)
    assert Uploads(tmp_path / "uploads").read(path)  # without a manifest


def test_a_kept_upload_knows_how_far_its_ledger_went(tmp_path):
    """A ledger that is put back after an upload has left is missed by it."""
    path = tmp_path / "ledger" / "group-0000.jsonl"
    with Ledger(path) as ledger:
        ledger.charge("round-1", 1, [5], {Gaussian(1.0): 1})
        Uploads(tmp_path / "uploads", ledger=path).keep(upload(1, 0), MODEL)
        assert paid.known(tmp_path) == [{path.name: ledger.place}]
