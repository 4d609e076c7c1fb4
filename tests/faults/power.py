"""States that a power loss leaves: lost bytes, lost names, names in another order."""

import random
import tempfile
from pathlib import Path
from typing import Any

from tests.crash_worlds import KINDS, World, check, worlds_in
from tests.crashing import Crash, Disk, Noting, tree_of


def lost(number: int, seed: int) -> dict[str, Any]:
    """So many states of every kind of run together, each of which is resumed."""
    broken: list[str] = []
    with tempfile.TemporaryDirectory() as base, worlds_in(Path(base)) as worlds:
        for kind in KINDS:
            broken += _lost(worlds[kind], kind, number // len(KINDS), random.Random(seed))
    return {"states": number // len(KINDS) * len(KINDS), "kinds": len(KINDS), "broken": broken}


def _lost(world: World, kind: str, number: int, rng: random.Random) -> list[str]:
    whole = world.go()
    uncut, broken = tree_of(world.root), []
    for crash in states(whole, number, rng):
        try:
            check(world, whole, uncut, crash)
        except Exception as fault:
            notes = " ".join(getattr(fault, "__notes__", []))
            broken.append(f"{kind}: {' '.join(f'{type(fault).__name__}: {fault} {notes}'.split())}")
            print(broken[-1], flush=True)
    print(f"{kind}: {number} states", flush=True)
    return broken


def states(whole: Noting, number: int, rng: random.Random) -> list[Crash]:
    """What power losses leave at random moments, no two states the same."""
    found: dict[Any, Crash] = {}
    moments = sorted(rng.choices(range(len(whole.operations) + 1), k=20 * number))
    disk, done = whole.start.copy(), 0
    for moment in moments:
        disk.do(*whole.operations[done:moment])
        done = moment
        tree = disk.survivors(rng)
        found.setdefault(frozenset(tree.items()), Crash(moment, "power", Disk.of(tree)))
    distinct = list(found.values())
    return rng.sample(distinct, min(number, len(distinct)))
