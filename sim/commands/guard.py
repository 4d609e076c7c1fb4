"""Error handling of every command: one line on stderr and an exit code."""

import contextlib
import errno
import os
import sys
import warnings
from collections.abc import Callable, Sequence

USER, MACHINE, INTERRUPTED = 2, 1, 130
"""Exit codes: what the user gave is wrong; the machine, or somebody's code, failed; Ctrl-C."""

NO_MEMORY = ("MemoryError", "OutOfMemoryError")
"""Names of the errors of a machine and of a GPU; torch, which has the latter, may not be loaded."""

REMEDIES = {
    errno.ENOSPC: "make room on the disk",
    errno.EDQUOT: "make room within the quota",
    errno.EFBIG: "raise the limit by ulimit -f",
    errno.EMFILE: "raise the limit by ulimit -n, or give fewer --groups",
    errno.EACCES: "change who may read and write it, or use another folder",
    errno.EROFS: "use a folder that may be written",
    errno.ENAMETOOLONG: "use a shorter name",
    errno.EPIPE: "read all that is printed",
}


def main_guard(command: Callable[[Sequence[str]], None], argv: Sequence[str] | None = None) -> int:
    """Run ``command(argv)`` (default: the process's own arguments) and return the exit code.

    A ValueError is a user error; every other exception is the machine's or a fault in code, whether
    ours or the user's. Notes on an exception say how to go on. ``python -X dev`` shows a traceback.
    Commands import what takes long within it, so that Ctrl-C is one line from the first moment.
    """
    warnings.formatwarning = _one_line_warning  # type: ignore[assignment]
    try:
        command([_readable(word) for word in (sys.argv[1:] if argv is None else argv)])
        print(end="", flush=True)  # there may be no stdout
    except BaseException as fault:  # a model may raise what is no Exception
        fault = behind(fault)
        if sys.flags.dev_mode or isinstance(fault, SystemExit):
            raise
        if isinstance(fault, OSError):
            _drop_output()
        notes = getattr(fault, "__notes__", [])
        print(" ".join("; ".join([_described(fault), *notes]).split()), file=sys.stderr)
        if isinstance(fault, KeyboardInterrupt):
            return INTERRUPTED
        return USER if isinstance(fault, ValueError) else MACHINE
    return 0


def behind(fault: BaseException) -> BaseException:
    """What has gone wrong: Rich exits where nobody reads what it prints."""
    cause = fault.__context__
    return cause if isinstance(fault, SystemExit) and isinstance(cause, BrokenPipeError) else fault


def _readable(word: str) -> str:
    """An argument, unless its bytes are no text in UTF-8, which files hold.

    Raises:
        ValueError: they are not.
    """
    try:
        word.encode()
    except UnicodeEncodeError:
        raise ValueError(f"argument {word!r} is not valid UTF-8: use another name") from None
    return word


def _described(fault: BaseException) -> str:
    match fault:
        case KeyboardInterrupt():
            return "interrupted"
        case ValueError():
            return f"error: {fault}"
        case OSError(errno=int(number)):
            place = f"{fault.filename}: " if fault.filename else ""
            return f"error: {place}{fault.strerror}: {REMEDIES.get(number, 'check the disk')}"
        case MemoryError() | RuntimeError() if type(fault).__name__ in NO_MEMORY:
            return (
                f"error: out of memory ({fault}): use fewer --workers, a smaller --chunk-clients "
                "or fewer records, or a larger machine"
            )
    return f"error: {type(fault).__name__}: {fault} (python -X dev shows where)"


def _drop_output() -> None:
    """Have what is left for stdout go nowhere: it may be what failed, and Python writes it again
    when it ends."""
    with contextlib.suppress(OSError, ValueError, AttributeError):  # it may have no descriptor
        handle = os.open(os.devnull, os.O_WRONLY)
        os.dup2(handle, sys.stdout.fileno())
        os.close(handle)


def _one_line_warning(message: Warning | str, category: type[Warning], *_: object) -> str:
    kind = "warning" if category is UserWarning else category.__name__
    return f"{kind}: {' '.join(str(message).split())}\n"
