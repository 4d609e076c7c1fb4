"""Files that are complete or absent (written under a temporary name, flushed, then renamed), lines
that are appended, locks, and folders.

Whatever else the project writes, it writes by these functions or by `mechanisms.journal`.
"""

import fcntl
import functools
import os
import re
import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Literal

_ROUND = re.compile(r"round-(-?[0-9]+)(\.[a-z]+)", re.ASCII)
PRIVATE_FILE, PRIVATE_FOLDER = 0o600, 0o700
"""Modes of what only its owner may read."""
REPLACED = ", and would be replaced by one: give another path"
"""The remedy where something else than a file would be written over."""


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Add the file's name to an OSError without one, such as one of a file that is open."""
    try:
        yield
    except OSError as fault:
        if fault.filename is None and fault.errno is not None:
            fault.filename = str(path)
        raise


def read(path: Path) -> bytes:
    """What a file holds.

    Raises:
        ValueError: there is something else (`check_file`).
    """
    check_file(path)
    with naming(path):
        return path.read_bytes()


def check_file(path: Path, remedy: str = ": restore it from a copy", links: bool = True) -> None:
    """Refuse something else than a file, such as a folder, or a pipe for which nobody writes.

    Raises:
        ValueError: there is such a thing, or a link unless ``links`` are allowed; the message ends
            with the ``remedy``.
    """
    if (path.exists() and not path.is_file()) or (path.is_symlink() and not links):
        raise ValueError(f"{path} is no file{remedy}")


def numbered(folder: Path, suffix: str) -> dict[int, Path]:
    """The files of a folder that are named ``round-NUMBER`` and a suffix, by number.

    Others, such as copies that an editor or a sync client has left, are nobody's.
    """
    found = {path: _ROUND.fullmatch(path.name) for path in folder.glob(f"round-*{suffix}")}
    return {int(name[1]): path for path, name in found.items() if name and name[2] == suffix}


def sync_folder(folder: Path) -> None:
    """Flush a folder's entries to disk."""
    with naming(folder):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def sync_folders(folder: Path) -> None:
    """Flush all entries in and below a folder, and its own, in case a dead process did not."""
    for one in (folder.parent, folder, *(path for path in folder.rglob("*") if path.is_dir())):
        sync_folder(one)


def make_folder(folder: Path, private: bool = False) -> None:
    """Make a folder and its missing parents; flush each entry, even if it exists already.

    Only its owner may enter a private one; its parents are as others.
    """
    if not folder.exists():
        make_folder(folder.parent)
        folder.mkdir(PRIVATE_FOLDER if private else 0o777, exist_ok=True)
    sync_folder(folder.parent)


def write(path: Path, content: bytes, private: bool = False, shared: bool = False) -> None:
    """Replace the file at ``path`` atomically: after a crash it is the old file or the new one."""
    with writing(path, private, shared) as file:
        file.write(content)


@contextmanager
def writing(path: Path, private: bool = False, shared: bool = False) -> Iterator[BinaryIO]:
    """A file to fill, which becomes ``path`` when the block ends; if it raises, nothing is left.

    Only its owner may read or write a private one. Several processes may write a shared one at
    once: the last one's content stays.

    Raises:
        ValueError: there is something else than a file at ``path``, such as a device.
    """
    check_file(path, REPLACED)
    part = _unique(path) if shared else path.with_name(path.name + ".part")
    part.unlink(missing_ok=True)  # of a dead process, or a link that would be written through
    try:
        with _flushed(part, private) as file:
            yield file
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def create(path: Path, content: bytes, private: bool = False) -> None:
    """Write a file unless it exists: of two processes at once, the first one's content stays."""
    part = _unique(path)
    try:
        with _flushed(part, private) as file:
            file.write(content)
        with suppress(FileExistsError):
            os.link(part, path)
    finally:
        part.unlink(missing_ok=True)
    sync_folder(path.parent)


def _unique(path: Path) -> Path:
    return path.with_name(f"{path.name}.{secrets.token_hex(8)}.part")


def make_empty(paths: Iterable[Path]) -> None:
    """Make empty files that only their owner may read; existing ones keep what they hold."""
    folders = set()
    for path in paths:
        with naming(path):
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT, PRIVATE_FILE))
        folders.add(path.parent)
    for folder in folders:
        sync_folder(folder)


def append(path: Path, content: bytes) -> None:
    """Add to the end of a file, which is made if absent, with its folder.

    After a crash a part of it may be there. The file's entry is flushed with its first content.
    """
    if begins := not path.exists():
        make_folder(path.parent)
    with _flushed(path, mode="ab") as file:
        file.write(content)
    if begins:
        sync_folder(path.parent)


def rename(path: Path, to: Path) -> None:
    """Give a file or folder another name."""
    path.rename(to)
    sync_folder(to.parent)


@contextmanager
def locked(path: Path, wait: bool = True) -> Iterator[None]:
    """Hold the lock of a file, which is made if absent.

    Raises:
        BlockingIOError: another process holds it, if this one is not to ``wait``.
        ValueError: there is something else than a file.
    """
    check_file(path, ": remove it", links=False)
    file = open(path, "a")  # noqa: SIM115, as the block's faults are not its
    try:
        fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        yield
    finally:
        with naming(path):
            file.close()


@contextmanager
def _flushed(
    path: Path, private: bool = False, mode: Literal["xb", "ab"] = "xb"
) -> Iterator[BinaryIO]:
    """A file to fill, by default a new one, whose bytes are on the disk when the block ends."""
    opener = _open_private if private else None
    with naming(path), open(path, mode, opener=opener) as file:
        yield file
        file.flush()
        os.fsync(file.fileno())


_open_private = functools.partial(os.open, mode=PRIVATE_FILE)
