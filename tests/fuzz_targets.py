"""Everything that the project parses: valid bytes, and what reads them.

Any bytes give the value of the valid ones, or one line that names the file.
"""

import json
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, RecordDict
from hypothesis import strategies as st

from client.app import decode_request, decode_upload, encode_request, encode_upload
from client.messages import TrainRequest, Upload
from client.uploads import Uploads
from mechanisms.accounting import events, ledger, ledger_lines
from mechanisms.accounting.adaptive_events import Covered
from mechanisms.accounting.events import Gaussian, ImportanceSampledGaussian, SampledGaussian
from mechanisms.journal import CHAIN_BYTES, last_place
from server import closing, manifest, orders, sealed_json
from server.checkpoints import Checkpoint, Checkpoints
from server.checkpoints import read as read_checkpoint
from server.records import Summary
from server.store import MODEL
from sim.config import configuration
from sim.config.fields import SETTINGS
from sim.data import arrays
from sim.features import loading as features
from sim.showing import audit


@dataclass(frozen=True)
class Target:
    """Valid bytes, and what reads others in their place.

    Attributes:
        valid: the bytes.
        read: their value, comparable by its ``repr``; raises ValueError for others.
        named: what the error must name.
    """

    valid: bytes
    read: Callable[[bytes], Any]
    named: str


def mutations(valid: bytes) -> st.SearchStrategy[bytes]:
    """Any bytes, or the valid ones after some edits."""
    place = st.integers(0, len(valid))
    edit = st.one_of(
        st.tuples(st.just("flip"), place, st.integers(0, 7)),
        st.tuples(st.just("cut"), place, place),
        st.tuples(st.just("insert"), place, st.binary(max_size=16)),
        st.tuples(st.just("insert"), place, st.sampled_from(TOKENS)),
        st.tuples(st.just("repeat"), place, place),
        st.tuples(st.just("end"), place, st.just(0)),
    )
    edits = st.lists(edit, min_size=1, max_size=4)
    return st.one_of(edits.map(lambda found: edited(valid, found)), st.binary(max_size=200))


TOKENS = [
    *(b"\0" * 9, b"\n", b'"', b"{}", b"[]", b"[" * 100_000, b'{"a":' * 100_000, b"-1", b"1e999"),
    *(b"NaN", b"9" * 5000, b"null", b"\xff\xfe", b"\\ud800", b"0-999999999999999999", b"= "),
    *(b"\xff" * 8, b"PK\x01\x02", b"PK\x05\x06", b"__metadata__", b"true", b"x_test", b"''"),
]
"""What parsers stumble over."""


def edited(data: bytes, edits: list[tuple[str, int, Any]]) -> bytes:
    """The data after edits at places in it."""
    for kind, at, what in edits:
        if kind == "flip" and at < len(data):
            data = data[:at] + bytes([data[at] ^ 1 << what]) + data[at + 1 :]
        elif kind == "cut":
            data = data[: min(at, what)] + data[max(at, what) :]
        elif kind == "insert":
            data = data[:at] + what + data[at:]
        elif kind == "repeat":
            data = data[:at] + data[min(at, what) :]
        elif kind == "end":
            data = data[:at]
    return data


