"""What a small run printed, paid and learned, and how two of these differ.

A law says why a number is right. Here a number must only not change unnoticed: `tests.pinned`
writes the outcomes down, and a commit that changes one says why.
"""

import contextlib
import io
import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file

from sim.commands import flags
from sim.config.fields import Config
from sim.engines import start
from sim.phases.prices import figures_of, outlook_of, prices
from sim.showing.ledger import spent
from tests.pinned.table import BASE, CENTRAL, OF_THREE, RUNS

FILES = Path(__file__).parent / "files"
SIZES = (3, 5, 8, 12, 17, 23)
"""Records of the clients that the data name."""
PAID, TRAINED = 1e-7, 2e-3
"""Relative tolerances: of what is computed in float64 alone; and of what is trained in float32, of
a tensor relative to its norm. Runs were compared under other instruction sets (PyTorch with AVX2
and with none, OpenBLAS with Haswell's kernels) and with two threads."""
TIMES = {"seconds", "seconds_training"}
SAID_ALREADY = {"run_dir", "caveats", "guarantees"}
"""Entries of a summary that the terminal shows, too."""
UNSTABLE = re.compile(r"^(time|run directory) .*")
LEARNED = ("accuracy", "loss", "metrics", "tensors")
"""Entries that training decides."""


def make(folder: Path) -> None:
    """Write the data sets that the runs name."""
    rng = np.random.default_rng(5)
    owner = np.repeat(np.arange(len(SIZES)), SIZES)
    labels, test_labels = (owner + rng.integers(0, 2, owner.size)) % 3, np.arange(30) % 3

    def save(name: str, x: Any, y: Any, x_test: Any, y_test: Any) -> None:
        np.savez(folder / f"{name}.npz", x=x, y=y, x_test=x_test, y_test=y_test, client=owner)

    for name, shape in (("records", (5,)), ("images", (1, 16, 16)), ("photos", (3, 8, 8))):
        centres = rng.normal(size=(3, *shape))
        x, x_test = (
            (centres[y] + rng.normal(size=(y.size, *shape))).astype(np.float32)
            for y in (labels, test_labels)
        )
        save(name, x, labels, x_test, test_labels)
    with np.load(folder / "records.npz") as known:
        np.savez(folder / "plain.npz", **{key: known[key] for key in known if key != "client"})
    x, x_test = (rng.normal(size=(n, 5)).astype(np.float32) for n in (owner.size, 30))
    several, numbers = (
        (lambda a: (a[:, :3] > 0.3) * np.float32(1)),
        (lambda a: a[:, :1] - a[:, 1:2]),
    )
    save("several", x, several(x), x_test, several(x_test))
    save("numbers", x, numbers(x), x_test, numbers(x_test))
    words, words_test = (rng.integers(0, 9, (n, 6)) for n in (owner.size, 30))
    save("words", words, labels, words_test, test_labels)


def outcome(name: str, folder: Path) -> dict[str, Any]:
    """Perform one of `RUNS` in an empty folder, which has to be the current one."""
    make(folder)
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        central = name in CENTRAL
        request = flags.parse(f"{BASE} {RUNS[name]}".split(), "", "", central=central)
        run = start.train(request)
    return {
        "terminal": [UNSTABLE.sub(r"\1", line).rstrip() for line in said.getvalue().splitlines()],
        "paid": {path.stem: _paid(path) for path in sorted((run / "ledger").glob("*.jsonl"))},
        "orders": _entries(run / "orders.json").get("orders", []),
        "rounds": _lines(run / "rounds.jsonl"),
        "summary": _entries(run / "summary.json"),
        "price": _price(request.config) if request.config.private else {},
        "ledger": _spent(run, 3 if name in OF_THREE else None) if request.config.private else {},
        "partition": {key: value.tolist() for key, value in np.load(run / "partition.npz").items()},
        "tensors": {
            str(path.relative_to(run)): _tensors(path)
            for path in sorted(run.rglob("*.safetensors"))
            if path.parent.name != "checkpoints"
        },
    }


