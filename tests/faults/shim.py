"""Builds the shim of system calls, and arms it in a process that was started with it."""

import ctypes
import shutil
import subprocess
from pathlib import Path

SOURCE = Path(__file__).with_name("shim.c")
NOTHING, KILL, TEAR, FAIL, FAIL_ON = range(5)
"""What goes wrong at the chosen call: nothing; death before it; death within a write; an error; an
error there and ever after."""


def compiler() -> str | None:
    """The C compiler of this machine."""
    return next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)


def build(folder: Path) -> Path:
    """The shared library, compiled into a folder."""
    library = folder / "shim.so"
    words = [compiler() or "cc", "-O2", "-Wall", "-Werror", "-shared", "-fPIC", "-o", str(library)]
    subprocess.run([*words, str(SOURCE), "-ldl"], check=True)
    return library


class Shim:
    """The shim that is preloaded into this process."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL(None)
        numbers = [ctypes.c_int, ctypes.c_long, ctypes.c_int]
        self._library.faults_arm.argtypes = [ctypes.c_char_p, *numbers]
        self._library.faults_seen.restype = ctypes.c_char_p

    def arm(self, root: Path, mode: int = NOTHING, number: int = 0, error: int = 0) -> None:
        """Count calls below a folder from now on; that of a number, from 1, goes wrong."""
        self._library.faults_arm(bytes(root), mode, number, error)

    def seen(self) -> str:
        """A letter for each call so far."""
        return self._library.faults_seen().decode()
