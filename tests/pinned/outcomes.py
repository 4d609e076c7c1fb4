"""What small runs print, pay and learn.

A law says why a number is right. Here a number must only not change unnoticed: `tests.pinned`
writes the outcomes down, and a commit that changes one says why.
"""

import contextlib
import html
import io
import itertools
import json
import re
import secrets
import shlex
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from matplotlib.figure import Figure
from safetensors.torch import load_file

from mechanisms.entropy import SystemEntropy
from sim import __main__ as commands
from sim.commands import flags
from sim.engines import drawer, session
from sim.phases.prices import figures_of, outlook_of, prices
from sim.showing import plots
from tests.folders import TIMES
from tests.pinned.gradients import CASES, computed
from tests.pinned.records import make
from tests.pinned.sums import sums
from tests.pinned.table import BASE, PRICED, RUNS, SHOWN

SAID_ALREADY = {"run_dir", "run", "caveats", "guarantees", "files", "ledger", "sha256"}
"""Entries of a summary that the terminal or the ledger shows, too, and digests of files with times
in them."""
PRICES = (
    "rounds",
    "steps",
    "sample_rate",
    "noise_multiplier",
    "epsilon_certified",
    "order",
    "epsilon_renyi",
    "epsilon_published",
)
"""Figures of a price that are written down, in this order."""
USUAL = {"note": "", "budget": "certified", "evaluated_on": "test", "metric": "accuracy"} | {
    "release": False,
    "method": "loss distributions",
    "delta": 1e-5,
    "budgets": [],
}
"""Entries of a summary that need not be written down."""
ALWAYS = {
    "checkpoints 4",
    "config.toml 1",
    "inputs.json 1",
    "inputs.key 1",
    "ledger 2",
    "lock 1",
    "manifest.json 1",
    "model.safetensors 1",
    "model_card.md 1",
    "orders.json 1",
    "partition.npz 1",
    "rounds.jsonl 1",
    "summary.json 1",
}
"""Names in most run directories, with the number of files: what others have more and less is
written down."""
TRAINS = ("run", "central", "audit", "attack")
MAX_WORDS = 34
"""Characters of a line of prose that are written down."""
_NUMBERS = re.compile(r"(?<![\w.])\d+(?:\.\d+)?(?:e-?\d+)?")
_TIME = re.compile(r"\b\d[\d.]* ?(?:ms|s|min|h)\b(?: \d+ ?s)?")
_RULES = str.maketrans("│┃", "||", "━┏┓┡┩╇┳└┘┴─")
"""The lines of a table."""
_HEX = re.compile(r"-[0-9a-f]{8,}\b")


def outcome(name: str, folder: Path) -> dict[str, Any]:
    """Perform one of `RUNS` in an empty folder, which has to be the current one."""
    if name in CASES:
        return computed(CASES[name])
    make(folder)
    script = RUNS[name]
    with _same_each_time():
        lines = (script,) if isinstance(script, str) else script
        found = {line.partition(" ")[0]: [] for line in lines}
        for line in lines:
            found[line.partition(" ")[0]] += _said(line)
        for run in sorted(path.parent for path in folder.glob("runs/*/config.toml")):
            found |= {f"{run.name}/{key}": value for key, value in _left(run).items()}
    if name in PRICED:
        found["price"] = _price(lines[0])
    for page in sorted(folder.rglob("*.html")):
        found[str(page.relative_to(folder))] = _page(page.read_text(), name in SHOWN)
    if name in SHOWN:
        found["card"] = _short_lines((folder / "runs/run/model_card.md").read_text())
    return found


@contextlib.contextmanager
def _same_each_time() -> Iterator[None]:
    """A release draws the same each time, a terminal is always as wide, and a report is drawn by
    none but the command that asks for it, with the data of its pictures for the pictures."""
    streams: dict[Any, np.random.Generator] = {}

    def draws(what: str) -> Callable[[int], bytes]:
        def draw(n: int) -> bytes:
            key = what, (n if what == "token" else 0)
            stream = streams.setdefault(key, np.random.default_rng(len(what) + key[1]))
            return stream.bytes(n)

        return draw

    token = draws("token")
    with contextlib.ExitStack() as held:
        for where, what, new in (
            (SystemEntropy.__init__, "__defaults__", (draws("entropy"),)),
            (secrets, "token_bytes", token),
            (secrets, "token_hex", lambda n: token(n).hex()),
            (drawer, "drawing", lambda run: contextlib.nullcontext(lambda folder: folder)),
            (session, "write_report", lambda folder: folder),
            (plots, "svg", _drawn),
        ):
            held.enter_context(mock.patch.object(where, what, new))
        held.enter_context(mock.patch.dict("os.environ", {"COLUMNS": "160", "NO_COLOR": "1"}))
        yield


def _said(line: str) -> list[str]:
    """A command's lines and exit status, without times."""
    name, *words = shlex.split(line)
    if name in TRAINS and not any(word.startswith("--resume") for word in words):
        words = [*BASE.split(), *words]
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        status = commands.start(name, words, f"dpfed {name}")
    text = said.getvalue().replace(f"{Path.cwd()}/", "").translate(_RULES)
    return [*_short_lines(text), f"exit status {status}"]


def _short_lines(text: str) -> list[str]:
    """Lines without times, and without the words at the end of long ones, which other tests
    read; the numbers in them stay."""
    found = []
    for line in text.splitlines():
        line = " ".join(_TIME.sub("", line).split())
        rest = _NUMBERS.findall(line, MAX_WORDS) if line[:1] not in "|" else []
        short = line if len(line) <= MAX_WORDS or line[:1] == "|" else line[:MAX_WORDS] + "..."
        found += [" ".join([short, *rest])] if line else []
    return found


