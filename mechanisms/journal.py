"""Append-only files of JSON lines in which damage shows.

Each line ends with its number and a checksum chained to the line before, the first one's to the
file's name: a line that was changed, lost, moved or copied from another file does not match. A
crash can only tear the last append: its end is missing, or sectors of it are zero. An append is of
one release, so lines of a release say which was the first of those in a row.
"""

import fcntl
import json
import os
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from mechanisms.durable import PRIVATE_FILE, make_folder, naming, read, sync_folder

CHAIN_BYTES = 8
MAX_END_BYTES = 80
MAX_FAULT_CHARACTERS = 400
_END = re.compile(
    rb'(?:, "first": (?P<first>[0-9]{1,18}))?, "number": (?P<number>[0-9]{1,18})'
    rb', "chain": "(?P<chain>[0-9a-f]{16})"\}\Z'
)
_ZEROS = b"\0\0"
T = TypeVar("T")


class Place(NamedTuple):
    """Where a file ends: its number of lines, and the last one's checksum (without lines, its
    name)."""

    number: int
    chain: str


def start(path: Path) -> Place:
    """The place of an empty file."""
    return Place(0, path.name)


def sealed(
    record: Mapping[str, Any], before: Place, first: int | None = None
) -> tuple[bytes, Place]:
    """The line of a record that follows a place, and the place after it; ``first`` is the number of
    the first line of its release in a row, if that is another one."""
    number = before.number + 1
    together = "" if first in (None, number) else f', "first": {first}'
    text = f'{json.dumps(record)[:-1]}{together}, "number": {number}'.encode()
    chain = _chain(before, text)
    return text + f', "chain": "{chain}"}}\n'.encode(), Place(number, chain)


def _chain(before: Place, text: bytes) -> str:
    return blake2b(before.chain.encode() + text, digest_size=CHAIN_BYTES).hexdigest()


def records(
    path: Path, data: bytes, parse: Callable[[dict[str, Any]], T]
) -> Iterator[tuple[Place, T]]:
    """The whole lines of a file's data: the place after each, and what ``parse`` makes of it.

    Raises:
        ValueError: a damaged line, or one that ``parse`` refuses; the message names file and line.
    """
    place = start(path)
    for text in _lines(data):
        try:
            after = _after(place, text)
            record = json.loads(text, object_pairs_hook=_unique)
            del record["number"], record["chain"]
            record.pop("first", None)
            parsed = parse(record)
        except (ValueError, TypeError, AttributeError, RecursionError) as fault:
            said = str(fault)[:MAX_FAULT_CHARACTERS]
            raise ValueError(
                f"{path}, line {place.number + 1} is damaged ({said}); restore the file from a copy"
            ) from fault
        place = after
        yield place, parsed


def _lines(data: bytes) -> Iterator[bytes]:
    """The lines that a newline ends, one after the other: together they would take several times
    the file's size."""
    begin = 0
    while (end := data.find(b"\n", begin)) >= 0:
        yield data[begin:end]
        begin = end + 1


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of JSON, which gives no name twice."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError(f"a name is given twice among {[name for name, _ in pairs]}")
    return found


def _after(place: Place, text: bytes) -> Place:
    """The place after a line.

    Raises:
        ValueError: it is not the line that was written there.
    """
    end = _END.search(text)
    if end is None:
        raise ValueError("it does not end in its number and checksum")
    number, chain = int(end["number"]), end["chain"].decode()
    if number != place.number + 1:
        raise ValueError(f"it is number {number}: a line is missing or out of order")
    if chain != _chain(place, text[: end.start("chain") - len(', "chain": "')]):
        raise ValueError("its checksum does not match")
    return Place(number, chain)


def whole(data: bytes) -> bytes:
    """A file's data up to where its last append is torn.

    A line that lacks only its newline is not torn: it is given one. Two zero bytes in a row are of
    a sector that never reached the disk, as no line has them, nor one with a flipped bit.
    """
    torn = data.find(_ZEROS)
    if torn >= 0 and _in_last_append(data, torn):
        return data[: data.rfind(b"\n", 0, torn) + 1]
    end = data.rfind(b"\n") + 1
    rest = data[end:]
    line = rest[: rest.rfind(b"}") + 1]
    return data[:end] + line + b"\n" if _END.search(line) else data[:end]


def _in_last_append(data: bytes, torn: int) -> bool:
    """Whether all that comes after the line of a place in a file's data was appended with it."""
    number = data.count(b"\n", 0, torn) + 1
    for text in list(_lines(data[torn:]))[1:]:
        end = _END.search(text)
        if end is None and _ZEROS not in text:
            return False
        if end is not None and int(end["first"] or end["number"]) > number:
            return False
    return True


