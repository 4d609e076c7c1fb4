"""Searches targets of `tests.fuzz_targets` for so many seconds of this process's own time, with
examples that are new."""

import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import seed as seeded

from tests.fuzz_targets import MAKERS, Target, law, mutations, targets

EXAMPLES = 500
"""Examples of one seed."""


def searched(seconds: float, seed: int, names: Sequence[str] = ()) -> dict[str, Any]:
    """How many inputs each target was given, or each of these, and those that broke the law.

    Raises:
        ValueError: a name is no target's.
    """
    if unknown := sorted(set(names) - MAKERS.keys()):
        raise ValueError(f"unknown target {unknown[0]!r} (known: {', '.join(MAKERS)})")
    counts: dict[str, int] = {}
    broken: list[str] = []
    with tempfile.TemporaryDirectory() as base:
        for name, target in targets(Path(base), names or tuple(MAKERS)):
            counts[name], fault = _search(target, seconds, seed)
            broken += [f"{name}: {fault}"] if fault else []
            print(f"{name}: {counts[name]} inputs {fault}", flush=True)
    return {"processor seconds a target": seconds, "inputs": counts, "broken": broken}


def _search(target: Target, seconds: float, seed: int) -> tuple[int, str]:
    tried, end = 0, time.process_time() + seconds
    while time.process_time() < end:

        @seeded(seed)
        @settings(
            max_examples=EXAMPLES,
            deadline=None,
            database=None,
            derandomize=False,
            suppress_health_check=list(HealthCheck),
        )
        @given(mutations(target.valid))
        def holds(data: bytes) -> None:
            nonlocal tried
            tried += 1
            law(target, data)

        try:
            holds()
        except Exception as fault:
            notes = " ".join(getattr(fault, "__notes__", []))
            return tried, " ".join(f"{type(fault).__name__}: {fault} {notes}".split())[:1000]
        seed += 1
    return tried, ""
