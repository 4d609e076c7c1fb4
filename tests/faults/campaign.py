"""Goes through the calls of every kind of run, and lets each go wrong."""

import errno
import random
import signal
import time
from argparse import Namespace
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.faults import laws
from tests.faults.runs import KINDS, Kind, Outcome, Runs
from tests.faults.shim import FAIL, FAIL_ON, KILL, TEAR

Fault = tuple[int, int, int]
"""A mode, the number of a call, and an error number."""
ERRORS = (errno.EIO, errno.ENOSPC)
CHANGING, READING = "owsntmluc", "re"
"""Letters of calls; a death before one that reads leaves what the call before it left."""


@dataclass
class Campaign:
    """Tries, and what came of them."""

    runs: Runs
    seed: int
    uncut: dict[Kind, dict[str, Any]] = field(default_factory=dict)
    calls: dict[Kind, str] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    broken: list[str] = field(default_factory=list)

    def learn(self, kinds: Sequence[Kind]) -> None:
        """Run each kind once without a fault."""
        for kind in kinds:
            self.runs.prepare(kind)
            self.runs.clear()
            whole = self.runs.go(kind)
            if whole.code:
                raise RuntimeError(f"{kind}: {whole.said}")
            self.uncut[kind], self.calls[kind] = laws.facts(self.runs.folder), whole.calls

    def kills(self, number: int) -> None:
        """Deaths before a call or within a write; where there are no more single ones, a second
        death follows in the resumed run."""
        single = list(self._points(TEAR, "w")) + list(self._points(KILL, CHANGING))
        rng = random.Random(self.seed)
        rng.shuffle(single)
        self._each("kills", ((kind, [fault]) for kind, fault in single[:number]))
        twice = [
            (rng.choice(single), rng.choice((KILL, TEAR))) for _ in range(number - len(single))
        ]
        self._each(
            "kills",
            (
                (kind, [first, (mode, rng.randrange(1, len(self.calls[kind])), 0)])
                for (kind, first), mode in twice
            ),
        )

    def errors(self, number: int) -> None:
        """Errors of one call, or of one and all that follow; every other one in a resumed run."""
        points = [
            (kind, (mode, n, error))
            for mode in (FAIL, FAIL_ON)
            for error in ERRORS
            for kind, (_, n, _) in self._points(mode, CHANGING + READING)
        ]
        rng = random.Random(self.seed)
        rng.shuffle(points)
        self._each("errors", (self._resumed(rng, n, *one) for n, one in enumerate(points[:number])))

    def damages(self, number: int) -> None:
        """Files that change while a run is away: a bit, the end, all of one. The run is resumed to
        the same bits, or refused in one line."""
        rng, kinds = random.Random(self.seed), list(self.calls)
        for _ in range(number):
            self.counts["damages"] += 1
            kind, what = rng.choice(kinds), rng.choice(("flip", "cut", "delete"))
            self.runs.clear()
            death = (KILL, rng.randrange(len(self.calls[kind]) // 3, 2 * len(self.calls[kind])), 0)
            self.runs.go(kind, *death)
            files = [path for path in sorted(self.runs.folder.rglob("*")) if path.is_file()]
            files = [path for path in files if path.stat().st_size]
            if not files:
                continue
            path = rng.choice(files)
            name = str(path.relative_to(self.runs.folder))
            try:
                self._damage(kind, path, what, rng)
            except (AssertionError, OSError, ValueError, KeyError) as fault:
                line = " ".join(f"{type(fault).__name__}: {fault}".split())
                self.broken.append(f"{kind}: {described([death], self.calls[kind])}, {what} {name}")
                self.broken[-1] += f": {line}"
                print(self.broken[-1], flush=True)

    def _damage(self, kind: Kind, path: Path, what: str, rng: random.Random) -> None:
        data = path.read_bytes()
        at = rng.randrange(len(data))
        if what == "delete":
            path.unlink()
        else:
            rest = bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :]
            path.write_bytes(data[:at] + rest * (what == "flip"))
        outcome = self.runs.go(kind)
        self.counts[f"exit code {outcome.code}"] += 1
        if outcome.code:
            laws.check_error(self.runs.root, outcome)
            assert outcome.code == 2, outcome.said
        else:
            laws.check(kind, self.runs.folder, self.uncut[kind], [], outcome, path.stem)

    def _resumed(
        self, rng: random.Random, n: int, kind: Kind, fault: Fault
    ) -> tuple[Kind, list[Fault]]:
        """Of every other fault, a death first."""
        death = (KILL, rng.randrange(1, len(self.calls[kind])), 0)
        return kind, [death, fault] if n % 2 else [fault]

    def _points(self, mode: int, letters: str) -> Iterator[tuple[Kind, Fault]]:
        for kind, calls in self.calls.items():
            for n, letter in enumerate(calls, start=1):
                if letter in letters:
                    yield kind, (mode, n, 0)

    def _each(self, what: str, tries: Iterator[tuple[Kind, list[Fault]]]) -> None:
        for kind, faults in tries:
            self.counts[what] += 1
            try:
                if any(mode == TEAR for mode, _, _ in faults):
                    self.counts["torn"] += 1
                self._try(kind, faults)
            except (AssertionError, OSError, ValueError, KeyError) as fault:
                line = f"{kind}: {described(faults, self.calls[kind])}: "
                self.broken.append(line + " ".join(f"{type(fault).__name__}: {fault}".split()))
                print(self.broken[-1], flush=True)
            if self.counts[what] % 500 == 0:
                print(f"{self.counts[what]} {what}", flush=True)

    def _try(self, kind: Kind, faults: Sequence[Fault]) -> None:
        self.runs.clear()
        before: list[Outcome] = []
        for fault in faults:
            outcome = self.runs.go(kind, *fault)
            before.append(outcome)
            self.counts["died"] += outcome.killed
            if outcome.killed:
                assert outcome.code == -signal.SIGKILL, outcome.code
            elif fault[0] in (FAIL, FAIL_ON):
                reached = fault[1] <= len(outcome.calls)
                self.counts[f"exit code {outcome.code}" if reached else "not reached"] += 1
                laws.check_error(self.runs.root, outcome)
            else:
                assert (outcome.code, laws.faults_in(outcome)) == (0, []), outcome.said
            if kind.mechanism != "none":
                laws.check_interrupted(self.runs.folder, outcome)
        laws.check(kind, self.runs.folder, self.uncut[kind], before, self.runs.go(kind))


def tried(base: Path, given: Namespace) -> dict[str, Any]:
    """The figures of a campaign in a folder, by the command's flags."""
    campaign, began = Campaign(Runs(base), given.seed), time.monotonic()
    campaign.learn([kind for kind in KINDS if str(kind).startswith(given.kinds)])
    points = sum(map(len, campaign.calls.values()))
    print(f"{len(campaign.calls)} kinds, {points} calls, {time.monotonic() - began:.0f} s")
    result: dict[str, Any] = {"kinds": len(campaign.calls), "calls": points}
    parts = (
        ("kills", given.kills, campaign.kills),
        ("errors", given.errors, campaign.errors),
        ("damages", given.damages, campaign.damages),
    )
    for name, number, go in parts:
        if number:
            campaign.counts.clear()
            campaign.broken = []
            go(number)
            result[name] = {**campaign.counts, "broken": campaign.broken}
    return result


def described(faults: Sequence[Fault], calls: str) -> str:
    """Faults in words, for a line of the report."""
    names = {KILL: "killed before", TEAR: "torn in", FAIL: "failed", FAIL_ON: "failed from"}
    parts = []
    for mode, number, error in faults:
        letter = calls[number - 1] if number <= len(calls) else "?"
        what = f" by {errno.errorcode[error]}" if error else ""
        parts.append(f"{names[mode]} call {number} ({letter}){what}")
    return ", then ".join(parts)
