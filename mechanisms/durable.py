"""Files that are whole or absent: written under a temporary name, flushed to disk, then renamed."""

import os
from pathlib import Path


def sync_folder(folder: Path) -> None:
    """Flush a folder's entries to disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write(path: Path, content: bytes) -> None:
    """Put ``content`` at ``path``: after a crash at any moment the old file is there, or the new one."""
    part = path.with_name(path.name + ".part")
    with open(part, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)
    sync_folder(path.parent)
