"""Searches every target of `tests.fuzz_targets` for so many seconds, with examples that are new."""

import tempfile
import time
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import seed as seeded

from tests.fuzz_targets import Target, law, mutations, targets

EXAMPLES = 500
"""Examples of one seed."""


def searched(seconds: float, seed: int) -> dict[str, Any]:
    """How many inputs each target was given, and those that broke the law."""
    counts: dict[str, int] = {}
    broken: list[str] = []
    with tempfile.TemporaryDirectory() as base:
        for name, target in targets(Path(base)):
            counts[name], fault = _search(target, seconds, seed)
            broken += [f"{name}: {fault}"] if fault else []
            print(f"{name}: {counts[name]} inputs {fault}", flush=True)
    return {"seconds a target": seconds, "inputs": counts, "broken": broken}


def _search(target: Target, seconds: float, seed: int) -> tuple[int, str]:
    tried, end = 0, time.monotonic() + seconds
    while time.monotonic() < end:

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
