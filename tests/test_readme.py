"""The documentation does what it says: its commands run, its files and links exist, its figures are
the commands' own.

The fenced blocks of the README, and of every page with the line ``<!-- performed by the tests
-->``, are performed in order, in an empty folder: ``bash`` blocks line by line, ``python`` blocks
as they are; a block whose first line is ``# NAME`` is a file of that name. Trainings are shortened
to one round in this process. What needs a download or a cluster is only parsed, by the parser that
the command itself has.
"""

import json
import re
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mechanisms.accounting import group
from mechanisms.accounting.events import SampledGaussian
from mechanisms.settings import MECHANISM_NAMES
from sim import account, attack, audit, bench, central, report, run
from sim.commands import attack as attack_flags
from sim.commands import bench as bench_flags
from sim.commands import flags as cli
from sim.commands.guard import main_guard
from sim.config.fields import SETTINGS
from sim.config.recipe import read
from sim.showing import wording

ROOT = Path(__file__).parent.parent
PAGES = sorted(
    path
    for pattern in ("*.md", "docs/**/*.md", "benchmarks/*.md")
    for path in ROOT.glob(pattern)
    if path.is_file() and "_build" not in path.parts
)
MARK = "<!-- performed by the tests -->"
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
BARE = re.compile(r"`(\w+\.py)`")
PATH = re.compile(
    r"`((?:mechanisms|client|strategies|server|sim|tests|docs|benchmarks|\.ci)/[\w./-]*)`"
)
LINK = re.compile(r"\]\(([^)\s]+)\)")
ELSEWHERE = {"mnist", "fmnist", "cifar10", "imdb"}
"""Data sets whose files are not part of the project."""


def blocks(page: Path) -> list[tuple[str, str]]:
    return FENCE.findall(page.read_text(encoding="utf-8"))


def commands(block: str) -> Iterator[list[str]]:
    """The commands of a ``bash`` block: continued lines joined, chains taken apart, comments left
    out."""
    for line in block.replace("\\\n", " ").splitlines():
        words: list[str] = []
        for word in [*shlex.split(line, comments=True), "&&"]:
            if word != "&&":
                words.append(word)
            elif words:
                yield words
                words = []


def train(arguments: list[str]) -> None:
    request = cli.parse(arguments, "python -m sim.run", "")
    if request.config.data.dataset in ELSEWHERE or request.config.run.ray_address:
        return
    shorter = [] if request.resume else ["--rounds=1"]
    run.command([*arguments, "--engine=inline", "--quiet", *shorter])


def train_alone(arguments: list[str]) -> None:
    request = cli.parse(arguments, "python -m sim.central", "", central=True)
    if request.config.data.dataset not in ELSEWHERE:
        central.command([*arguments, "--quiet", "--rounds=1"])


def tabulate(arguments: list[str]) -> None:
    arguments = [str(ROOT / word) if word.startswith("recipes/") else word for word in arguments]
    given = bench_flags.parser("").parse_args(arguments)
    if all(read(path).settings["dataset"] not in ELSEWHERE for path in given.recipes):
        bench.command([*arguments, "--processes=1"])


def price(arguments: list[str]) -> None:
    assert main_guard(account.command, arguments) == 0, (
        f"python -m sim.account {shlex.join(arguments)}"
    )


def audit_run(arguments: list[str]) -> None:
    audit.command([*arguments, "--quiet", "--rounds=1"])


def attack_few(arguments: list[str]) -> None:
    asked = attack_flags.parse(arguments)
    if asked.configs[0].data.dataset not in ELSEWHERE:
        models = ["--models=8"] if "lira" in asked.attacks else []
        attack.command(
            [*arguments, "--quiet", "--rounds=1", "--targets=1", *models, "--records=60"]
        )


def compare(arguments: list[str]) -> None:
    first, second = map(Path, arguments)
    assert first.read_bytes() == second.read_bytes(), f"{first} and {second} differ"


PROGRAMS: dict[str, Callable[[list[str]], None]] = {
    "sim.run": train,
    "sim.central": train_alone,
    "sim.bench": tabulate,
    "sim.account": price,
    "sim.report": report.command,
    "sim.audit": audit_run,
    "sim.attack": attack_few,
    "cmp": compare,
}
UNTRIED = {"dpfed", "pip", "pytest", "ruff", "mypy", ".", "flwr", "ray"}
"""What installs, checks or belongs to others."""


