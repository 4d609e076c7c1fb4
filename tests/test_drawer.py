"""The process beside a run that draws its report: the same bytes, whatever becomes of it."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from subprocess import Popen

import pytest

from sim.config.configuration import load
from sim.engines import drawer
from tests import unequal
from tests.processes import NEEDS_PROC, alive, wait_for

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def drawers(monkeypatch) -> list[Popen[bytes]]:
    """The processes that are started, as if there were two cores and no library were loaded."""
    found: list[Popen[bytes]] = []
    real = drawer._start
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})
    monkeypatch.delitem(sys.modules, "matplotlib", raising=False)
    monkeypatch.setattr(drawer, "_start", lambda: found.append(real()) or found[-1])
    return found


@pytest.fixture
def here(monkeypatch) -> list[Path]:
    """The run directories whose reports this process has drawn."""
    folders: list[Path] = []
    real = drawer.write_report
    monkeypatch.setattr(drawer, "write_report", lambda f: folders.append(f) or real(f))
    return folders


def drawing(**settings: object):
    return drawer.drawing(load(None, settings).run)


def taken(folder: Path) -> tuple[bytes, bytes]:
    """The files of a report, which are removed."""
    paths = folder / "report.html", folder / "partition.svg"
    read = tuple(path.read_bytes() for path in paths)
    for path in paths:
        path.unlink()
    return read


def test_it_draws_the_bytes_that_the_run_would(tmp_path, drawers, here):
    folder = unequal.run_directory(tmp_path / "a run, with 'marks' and ümlauts")
    with drawing() as report:
        report(folder)
    assert here == [] and drawers[0].returncode == 0
    drawn = taken(folder)
    drawer.write_report(folder)
    assert drawn == taken(folder)


def test_what_it_fails_to_draw_is_drawn_by_the_run(tmp_path, drawers, here, monkeypatch):
    """It is killed, or cannot start at all."""
    folder = unequal.run_directory(tmp_path / "run")
    with drawing() as report:
        drawers[0].kill()
        report(folder)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "no-python"))
    with drawing() as report:
        report(folder)
    assert len(drawers) == 1 and here == [folder, folder] and taken(folder)


def test_none_is_started_where_it_would_save_nothing(tmp_path, drawers, here, monkeypatch):
    """Ray has all rounds; the library is loaded; there is one core."""
    folder = unequal.run_directory(tmp_path / "run")
    with drawing(engine="ray") as report:
        report(folder)
    assert "matplotlib" in sys.modules
    with drawing() as report:
        report(folder)
    monkeypatch.delitem(sys.modules, "matplotlib")
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0})
    with drawing() as report:
        report(folder)
    assert drawers == [] and len(here) == 3


def test_it_ends_with_a_run_that_fails(drawers):
    """The user does not wait for what it loads."""
    with pytest.raises(ZeroDivisionError), drawing():
        assert drawers[0].poll() is None
        raise ZeroDivisionError
    assert drawers[0].returncode == -signal.SIGKILL


KILLED = """
import os, signal
from sim.config.configuration import load
from sim.engines import drawer
os.sched_getaffinity = lambda pid: {0, 1}
start = drawer._start
def started():
    process = start()
    print(process.pid, flush=True)
    return process
drawer._start = started
with drawer.drawing(load(None, {}).run):
    os.kill(os.getpid(), signal.SIGKILL)
"""


@NEEDS_PROC
def test_it_ends_when_the_run_is_killed():
    """Waits for ever otherwise."""
    done = subprocess.run([sys.executable, "-c", KILLED], cwd=ROOT, capture_output=True, text=True)
    pid = int(done.stdout)
    wait_for(lambda: not alive(pid))


COMMANDS = """
import os, sys
from sim import central, run
os.sched_getaffinity = lambda pid: {0, 1}
for name, module in (("run", run), ("central", central)):
    module.command([*sys.argv[1:], f"--name={name}"])
    print("matplotlib" in sys.modules)
"""


def test_the_process_that_trains_never_loads_the_drawing_library(tmp_path):
    flags = ["--rounds=1", "--steps=1", "--model=linear", "--quiet", f"--out={tmp_path}"]
    words = [sys.executable, "-c", COMMANDS, *flags]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    assert (done.stdout.split(), done.stderr) == (["False", "False"], "")
    for name in ("run", "central"):
        assert "</html>" in (tmp_path / name / "report.html").read_text()
