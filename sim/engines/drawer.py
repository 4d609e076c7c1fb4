"""A process beside a run that draws its report.

Loading the drawing library takes as long as drawing. The process loads it while the run trains, and
waits for the run's directory on its input, which is closed when the run ends, however it ends.
"""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from subprocess import DEVNULL, PIPE, Popen

from sim.config.settings import Execution
from sim.engines.cluster import from_start
from sim.showing.report import write_report

Report = Callable[[Path], object]
"""Writes the report of a run directory."""

_CODE = "import sys; sys.path[:] = {!r}; from sim.engines.drawer import main; main()"
"""The process: it finds modules where the one that starts it does."""


@contextmanager
def drawing(run: Execution) -> Iterator[Report]:
    """Start the process. What it fails to draw is drawn here, with the same bytes.

    None is started where it would save nothing: on one core, with the library loaded already, and
    where Ray ends beside the report.
    """
    process = None
    pays = len(os.sched_getaffinity(0)) > 1 and "matplotlib" not in sys.modules
    with ExitStack() as ending:
        if pays and not from_start(run):
            with suppress(OSError):
                process = ending.enter_context(_start())
                ending.callback(process.kill)
        yield lambda folder: _drawn(process, folder) or write_report(folder)


def _start() -> Popen[bytes]:
    words = [sys.executable, "-c", _CODE.format(sys.path)]
    return Popen(words, stdin=PIPE, stdout=DEVNULL, stderr=DEVNULL)


def _drawn(process: Popen[bytes] | None, folder: Path) -> bool:
    """Whether the process has written the report."""
    if process is None:
        return False
    process.communicate(os.fsencode(folder))
    return process.returncode == 0


def main() -> None:
    """In the process: draw the report of the directory on the standard input, if one comes."""
    from sim.job.environment import importing

    with importing():
        import sim.showing.plots  # noqa: F401
    if folder := sys.stdin.buffer.read():
        write_report(Path(os.fsdecode(folder)))