def law(target: Target, data: bytes) -> None:
    """The same value, or one ValueError in one line that names the file."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            found = target.read(data)
        except ValueError as fault:
            said = str(fault)
            assert target.named in said and "\n" not in said, said
        else:
            assert repr(found) == repr(target.read(target.valid)), found


def targets(folder: Path) -> Iterator[tuple[str, Target]]:
    """All targets by name, with their files in a folder."""
    for name, make in MAKERS.items():
        own = folder / name.replace(" ", "-")
        own.mkdir()
        yield name, make(own)


def in_file(path: Path, read: Callable[[], Any], named: str = "") -> Target:
    """A target whose valid bytes are in a file."""

    def of(data: bytes) -> Any:
        path.write_bytes(data)
        return read()

    return Target(path.read_bytes(), of, named or path.name)


def _ledger(folder: Path) -> Target:
    path = folder / "group-0000.jsonl"
    with ledger.Ledger(path) as file:
        for number in range(1, 4):
            charges = {Gaussian(2.0): number, SampledGaussian(0.25, 1.5): 3}
            file.charge(f"round-{number}", number, [0, 1, 5], charges)
    known = [{path.name: last_place(path)}]
    return in_file(path, lambda: ledger.read(folder, None, known))


def _ledger_line(folder: Path) -> Target:
    """A line under a checksum that matches, so that all of it is parsed; and priced."""
    path = folder / "group-0000.jsonl"
    event = events.to_dict(Covered(ImportanceSampledGaussian(4.0, 1.0, 40.0, 60.0, 1.5), 3.0))
    record = {"release": "round-1", "round": 1, "clients": "0-2,7", "event": event, "count": 2}

    def read(data: bytes) -> str:
        """Another line may be another charge."""
        text = data.rstrip(b"}") + b', "number": 1'
        chain = blake2b(path.name.encode() + text, digest_size=CHAIN_BYTES).hexdigest()
        path.write_bytes(text + f', "chain": "{chain}"}}\n'.encode())
        ledger.Ledger(path).close()
        for charges in ledger.read(folder).values():
            assert all(0 < count <= ledger_lines.MAX_COUNT for count in charges.values())
        return "charges"

    return Target(json.dumps(record).encode(), read, path.name)


def _summary(folder: Path) -> Target:
    (folder / manifest.FILE).write_bytes(sealed_json.dumps({"files": {}, "ledger": {}}))
    (folder / MODEL).write_bytes(b"0")
    epsilons = (1.5, None)
    found = Summary(0.5, 1.0, epsilons, epsilons, 1e-5, 2.0, (1.0,), (3, 3), 0, 1, 2.5, "", False)
    closing.write(folder, found, [MODEL])
    return in_file(folder / closing.FILE, lambda: closing.read(folder))


def _audit(folder: Path) -> Target:
    found = audit.Audit("white-box", 0.95, 1e-5, 9, 8, 7, 0.5, 2.0, None, ((0, 9, 0.5, 2.0),), "")
    (folder / audit.FILE).write_bytes(sealed_json.dumps(found.to_json()))
    return in_file(folder / audit.FILE, lambda: audit.read(folder))


def _configuration(folder: Path) -> Target:
    path = folder / "config.toml"
    config = configuration.load(None, {"clients": 7, "rounds": 3, "epsilon": 2.5})
    configuration.save(config, path)
    again = folder / "again.toml"

    def read() -> str:
        """Another file may be other settings, which then are saved and read the same."""
        found = configuration.load(path, {}, lenient=SETTINGS)
        configuration.save(found, again)
        assert configuration.load(again, {}, lenient=SETTINGS) == found
        return "settings"

    return in_file(path, read, named=" ")


def _arrays(folder: Path) -> Target:
    path, y = folder / "mine.npz", np.arange(6) % 2
    x = np.arange(12, dtype=np.float32).reshape(6, 2)
    np.savez(path, x=x, y=y, x_test=x[:2] + 1, y_test=y[:2])
    return in_file(path, lambda: arrays.parts(arrays.read(path), str(path)))


def _features(folder: Path) -> Target:
    """Damaged ones are computed anew."""
    path = folder / "features.npz"
    np.savez(path, x=np.arange(12, dtype=np.float32).reshape(6, 2), x_test=np.ones((2, 2)))

    def read() -> Any:
        if (found := features._read(path)) is None:
            raise ValueError(path.name)
        return found

    return in_file(path, read)


def _label(folder: Path) -> Target:
    return _checkpoint(folder, ".json")


def _tensors(folder: Path) -> Target:
    return _checkpoint(folder, ".safetensors")


def _checkpoint(folder: Path, kind: str) -> Target:
    checkpoints = Checkpoints(folder, 2)
    now = Checkpoint(3, np.arange(4, dtype=np.float32), {"m": np.ones(2)}, np.array([1, 2]))
    checkpoints.save(now, {"ledger": {}, "files": {}, "rounds": None})
    label = folder / "round-000003.json"

    def read() -> list[Any]:
        """Damaged ones are passed over with a warning that names them."""
        found = checkpoints.newest()
        if found is None:
            read_checkpoint(label)
        return sorted(vars(found).items())

    def named() -> list[Any]:
        try:
            return read()
        except (OSError, KeyError, TypeError, ValueError) as fault:
            raise ValueError(f"{label.stem}: {' '.join(str(fault).split())}") from None

    return in_file(label.with_suffix(kind), named, label.stem)


def _upload(folder: Path) -> Target:
    uploads, params = Uploads(folder / "uploads"), np.ones(2, np.float32)
    uploads.keep(_an_upload(), params)
    (path,) = (folder / "uploads").iterdir()

    def read() -> Any:
        """Damaged ones are left out."""
        found = uploads.finished(2, params)
        if not found:
            raise ValueError(path.name)
        return [sorted(vars(one).items()) for one in found]

    return in_file(path, read)


def _manifest(folder: Path) -> Target:
    path = folder / manifest.FILE
    path.write_bytes(sealed_json.dumps({"version": "1", "files": {}, "ledger": {"a": [0, "a"]}}))
    return in_file(path, lambda: manifest.read(folder))


def _orders(folder: Path) -> Target:
    path = folder / orders.FILE
    path.write_bytes(sealed_json.dumps({"orders": [{"orders": [3.0, 4.5], "clients": "0-3"}]}))
    return in_file(path, lambda: orders.read(folder))


def _an_upload() -> Upload:
    total = np.array([5, -7], np.int64)
    paid = [(np.array([0, 3]), {Gaussian(2.0): 4})]
    shared = {"x": np.arange(4, dtype=np.float32)}
    return Upload(2, 1, np.array([0, 3]), total, 9, {"norm": (1.5, 2)}, paid, shared)


def _message(content: RecordDict, decode: Callable[[RecordDict], Any]) -> Target:
    """A message's arrays and settings, whose bytes stand one after the other."""
    records = [*content.array_records.values(), *content.config_records.values()]
    parts = [(record, key, record[key]) for record in records for key in record]
    valid = [_bytes(value) for _, _, value in parts]
    ends = np.cumsum([len(one) for one in valid]).tolist()

    def read(data: bytes) -> Any:
        pieces = map(slice, [0, *ends[:-1]], [*ends[:-1], None])
        for (record, key, value), old, piece in zip(parts, valid, pieces, strict=True):
            record[key] = value if data[piece] == old else _of_bytes(value, data[piece])
        return sorted(vars(decode(content)).items())

    return Target(b"".join(valid), read, "is damaged")


def _bytes(value: Any) -> bytes:
    return value.data if isinstance(value, Array) else repr(value).encode()


def _of_bytes(value: Any, data: bytes) -> Any:
    if isinstance(value, Array):
        return Array(dtype=value.dtype, shape=value.shape, stype=value.stype, data=data)
    return data.decode("latin1")


def _request_message(folder: Path) -> Target:
    numbers = np.array([0, 3], np.int64)
    request = TrainRequest(2, 1, "round-2", numbers, numbers + 1, np.ones(3, np.float32), "train")
    return _message(
        encode_request(request, {"settings": "{}", "run_dir": "runs/a"}), decode_request
    )


def _upload_message(folder: Path) -> Target:
    return _message(encode_upload(_an_upload()), decode_upload)


MAKERS: dict[str, Callable[[Path], Target]] = {
    "ledger": _ledger,
    "ledger line": _ledger_line,
    "summary": _summary,
    "audit": _audit,
    "configuration": _configuration,
    "arrays": _arrays,
    "features": _features,
    "label": _label,
    "tensors": _tensors,
    "uploads": _upload,
    "manifest": _manifest,
    "orders": _orders,
    "request": _request_message,
    "upload message": _upload_message,
}
