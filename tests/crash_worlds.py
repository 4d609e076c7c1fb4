"""Runs that die at any moment and are resumed, and what then holds.

The runs are the real command's, with the engine that works in this process, tiny models, and no
report.
"""

import contextlib
import functools
import itertools
import json
import random
import re
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load

from client.messages import TrainRequest, Upload
from mechanisms.accounting import ledger
from mechanisms.accounting.allotment import payable
from mechanisms.gradients.record_gradients import RecordGradients
from mechanisms.journal import whole as whole_lines
from server.federation import Exchange
from sim.commands.flags import parse
from sim.config import configuration as config
from sim.engines import session, start
from sim.job.job import Job
from sim.phases import build as jobs
from sim.tracking import sinks, tracker
from tests.crashing import Crash, Disk, Noting, Operation, Tree, crashes, killed, lay_out, tree_of
from tests.folders import SEALS, TIMES

COMMON = (
    "--clients=4 --groups=2 --model=linear --engine=inline --quiet --name=run --keep-checkpoints=2"
)
IID = "--chunk-clients=2 --partition=iid"
KEPT = f"{IID} --keep-state --momentum=0.5"
NOISE = "--rounds=2 --epsilon=50 --noise-multiplier=3"
KINDS = {
    "simulation": f"{KEPT} --rounds=4 --server-momentum=0.5 --strategy=fedfed",
    "adaptive simulation": f"{KEPT} --rounds=2 --mechanism=dpis --sample-rate=0.5",
    "prepared simulation": f"{KEPT} --rounds=2 --standardize=private --strategy=fedfed "
    "--shared-source=distilled --share-budget=0.5 --distill-rounds=2",
    "release": f"{KEPT} {NOISE} --release --strategy=fedfed --share-noise=9",
    "trusted server": f"{IID} {NOISE} --trust=server --unit=client --fraction=0.5 --steps=2",
    "trusted server, release": f"{IID} {NOISE} --trust=server --release",
    "aggregate": f"{IID} {NOISE} --trust=aggregate --honest=0.5 --dropout=0.3",
    "aggregate, release": f"--partition=iid {NOISE} --trust=aggregate --unit=client --release",
    "tracked, own data": "--chunk-clients=2 --rounds=2 --partition=given --track=tensorboard",
}
OWN = "tests.crash_worlds:own_records"
"""The data set of the kind with data of its own."""
GROUP = "runs/run/ledger/group-{:04d}.jsonl"
SERVER = "runs/run/ledger/server.jsonl"
TRACKED = "runs/run/tracking/tensorboard/events"
DRAWN = ("runs/run/inputs.json", "runs/run/inputs.key", "runs/run/manifest.json")
"""Files with a key that every new run draws, or with a digest of one that has."""
DEFAULT = ["simulation", "adaptive simulation", "release"]
NEW = list(KINDS)[4:]
PHASES = tuple(f"runs/run/{phase}/" for phase in ("statistics", "distill", "share"))
"""Folders that nobody reads once what the phase has made is there."""


@dataclass
class World:
    """One kind of run, below a folder that is laid out anew for each of them."""

    root: Path
    data: Path
    flags: str
    noting: Noting | None = None

    @property
    def folder(self) -> Path:
        return self.root / "runs" / "run"

    def go(self, crash: Crash | None = None, **options: float) -> Noting:
        """Begin, or go on after a crash; what is noted."""
        disk = crash.disk if crash else Disk()
        lay_out(self.root, disk.tree())
        data = OWN if "--partition=given" in self.flags else self.data
        begin = f"{COMMON} {self.flags} --dataset={data} --out={self.root / 'runs'}".split()
        asked = ["--resume", str(self.folder)] if self.folder.exists() else begin
        request = parse(asked, "run", "")
        with Noting(self.root, disk, **options) as self.noting:
            start.train(request)
        return self.noting

    def exchange(self, real: Exchange, requests: list[TrainRequest]) -> Iterator[Upload]:
        """An exchange that notes what is asked, and that an upload leaves, with the charges of its
        round by then."""
        for request in requests:
            place = request.round, request.group
            self.noting.mark("asked", *place)
            for upload in real([request]):
                self.noting.mark(
                    "left",
                    *place,
                    tuple(lines(tree_of(self.root), *place)),
                    upload.clients.tolist(),
                )
                yield upload


