"""A run of thousands of rounds in one process: what its memory and its files grow by."""

import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np

from server.records import RoundRecord
from server.store import Store
from sim.commands.flags import parse
from sim.engines import drawer, session, start
from tests.crashing import tree_of

FLAGS = (
    "--clients=8 --groups=2 --chunk-clients=4 --partition=iid --model=mlp --engine=inline --quiet "
    "--name=run --keep-state --momentum=0.5 --epsilon=none --noise-multiplier=30 --epochs=1"
)
LOOKS = 20
"""Equal stretches of the run, after each of which memory and files are looked at."""
PAGE = os.sysconf("SC_PAGE_SIZE")
GROWING = ("rounds.jsonl", "ledger/group-0000.jsonl", "ledger/group-0001.jsonl")
"""Files with lines for every round."""


def soaked(rounds: int) -> dict[str, Any]:
    """Resident memory and bytes of files, in all and by file that grows, at rounds."""
    with tempfile.TemporaryDirectory() as made:
        base = Path(made)
        x = np.random.default_rng(0).normal(size=(80, 16)).astype(np.float32)
        np.savez(base / "data.npz", x=x, y=np.arange(80) % 3, x_test=x[:9], y_test=np.arange(9) % 3)
        places = [f"--dataset={base / 'data.npz'}", f"--out={base}", f"--rounds={rounds}"]
        looks: list[dict[str, Any]] = []
        append, report, drawing = Store.append, session.write_report, drawer.drawing

        def looked(store: Store, record: RoundRecord) -> None:
            append(store, record)
            if record.round % (rounds // LOOKS) == 0:
                looks.append(_look(base / "run", record.round))

        began = time.monotonic()
        Store.append = looked  # type: ignore[method-assign]
        session.write_report, drawer.drawing = (lambda run: run), (lambda run: nullcontext())
        try:
            start.train(parse([*FLAGS.split(), *places], "run", ""))
        finally:
            Store.append = append  # type: ignore[method-assign]
            session.write_report, drawer.drawing = report, drawing
    return {"rounds": rounds, "seconds": round(time.monotonic() - began), "looks": looks}


def _look(run: Path, round_: int) -> dict[str, Any]:
    resident = int(Path("/proc/self/statm").read_text().split()[1]) * PAGE
    sizes = {name: len(content) for name, content in tree_of(run).items() if content is not None}
    growing = {name: sizes.pop(name) for name in GROWING}
    return {
        "round": round_,
        "resident bytes": resident,
        "descriptors": len(os.listdir("/proc/self/fd")),
        "files": len(sizes),
        "bytes of other files": sum(sizes.values()),
        **growing,
    }


def slope(looks: Sequence[dict[str, Any]]) -> float:
    """Bytes that resident memory grows by in a round, over the second half of the run."""
    later = looks[len(looks) // 2 :]
    rounds, resident = ([one[name] for one in later] for name in ("round", "resident bytes"))
    return float(np.polyfit(rounds, resident, 1)[0])


def main() -> None:
    """The command: `python -m tests.faults.soak FILE` writes the figures of 2,000 rounds."""
    result = soaked(2000)
    looks = result["looks"]
    result["resident bytes a round"] = round(slope(looks))
    Path(sys.argv[1]).write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
