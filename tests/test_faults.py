"""System calls that go wrong: a sample of what `python -m tests.faults` tries, and its shim."""

import errno
import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.crash_worlds import DEFAULT, check, worlds_in
from tests.crashing import Noting, tree_of
from tests.faults import shim
from tests.faults.power import states

ROOT = Path(__file__).parent.parent
NEEDS_COMPILER = pytest.mark.skipif(
    sys.platform != "linux" or shim.compiler() is None,
    reason="the shim of system calls needs Linux and a C compiler (cc, gcc or clang)",
)
SCRIPT = """
import os, sys
from pathlib import Path
from tests.faults.shim import Shim
root, (mode, number, error) = Path(sys.argv[1]), map(int, sys.argv[2:])
shim = Shim()
shim.arm(root, mode, number, error)
(root / "folder").mkdir()
try:
    with open(root / "file", "wb", buffering=0) as file:
        file.write(b"12345678")
        os.fsync(file.fileno())
    os.rename(root / "file", root / "name")
except OSError as fault:
    print(fault.errno)
(root.parent / "calls").write_text(shim.seen())
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory) -> Path:
    return shim.build(tmp_path_factory.mktemp("shim"))


def went(library: Path, folder: Path, mode: int, number: int = 0, error: int = 0):
    """What a small program says and leaves if one of its calls goes wrong."""
    root = folder / "root"
    root.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(root), *map(str, (mode, number, error))],
        env=os.environ | {"LD_PRELOAD": str(library)},
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    calls = folder / "calls"
    return done.returncode, done.stdout, tree_of(root), calls.read_text() if calls.exists() else ""


@NEEDS_COMPILER
def test_the_shim_counts_the_calls_below_its_folder_and_no_others(library, tmp_path):
    code, said, tree, calls = went(library, tmp_path, shim.NOTHING)
    assert (code, said, calls) == (0, "", "mowscn")
    assert tree == {"folder": None, "name": b"12345678"}


WRONG = {
    "killed": (shim.KILL, 1, -9, {}),
    "killed before a write": (shim.KILL, 3, -9, {"folder": None, "file": b""}),
    "killed before a name": (shim.KILL, 6, -9, {"folder": None, "file": b"12345678"}),
    "torn": (shim.TEAR, 3, -9, {"folder": None, "file": b"1234"}),
    "a write fails": (shim.FAIL, 3, 0, {"folder": None, "file": b""}),
    "a flush fails": (shim.FAIL, 4, 0, {"folder": None, "file": b"12345678"}),
    "closing fails": (shim.FAIL, 5, 0, {"folder": None, "file": b"12345678"}),
    "a name fails": (shim.FAIL, 6, 0, {"folder": None, "file": b"12345678"}),
}


@NEEDS_COMPILER
@pytest.mark.parametrize(("mode", "number", "code", "left"), WRONG.values(), ids=WRONG)
def test_the_chosen_call_goes_wrong_and_the_ones_before_it_do_not(
    library, tmp_path, mode, number, code, left
):
    error = errno.ENOSPC if mode == shim.FAIL else 0
    found = went(library, tmp_path, mode, number, error)
    assert found[0] == code and found[2] == left
    assert found[1] == (f"{errno.ENOSPC}\n" if error else "")


@NEEDS_COMPILER
def test_runs_whose_calls_go_wrong_are_resumed_to_the_same_bits_and_charges(tmp_path):
    """A sample of deaths, torn writes and errors, for DPSGD as a simulation and as a release."""
    words = ["--kills=16", "--errors=16", "--kinds=dpsgd", f"--out={tmp_path / 'found.json'}"]
    done = subprocess.run(
        [sys.executable, "-m", "tests.faults", *words], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["kinds"] == 30 and found["kills"]["died"] == 16
    assert found["kills"]["broken"] == found["errors"]["broken"] == []
    assert found["errors"]["exit code 1"] > 10


def test_whatever_of_the_unflushed_a_power_loss_takes_the_run_is_resumed(tmp_path):
    """Any names and any last bytes, in no order; the command tries thousands."""
    with worlds_in(tmp_path) as worlds:
        for kind in DEFAULT:
            whole: Noting = worlds[kind].go()
            uncut = tree_of(worlds[kind].root)
            for crash in states(whole, 6, random.Random(1)):
                check(worlds[kind], whole, uncut, crash)