def _left(run: Path) -> dict[str, Any]:
    """What a run directory holds."""
    found: dict[str, Any] = {
        f"ledger/{path.stem}": _paid(path) for path in sorted((run / "ledger").glob("*.jsonl"))
    }
    orders = _entries(run / "orders.json").get("orders", [])
    found["orders"] = {one["clients"]: one["orders"] for one in orders}
    found["rounds"] = _rounds(run / "rounds.jsonl")
    for name in ("summary", "audit", "attack"):
        entries = _entries(run / f"{name}.json")
        found[name] = {key: entries[key] for key in entries if entries[key] != USUAL.get(key)}
    if (run / "partition.npz").exists():
        with np.load(run / "partition.npz") as partition:
            found["partition"] = {key: value.tolist() for key, value in partition.items()}
    newest = {
        re.sub(r"round-\d+", "", str(path)): path for path in sorted(run.rglob("*.safetensors"))
    }
    found["tensors"] = {
        f"{path.parent.name}/{path.stem}/{name}": sums(tensor)
        for path in newest.values()
        if path.parent.name != "checkpoints"
        for name, tensor in sorted(load_file(path).items())
    }
    files = [path.relative_to(run) for path in run.rglob("*") if path.is_file()]
    counts = Counter(path.parts[0] for path in files)
    here = {f"{name} {number}" for name, number in counts.items()}
    found["files"] = {"more": sorted(here - ALWAYS), "less": sorted(ALWAYS - here)}
    return {key: value for key, value in found.items() if value}


def _price(line: str) -> dict[str, list[float]]:
    """What a run is said to cost, by phase and clients, before it begins."""
    name, *words = shlex.split(line)
    config = flags.parse([*BASE.split(), *words], "", "", central=name == "central").config
    found = figures_of(config, prices(outlook_of(config, None)), (1.5, 8.0))
    curves = {key: found[key] for key in ("rdp_certified", "rdp_published")}
    return curves | {
        f"{row['phase']} {row['clients']}": [row[key] for key in PRICES if key in row]
        for row in found["phases"]
    }


def _paid(path: Path) -> dict[str, dict[str, str]]:
    """Event -> clients and count -> the releases that are charged for it."""
    found: dict[str, dict[str, str]] = {}
    for line in _lines(path):
        lines = found.setdefault(_told(line["event"]), {})
        key = f"{line['clients']} x {line['count']}"
        release = _HEX.sub("", line["release"].removeprefix("round-"))
        lines[key] = f"{lines[key]} {release}" if key in lines else release
    return found


def _told(event: dict[str, Any]) -> str:
    """An event in short, its numbers with digits that every machine agrees on."""
    parts = [event["kind"]]
    for key, value in sorted(event.items()):
        if key != "kind":
            shown = f"{value:.6g}" if isinstance(value, float) else str(value)
            parts.append(f"{key} {f'({_told(value)})' if isinstance(value, dict) else shown}")
    return ", ".join(parts)


def _rounds(path: Path) -> dict[str, list[Any]]:
    """The rounds' figures, a list for each."""
    found: dict[str, list[Any]] = {}
    for line in _lines(path):
        for key, value in (line | line["metrics"]).items():
            if key != "metrics":
                found.setdefault(("" if key in line else "metrics/") + key, []).append(value)
    return found


def _entries(path: Path) -> dict[str, Any]:
    found = json.loads(path.read_text()) if path.exists() else {}
    return {key: found[key] for key in found if key not in SAID_ALREADY | TIMES}


def _lines(path: Path) -> list[dict[str, Any]]:
    lines = path.read_text().splitlines() if path.exists() else []
    found = [json.loads(line) for line in lines]
    return [
        {key: one[key] for key in one if key not in TIMES | {"chain", "first"}} for one in found
    ]


def _page(text: str, settings: bool) -> list[str]:
    """The lines of a page, with the data of its pictures and perhaps the settings, without how it
    looks."""
    if not settings:
        text = re.sub(r"<h2>Configuration</h2>.*?</section>", "", text, flags=re.DOTALL)
    text = re.sub(r"<style>.*?</style>", "", text, flags=re.DOTALL)
    text = re.sub(r'<svg [^>]*aria-label="(.*?)"[^>]*>(.*?)</svg>', r"\n| \1: \2\n", text)
    text = re.sub(
        r"<tr><td>([^<]*)</td><td>([^<]*)</td><td>[^<]{20,}</td></tr>", r"<p>\1 = \2</p>", text
    )
    text = re.sub(r"</t[hd]><t[hd][^>]*>", " | ", text)
    return _short_lines(html.unescape(re.sub(r"<[^>]+>", "\n", text)))


def _drawn(figure: Figure) -> bytes:
    """What is drawn in a figure, as text."""
    parts = []
    for axes in figure.axes:
        lines = [(line.get_label(), *np.round(line.get_data(), 3).tolist()) for line in axes.lines]
        steps = [
            (patch.get_label(), *(np.round(one, 3).tolist() for one in patch.get_data()[:2]))
            for patch in axes.patches
        ]
        images = [
            np.round(sums(torch.tensor(image.get_array())), 3).tolist() for image in axes.images
        ]
        labels = [axes.get_xlabel(), axes.get_ylabel(), axes.get_title()]
        drawn = itertools.chain(filter(None, labels), lines, steps, images)
        parts.append(", ".join(map(str, drawn)))
    return f'<svg viewBox="0 0 7 9">{html.escape("; ".join(parts))}</svg>'.encode()
