"""Files that are complete or absent (written under a temporary name, flushed, then renamed), and
their folders."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


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


def make_folder(folder: Path) -> None:
    """Make a folder and its missing parents; flush each entry, even if it exists already."""
    if not folder.exists():
        make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
    sync_folder(folder.parent)


def write(path: Path, content: bytes) -> None:
    """Replace the file at ``path`` atomically: after a crash it is the old file or the new one."""
    with writing(path) as file:
        file.write(content)


@contextmanager
def writing(path: Path) -> Iterator[BinaryIO]:
    """A file to fill, which becomes ``path`` when the block ends; if it raises, nothing is left."""
    part = path.with_name(path.name + ".part")
    try:
        with open(part, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)
