"""Lines that matter have a test that fails without them: ``python tests/mutants/run.py``.

Each mutant is one edit that would void the guarantee, lose a result or print a wrong figure
silently. It is made in a copy of the tree, and the tests that answer for the line are run: one of
them must fail. The same tests must pass on the tree as it is.

Without options all mutants run. ``--changed`` takes those that changed, in their file or their
tests, since they were last killed; ``--only TEXT`` those whose name or file holds the text. What
was found is kept in ``results.json``. ``--minutes M`` writes nothing and takes for granted that the
test suite has passed: it tries mutants of the results, what changed since first, then others in an
order that changes with the code, until the time is over.
"""

import argparse
import hashlib
import importlib
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn, Self

import pytest

ROOT = Path(__file__).resolve().parents[2]
if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    os.environ["OMP_NUM_THREADS"] = "1"
    libraries = "torch numpy scipy.stats pydantic hypothesis safetensors.torch rich.table"
    for library in libraries.split():
        importlib.import_module(library)  # once, for all forks
from tests.mutants.table import Mutant, faults, load  # noqa: E402

RESULTS = Path(__file__).with_name("results.json")
OURS = {"tests", "mechanisms", "client", "strategies", "server", "sim", "benchmarks"}
SAID = "said.txt"
"""What pytest has said, in the tree in which it ran."""
IGNORED = shutil.ignore_patterns(".*", "runs", "__pycache__", "*.egg-info")
HANGS = 120
"""Seconds after which a test counts as failed with a mutant: an edit can make a loop endless."""
ENDS = 30
"""Seconds after which tests that were interrupted are killed."""
FAILED = 1
"""pytest's exit code where a test failed; others mean that no test could be run."""
BROKEN = 3
"""pytest's exit code where it fails itself, as where a test hangs in the setup of another one."""


@dataclass(frozen=True)
class Attempt:
    """Tests that run in a tree, in a process of their own; with a mutant, its file is as it was
    once they are over."""

    tree: Path
    mutant: Mutant | None
    whole: str
    process: int
    began: float

    @classmethod
    def begin(cls, tree: Path, tests: Sequence[str], mutant: Mutant | None = None) -> Self:
        """Start the tests, with the mutant's edit made; as a fork, for libraries take seconds to
        import."""
        whole = ""
        if mutant:
            path = tree / mutant.file
            whole = path.read_text()
            path.write_text(whole.replace(mutant.old, mutant.new))
        sys.stdout.flush()
        began, process = time.monotonic(), os.fork()
        if process == 0:
            _run(tree, tests, [f"--timeout={HANGS}"] if mutant else [])
        os.setpgid(process, process)  # with what its tests start
        return cls(tree, mutant, whole, process, began)

    def end(self, status: int) -> tuple[bool, str]:
        """Whether a test has failed, and which one, or what happened instead, from the process'
        exit status."""
        if self.mutant:
            (self.tree / self.mutant.file).write_text(self.whole)
        said = (self.tree / SAID).read_text()
        lines = (line for line in said.splitlines() if line.startswith("FAILED "))
        failed = next(lines, "").removeprefix("FAILED ")
        code = os.waitstatus_to_exitcode(status)
        hung = code == BROKEN and time.monotonic() - self.began >= HANGS
        by = failed.partition(" - ")[0] or f"pytest ended with code {code}"
        return hung or (code == FAILED and bool(failed)), by


