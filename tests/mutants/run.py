"""Lines that matter have a test that fails without them: ``python tests/mutants/run.py``.

Each mutant is one edit that would void the guarantee, lose a result or print a wrong figure silently. It is made in a
copy of the tree, and the tests that answer for the line are run: one of them must fail. The same tests must pass on
the tree as it is.

Without options all mutants run and ``results.json`` is written. ``--only TEXT`` takes those whose name or file holds
the text. ``--minutes M`` takes those that changed since the results were written, then others in an order that
changes with the code, until the time is over; it takes for granted that the test suite has passed.
"""

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Queue

ROOT = Path(__file__).resolve().parents[2]
if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
from tests.mutants.table import Mutant, faults, load  # noqa: E402

RESULTS = Path(__file__).with_name("results.json")
IGNORED = shutil.ignore_patterns(".*", "runs", "__pycache__", "*.egg-info")
FAILED = 1
"""pytest's exit code where a test failed; others mean that no test could be run."""


def pytest(tree: Path, tests: Sequence[str]) -> tuple[int, str]:
    """Exit code and output of these tests in a tree; no byte code is kept: an edit may leave the time as it was."""
    words = [sys.executable, "-m", "pytest", "-x", "-q", "--tb=no", "-n", "0", "-p", "no:cacheprovider"]
    words += [f"tests/{test}" for test in tests]
    environment = os.environ | {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(words, cwd=tree, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return done.returncode, done.stdout


def is_killed(mutant: Mutant, tree: Path) -> tuple[bool, str]:
    """Whether a test fails for the mutant, and which one, or what happened instead. The tree is left as it was."""
    path = tree / mutant.file
    whole = path.read_text()
    path.write_text(whole.replace(mutant.old, mutant.new))
    try:
        code, said = pytest(tree, mutant.tests)
    finally:
        path.write_text(whole)
    failed = next((line.removeprefix("FAILED ") for line in said.splitlines() if line.startswith("FAILED ")), "")
    return code == FAILED and bool(failed), failed.partition(" - ")[0] or f"pytest ended with code {code}"


def kills(chosen: Sequence[Mutant], tree: Path, seconds: float = float("inf")) -> Iterator[tuple[Mutant, bool]]:
    """Try the mutants, as many at a time as there are cores, each in a tree of its own; print a line for each.

    None is begun after ``seconds``.
    """
    trees: Queue[Path] = Queue()
    cores, start = os.cpu_count() or 1, time.monotonic()
    for number in range(cores):
        trees.put(Path(shutil.copytree(tree, tree.with_name(f"tree-{number}"))))

    def attempt(mutant: Mutant) -> tuple[bool, str] | None:
        own, began = trees.get(), time.monotonic()
        try:
            if began - start > seconds:
                return None
            killed, by = is_killed(mutant, own)
        finally:
            trees.put(own)
        return killed, f"{'killed' if killed else 'SURVIVED'}: {mutant.name} ({time.monotonic() - began:.1f} s, {by})"

    with ThreadPoolExecutor(cores) as pool:
        for mutant, outcome in zip(chosen, pool.map(attempt, chosen), strict=True):
            if outcome:
                print(outcome[1], flush=True)
                yield mutant, outcome[0]


def in_turn(mutants: Sequence[Mutant]) -> list[Mutant]:
    """Those that changed since the results were written, then the others; the order depends on the whole code."""
    known = json.loads(RESULTS.read_text())["mutants"] if RESULTS.is_file() else {}
    turn = hashlib.sha256("".join(mutant.digest() for mutant in mutants).encode())

    def place(mutant: Mutant) -> tuple[bool, str]:
        drawn = turn.copy()
        drawn.update(mutant.name.encode())
        return known.get(mutant.name) == mutant.digest(), drawn.hexdigest()

    return sorted(mutants, key=place)


def write_results(killed: Sequence[Mutant], tried: Sequence[Mutant]) -> None:
    """The rate, by file and in all, the survivors, and the digest of every mutant that was killed."""
    files = sorted({mutant.file for mutant in tried})
    by_file = {f: f"{sum(m.file == f for m in killed)} of {sum(m.file == f for m in tried)}" for f in files}
    results = {
        "killed": len(killed),
        "tried": len(tried),
        "survived": sorted(m.name for m in tried if m not in killed),
        "files": by_file,
        "mutants": {m.name: m.digest() for m in sorted(killed, key=lambda m: m.name)},
    }
    RESULTS.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n")


def main() -> int:
    """Run all mutants, or some; returns 1 if one survives."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    chosen = parser.add_mutually_exclusive_group()
    chosen.add_argument("--only", metavar="TEXT", default="", help="the mutants whose name or file holds this text")
    chosen.add_argument("--minutes", type=float, metavar="M", help="changed ones first, then others, for so long")
    flags = parser.parse_args()
    mutants = [mutant for mutant in load() if flags.only in mutant.name or flags.only in mutant.file]
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(shutil.copytree(ROOT, Path(folder) / "tree", ignore=IGNORED))
        if wrong := faults(mutants) or ([] if mutants else [f"no mutant's name or file holds {flags.only!r}"]):
            print(*wrong, sep="\n")
            return 1
        if flags.minutes is None:
            code, said = pytest(tree, list(dict.fromkeys(test for mutant in mutants for test in mutant.tests)))
            if code:
                print(f"the tests do not pass without a mutant:\n{said}")
                return 1
            tried = list(kills(mutants, tree))
        else:
            tried = list(kills(in_turn(mutants), tree, 60 * flags.minutes))
    killed = [mutant for mutant, was_killed in tried if was_killed]
    if not flags.only and flags.minutes is None:
        write_results(killed, [mutant for mutant, _ in tried])
    print(f"{len(killed)} killed, {len(tried) - len(killed)} survived, {len(mutants) - len(tried)} not tried")
    return 0 if len(killed) == len(tried) else 1


if __name__ == "__main__":
    raise SystemExit(main())
