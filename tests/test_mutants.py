"""The table of mutants fits the code; the mutants themselves run by ``python tests/mutants/run.py``."""

import dataclasses
from pathlib import Path

from tests.mutants import run


def test_every_mutant_is_an_edit_of_the_code_as_it_is():
    assert run.stale() == [] and len(run.MUTANTS) >= 14
    assert all(mutant.old != mutant.new for mutant in run.MUTANTS)


def test_a_stale_table_is_noticed(tmp_path: Path):
    assert len(run.stale(tmp_path)) > len(run.MUTANTS)


def test_a_mutant_that_no_test_kills_survives(tmp_path: Path):
    """A test that cannot fail, one that fails, and one that cannot run: the last is no kill either."""
    (tmp_path / "code_.py").write_text("noise = 1.0\n")
    tests = {"blind": "assert True", "sees": "import code_ as c\n    assert c.noise == 1.0", "broken": "assert ("}
    for name, body in tests.items():
        (tmp_path / f"test_{name}.py").write_text(f"def test_it():\n    {body}\n")
    mutant = run.Mutant("quiet", "code_.py", "1.0", "0.0", ())
    killed = {n: run.is_killed(dataclasses.replace(mutant, tests=(f"test_{n}.py",)), tmp_path)[0] for n in tests}
    assert killed == {"blind": False, "sees": True, "broken": False}
    assert (tmp_path / "code_.py").read_text() == "noise = 1.0\n"
