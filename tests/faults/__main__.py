"""Kills runs at their system calls, lets calls fail, takes the machine's power, and damages files.

    python -m tests.faults --kills 5000 --errors 1000 --damages 500 --power 2000 --fuzz 600 \\
        --out benchmarks/results/faults.json

Every mechanism runs as a simulation and as a release, with and without a kept state, in children of
one process. After each fault the run is resumed, and must end with the same bits and charges; an
error must be one line. It needs a C compiler, on Linux. Exit code 1: some try broke a law.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.faults import shim

MEMORY = Path("/dev/shm")
"""A file system in memory: the tries are about the order of calls, not about a disk."""


def parser() -> argparse.ArgumentParser:
    """The command's flags."""
    flags = argparse.ArgumentParser(
        prog="python -m tests.faults",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    for name, what in (
        ("kills", "deaths before a system call or within a write"),
        ("errors", "calls that fail by EIO or ENOSPC, once or from then on"),
        ("damages", "files that change between a death and the resumed run"),
        ("power", "states that a power loss can leave"),
        ("fuzz", "processor seconds in which each parser is given damaged and random bytes"),
        ("seed", "of what is drawn where not everything is tried"),
    ):
        flags.add_argument(f"--{name}", type=int, default=0, help=what)
    flags.add_argument("--kinds", default="", help="only kinds of runs that begin so")
    flags.add_argument("--targets", default="", help="only these parsers, with commas between")
    flags.add_argument("--out", type=Path, help="file of the figures, of which other parts stay")
    flags.add_argument("--base", type=Path, help=argparse.SUPPRESS)
    return flags


def main() -> int:
    """The command."""
    given = parser().parse_args()
    if given.base:
        from tests.faults.campaign import tried

        result = tried(given.base, given)
        (given.base / "result.json").write_text(json.dumps(result))
        return 0
    began = time.monotonic()
    result = json.loads(given.out.read_text()) if given.out and given.out.exists() else {}
    if given.kills or given.errors or given.damages:
        result |= _with_shim(given)
    if given.power:
        from tests.faults.power import lost

        result["power"] = lost(given.power, given.seed)
    if given.fuzz:
        from tests.faults.fuzz import searched
        from tests.fuzz_targets import MAKERS

        for name in filter(None, given.targets.split(",")) if given.targets else MAKERS:
            found = searched(given.fuzz, given.seed, name)  # hours for all: what is done is kept
            result["fuzz"] = merged(result.get("fuzz", {}), found)
            if given.out:
                given.out.write_text(json.dumps(result, indent=1) + "\n")
    result |= {"machine": platform.platform()}
    print(f"{time.monotonic() - began:.0f} s")
    broken = [line for part in result.values() if isinstance(part, dict) for line in part["broken"]]
    print(json.dumps(result, indent=1))
    if given.out:
        given.out.write_text(json.dumps(result, indent=1) + "\n")
    return int(bool(broken))


def merged(before: dict[str, Any], found: dict[str, Any]) -> dict[str, Any]:
    """Figures of a search, after those of other targets that were searched as long."""
    seconds = "processor seconds a target"
    if before.get(seconds) != found[seconds]:
        return found
    kept = [line for line in before["broken"] if line.partition(":")[0] not in found["inputs"]]
    inputs = before["inputs"] | found["inputs"]
    return {seconds: found[seconds], "inputs": inputs, "broken": kept + found["broken"]}


def _with_shim(given: argparse.Namespace) -> dict[str, Any]:
    """What a process with the preloaded shim finds."""
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as base:
        preloaded = {"LD_PRELOAD": str(shim.build(Path(base))), "OMP_NUM_THREADS": "1"}
        words = [sys.executable, "-m", "tests.faults", *sys.argv[1:], f"--base={base}"]
        subprocess.run(words, check=True, env=os.environ | preloaded)
        return json.loads((Path(base) / "result.json").read_text())


if __name__ == "__main__":
    sys.exit(main())
