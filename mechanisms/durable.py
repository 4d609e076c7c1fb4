"""Files that are complete or absent (written under a temporary name, flushed, then renamed), and
their folders."""

import functools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

PRIVATE_FILE, PRIVATE_FOLDER = 0o600, 0o700
"""Modes of what only its owner may read."""


def sync_folder(folder: Path) -> None:
    """Flush a folder's entries to disk."""
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


def write(path: Path, content: bytes, private: bool = False) -> None:
    """Replace the file at ``path`` atomically: after a crash it is the old file or the new one."""
    with writing(path, private) as file:
        file.write(content)


@contextmanager
def writing(path: Path, private: bool = False) -> Iterator[BinaryIO]:
    """A file to fill, which becomes ``path`` when the block ends; if it raises, nothing is left.

    Only its owner may read or write a private one.
    """
    part = path.with_name(path.name + ".part")
    try:
        with open(part, "wb", opener=_open_private if private else None) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


_open_private = functools.partial(os.open, mode=PRIVATE_FILE)
