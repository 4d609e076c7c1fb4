"""Small runs in forked children of a process that has everything imported and every job built."""

import json
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from client.messages import TrainRequest, Upload
from server.federation import Exchange
from sim import run as run_command
from sim.commands.guard import main_guard
from sim.config.fields import Config
from sim.engines import drawer, session, start
from sim.job.job import Job
from sim.phases import build as jobs
from tests.faults.shim import NOTHING, Shim

COMMON = (
    "--clients=2 --groups=1 --partition=iid --model=linear --engine=inline "
    "--quiet --name=run --keep-checkpoints=2 --rounds=2"
)
MECHANISMS = {
    "dpsgd": "--epsilon=50 --noise-multiplier=3",
    "dpsur": "--epsilon=50",
    "dpis": "--epsilon=50 --sample-rate=0.5",
    "dphero": "--epsilon=50",
    "screening": "--epsilon=50",
    "dpagd": "--epsilon=50",
    "none": "",
}
KEPT = "--keep-state --momentum=0.5"
MORE = {
    "personal layers": f"{MECHANISMS['dpsgd']} --personal-layers=1.bias",
    "mrmtl": f"{MECHANISMS['dpsgd']} --strategy=mrmtl",
    "held-back records": f"{MECHANISMS['dpsgd']} --client-holdout=0.2 --evaluation=clients",
    "dropout": f"{MECHANISMS['dpsgd']} --dropout=0.5",
    "budgets": "--budgets=a=20:0.5,b=50:0.5",
    "statistics": f"{MECHANISMS['dpsgd']} --standardize=private --strategy=fedfed",
    "noise bands": f"{MECHANISMS['dpsgd']} --noise-bands=2",
    "moving clip norm": f"{MECHANISMS['dpsgd']} --clip-quantile=0.5",
    "buffer": f"{MECHANISMS['dpsgd']} --buffer=1 --stragglers=0.5",
    "released scores": f"{MECHANISMS['dpsgd']} --evaluation=released",
}
"""What else there is, instead of a mechanism's own settings."""
FOR_CLIENTS = "noise bands", "moving clip norm"
"""What of it needs a trusted server that protects clients."""
SIMULATED = "held-back records", "buffer"
"""What of it a release refuses."""


@dataclass(frozen=True)
class Kind:
    """A mechanism, whether it is a release, whether clients keep their state, and whom they trust
    with what; and what else is asked for."""

    mechanism: str
    release: bool
    kept: bool
    trust: str = "local"
    unit: str = "record"
    more: str = ""

    def __str__(self) -> str:
        trusts = [] if self.trust == "local" else [f"trust {self.trust}", f"unit {self.unit}"]
        kept, more = ["kept state"] * self.kept, [self.more] * bool(self.more)
        return " ".join([self.mechanism, *trusts, *more, *["release"] * self.release, *kept])

    def flags(self) -> list[str]:
        asked = MORE[self.more] if self.more else MECHANISMS[self.mechanism]
        own = f"{COMMON} --mechanism={self.mechanism} {asked}"
        own += f" --trust={self.trust} --unit={self.unit}" * (self.trust != "local")
        alone = self.release and self.unit == "client"
        own += " --chunk-clients=2" * (not alone)
        return f"{own} {'--release' * self.release} {KEPT * self.kept}".split()


KINDS = [
    Kind(mechanism, release, kept)
    for mechanism in MECHANISMS
    for release in (False, True)
    for kept in (False, True)
]
KINDS += [
    Kind("dpsgd", release, False, trust, unit)
    for trust in ("server", "aggregate")
    for unit in ("record", "client")
    for release in (False, True)
]
KINDS += [
    Kind("dpsgd", release, False, *(("server", "client") if more in FOR_CLIENTS else ()), more=more)
    for more in MORE
    for release in (False, True)
    if not (release and more in SIMULATED)
]


@dataclass(frozen=True)
class Outcome:
    """How a child ended.

    Attributes:
        killed: by a signal.
        code: its exit code.
        said: what it wrote on stderr.
        calls: a letter for each system call, if it ended by itself.
        asked, left: (round, group) of requests and of uploads.
    """

    killed: bool
    code: int
    said: str
    calls: str
    asked: list[tuple[int, int]]
    left: list[tuple[int, int]]