def _run(tree: Path, tests: Sequence[str], limit: Sequence[str]) -> NoReturn:
    """Run tests in a tree and leave; no byte code is kept: an edit may leave the file's time as it
    was."""
    code = -1
    try:
        os.chdir(tree)
        os.environ |= {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": str(tree)}
        sys.dont_write_bytecode = True
        sys.path.insert(0, str(tree))
        for name in [name for name in sys.modules if name.partition(".")[0] in OURS]:
            del sys.modules[name]
        said = os.open(SAID, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(said, 1)
        os.dup2(said, 2)
        words = ["-x", "-q", "--tb=no", "-n", "0", "-p", "no:cacheprovider", f"--rootdir={tree}"]
        code = pytest.main([*words, *limit, *(f"tests/{test}" for test in tests)])
    finally:
        sys.stdout.flush()
        os._exit(code)


def is_killed(mutant: Mutant, tree: Path) -> tuple[bool, str]:
    """Whether a test fails for the mutant, and which one, or what happened instead. The tree is
    left as it was."""
    attempt = Attempt.begin(tree, mutant.tests, mutant)
    return attempt.end(os.waitpid(attempt.process, 0)[1])


def kills(
    chosen: Sequence[Mutant], tree: Path, seconds: float = float("inf")
) -> Iterator[tuple[Mutant, bool]]:
    """Try the mutants, as many at a time as there are cores, each in a tree of its own; print a
    line for each.

    Those that still run after ``seconds`` were not tried.
    """
    cores, over = os.cpu_count() or 1, time.monotonic() + seconds
    trees = [
        Path(shutil.copytree(tree, tree.with_name(f"tree-{number}"))) for number in range(cores)
    ]
    waiting, running = list(reversed(chosen)), dict[int, Attempt]()
    while (waiting or running) and time.monotonic() < over:
        while trees and waiting:
            mutant = waiting.pop()
            attempt = Attempt.begin(trees.pop(), mutant.tests, mutant)
            running[attempt.process] = attempt
        process, status = os.waitpid(-1, os.WNOHANG)
        if not process:
            time.sleep(0.02)
            continue
        done = running.pop(process)
        trees.append(done.tree)
        killed, by = done.end(status)
        took = time.monotonic() - done.began
        print(
            f"{'killed' if killed else 'SURVIVED'}: {done.mutant.name} ({took:.1f} s, {by})",
            flush=True,
        )
        yield done.mutant, killed
    for process in running:
        _interrupt(process)


def _interrupt(process: int) -> None:
    """End pytest, which ends what its tests have started, daemons too; by force if it does not."""
    over = time.monotonic() + ENDS
    os.kill(process, signal.SIGINT)
    while not os.waitpid(process, os.WNOHANG)[0]:
        time.sleep(0.02)
        if time.monotonic() > over:
            os.killpg(process, signal.SIGKILL)


def known() -> dict[str, str]:
    """The digest of every mutant as it was when it was last killed, by name."""
    return json.loads(RESULTS.read_text())["mutants"] if RESULTS.is_file() else {}


def in_turn(mutants: Sequence[Mutant]) -> list[Mutant]:
    """Those that the results know: the ones that changed since first; the order of the others
    depends on all code."""
    last, digests = known(), {mutant.name: mutant.digest() for mutant in mutants}
    turn = hashlib.sha256("".join(digests.values()).encode())

    def place(mutant: Mutant) -> tuple[bool, str]:
        drawn = turn.copy()
        drawn.update(mutant.name.encode())
        return last[mutant.name] == digests[mutant.name], drawn.hexdigest()

    return sorted((mutant for mutant in mutants if mutant.name in last), key=place)


def write_results(
    mutants: Sequence[Mutant], killed: Sequence[Mutant], tried: Sequence[Mutant]
) -> None:
    """The rate, by file and in all, who survived or was never killed, and the digest of each that
    was killed.

    Of those that were not tried now the last result stands.
    """
    last = known()
    digests = {m.name: last[m.name] for m in mutants if m not in tried and m.name in last}
    digests |= {m.name: m.digest() for m in killed}
    of_file: dict[str, list[bool]] = {}
    for m in mutants:
        of_file.setdefault(m.file, []).append(m.name in digests)
    results = {
        "killed": len(digests),
        "mutants in all": len(mutants),
        "not killed": sorted(m.name for m in mutants if m.name not in digests),
        "files": {
            file: f"{sum(of_file[file])} of {len(of_file[file])}" for file in sorted(of_file)
        },
        "mutants": dict(sorted(digests.items())),
    }
    RESULTS.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n")


def main() -> int:
    """Run all mutants, or some; returns 1 if one survives."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    chosen = parser.add_mutually_exclusive_group()
    chosen.add_argument(
        "--only", metavar="TEXT", default="", help="the mutants whose name or file holds this text"
    )
    chosen.add_argument(
        "--changed",
        action="store_true",
        help="the mutants that changed since they were last killed",
    )
    chosen.add_argument(
        "--minutes", type=float, metavar="M", help="changed ones first, then others, for so long"
    )
    flags = parser.parse_args()
    every, last = load(), known()
    mutants = [mutant for mutant in every if flags.only in mutant.name or flags.only in mutant.file]
    if flags.changed:
        mutants = [mutant for mutant in mutants if last.get(mutant.name) != mutant.digest()]
    if not mutants:
        print("no mutant is like that" if flags.only else "no mutant has changed")
        return 1 if flags.only else 0
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(shutil.copytree(ROOT, Path(folder) / "tree", ignore=IGNORED))
        if wrong := faults(every):
            print(*wrong, sep="\n")
            return 1
        if flags.minutes is None:
            attempt = Attempt.begin(
                tree, list(dict.fromkeys(test for mutant in mutants for test in mutant.tests))
            )
            if status := os.waitpid(attempt.process, 0)[1]:
                print(f"the tests do not pass without a mutant: {attempt.end(status)[1]}")
                return 1
            tried = list(kills(mutants, tree))
        else:
            tried = list(kills(in_turn(mutants), tree, 60 * flags.minutes))
    killed = [mutant for mutant, was_killed in tried if was_killed]
    if flags.minutes is None:
        write_results(every, killed, [mutant for mutant, _ in tried])
    print(
        f"{len(killed)} killed, {len(tried) - len(killed)} survived, {len(mutants) - len(tried)} "
        "not tried"
    )
    return 0 if len(killed) == len(tried) else 1


if __name__ == "__main__":
    raise SystemExit(main())
