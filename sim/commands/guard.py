"""Error handling of every command: one line on stderr and an exit code."""

import sys
import warnings
from collections.abc import Callable, Sequence


def main_guard(command: Callable[[Sequence[str]], None], argv: Sequence[str] | None = None) -> int:
    """Run ``command(argv)`` (default: the process's own arguments) and return the exit code.

    A ValueError is a user error: one line ``error: ...`` on stderr and code 2. ``python -X dev``
    shows a traceback.
    """
    warnings.formatwarning = _one_line_warning  # type: ignore[assignment]
    try:
        command(sys.argv[1:] if argv is None else argv)
    except ValueError as error:
        if sys.flags.dev_mode:
            raise
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    return 0


def _one_line_warning(message: Warning | str, category: type[Warning], *_: object) -> str:
    kind = "warning" if category is UserWarning else category.__name__
    return f"{kind}: {' '.join(str(message).split())}\n"
