"""Compares small runs with what is written down of them, or writes it anew.

    python -m tests.pinned [NAME ...]
    python -m tests.pinned --write [NAME ...]

A commit that changes an outcome says why. Exit code 1: something differs.
"""

import argparse
import sys
import tempfile
import time
from contextlib import chdir
from pathlib import Path

from sim.job import environment

environment.prepare()

from tests.pinned.files import FILES, differences, read, write  # noqa: E402
from tests.pinned.outcomes import outcome  # noqa: E402
from tests.pinned.table import RUNS  # noqa: E402


def main() -> int:
    """The command."""
    flags = argparse.ArgumentParser(prog="python -m tests.pinned", description=__doc__)
    flags.add_argument("names", nargs="*", metavar="NAME", help="runs (default: all)")
    flags.add_argument("--write", action="store_true", help="write down what differs")
    given = flags.parse_args()
    sys.path.insert(0, str(Path.cwd()))
    changed = 0
    for name in given.names or RUNS:
        began = time.process_time()
        with tempfile.TemporaryDirectory() as folder, chdir(folder):
            found = outcome(name, Path(folder))
        known = (FILES / f"{name}.json").exists()
        what = list(differences(read(name), found)) if known else ["not written yet"]
        changed += bool(what)
        if what and given.write:
            write(name, found)
        print(f"{name}: {time.process_time() - began:.2f} s, {len(what)} differences", flush=True)
        print(*(f"    {line[:200]}" for line in what[:20]), sep="\n", end="\n" * bool(what))
    return int(changed > 0 and not given.write)


if __name__ == "__main__":
    raise SystemExit(main())