def own_records() -> dict[str, np.ndarray]:
    """Records of the user's own, who says whose they are."""
    x, y = np.random.default_rng(0).normal(size=(40, 4)).astype(np.float32), np.arange(40) % 3
    clients = np.arange(40) % 4
    return {"x": x, "y": y, "x_test": x[:9], "y_test": y[:9], "client": clients}


class Lines:
    """A tracker's files, in a form of their own."""

    def __init__(self, folder: Path, name: str):
        self._file = open(folder / "events", "ab", buffering=0)  # noqa: SIM115

    def write(self, step: int, values: Mapping[str, float]) -> None:
        self._file.write(f"{step}\n".encode())

    def close(self) -> None:
        self._file.close()


def charges(tree: Tree, group: int) -> bytes:
    """The ledger file of a group, or that of a trusted server."""
    return tree.get(GROUP.format(group)) or tree.get(SERVER, b"")


def lines(tree: Tree, round_: int, group: int) -> list[str]:
    """A group's whole ledger lines of a round."""
    found = whole_lines(charges(tree, group)).decode().splitlines()
    return [line for line in found if json.loads(line)["round"] == round_]


@contextlib.contextmanager
def saying(what: str) -> Iterator[None]:
    """A failure says at which crash."""
    try:
        yield
    except Exception as fault:
        fault.add_note(what[:300])
        raise


def marks(operations: list[Operation], kind: str) -> list[tuple]:
    return [
        arguments[1:] for name, arguments in operations if name == "mark" and arguments[0] == kind
    ]


@contextlib.contextmanager
def worlds_in(base: Path) -> Iterator[dict[str, World]]:
    """From a kind to its world; a job is built once for a configuration, its model is tried once,
    and no report is drawn."""
    records = own_records()
    del records["client"]
    np.savez(base / "records.npz", **records)
    found = {
        kind: World(base / kind.replace(" ", "-"), base / "records.npz", flags)
        for kind, flags in KINDS.items()
    }
    built, tried = {}, {}
    real, anew = start.inline_exchange, Job.gradients.func

    def cached(wanted: config.Config, workers: int) -> Job:
        key = wanted.model_dump_json()
        if key not in built:
            built[key] = jobs.build(wanted, workers)
        return built[key]

    def gradients(job: Job) -> RecordGradients:
        constants = (buffer.numpy().tobytes() for buffer in job.model.buffers())
        key = job.config.model_dump_json(), *constants
        if key not in tried:
            tried[key] = anew(job)
        return tried[key]

    def exchange(job: Job, folder: Path) -> Exchange:
        world = next(w for w in found.values() if w.folder == folder)
        return functools.partial(world.exchange, real(job, folder))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(start, "build", cached)
        patch.setattr(Job, "gradients", property(gradients))
        patch.setattr(start, "inline_exchange", exchange)
        patch.setattr(session, "write_report", lambda folder: None)
        patch.setattr(tracker, "check", lambda name: None)
        patch.setitem(sinks.SINKS, "tensorboard", Lines)
        yield found


# --- the laws
# --------------------------------------------------------------------------------------------------


LABEL = re.compile(r"checkpoints/round-[-\d]+\.json")
OF_OTHERS = {"run", "rounds", "sha256"}
"""Digests of the manifest, of rounds with their times, and of the label itself."""
NAMING = ("shared.safetensors", "statistics.safetensors", "runs/run/clients/")
"""Files of tensors that name their run: results of phases, and what clients keep."""


def named(path: str) -> str:
    """What a file will be called once it, and its run directory, are complete."""
    return path.replace("/.run.part/", "/run/").removesuffix(".part")


def facts(tree: Tree) -> Tree:
    """A run's files without times, and without what another run draws anew."""
    kept = {
        path: content
        for path, content in tree.items()
        if named(path) not in DRAWN and not path.startswith(PHASES)
    }
    for path, content in kept.items():
        if path.endswith(("rounds.jsonl", "summary.json", "summary.json.part")):
            entries = [
                json.loads(part)
                for part in (content.splitlines() if path.endswith("l") else [content])
            ]
            kept[path] = [{name: e[name] for name in e.keys() - TIMES - SEALS} for e in entries]
        elif content and LABEL.search(path):
            label = json.loads(content)
            label["files"] = sorted(label["files"])  # all of them name their run
            kept[path] = {name: label[name] for name in label.keys() - OF_OTHERS}
        elif content and named(path).endswith("orders.json"):
            kept[path] = json.loads(content)["orders"]
        elif content and any(name in path for name in NAMING):
            kept[path] = {name: one.tobytes() for name, one in load(content).items()}
    return kept


