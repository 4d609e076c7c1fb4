"""Other processes: waiting for what they do, however long it takes, and finding them.

Nothing here has a limit of time: how long something takes says how busy the machine is. A process
that has ended is noticed, so that nobody waits for it; a test that hangs fails after a long while
(`timeout` in `pyproject.toml`).
"""

import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

NEEDS_PROC = pytest.mark.skipif(
    not Path("/proc/self/stat").exists(), reason="no /proc to find processes by"
)


def wait_for(condition: Callable[[], object], process: subprocess.Popen | None = None) -> None:
    """Until the condition holds, or the process, if there is one, has ended. A condition that takes
    long is looked at less often: what is waited for needs the processor."""
    began = time.thread_time()
    while not condition() and (process is None or process.poll() is None):
        time.sleep(max(0.002, 4 * (time.thread_time() - began)))
        began = time.thread_time()


def finish(process: subprocess.Popen) -> None:
    """Wait for the end of a process, which must be a success."""
    said = process.communicate()[0]
    assert process.returncode == 0, said


def descendants(pid: int) -> dict[int, str]:
    """The living processes below one, with their titles."""
    parents, titles = {}, {}
    for entry in Path("/proc").iterdir():
        try:
            parents[int(entry.name)] = int(
                (entry / "stat").read_text().rpartition(")")[2].split()[1]
            )
            titles[int(entry.name)] = (entry / "cmdline").read_text()
        except (ValueError, OSError):
            continue
    below = {pid}
    while grown := {p for p, parent in parents.items() if parent in below} - below:
        below |= grown
    return {p: titles[p] for p in below - {pid} if titles.get(p)}


def alive(pid: int) -> bool:
    """Whether it is there and has not ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
