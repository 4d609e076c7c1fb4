"""The tables of mutants fit the code; the mutants themselves run by ``python
tests/mutants/run.py``."""

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.mutants import run, table

ALL = table.load()


def test_every_mutant_is_an_edit_of_the_code_as_it_is():
    assert table.faults(ALL) == []


def test_the_tables_cover_every_package():
    files = [mutant.file.partition("/")[0] for mutant in ALL]
    assert set(files) == {"mechanisms", "client", "server", "strategies", "sim"}


def test_a_stale_table_is_noticed(tmp_path: Path):
    assert len(table.faults(ALL, tmp_path)) >= len(ALL)
    twice = table.faults([ALL[0], ALL[0]])
    assert twice == [f"{ALL[0].name}: two mutants have this name"]
    assert table.faults([dataclasses.replace(ALL[0], new=ALL[0].old)])
    gone = dataclasses.replace(ALL[0], tests=("test_mutants.py::test_it_was_renamed[here]",))
    assert table.faults([gone]) == [f"{gone.name}: no test {gone.tests[0]}"]
    alike = table.faults([ALL[0], dataclasses.replace(ALL[0], name="another")])
    assert alike == [f"another: the same edit as {ALL[0].name}"]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A line of code, a test that cannot fail, one that fails for the mutant, one that cannot run,
    and one that never ends for the mutant."""
    (tmp_path / "tests").mkdir()
    (tmp_path / "code_.py").write_text("noise = 1.0\n")
    tests = {
        "blind": "assert True",
        "sees": "import code_ as c\n    assert c.noise == 1.0",
        "broken": "assert (",
        "waits": "import code_ as c, time\n    open('../begun', 'w').close()\n    try:\n"
        "        while c.noise < 1.0: time.sleep(0.01)\n"
        "    finally:\n        open('../ended', 'w').close()",
    }
    for name, body in tests.items():
        (tmp_path / "tests" / f"test_{name}.py").write_text(f"def test_it():\n    {body}\n")
    return tmp_path


@pytest.mark.parametrize(
    ("file", "old", "new", "counts", "counts_for_all"),
    [
        ("code_.py", "1.0", "2.0", True, True),
        ("code_.py", "# why", "# because", False, False),
        ("code_.py", "Of noise.", "Of much\n\nnoise.", False, False),
        ("code_.py", "'# one'", "'# two'", True, True),
        ("tests/test_code.py", "limit = 1", "limit = 2", True, True),
        ("tests/test_code.py", "== limit", "<= limit", True, True),
        ("tests/test_code.py", "mark.one", "mark.two", True, True),
        ("tests/test_code.py", "< limit", "<= limit", False, True),
        ("tests/test_code.py", "skip", "fail", False, True),
    ],
)
def test_a_result_holds_until_code_changes(
    tmp_path: Path, file: str, old: str, new: str, counts: bool, counts_for_all: bool
):
    """That of the mutant's file and of the tests that answer for it, not what is said of it."""
    files = {
        "code_.py": '"""Of noise."""\n\nnoise = 1.0  # why\ntext = \'# one\'\n',
        "tests/test_code.py": "limit = 1\n\n@mark.one\ndef test_it():\n    assert noise == limit\n"
        "\n@skip\nclass TestOther:\n    def test_it(self):\n        assert noise < limit\n",
    }
    (tmp_path / "tests").mkdir()
    mutants = [
        table.Mutant("quiet", "code_.py", "1.0", "0.0", (test,))
        for test in ("test_code.py::test_it[1]", "test_code.py")
    ]
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    before = [mutant.digest(tmp_path) for mutant in mutants]
    (tmp_path / file).write_text(files[file].replace(old, new))
    after = [mutant.digest(tmp_path) for mutant in mutants]
    assert [a != b for a, b in zip(before, after, strict=True)] == [counts, counts_for_all]


FORKS = """
import os
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from tests.mutants import run
from tests.mutants.table import Mutant
folder, run.HANGS = Path(sys.argv[1]), 1
for test in ("blind", "sees", "broken", "waits"):
    mutant = Mutant("quiet", "code_.py", "1.0", "0.0", (f"test_{test}.py",))
    print(test, run.is_killed(mutant, folder)[0])
run.HANGS = 1000
begun, ended = folder / "../begun", folder / "../ended"
begun.unlink()
ended.unlink()
run.time = SimpleNamespace(monotonic=begun.exists, sleep=time.sleep)  # over once a test runs
print(list(run.kills([mutant, mutant], folder, seconds=0.5)), ended.exists())
try:
    os.wait()
except ChildProcessError:
    print("none is left")
"""
"""In a process of its own: one with threads, as this may be, must not fork."""


def test_a_mutant_that_no_test_kills_survives(project: Path):
    """A test that cannot run is no kill either; one that would never end is, and where the time is
    over first it was not tried, and ends what it has begun."""
    done = subprocess.run(
        [sys.executable, "-c", FORKS, str(project)], capture_output=True, text=True, cwd=table.ROOT
    )
    said = ["blind False", "sees True", "broken False", "waits True", "[] True", "none is left"]
    assert done.stdout.splitlines() == said
    assert (project / "code_.py").read_text() == "noise = 1.0\n"


def test_changed_mutants_come_first_and_the_order_of_the_others_follows_the_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    some = ALL[::50]
    known = {mutant.name: mutant.digest() for mutant in some}
    changed = some[len(some) // 2].name
    monkeypatch.setattr(run, "RESULTS", tmp_path / "results.json")
    run.RESULTS.write_text(json.dumps({"mutants": known | {changed: "another"}}))
    order = run.in_turn(some)
    assert order[0].name == changed and sorted(m.name for m in order) == sorted(known)
    assert run.in_turn(some[1:])[1:] != [m for m in order if m in some[1:]][1:]


def test_of_a_mutant_that_was_not_tried_the_last_result_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Killed before and now, killed now only, killed before only and not tried, survived now, never
    tried."""
    both, now, before, survivor, never = some = ALL[:5]
    monkeypatch.setattr(run, "RESULTS", tmp_path / "results.json")
    old = {both.name: "old", before.name: "old", survivor.name: "old", "gone": "old"}
    run.RESULTS.write_text(json.dumps({"mutants": old}))
    run.write_results(some, [both, now], [both, now, survivor])
    results = json.loads(run.RESULTS.read_text())
    expected = {both.name: both.digest(), now.name: now.digest(), before.name: "old"}
    assert results["mutants"] == expected and results["killed"] == 3
    assert results["mutants in all"] == 5 and results["not killed"] == sorted(
        [survivor.name, never.name]
    )
    counted = [text.split(" of ") for text in results["files"].values()]
    assert [sum(int(pair[k]) for pair in counted) for k in (0, 1)] == [3, 5]
