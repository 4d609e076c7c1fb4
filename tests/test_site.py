"""The documentation site builds without a warning, and the names in its pages exist."""

import dataclasses
import importlib
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from html import unescape
from pathlib import Path

import pytest

from server.records import Evaluation, RoundRecord, Summary
from sim.commands import account, attack, audit, bench
from sim.commands.parser import build_parser
from sim.config.fields import NAMING, SETTINGS
from sim.config.names import FORMER
from sim.drawing.colors import COLORS
from sim.library.result import Result
from sim.showing.page import picture
from tests.faults import __main__ as faults
from tests.test_readme import FENCE, PAGES, ROOT

sys.path.append(str(ROOT / "docs"))
import generated
import report_picture

INLINE = re.compile(r"`([^`\n]+)`")
MODULE = re.compile(r"(?:mechanisms|client|strategies|server|sim|tests)(?:\.[A-Za-z_]\w*)+")
FLAG = re.compile(r"--[a-z][a-z0-9-]*")
OTHERS = {
    "--durations",
    "--hypothesis-profile",
    "--changed",
    "--only",
    "--write",
    "--serve",
    "--heat-maps",
    "--head",
    "--version",
    "--help",
}
"""Flags of pytest, Ray, the mutants' script, the pinned runs, and what every command has."""

MAPPED = set(
    tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-dir"]
)
"""Packages that only a wheel has."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("site")
    words = ["-W", "-n", "-q", "-b", "html", "-d", out / "trees", ROOT / "docs", out / "html"]
    done = subprocess.run(
        [sys.executable, "-m", "sphinx", *map(str, words)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return out / "html"


def test_the_site_builds_without_a_warning(site: Path) -> None:
    assert (site / "index.html").is_file()


def test_every_page_is_in_it(site: Path) -> None:
    pages = {
        path.relative_to(ROOT / "docs").with_suffix(".html")
        for path in (ROOT / "docs").glob("**/*.md")
    }
    assert len(pages) > 40 and not [page for page in pages if not (site / page).is_file()]


def test_the_reference_says_of_every_setting_what_its_field_says(site: Path) -> None:
    page = (site / "reference/settings.html").read_text(encoding="utf-8")
    rows = {}
    for line in re.findall(r"<tr.*?</tr>", page, re.S):
        name, *rest = [
            unescape(re.sub(r"<[^>]+>", "", one)).strip()
            for one in re.findall(r"<td>.*?</td>", line, re.S)
        ] or [""]
        rows[name] = rest
    for name, setting in SETTINGS.items():
        assert rows[name] == [
            setting.flag,
            setting.expected,
            generated.shown(setting),
            setting.info.description,
        ]


@pytest.mark.parametrize("kind", [RoundRecord, Summary, Evaluation])
def test_the_reference_says_of_every_field_what_its_record_says(site: Path, kind: type) -> None:
    """Kills a field without a description, and one that is described but no longer there."""
    told = generated.attributes(kind)
    assert list(told) == [field.name for field in dataclasses.fields(kind)]
    page = (site / "reference/run-directory.html").read_text(encoding="utf-8")
    page = " ".join(unescape(re.sub(r"<[^>]+>", "", page.replace("<td>", " | "))).split())
    for name, text in told.items():
        assert f"| {name} | {text.replace('`', '')}" in page


def test_generated_tables_leave_no_mark_and_no_other_page_has_one(site: Path) -> None:
    marks = [
        mark
        for page in PAGES
        for mark in generated.GENERATED
        if mark in page.read_text(encoding="utf-8")
    ]
    assert sorted(marks) == sorted(generated.GENERATED)
    for page in ("settings", "commands", "run-directory"):
        text = (site / f"reference/{page}.html").read_text(encoding="utf-8")
        assert "table:" not in text and "<table" in text


def names(page: Path) -> Iterator[str]:
    """What stands in backticks outside blocks."""
    yield from INLINE.findall(FENCE.sub("", page.read_text(encoding="utf-8")))


def exists(name: str) -> bool:
    """Whether a dotted name is a module, or something in one."""
    if name in MAPPED:
        return True
    parts = name.split(".")
    for end in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:end]))
        except ModuleNotFoundError:
            continue
        for part in parts[end:]:
            if not hasattr(found, part):
                return False
            found = getattr(found, part)
        return True
    return False


def test_what_does_not_exist_is_noticed() -> None:
    assert exists("sim.train") and exists("mechanisms.accounting.accountant.epsilon")
    assert not exists("sim.absent") and not exists("sim.run.absent")


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_named_modules_exist(page: Path) -> None:
    dotted = [
        name
        for text in names(page)
        for name in MODULE.findall(text)
        if not name.endswith((".py", ".toml", ".md"))
    ]
    assert not [name for name in dotted if not exists(name)]


def test_the_table_of_a_result_is_complete() -> None:
    text = (ROOT / "docs/python.md").read_text(encoding="utf-8")
    table = text[text.index("| attribute of a `Result` |") :].split("\n\n")[0]
    named = {
        name
        for line in table.splitlines()[2:]
        for name in re.findall(r"`(\w+)", line.split("|")[1])
    }
    public = {name for name in vars(Result) if not name.startswith("_")}
    assert named == public | {"folder", "config"}


def test_the_page_on_flower_names_all_that_a_node_imports() -> None:
    text = (ROOT / "docs/flower.md").read_text(encoding="utf-8")
    row = next(line for line in text.splitlines() if line.startswith("| `DP_FED_NODE_MODULES`"))
    assert not [name for name in (*NAMING, "data set") if name not in row]


FOREIGN = ("flower.md", "deployment.md")
"""Pages with the flags of other programs."""


def known_flags() -> set[str]:
    commands = (account, attack, audit)
    parsers = [build_parser("", "", own=one.OWN) for one in commands] + [
        bench.parser(""),
        faults.parser(),
    ]
    return OTHERS | {word for parser in parsers for word in parser._option_string_actions}


@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if page.name not in FOREIGN and page.parent.name != "benchmarks"],
    ids=lambda p: p.relative_to(ROOT).as_posix(),
)
def test_named_flags_exist(page: Path) -> None:
    flags = {flag for text in names(page) for flag in FLAG.findall(text)}
    former = {f"--{name.replace('_', '-')}" for name in FORMER}
    assert not flags - known_flags() - former


@pytest.mark.parametrize(
    "page",
    [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "docs").glob("[!d]*/*.md")],
    ids=lambda p: p.name,
)
def test_pages_have_no_long_lines_but_in_tables_and_commands(page: Path) -> None:
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    long = [
        line
        for line in text.splitlines()
        if len(line) > 100 and not line.startswith(("|", "![", "    "))
    ]
    assert not long


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 150


def test_the_picture_has_every_plot_of_the_report_in_its_order() -> None:
    drawing = (
        '<?xml version="1.0"?>\n<svg width="9pt" height="{0}pt" viewBox="0 0 9 {0}"><g '
        'id="{0}"/></svg>'
    )
    report = "".join(picture(drawing.format(n).encode(), "plot", "") for n in (3, 5, 4))
    found = report_picture.compose(report)
    places = re.findall(r'x="([\d.]+)" y="([\d.]+)" width="9" height="(\d)"', found)
    assert places == [("0", "0", "3"), ("21", "0", "5"), ("0", "17", "4")]
    assert re.findall('id="plot-(.)"', found) == ["3", "5", "4"] and 'viewBox="0 0 30 21"' in found
    colored = drawing.format(3).replace("<g ", f'<g fill="{COLORS["blue"][0]}" ')
    assert COLORS["blue"][0] in report_picture.compose(picture(colored.encode(), "a", ""))