@dataclass
class Runs:
    """The children's common parent: one folder, laid out anew for each run."""

    base: Path
    shim: Shim = field(default_factory=Shim)
    _built: dict[str, Job] = field(default_factory=dict)
    _notes: int = -1

    def __post_init__(self) -> None:
        x = np.random.default_rng(0).normal(size=(24, 4)).astype(np.float32)
        y = np.arange(24) % 3
        np.savez(self.data, x=x, y=y, x_test=x[:6], y_test=y[:6])
        real = start.inline_exchange

        def exchange(job: Job, folder: Path) -> Exchange:
            return lambda requests: self._noted(real(job, folder), requests)

        start.build, start.inline_exchange = self._build, exchange  # type: ignore[assignment]
        session.write_report = lambda folder: folder
        drawer.drawing = lambda run: nullcontext()

    @property
    def data(self) -> Path:
        return self.base / "records.npz"

    @property
    def root(self) -> Path:
        return self.base / "root"

    @property
    def folder(self) -> Path:
        return self.root / "runs" / "run"

    def clear(self) -> None:
        shutil.rmtree(self.root, ignore_errors=True)
        self.root.mkdir()

    def prepare(self, kind: Kind) -> None:
        """Run a kind here: what it builds, compiles and prices, all children then have."""
        self.clear()
        self._notes = os.open(os.devnull, os.O_WRONLY)
        if main_guard(run_command.command, [*kind.flags(), *self._places()]):
            raise RuntimeError(f"{kind} cannot run")

    def go(self, kind: Kind, mode: int = NOTHING, number: int = 0, error: int = 0) -> Outcome:
        """Begin, or go on where there is a run directory; one call goes wrong in some mode."""
        begin = [*kind.flags(), *self._places()]
        words = ["--resume", str(self.folder), "--quiet"] if self.folder.exists() else begin
        said, notes = (Pipe() for _ in range(2))
        if (child := os.fork()) == 0:
            self._be(words, said, notes, mode, number, error)
        lines, heard = notes.drain(), said.drain()
        _, status = os.waitpid(child, 0)
        events = [json.loads(line) for line in lines.splitlines()]
        return Outcome(
            killed=os.WIFSIGNALED(status),
            code=os.waitstatus_to_exitcode(status),
            said=heard,
            calls="".join(one for what, one in events if what == "calls"),
            asked=[tuple(one) for what, one in events if what == "asked"],
            left=[tuple(one) for what, one in events if what == "left"],
        )

    def _be(self, words: list[str], said: "Pipe", notes: "Pipe", *fault: int) -> None:
        """The child's life."""
        os.dup2(said.end, 2)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        self._notes = notes.end
        self.shim.arm(self.root, *fault)
        code = main_guard(run_command.command, words)
        sys.stdout.flush()
        sys.stderr.flush()
        calls = self.shim.seen()
        self._note("calls", calls)
        os._exit(code)

    def _note(self, what: str, value: Any) -> None:
        os.write(self._notes, json.dumps([what, value]).encode() + b"\n")

    def _places(self) -> list[str]:
        return [f"--dataset={self.data}", f"--out={self.root / 'runs'}"]

    def _build(self, config: Config, workers: int) -> Job:
        key = config.model_dump_json()
        if key not in self._built:
            self._built[key] = jobs.build(config, workers)
        return self._built[key]

    def _noted(self, real: Exchange, requests: list[TrainRequest]) -> Iterator[Upload]:
        for request in requests:
            self._note("asked", (request.round, request.group))
            for upload in real([request]):
                self._note("left", (upload.round, upload.group))
                yield upload


class Pipe:
    """From a child to its parent; a child's death keeps what it has written."""

    def __init__(self) -> None:
        self._read, self.end = os.pipe()

    def drain(self) -> str:
        """All that the child writes."""
        os.close(self.end)
        with open(self._read) as file:
            return file.read()
