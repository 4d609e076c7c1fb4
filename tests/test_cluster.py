"""Runs in a Ray cluster of two nodes of different sizes, each of them processes of ``ray start``.

    pytest -m slow -n 0 tests/test_cluster.py

takes a few minutes.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.folders import result, rounds
from tests.processes import NEEDS_PROC, descendants, finish, wait_for
from tests.ray_nodes import ROOT, Node, node

pytestmark = [pytest.mark.slow, NEEDS_PROC]

FLAGS = ("--clients=8", "--chunk-clients=1", "--quiet", "--out=runs")
"""Whose run directory is told relative to a folder that is not that of the nodes."""
ROUNDS = 80
MISSING = """
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"sim", "mechanisms", "client", "server", "strategies"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Missing())
"""
"""A ``sitecustomize.py`` that takes this project's packages from an environment that has them."""


def start(folder: Path, name: str, *flags: str) -> subprocess.Popen:
    """The command as a user starts it, in this folder."""
    return subprocess.Popen(
        [sys.executable, "-m", "sim.run", f"--name={name}", *FLAGS, *flags],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def refused(folder: Path, *flags: str) -> str:
    """What a run says that is refused before it leaves anything, in one line."""
    process = start(folder, "refused", *flags)
    said = process.communicate()[0]
    assert process.returncode == 2 and said.count("\n") == 1, said
    assert not (folder / "runs" / "refused").exists()
    return said


@pytest.fixture(scope="module")
def here(tmp_path_factory) -> tuple[bytes, object]:
    """The result of a run in one process."""
    folder = tmp_path_factory.mktemp("here")
    finish(start(folder, "inline", "--engine=inline", f"--rounds={ROUNDS}", "--groups=4"))
    return result(folder / "runs" / "inline")


def workers(of: Node) -> list[str]:
    titles = descendants(of.process.pid).values()
    return [title for title in titles if title.startswith("ray::Actor")]


def test_a_run_takes_all_cores_of_unequal_nodes_and_no_more(tmp_path, here):
    """Of 1 and 3 cores; the machine of the test has its own number. The same bits as in one
    process. Beside it there is no room for another, and none for more workers in all."""
    with node(1) as head, node(3, head) as second:
        joined = f"--ray-address={head.address}"
        said = refused(tmp_path, joined, "--workers=5", "--groups=5")
        assert "workers is 5, each with 1 CPU" in said and "has room for 4 (others leave 4" in said
        first = start(tmp_path, "first", joined, f"--rounds={ROUNDS}")
        wait_for(lambda: rounds(tmp_path / "runs" / "first") >= 1, first)
        first.send_signal(signal.SIGSTOP)
        assert rounds(tmp_path / "runs" / "first") < ROUNDS
        assert (len(workers(head)), len(workers(second))) == (1, 3)
        assert "has room for 0 (others leave 0 of 4 CPU)" in refused(tmp_path, joined)
        first.send_signal(signal.SIGCONT)
        finish(first)
    assert result(tmp_path / "runs" / "first") == here


@pytest.mark.parametrize("cores", [1, 3])
def test_a_node_that_dies_costs_its_round_alone(tmp_path, here, cores):
    """Of 4 cores, the node with 3 or with 1. There is no room for new workers: the others share
    its groups."""
    with node(4 - cores) as head, node(cores, head) as second:
        run = start(tmp_path, "run", f"--ray-address={head.address}", f"--rounds={ROUNDS}")
        wait_for(lambda: rounds(tmp_path / "runs" / "run") >= 3, run)
        run.send_signal(signal.SIGSTOP)
        assert 3 <= rounds(tmp_path / "runs" / "run") < ROUNDS
        second.kill()
        run.send_signal(signal.SIGCONT)
        finish(run)
    assert result(tmp_path / "runs" / "run") == here


def test_a_node_without_the_project_is_named(tmp_path):
    (tmp_path / "sitecustomize.py").write_text(MISSING)
    with node(1) as head, node(1, head, search=tmp_path):
        said = refused(tmp_path, f"--ray-address={head.address}")
    assert "a worker cannot start on the Ray node" in said and "install" in said
    assert "(ModuleNotFoundError: No module named 'sim')" in said
