"""Records in which no two numbers are alike, so that a figure in a wrong place, or of a wrong
client, is seen.

Of each number per client the largest, the median, the mean, the first and the last differ, and the
two columns of epsilons have their largest at different clients. Rounds neither rise nor fall in all
figures.
"""

import dataclasses
import html
import json
import re
from pathlib import Path
from typing import Any

import numpy as np

from server.records import RoundRecord, Summary
from sim.config.configuration import load, save
from tests.vouched import vouch

CERTIFIED = (4.375, 1.5, 7.25, 3.125, 2.5)
PUBLISHED = (6.125, 8.375, 5.25, 0.875, 2.125)
NOISE = (2.71, 3.37, 2.18, 1.84, 1.93)
EVENTS = (41, 19, 35, 67, 23)
COUNTS = np.array([[11, 3, 5], [2, 31, 8], [1, 0, 6], [9, 4, 17], [16, 27, 13]])
"""Records of each client and class; clients have 19, 41, 7, 30 and 56."""

ROUNDS = (
    RoundRecord(
        1, 0.31, 1.91, 2.75, 1.25, 3.875, 0, 5, 8.25, 6.5, {"acceptance_rate": 0.75, "noise": 1.5}
    ),
    RoundRecord(
        2, 0.57, 1.13, 4.5, 2.25, 6.625, 1, 4, 3.75, 2.25, {"acceptance_rate": 0.25, "noise": 4.5}
    ),
    RoundRecord(3, 0.43, 1.42, 7.25, 3.125, 8.375, 2, 3, 5.5, 4.125, {"acceptance_rate": 0.625}),
)


def summary(**changed: Any) -> Summary:
    """A finished run of five clients."""
    figures = {
        "accuracy": 0.4321,
        "loss": 1.4187,
        "epsilon_certified": CERTIFIED,
        "epsilon_published": PUBLISHED,
        "epsilon_renyi": 7.875,
        "method": "loss distributions",
        "delta": 2e-6,
        "order": 5.5,
        "noise_multiplier": NOISE,
        "events": EVENTS,
        "retired": 2,
        "rounds": 3,
        "seconds": 17.5,
        "run_dir": "runs/unequal",
        "release": False,
        "note": "The paper counts less.",
        "budget": "certified",
        "evaluated_on": "test",
        "caveats": ("The first limit.", "The second limit."),
    }
    return Summary(**figures | changed)


def run_directory(
    folder: Path, finished: bool = True, closing: Summary | None = None, **settings: Any
) -> Path:
    """Files of a run of nine planned rounds, of which three are finished."""
    (folder / "ledger").mkdir(parents=True)
    given = {"clients": 5, "rounds": 9, "delta": 2e-6, "epsilon": 9.5, "seed": 77}
    save(load(None, given | settings, lenient=given), folder / "config.toml")
    np.savez(folder / "partition.npz", sizes=COUNTS.sum(axis=1), counts=COUNTS)
    (folder / "rounds.jsonl").write_text(
        "".join(json.dumps(one.to_json()) + "\n" for one in ROUNDS)
    )
    if finished:
        (folder / "summary.json").write_text(json.dumps((closing or summary()).to_json()))
    return vouch(folder)


LOADS = re.compile(r'src=|href="(?!#|data:image/png)|https?:|@import|url\((?!#)|<script')
"""What would have a page load something from elsewhere, or run."""


def names(kind: type) -> set[str]:
    """The fields of a record: a test that accounts for all of them fails when there is a new
    one."""
    return {field.name for field in dataclasses.fields(kind)}


def tiles(page: str) -> dict[str, tuple[str, str]]:
    """A page's tiles: value and note by name."""
    form = (
        r'<div class="name">(.*?)</div><div class="value">(.*?)</div><div class="note">(.*?)</div>'
    )
    return {
        html.unescape(name): (html.unescape(v), html.unescape(n))
        for name, v, n in re.findall(form, page)
    }


def section(page: str, title: str) -> str:
    """The part of a page under a title."""
    return re.search(
        rf"<section[^>]*>(?:<details><summary>)?<h2>{re.escape(title)}</h2>(.*?)</section>",
        page,
        re.DOTALL,
    ).group(1)


def rows(part: str) -> list[list[str]]:
    """The rows of the tables in a part of a page, their heads too."""
    found = re.findall(r"<tr[^>]*>(.*?)</tr>", part, re.DOTALL)
    return [
        [html.unescape(cell) for cell in re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row)]
        for row in found
    ]


def pictures(part: str) -> dict[str, tuple[str, str]]:
    """The pictures in a part of a page: what is drawn and the caption, by the text that stands for
    them."""
    form = r'<figure><svg [^>]*aria-label="(.*?)"[^>]*>(.*?)</svg><figcaption>(.*?)</figcaption>'
    found = re.findall(form, part, re.DOTALL)
    return {alt: (drawn, html.unescape(caption)) for alt, drawn, caption in found}