def last_place(path: Path) -> Place:
    """The place of a file that was just written, from its last bytes where they are whole.

    Raises:
        ValueError: a damaged line in a file whose last line is torn.
    """
    with naming(path), open(path, "rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(size - MAX_END_BYTES, 0))
        tail = file.read()
    end = _END.search(tail[:-1]) if tail.endswith(b"\n") else None
    if end is not None:
        return Place(int(end["number"]), end["chain"].decode())
    places = [place for place, _ in records(path, whole(read(path)), dict)]
    return places[-1] if places else start(path)


class Journal:
    """A file of such lines, open for appending; private to its owner (mode 0600).

    Args:
        path: the file; made with its folder if absent. What is torn is cut off with a warning.
        see: called with each record that the file holds.

    Raises:
        ValueError: a damaged line, or one that ``see`` refuses.

    Attributes:
        path: of the file.
        place: where it ends, by what this process has read and written.
    """

    def __init__(self, path: Path, see: Callable[[dict[str, Any]], object]):
        self._file = -1
        self.path, self.place, self._size = path, start(path), 0
        self._release: object = None
        self._first = 1
        make_folder(path.parent, private=True)
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, PRIVATE_FILE)
        try:
            sync_folder(path.parent)
            with naming(path), self._locked():
                self._recover(see)
        except BaseException:
            self.close()
            raise

    def append(self, new: Sequence[Mapping[str, Any]]) -> None:
        """Add records in one write; they are safely on the disk on return.

        Raises:
            ValueError: the file is closed, or another process has changed, removed or replaced it.
            OSError: writing failed; the part written is cut off if possible, and the file closed.
        """
        if self._file < 0:
            raise ValueError(
                f"ledger = {self.path} is closed and must be open to charge; open it again"
            )
        place, lines = self.place, []
        for record in new:
            line, place = sealed(record, place, self._first_of(record, place.number + 1))
            lines.append(line)
        with naming(self.path), self._locked():
            self._check_unchanged()
            self._write(b"".join(lines))
        self.place = place

    def close(self) -> None:
        """Close the file; appending afterwards is refused. Idempotent."""
        file, self._file = self._file, -1
        if file >= 0:
            with naming(self.path):
                os.close(file)

    def __del__(self) -> None:
        with suppress(OSError):
            self.close()

    def _check_unchanged(self) -> None:
        """Refuse to write where nobody would read it, or after what this process does not know.

        Raises:
            ValueError: the file was changed, removed, or replaced by another one.
        """
        own = os.fstat(self._file)
        try:
            named = self.path.stat()
        except FileNotFoundError:
            named = None
        if named is None or not os.path.samestat(own, named):
            raise ValueError(
                f"{self.path} was removed or replaced by another file while it was in use: restore "
                "it from a copy, or start a new run"
            )
        if own.st_size != self._size:
            raise ValueError(
                f"{self.path} was changed by another process, whose charges this one does not "
                "know: end one of them, and resume the run"
            )

    @contextmanager
    def _locked(self) -> Iterator[None]:
        fcntl.flock(self._file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            if self._file >= 0:
                fcntl.flock(self._file, fcntl.LOCK_UN)

    def _recover(self, see: Callable[[dict[str, Any]], object]) -> None:
        """Read the lines and repair the end.

        What a crash has left may be unflushed: it is flushed before it counts as paid.
        """
        data = read(self.path)
        kept = whole(data)

        def seen(record: dict[str, Any]) -> object:
            self._first_of(record, self.place.number + 1)
            return see(record)

        for place, _ in records(self.path, kept, seen):
            self.place = place
        if kept != data:
            warnings.warn(f"{self.path}: {_repaired(kept, data, 'cut off')}", stacklevel=4)
            missing = not data.startswith(kept)
            os.ftruncate(self._file, len(kept) - missing)
            if missing:
                os.write(self._file, b"\n")
        os.fsync(self._file)
        self._size = len(kept)

    def _first_of(self, record: Mapping[str, Any], number: int) -> int:
        """The number of the first line in a row of the release of the line of this number."""
        if record.get("release") != self._release:
            self._release, self._first = record.get("release"), number
        return self._first

    def _write(self, data: bytes) -> None:
        try:
            written = 0
            while written < len(data):
                written += os.write(self._file, data[written:])
            os.fsync(self._file)
        except OSError:
            with suppress(OSError):  # the disk may refuse that, too: then the charge counts
                os.ftruncate(self._file, self._size)
            self.close()
            raise
        self._size += len(data)


def _repaired(kept: bytes, data: bytes, did: str) -> str:
    if not data.startswith(kept):
        return "the torn last line is whole but for its newline: it counts"
    return f"{did} a torn end ({len(data) - len(kept)} bytes)"


def whole_of(path: Path) -> bytes:
    """The whole lines of a file that is only read; warns about a torn end."""
    data = read(path)
    kept = whole(data)
    if kept != data:
        warnings.warn(f"{path}: {_repaired(kept, data, 'skipped')}", stacklevel=3)
    return kept