def _price(config: Config) -> dict[str, Any]:
    found = figures_of(config, prices(outlook_of(config, None)), (1.5, 8.0))
    events = {"caveats", "events", "orders"}
    rows = [{key: row[key] for key in row.keys() - events} for row in found["phases"]]
    return {key: found[key] for key in found.keys() - events} | {"phases": rows}


def _paid(path: Path) -> dict[str, list[str]]:
    """Event -> releases, clients and counts of its charges."""
    found: dict[str, list[str]] = {}
    for line in _lines(path):
        event = json.dumps(_short(line["event"]), sort_keys=True)
        found.setdefault(event, []).append(f"{line['release']}: {line['clients']}: {line['count']}")
    return found


def _short(value: Any) -> Any:
    """Numbers with the digits that every machine agrees on."""
    if isinstance(value, dict):
        return {key: _short(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_short(one) for one in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value


def _spent(run: Path, records: int | None) -> dict[str, Any]:
    found = spent(run, 1e-4, records)
    columns = {key: [row[key] for row in found["clients"]] for key in found["clients"][0]}
    return columns | {"note": found["note"]}


def _entries(path: Path) -> dict[str, Any]:
    found = json.loads(path.read_text()) if path.exists() else {}
    return {key: found[key] for key in found if key not in SAID_ALREADY | TIMES}


def _lines(path: Path) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in path.read_text().splitlines()]
    return [{key: one[key] for key in one if key not in TIMES | {"chain"}} for one in found]


def _tensors(path: Path) -> dict[str, list[float]]:
    """Of each tensor: its norm, and two sums of its entries with different weights."""
    found = {}
    for name, tensor in sorted(load_file(path).items()):
        values = tensor.to(torch.float64).flatten().numpy()
        places = np.arange(1, values.size + 1)
        sums = (values @ np.cos(rate * places) for rate in (0.7, 1.9))
        found[name] = [float(f"{one:.7g}") for one in (np.linalg.norm(values), *sums)]
    return found


def read(name: str) -> dict[str, Any]:
    """The outcome that is written down."""
    return json.loads((FILES / f"{name}.json").read_text())


def write(name: str, found: dict[str, Any]) -> None:
    """Write an outcome down, a line for each entry of its parts."""
    FILES.mkdir(exist_ok=True)
    parts = []
    for key, value in found.items():
        entries = value.items() if isinstance(value, dict) else enumerate(value)
        named = isinstance(value, dict)
        lines = [f"{json.dumps(k) + ': ' if named else ''}{json.dumps(v)}" for k, v in entries]
        opened, closed = "{}" if named else "[]"
        parts.append(f"{json.dumps(key)}: {opened}\n" + ",\n".join(lines) + f"\n{closed}")
    (FILES / f"{name}.json").write_text("{\n" + ",\n".join(parts) + "\n}\n")


def differences(written: Any, found: Any, place: str = "", trained: bool = False) -> Iterator[str]:
    """What differs beyond the tolerances, a line each."""
    trained = trained or place.rpartition("/")[2] in LEARNED
    if isinstance(written, dict) and isinstance(found, dict):
        for key in sorted(written.keys() | found.keys()):
            if key not in written or key not in found:
                yield f"{place}/{key}: only {'now' if key in found else 'written'}"
            else:
                yield from differences(written[key], found[key], f"{place}/{key}", trained)
    elif isinstance(written, list) and isinstance(found, list) and len(written) == len(found):
        scale = max((abs(one) for one in written if _number(one)), default=0.0)
        for number, (one, other) in enumerate(zip(written, found, strict=True)):
            if trained and _number(one) and _number(other):
                if abs(one - other) > TRAINED * max(scale, 1e-9):
                    yield f"{place}/{number}: {one} -> {other}"
            else:
                yield from differences(one, other, f"{place}/{number}", trained)
    elif _number(written) and _number(found):
        if not math.isclose(written, found, rel_tol=TRAINED if trained else PAID, abs_tol=1e-12):
            yield f"{place}: {written} -> {found}"
    elif written != found:
        yield f"{place}: {written} -> {found}"


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