def releases(tree: Tree, round_: int, group: int) -> set[str]:
    """The names of the draws that a group has charged in a round."""
    return {json.loads(line)["release"] for line in lines(tree, round_, group)}


def resume(world: World, done: list[Operation], crash: Crash) -> Noting:
    """Go on after a crash, before which this was done. What holds of every run:

    what had left is charged; no round is asked again that another had followed; nothing is damaged;
    in the end the ledger holds all that it held, and its files say what the run says.
    """
    before = crash.tree
    for *place, paid, _ in marks(done, "left"):
        assert set(paid) <= set(lines(before, *place)), (
            f"{place} had left, and its charges are lost"
        )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", message=".*torn (end|last line)")
        resumed = world.go(crash)
    assert "runs/run/summary.json" not in before or "runs/run/model.safetensors" in before, (
        "a finished run has no model"
    )
    asked, after = marks(resumed.operations, "asked"), tree_of(world.root)
    assert min(asked, default=(99,)) >= (max(marks(done, "asked"), default=(-99,))[0],), (
        "a finished round is repeated"
    )
    assert all(after[path] == before.get(path, after[path]) for path in DRAWN)
    for number in range(2):
        held, holds = (whole_lines(charges(tree, number)).splitlines() for tree in (before, after))
        assert holds[: len(held)] == held
    summary = json.loads(after["runs/run/summary.json"])
    spent = ledger.read(world.folder / "ledger")
    assert summary["events"] == [sum(payable(spent[client]).values()) for client in range(4)]
    return resumed


def check_simulation(world: World, done: list[Operation], crash: Crash, uncut: Tree) -> None:
    resume(world, done, crash)
    after, expected = facts(tree_of(world.root)), facts(uncut)
    others = [path for path in expected if after.get(path) != expected[path]]
    assert others == [], others
    if "--track" in world.flags:
        assert after[TRACKED] == b"1\n2\n", "a tracker has each round once"


def check_release(world: World, done: list[Operation], crash: Crash, uncut: Tree) -> None:
    """A group, or the trusted server, draws anew where it is asked again, at a charge of its own. A
    group whose noisy upload had left is not asked."""
    asked = marks(resume(world, done, crash).operations, "asked")
    after = tree_of(world.root)
    if "--trust" not in world.flags:
        assert not {tuple(place) for *place, _, _ in marks(done, "left")} & set(asked)
    for place in itertools.product(range("fedfed" not in world.flags, 3), range(2)):
        assert (
            len(releases(after, *place))
            == len(releases(crash.tree, *place)) + asked.count(place)
            > 0
        )
    played = [
        json.loads(line)["participants"] for line in after["runs/run/rounds.jsonl"].splitlines()
    ]
    assert played == [None if "--trust=server" in world.flags else 4] * 2
    assert {path for path in uncut if not path.startswith(PHASES)} - after.keys() == set()
    assert np.isfinite(load(after["runs/run/model.safetensors"])["1.weight"]).all()


def check(
    world: World, whole: Noting, uncut: Tree, crash: Crash, before: list[Operation] = ()
) -> None:
    done = [*before, *whole.operations[: crash.done]]
    law = check_release if "--release" in world.flags else check_simulation
    with saying(
        f"{crash.death} after {len(before)} + {crash.done}: {done[-1:]}, "
        f"{whole.operations[crash.done :][:1]}"
    ):
        law(world, done, crash, uncut)


def once(world: World, some: int | None = None) -> None:
    """Die at every moment, or at so many of them."""
    whole = world.go()
    uncut = tree_of(world.root)
    found = crashes(whole.start, whole.operations)
    for crash in found if some is None else random.Random(0).sample(found, some):
        check(world, whole, uncut, crash)


def twice(world: World, firsts: int, seconds: int) -> None:
    """Die, go on and die again: so many deaths of the program first, each with so many crashes of
    any kind after it."""
    rng, whole = random.Random(0), world.go()
    uncut = tree_of(world.root)
    for done in sorted(
        rng.sample(range(len(whole.operations)), min(firsts, len(whole.operations)))
    ):
        resumed = world.go(killed(whole.start, whole.operations, done))
        again = crashes(resumed.start, resumed.operations)
        for crash in rng.sample(again, min(seconds, len(again))):
            check(world, resumed, uncut, crash, whole.operations[:done])
