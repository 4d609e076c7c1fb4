"""The many-run audit's lower bound for every mechanism, in the worlds of the tests.

PYTHONPATH=. python benchmarks/many_run_audit.py --out benchmarks/results/many_run_audit.json
"""

import argparse
from pathlib import Path

from benchmarks.measured import publish
from mechanisms.registry import MECHANISMS
from sim.auditing.many_run import many_run_epsilon
from tests.audit_worlds import CONFIDENCE, DELTA, KEY, QUIET, claimed, moved, plan, world

TARGETS = (1.0, 2.0, 4.0, 8.0)


def main() -> None:
    """Audit every mechanism at every target and print what came out."""
    parser = argparse.ArgumentParser(
        description="Lower bounds on epsilon from many runs of every mechanism."
    )
    parser.add_argument("--runs", type=int, default=10_000, help="with either data set")
    parser.add_argument("--out", type=Path, help="where the JSON goes")
    known = parser.parse_args()
    rows = []
    for mechanism in (name for name, row in MECHANISMS.items() if row.private):
        at = {"at": QUIET} if mechanism == "dphero" else {}  # where its noise is small
        for target in TARGETS:
            one = plan(mechanism, target)
            found = many_run_epsilon(
                world(mechanism, one, **at),
                lambda m, at=at: moved(m, **at),
                known.runs,
                DELTA,
                CONFIDENCE,
                KEY,
            )
            rows.append({"mechanism": mechanism, "certified": claimed(one), "lower": found})
    publish({"delta": DELTA, "confidence": CONFIDENCE, "runs": known.runs, "rows": rows}, known.out)


if __name__ == "__main__":
    main()
