"""Detects user modules that shadow packages of this project, before anything is imported.

``python -m sim.run`` looks for ``client`` in the current folder first, and a script in its own.
The command ``dpfed`` looks there last, and so do its child processes.
"""

import importlib
import importlib.util
import os
import sys
from pathlib import Path

PACKAGES = ("mechanisms", "client", "strategies", "server")
"""Top-level packages that `sim` imports."""
LAST = "DPFED_FOLDER"
"""Environment variable: a folder to search last. Ray's workers search the current one first."""
COMMANDS = ("-m", "dpfed")
"""Last component of ``sys.argv[0]`` while a command of the project starts."""


def leave_out(folder: str) -> None:
    """Remove ``folder`` from the module search path."""
    sys.path[:] = [place for place in sys.path if place not in ("", folder)]


def put_last(folder: str) -> None:
    """Search ``folder`` for modules after all other places.

    The project's packages are loaded first, because an editable install is searched after folders.
    """
    leave_out(folder)
    for package in PACKAGES:
        importlib.import_module(package)
    sys.path.append(folder)


def hiding(package: str, root: Path) -> Path | None:
    """The path imported instead of the folder ``package`` of ``root``; None if there is none."""
    found = importlib.util.find_spec(package)
    if found is None:
        return None
    places = [Path(place) for place in found.submodule_search_locations or [found.origin or ""]]
    wanted = (root / package).resolve()
    return None if wanted in [place.resolve() for place in places] else places[0]


def check() -> None:
    """Refuse to go on if another module shadows a package of the project.

    Raises:
        ImportError: names both paths.
        SystemExit: when a command starts: the same in one line on stderr, with status 2.
    """
    folder = os.environ.get(LAST, "")
    if folder:
        leave_out(folder)
    root = Path(__file__).parent.parent
    for package in PACKAGES:
        if (place := hiding(package, root)) is not None:
            said = (
                f"{place} hides the package {package} of {root}: rename it, or use the command "
                "dpfed, which looks in the current folder last"
            )
            if sys.argv and Path(sys.argv[0]).name in COMMANDS:
                print(f"error: {said}", file=sys.stderr)
                raise SystemExit(2)
            raise ImportError(said)
    if folder:
        put_last(folder)
