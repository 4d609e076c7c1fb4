"""Searches a target of `tests.fuzz_targets` for so many seconds of this process's own time, with
examples that are new."""

import tempfile
import time
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import seed as seeded

from tests.fuzz_targets import MAKERS, Target, law, mutations

EXAMPLES = 500
"""Examples of one seed."""


def searched(seconds: float, seed: int, name: str) -> dict[str, Any]:
    """How many inputs the target of this name was given, and the one that broke the law.

    Raises:
        ValueError: the name is no target's.
    """
    if name not in MAKERS:
        raise ValueError(f"unknown target {name!r} (known: {', '.join(MAKERS)})")
    with tempfile.TemporaryDirectory() as base:
        count, fault = _search(MAKERS[name](Path(base)), seconds, seed)
    print(f"{name}: {count} inputs {fault}", flush=True)
    broken = [f"{name}: {fault}"] if fault else []
    return {"processor seconds a target": seconds, "inputs": {name: count}, "broken": broken}


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