def perform(words: list[str]) -> None:
    program, arguments = words[0], words[1:]
    if program in ("python", "python3.11") and arguments[:1] == ["-m"]:
        program, arguments = arguments[1], arguments[2:]
    if program == "dpfed" and f"sim.{arguments[0]}" in PROGRAMS:
        program, arguments = f"sim.{arguments[0]}", arguments[1:]
    if program in PROGRAMS:
        try:
            PROGRAMS[program](arguments)
        except SystemExit as end:
            assert end.code in (0, None), shlex.join(words)
    else:
        assert program in UNTRIED | {"venv"} or program.endswith(".py"), (
            f"{shlex.join(words)}: unknown to this test"
        )


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_report: None) -> Path:
    """An empty working directory; the report is drawn by its own command only."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def performed(page: Path) -> bool:
    return page.name == "README.md" or MARK in page.read_text(encoding="utf-8").splitlines()


@pytest.mark.parametrize(
    "page", filter(performed, PAGES), ids=lambda p: p.relative_to(ROOT).as_posix()
)
def test_what_a_page_says_can_be_done(page: Path, folder: Path) -> None:
    if page.name != "README.md":  # which makes its own
        train(["--clients", "20", "--name", "example"])
    for language, block in blocks(page):
        named = re.match(r"# ([\w-]+\.\w+)\n", block)
        if named:
            (folder / named[1]).write_text(block, encoding="utf-8")
        elif language == "python":
            exec(compile(block, str(page), "exec"), {})
        elif language == "bash":
            for words in commands(block):
                perform(words)


@pytest.mark.parametrize(
    "line",
    [
        "python -m sim.run --no-such-flag 3",
        "python -m sim.run --epsilon -1",
        "python -m sim.account dpsgd --epsilon 3",
        "python -m sim.report runs/absent",
        "python -m sim.absent",
    ],
)
def test_a_command_that_rots_would_be_noticed(line: str, folder: Path) -> None:
    with pytest.raises((AssertionError, ValueError)):
        perform(shlex.split(line))


def test_installing_and_running_takes_two_commands() -> None:
    install = "pip install -c constraints.txt -e '.[test]' && "
    found = [block.strip() for language, block in blocks(ROOT / "README.md") if language == "bash"][
        :2
    ]
    assert found == [
        install + "python -m sim.run --clients 100 --dirichlet 0.5",
        install + "pytest",
    ]


def test_the_table_of_the_first_run_is_the_one_that_it_prints(folder, capsys) -> None:
    """But for accuracy, loss, time and folder, and the last line, which the page cuts short."""
    page = (ROOT / "docs/start/first-run.md").read_text(encoding="utf-8")
    quoted = re.findall(r"^    (.*)$", page, re.MULTILINE)
    capsys.readouterr()
    run.command(["--clients", "100", "--dirichlet", "0.5"])
    printed = capsys.readouterr().out.splitlines()
    assert [line[:18] for line in quoted] == [line[:18] for line in printed]
    differ = {line[:18].strip() for line in {*quoted} - {*printed}}
    assert differ <= {"test accuracy", "test loss", "time", "run directory", "This is a seeded s"}


def test_quoted_costs_are_those_of_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    text = (ROOT / "docs/howto/cost.md").read_text(encoding="utf-8")
    steps = ["dpsgd", "--sample-rate", "0.01", "--steps", "1000", "--json"]
    for given, asked in (
        (["--noise-multiplier", "1.1"], "epsilon_certified"),
        (["--epsilon", "3"], "noise_multiplier"),
    ):
        price([*steps, *given])
        assert f" {json.loads(capsys.readouterr().out)[asked]:.3f}" in text
    text = (ROOT / "docs/howto/sweeps.md").read_text(encoding="utf-8")
    price([*steps, "--epsilon", "1", "--tries", "10"])
    best = json.loads(capsys.readouterr().out)["epsilon_best"]
    assert f"The last line says {wording.epsilon(best, digits=6)}, " in text


def test_the_default_run_s_epsilons_for_several_records_are_as_quoted(capsys) -> None:
    text = " ".join((ROOT / "docs/privacy.md").read_text(encoding="utf-8").split())
    price(["--clients", "100", "--records", "14", "--json"])
    found = json.loads(capsys.readouterr().out)
    charges = {SampledGaussian(1.0, found["noise_multiplier"]): found["rounds"]}
    two, four = (wording.epsilon(group.epsilon(charges, 1e-5, k).epsilon) for k in (2, 4))
    assert f"in the default run 8 for one record, {two} for two and {four} for four" in text


def test_the_audit_that_is_quoted_finds_what_it_says(folder: Path, capsys) -> None:
    """The attacker's guesses may differ a little between machines."""
    page = (ROOT / "docs/audit.md").read_text(encoding="utf-8")
    quoted = re.findall(r"^    (.*)$", page, re.MULTILINE)[:4]
    audit.command(["--clients", "1", "--epsilon", "8"])
    printed = [line.strip() for line in capsys.readouterr().out.splitlines()[-5:-1]]
    assert quoted[1:3] == printed[1:3] and quoted[3].split()[-3:] == printed[3].split()[-3:]
    lower, found = (float(line.split()[2]) for line in (quoted[0], printed[0]))
    assert lower == pytest.approx(found, abs=0.2)


def test_the_table_of_recipes_is_complete() -> None:
    text = (ROOT / "docs/reference/recipes.md").read_text(encoding="utf-8")
    table = text[text.index("| recipe |") :].split("\n\n")[0]
    assert sorted(re.findall(r"`([\w-]+)`", table)) == sorted(
        path.stem for path in (ROOT / "recipes").glob("*.toml")
    )


def test_the_table_of_mechanisms_is_complete() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    table = text[text.index("| `--mechanism` |") :].split("\n\n")[0]
    assert set(re.findall(r"^\| `(\w+)`", table, re.MULTILINE)) == set(MECHANISM_NAMES)


def test_the_table_of_strategies_is_complete() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    table = text[text.index("| `--strategy` |") :].split("\n\n")[0]
    first = [line.split("|")[1] for line in table.splitlines()[1:]]
    assert set(re.findall(r"`(\w+)`", " ".join(first))) == set(SETTINGS["strategy"].choices)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_named_files_and_links_exist(page: Path) -> None:
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    absent = [name for name in PATH.findall(text) if not (ROOT / name).exists()]
    absent += [name for name in BARE.findall(text) if not any(ROOT.glob(f"[!.]*/**/{name}"))]
    headings = {
        re.sub(r"[^\w -]", "", h).strip().lower().replace(" ", "-")
        for h in re.findall(r"^#+ (.*)$", text, re.M)
    }
    for link in LINK.findall(text):
        name, _, anchor = link.partition("#")
        if "://" in link:
            continue
        if not (page.parent / name).exists() or (not name and anchor not in headings):
            absent.append(link)
    assert not absent, f"{page.name} names what does not exist: {absent}"
