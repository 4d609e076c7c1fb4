"""Modules of the user's that hide packages of this project: said before anything is imported.

``python -m sim.run`` looks for ``client`` in the current folder first, and a script in its own. The
command ``dpfed`` looks there last, and has its child processes do so.
"""

import importlib
import importlib.util
import os
import sys
from pathlib import Path

PACKAGES = ("mechanisms", "client", "strategies", "server")
"""What `sim` imports from beside itself."""
LAST = "DPFED_FOLDER"
"""Environment variable: a folder to look in last. Ray's workers look in the current one first."""
COMMANDS = ("-m", "dpfed")
"""What ``sys.argv[0]`` is, or ends in, while a command of the project is being found."""


def leave_out(folder: str) -> None:
    """Look for modules in ``folder`` no more."""
    sys.path[:] = [place for place in sys.path if place not in ("", folder)]


def put_last(folder: str) -> None:
    """Look for modules in ``folder`` after all other places.

    The project's packages are loaded before: Python asks an editable install after all folders.
    """
    leave_out(folder)
    for package in PACKAGES:
        importlib.import_module(package)
    sys.path.append(folder)


def hiding(package: str, root: Path) -> Path | None:
    """What is imported in place of the folder ``package`` of ``root``; None where nothing is."""
    found = importlib.util.find_spec(package)
    if found is None:
        return None
    places = [Path(place) for place in found.submodule_search_locations or [found.origin or ""]]
    wanted = (root / package).resolve()
    return None if wanted in [place.resolve() for place in places] else places[0]


def check() -> None:
    """Refuse to go on where a package of the project would be somebody else's module.

    Raises:
        ImportError: what hides what.
        SystemExit: the same, as one line on stderr and status 2, where a command of the project is
            being started.
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
