"""What holds of a run after anything has gone wrong."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load

from mechanisms.accounting import ledger
from mechanisms.accounting.allotment import payable
from sim.library import whole
from tests.faults.runs import Kind, Outcome
from tests.folders import SEALS, TIMES

LEDGERS = ("ledger/group-0000.jsonl", "ledger/server.jsonl")
"""Of the one group, or of the trusted server."""


def facts(folder: Path) -> dict[str, Any]:
    """What a finished run says: model, charges, rounds and summary, without times."""
    rounds = folder / "rounds.jsonl"  # a release can pay for its first round again until it is out
    lines = rounds.read_text().splitlines() if rounds.exists() else []
    records = [json.loads(line) for line in [*lines, (folder / "summary.json").read_text()]]
    return {
        "model": (folder / "model.safetensors").read_bytes(),
        "ledger": charges(folder),
        "records": [{n: v for n, v in one.items() if n not in TIMES | SEALS} for one in records],
    }


def charges(folder: Path) -> bytes:
    """What the run's one ledger file holds; nothing before there is one."""
    return b"".join((folder / name).read_bytes() for name in LEDGERS if (folder / name).exists())


def check(
    kind: Kind,
    folder: Path,
    uncut: dict[str, Any],
    before: Sequence[Outcome],
    last: Outcome,
    damaged: str = "",
) -> None:
    """Of a run that some outcomes had interrupted, and that then ended; a file of this stem may
    still be damaged, which a check says."""
    assert (last.code, faults_in(last)) == (0, []), (last.code, last.said)
    found = facts(folder)
    summary, spent = found["records"][-1], ledger.read(folder / "ledger")
    events = [sum(payable(spent.get(client, {})).values()) for client in range(2)]
    assert summary["events"] == events, "the summary is not of what was charged"
    certified = [one for one in summary["epsilon_certified"] if one is not None]
    assert max(certified, default=0) <= 50, "overspent"
    states = {row["file"]: row["state"] for row in whole.look(folder)["files"]}
    others = [name for name, state in states.items() if state not in (whole.WHOLE, whole.NEWER)]
    assert {Path(name).stem for name in others} <= {damaged}, f"not whole: {others}"
    finished = max((round_ for one in before for round_, _ in one.asked), default=-math.inf)
    assert min((round_ for round_, _ in last.asked), default=finished) >= finished, (
        "a round before the one that was interrupted is repeated"
    )
    if kind.release:
        left = {place for one in before for place in one.left}
        assert kind.trust != "local" or not left & set(last.asked), (
            "an upload that had left is drawn again"
        )
        assert all(np.isfinite(one).all() for one in load(found["model"]).values())
        complete = len(found["records"]) == len(uncut["records"])
        assert complete or summary["retired"] == 2, "it ended early, with a budget that is left"
    else:
        for name, value in uncut.items():
            assert found[name] == value, f"another {name}"


def check_interrupted(folder: Path, outcome: Outcome) -> None:
    """What has left is charged by then."""
    lines = charges(folder).split(b"\n")[:-1]
    charged = {json.loads(line)["round"] for line in lines}
    assert {round_ for round_, _ in outcome.left} <= charged, "an upload left without a charge"


def faults_in(outcome: Outcome) -> list[str]:
    """The lines on stderr but for warnings, as of a torn end."""
    return [line for line in outcome.said.splitlines() if not line.startswith("warning: ")]


def check_error(root: Path, outcome: Outcome) -> None:
    """An error of the machine ends in one line that says where, and an exit code."""
    lines = faults_in(outcome)
    if outcome.code == 0:
        assert lines == [], outcome.said
        return
    assert outcome.code in (1, 2), outcome.code
    assert len(lines) == 1 and lines[0].startswith("error: "), outcome.said
    assert str(root) in lines[0], f"no file is named: {outcome.said}"
