"""What of a run directory is whole, file by file, by the checks that a resumed run makes itself."""

import itertools
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from client import tensors
from mechanisms import durable
from mechanisms.accounting import ledger
from server import checkpoints, closing, manifest, orders, paid
from server.store import KEPT, Store
from sim.config.configuration import load
from sim.config.fields import SETTINGS
from sim.job import inputs, rundir
from sim.phases import course
from sim.phases.phase import check_result
from sim.showing import audit

WHOLE, MISSING, OLDER, NEWER, DAMAGED = "whole", "missing", "older", "newer", "damaged"
AHEAD = "of a round that no checkpoint knows: --resume repeats it"
Check = tuple[Path, Callable[[], object]]
"""A file, and what raises unless it is whole."""
Row = dict[str, str]
"""A file's name, its state, and a detail."""


def look(run_dir: Path) -> dict[str, Any]:
    """The state of each file, and whether nothing is missing, older or damaged.

    A file is newer if a run died in the middle of a round; it loses nothing. Clients' states of
    earlier rounds, which nobody will read, are left out. What is not whole is looked at again, as a
    run that goes on removes old files meanwhile.

    Raises:
        ValueError: it is no run directory.
    """
    if not any((run_dir / name).is_file() for name in (manifest.FILE, *manifest.FIXED)):
        raise ValueError(f"--check = {run_dir} is no run directory: give the folder a run printed")
    rows, faults = _rows(run_dir), list[Row]()
    while (now := _faults(rows)) != faults:
        faults, rows = now, _rows(run_dir)
    return {"whole": not faults, "files": rows}


def _rows(run_dir: Path) -> list[Row]:
    """The state of each file."""
    stores = [Store(path.parent, 2, run_dir / "ledger") for path in _checkpoint_folders(run_dir)]
    checks = itertools.chain(_fixed(run_dir), _ledger(run_dir), *map(_rounds, stores))
    rows: dict[Path, Row] = {}
    for path, check in checks:  # the records of rounds are known to checkpoint and summary
        if rows.get(path, {"state": WHOLE})["state"] == WHOLE:
            rows[path] = _row(run_dir, path, check)
    for path in itertools.chain(*map(_ahead, stores)):
        row = _row(run_dir, path, partial(tensors.read, path))
        rows[path] = row if row["state"] == DAMAGED else row | {"state": NEWER, "detail": AHEAD}
    whole = not _faults(rows.values())
    for path, check in _together(run_dir, stores[0]) if whole else ():  # or it is told twice
        if (row := _row(run_dir, path, check))["state"] != WHOLE:
            rows[path] = row
            break
    return list(rows.values())


def _faults(rows: Iterable[Row]) -> list[Row]:
    return [row for row in rows if row["state"] not in (WHOLE, NEWER)]


def _row(run_dir: Path, path: Path, check: Callable[[], object]) -> Row:
    state = WHOLE
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            check()
            detail = "; ".join(str(one.message) for one in said)
        except ledger.Older as fault:
            state, detail = OLDER, str(fault)
        except (OSError, ValueError, KeyError, TypeError) as fault:
            state, detail = DAMAGED if _is_there(path) else MISSING, str(fault)
    return {"file": str(path.relative_to(run_dir)), "state": state, "detail": detail}


def _is_there(path: Path) -> bool:
    """Whether there is a file of this name, if only a link that leads nowhere."""
    return path.exists() or path.is_symlink()


def _checkpoint_folders(run_dir: Path) -> list[Path]:
    """Those of training and of the phases before it, but of no run inside this one."""
    inside = sorted(run_dir.glob("*/checkpoints"))
    phases = [one for one in inside if not (one.parent / manifest.FILE).exists()]
    return [run_dir / "checkpoints", *phases]


def _fixed(run_dir: Path) -> Iterator[Check]:
    """What is written when a run begins, and when it ends."""
    yield run_dir / manifest.FILE, partial(manifest.load, run_dir)
    try:
        named = manifest.load(run_dir)["files"]
    except ValueError:
        named = {}
    yield from _named(run_dir, named)
    if _is_there(path := run_dir / rundir.LOCK):
        yield path, partial(durable.check_file, path, ": remove it", links=False)
    yield run_dir / inputs.KEY, partial(inputs.read_key, run_dir)
    if (run_dir / orders.FILE).exists():
        yield run_dir / orders.FILE, partial(orders.read, run_dir)
    if (path := run_dir / closing.FILE).exists():
        yield path, partial(closing.load, run_dir)
        yield from _named(run_dir, _vouched(run_dir))
    if (path := run_dir / audit.FILE).exists():
        yield path, partial(audit.read, run_dir)


def _vouched(run_dir: Path) -> dict[str, str]:
    """The files that a whole summary vouches for, but the manifest, which has its own row."""
    try:
        files = (closing.load(run_dir) or {"files": {}})["files"]
    except ValueError:
        return {}
    return {name: digest for name, digest in files.items() if name != manifest.FILE}


def _named(folder: Path, digests: dict[str, str]) -> Iterator[Check]:
    for name, digest in digests.items():
        yield folder / name, partial(manifest.compare, folder, {name: digest})


def _ledger(run_dir: Path) -> Iterator[Check]:
    try:
        known = paid.known(run_dir)
    except ValueError:  # of the manifest, which has its own row
        known = []
    for path, passed in ledger.files(run_dir / "ledger", known):
        yield path, partial(_chain, path, passed)


def _chain(path: Path, passed: Mapping[int, str]) -> int:
    """The number of a file's entries, all of which are read."""
    return sum(1 for _ in ledger.entries(path, passed))


def _rounds(store: Store) -> Iterator[Check]:
    """The checkpoints of training or of an earlier phase, and what belongs to the newest one."""
    for label in store.checkpoints.labels():
        yield label, partial(_checkpoint, store, label)
    newest = store.checkpoints.newest(warn=False)
    if newest is not None:
        yield from _named(store.folder, newest.label["files"])
        yield store.rounds, store.check_rounds
    for path in sorted(store.folder.glob("uploads/*.safetensors")):
        yield path, partial(store.uploads.read, path)


def _checkpoint(store: Store, label: Path) -> None:
    store.label(checkpoints.read(label))


def _together(run_dir: Path, training: Store) -> Iterator[Check]:
    """What files say of each other."""
    yield run_dir / "ledger", partial(paid.check_rounds, run_dir)
    config = load(run_dir / "config.toml", {}, lenient=SETTINGS)
    if config.private and paid.payers(run_dir):
        yield run_dir / orders.FILE, partial(orders.written, run_dir)
    for path in course.results(config, run_dir):
        yield path, partial(check_result, path)
    if not (run_dir / closing.FILE).exists():
        yield training.folder / "checkpoints", training.check_unfinished


def _ahead(store: Store) -> list[Path]:
    """Clients' states that are newer than the newest checkpoint."""
    newest = max(durable.numbered(store.folder / "checkpoints", ".json"), default=0)
    kept = (durable.numbered(one, ".safetensors") for one in sorted(store.folder.glob(KEPT)))
    return [found[number] for found in kept for number in sorted(found) if number > newest]
