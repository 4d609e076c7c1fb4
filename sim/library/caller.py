"""Runs inside a user's program: saves the process state that a run changes, and restores it.

A program that calls `sim.train` has threads, variables and flags of its own, which must be the same
afterwards even if the run fails; and a run must give the same bits whatever they are.

The allocator's thresholds (`sim.job.environment.prepare`) cannot be restored and are left alone,
which only costs speed. Libraries are imported before anything is set, so that none reads a run's
variables when it is loaded.
"""

import os
import signal
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from mechanisms.default_arithmetic import default_arithmetic, one_thread

# Loads what a run needs, under the caller's own variables.
from sim.engines import start  # noqa: F401
from sim.job.environment import set_variables


@contextmanager
def borrowed_process() -> Iterator[None]:
    """Prepare the process for a run and restore the caller's state on exit, also after exceptions.

    One run at a time: other threads wait for the arithmetic. Signal handlers are restored in the
    main thread only, where Python allows it.
    """
    with default_arithmetic(), one_thread(), ExitStack() as stack:
        stack.callback(_restore_variables, dict(os.environ))
        stack.callback(_restore_signals, {n: signal.getsignal(n) for n in _signals()})
        stack.callback(setattr, sys, "excepthook", sys.excepthook)
        stack.callback(setattr, warnings, "formatwarning", warnings.formatwarning)
        set_variables()
        yield


def _signals() -> list[signal.Signals]:
    """Signals whose handlers can be restored from here; none outside the main thread."""
    if threading.current_thread() is not threading.main_thread():
        return []
    return [n for n in signal.Signals if n not in (signal.SIGKILL, signal.SIGSTOP)]


def _restore_signals(before: dict[signal.Signals, Any]) -> None:
    """Set again what a program has set, too: Ray replaces handlers without Python's knowledge."""
    for number, handler in before.items():
        changed = signal.getsignal(number) != handler or handler is not signal.SIG_DFL
        if handler is not None and changed:
            signal.signal(number, handler)


def _restore_variables(before: dict[str, str]) -> None:
    for name in set(os.environ) - set(before):
        del os.environ[name]
    for name, value in before.items():
        if os.environ.get(name) != value:
            os.environ[name] = value
