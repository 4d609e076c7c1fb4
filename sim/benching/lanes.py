"""Trains several runs at a time: each lane is a process that trains one run after the other.

A lane that dies (out of memory, killed) fails its current run only, and is replaced. Lanes end
with the process that started them, however that ends.
"""

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from multiprocessing.connection import Connection, wait
from typing import cast

from sim.benching.runs import Run, play


def played(
    runs: Sequence[Run], processes: int, until: float | None = None
) -> Iterator[tuple[Run, str]]:
    """Yield each run when it is done, with its error or an empty string.

    A single run at a time is trained in this process. At ``until`` (of `time.monotonic`) all stop;
    unfinished runs can be resumed from their checkpoints.
    """
    if until is None and min(processes, len(runs)) <= 1:
        yield from ((run, play(run)) for run in runs)
        return
    waiting, busy = list(reversed(runs)), {}
    with ExitStack() as stack:
        for _ in range(min(processes, len(runs)) if left(until) != 0 else 0):
            lane = _Lane(stack)
            busy[lane.pipe] = lane, waiting.pop()
            lane.give(busy[lane.pipe][1])
        while busy:
            ready = cast("list[Connection]", wait(list(busy), left(until)))
            if not ready:
                return
            for pipe in ready:
                lane, run = busy.pop(pipe)
                fault = lane.answer()
                yield run, fault
                if waiting and left(until) != 0:
                    lane = lane if lane.alive else _Lane(stack)
                    busy[lane.pipe] = lane, waiting.pop()
                    lane.give(busy[lane.pipe][1])


def left(until: float | None) -> float | None:
    """Seconds left, at least 0; None without a time limit."""
    return None if until is None else max(0.0, until - time.monotonic())


class _Lane:
    """One process, and this end of the pipe to it; both are closed with the stack."""

    def __init__(self, stack: ExitStack):
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self._process = context.Process(target=_work, args=(theirs,), daemon=True)
        self._process.start()
        theirs.close()
        stack.callback(self._end)

    def _end(self) -> None:
        self._process.kill()
        self._process.join()
        self.pipe.close()

    @property
    def alive(self) -> bool:
        """Whether its process is."""
        return self._process.is_alive()

    def give(self, run: Run) -> None:
        """Send a run to the process; if that has died, `answer` reports it."""
        with suppress(OSError):
            self.pipe.send(run)

    def answer(self) -> str:
        """The error of its run, or an empty string; call it when the pipe is ready or closed."""
        try:
            return self.pipe.recv()
        except (EOFError, OSError):
            self._process.join()
            died = f"its process died (exit code {self._process.exitcode})"
            return f"{died}; run the same command again to go on"


def _work(pipe: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # left to the parent
    threading.Thread(target=_end_with_parent, daemon=True).start()
    while True:
        try:
            run = pipe.recv()
        except EOFError:
            return
        pipe.send(play(run))


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
    os._exit(1)
