"""The leaderboard fills itself: which cell comes next, what another machine needs to go on, and
what the page says."""

import hashlib
import json
import math
import multiprocessing
import re
import shutil
import subprocess
import time
from types import SimpleNamespace
from typing import ClassVar

import pytest

from mechanisms.accounting.accountant import epsilon
from mechanisms.accounting.events import SampledGaussian
from server.records import Summary
from sim import bench
from sim.benching import kept, lanes, queue
from sim.benching import runs as runs_of
from sim.benching.runs import config_of, plan, result
from sim.commands import bench as bench_flags
from sim.commands.guard import main_guard
from sim.config.configuration import load
from sim.config.recipe import cells, read
from tests import unequal
from tests.test_bench import recipe, records, records_in, run

__all__ = ["records"]
pytestmark = pytest.mark.usefixtures("no_report")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    path, out, files = recipe(folder, records_in(folder)), folder / "out", folder / "cells"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sim.engines.session.write_report", lambda folder: folder)
        run(path, out, "--columns=2", f"--cells={files}")
        run(path, out, "--columns=2", "--rows=DPSGD", "--seeds=0,1", f"--cells={files}")
    shutil.rmtree(out)
    return folder


@pytest.fixture
def filled(tmp_path, trained):
    """A recipe of four cells, of which two have one seed and one has two; with its files alone."""
    folder = shutil.copytree(trained, tmp_path / "filled")
    return folder / "small.toml", tmp_path / "elsewhere", folder / "cells"


def test_small_files_are_all_that_another_machine_needs(filled, monkeypatch):
    path, out, files = filled
    monkeypatch.setattr("sim.benching.lanes.play", lambda run: pytest.fail("trained again"))
    page = out.with_name("page.md")
    flags = ("--columns=2", f"--cells={files}", f"--page={page}")
    lines = run(path, out, *flags)
    assert [line["state"] for line in lines] == ["done", "done"]
    stored = json.loads((files / "small-certified" / "dpsgd_2_seed-0.json").read_text())
    assert float(lines[0]["mean"]) == pytest.approx(100 * stored["summary"]["accuracy"], rel=1e-5)
    assert float(lines[0]["certified_epsilon"]) == pytest.approx(
        stored["summary"]["epsilon_certified"][0], rel=1e-5
    )
    assert stored["settings"]["mechanism"] == "dpsgd" and stored["seed"] == 0 and stored["code"]
    text = page.read_text()
    body = [line for line in text.splitlines() if line.startswith("| ") and "small, 2" in line]
    assert len(body) == 2 and all(line.startswith("| 2 | ") for line in body)
    assert "| small | certified | 4 | 2 | 0 | 0.011 | DPSGD: 8; DPSUR, beta 0: 8 |" in text


def test_a_file_of_other_settings_counts_for_nothing(filled, records):
    path, out, files = filled
    folder = out / "small-certified"
    same, other = (
        plan(read(path), folder, "certified", [0], given, files)[0] for given in ({}, {"lr": 9.0})
    )
    assert (
        same.finished and result(same) is not None and not other.finished and result(other) is None
    )
    free = plan(read(path), folder, "certified", [0], {"data_dir": "elsewhere"}, files)[0]
    assert free.finished


def test_cells_with_the_fewest_seeds_come_first_and_of_them_the_cheapest(filled):
    path, out, files = filled
    runs = plan(read(path), out / "small-certified", "certified", [0, 1, 2], {}, files)
    order = [(one.cell.row, one.cell.column, one.seed) for one in queue.ordered(runs)]
    assert sorted(order) == sorted(
        (r.cell.row, r.cell.column, r.seed) for r in runs if not r.finished
    )
    done = {("DPSGD", "2"): 2, ("DPSUR, beta 0", "2"): 1}
    had = [
        done.get(one[:2], 0) + sum(o[:2] == one[:2] for o in order[:place])
        for place, one in enumerate(order)
    ]
    assert had == sorted(had) and order[:2] == [("DPSGD", "8", 0), ("DPSUR, beta 0", "8", 0)]


def test_what_is_missing_takes_as_long_as_a_seed_of_each_cell_without_any(filled):
    """Columns that are measured on one training count once."""
    path, out, files = filled
    folder = out / "small-certified"
    runs = plan(read(path), folder, "certified", [0, 1, 2], {}, files)
    absent = [run for run in runs if run.cell.column == "8" and run.seed == 0]
    assert len(absent) == 2 and queue.missing(runs) == sum(
        queue.seconds(run.config) for run in absent
    )
    path.write_text(path.read_text().replace("settings = { epsilon = 8.0 }", "reach = 50.0"))
    text = path.read_text() + '\n[[columns]]\nname = "60"\nreach = 60.0\n'
    path.write_text(text)
    runs = plan(read(path), folder, "certified", [0, 1, 2], {}, files)
    absent = [run for run in runs if run.cell.column == "8" and run.seed == 0]
    assert queue.missing(runs) == sum(queue.seconds(run.config) for run in absent)


def test_an_end_that_is_over_trains_nothing_and_says_what_is_missing(filled):
    path, out, files = filled
    page = out.with_name("page.md")
    lines = run(path, out, "--hours=0", f"--cells={files}", f"--page={page}")
    assert [line["state"] for line in lines] == [
        "missing 3 of 5 seeds",
        "missing",
        "missing 4 of 5 seeds",
        "missing",
    ]
    assert (
        not list(out.glob("*/*/"))
        and "| 2 | 0 | 0.011 | DPSGD: 8; DPSUR, beta 0: 8 |" in page.read_text()
    )
    before = page.read_text()
    run(path, out, "--hours=0", "--rows=DPSGD", "--columns=8", f"--cells={files}", f"--page={page}")
    assert page.read_text() == before


@pytest.mark.parametrize("rows", ["DPSUR, beta 0", "DPSUR, beta 0 , DPSGD", "DPSGD,DPSUR, beta 0"])
def test_rows_with_commas_in_their_names_can_be_chosen(tmp_path, records, rows):
    path, flags = recipe(tmp_path, records), ("--hours=0", f"--cells={tmp_path / 'none'}")
    lines = run(path, tmp_path / "out", f"--rows={rows}", "--columns=2", *flags)
    assert [line["row"] for line in lines] == [
        name for name in ("DPSGD", "DPSUR, beta 0") if name in rows
    ]


def test_with_an_end_everything_is_trained_that_there_is_time_for(filled):
    path, out, files = filled
    lines = run(path, out, "--hours=10", "--columns=2", "--seeds=0,1", f"--cells={files}")
    assert [line["state"] for line in lines] == ["done"] * 2
    assert len(list(files.glob("*/*.json"))) == 4 and len(list(out.glob("*/*/summary.json"))) == 1


def test_of_many_clients_the_largest_figure_is_kept_and_infinite_stays_infinite(tmp_path, records):
    path, folder = recipe(tmp_path, records), tmp_path / "run"
    cell = cells(read(path), "certified")[0]
    config = config_of(cell, {"seed": 1}, central=True)
    run(path, tmp_path / "out", "--columns=2", "--rows=DPSGD")
    (finished,) = (tmp_path / "out").glob("*/*/summary.json")
    shutil.copytree(finished.parent, folder)
    summary = json.loads(finished.read_text())
    for values, largest in (([1.0, 3.0, 2.0], 3.0), ([1.0, None], None)):
        unequal = Summary.from_json(summary | {"epsilon_certified": values})
        kept.save(tmp_path / f"{len(values)}.json", cell, config, folder, unequal)
        read_back = kept.load(tmp_path / f"{len(values)}.json", kept.digest(config))
        assert read_back is not None and read_back.summary.epsilon_certified == (largest,)
        rounds = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
        assert [r.accuracy for r in read_back.rounds] == pytest.approx(
            [r["accuracy"] for r in rounds], rel=1e-5
        )
    assert (tmp_path / "3.json").stat().st_size < 4_000


def test_estimates_grow_with_the_work_and_end_with_the_budget():
    def seconds(**given) -> float:
        given = {"dataset": "mnist", "rounds": 10, **given}
        return queue.seconds(load(None, given, central=True)) - queue.START

    assert seconds(rounds=20) == pytest.approx(2 * seconds()) and seconds(
        model="cnn-cifar"
    ) > seconds(model="linear")
    fixed = {"noise_multiplier": 1.23, "batch_size": 512, "epsilon": 3.0}
    assert seconds(rounds=400, **fixed) == seconds(rounds=4_000, **fixed)
    assert seconds(rounds=400, **fixed) < seconds(rounds=400, **fixed | {"epsilon": 6.0})
    assert math.isfinite(seconds(mechanism="none"))
    most = queue._affordable(0.01, 1.0, 3.0, 1e-5, 100_000)
    step = SampledGaussian(0.01, 1.0)
    spent = [epsilon({step: most + n}, 1e-5, "published").epsilon for n in (0, 1)]
    assert spent[0] <= 3.0 < spent[1]


def test_times_of_day_are_ahead_of_us_and_no_end_is_none():
    for text in ("00:00", "09:30", "23:59"):
        assert 0 < bench_flags._moment(text) <= 86_400
    assert lanes.left(None) is None and lanes.left(time.monotonic() - 1) == 0.0
    assert lanes.left(time.monotonic() + 1e6) > 9e5


@pytest.mark.parametrize(
    ("flags", "part"),
    [
        (("--hours=-1",), "at least 0"),
        (("--hours=nan",), "hours = nan must be at least 0 and at most 8760"),
        (("--hours=inf",), "hours = inf must be at least 0 and at most 8760"),
        (("--hours=1", "--until=09:30"), "not allowed with"),
        (("--until=99:99",), "--until: '99:99' must be a time of day"),
    ],
)
def test_an_end_that_cannot_be_is_refused(tmp_path, records, capsys, flags, part):
    words = [str(recipe(tmp_path, records)), f"--out={tmp_path / 'out'}", *flags]
    assert main_guard(bench.command, words) == 2
    err = capsys.readouterr().err
    assert part in err and err.count("\n") == 1


def test_a_cell_costs_what_its_timed_runs_took_on_average(tmp_path, records, monkeypatch):
    """Of two cells with two seeds each, one of which was timed once. Kills times that are added
    up, and a run without a time that counts as one."""
    runs = plan(read(recipe(tmp_path, records)), tmp_path / "out", "certified", [0, 1, 2], {})
    times = {("DPSGD", "2"): (20.0, None), ("DPSUR, beta 0", "2"): (14.0, 18.0)}

    def timed(run):
        known = dict(enumerate(times.get((run.cell.row, run.cell.column), ())))
        if run.seed not in known:
            return None
        return kept.Result(unequal.summary(seconds=known[run.seed]), ())

    monkeypatch.setattr(queue, "result", timed)
    monkeypatch.setattr(runs_of.Run, "finished", property(lambda run: timed(run) is not None))
    order = [(one.cell.row, one.cell.column, one.seed) for one in queue.ordered(runs)]
    of_two = [one for one in order if one[1] == "2"]
    assert of_two == [("DPSUR, beta 0", "2", 2), ("DPSGD", "2", 2)]


class Instant:
    """A lane that has done a run as soon as it is given one, and says which one it was."""

    given: ClassVar[list[str]] = []
    alive = True

    def __init__(self, stack):
        self.pipe, self._far = multiprocessing.Pipe()
        stack.callback(self.pipe.close)
        stack.callback(self._far.close)

    def give(self, run: str) -> None:
        Instant.given.append(run)
        self._far.send(f"fault of {run}")

    def answer(self) -> str:
        return self.pipe.recv()


def test_lanes_take_runs_in_their_order_and_each_fault_is_its_own(monkeypatch):
    """And none is begun once the time is over. Kills runs from the last to the first, another
    run's fault, and a run that is begun although nobody will wait for it."""
    monkeypatch.setattr(lanes, "_Lane", Instant)
    for processes in (1, 2):
        monkeypatch.setattr(Instant, "given", [])
        found = list(lanes.played(list("abcde"), processes, time.monotonic() + 1e6))
        assert Instant.given == list("abcde")
        assert sorted(found) == [(run, f"fault of {run}") for run in "abcde"]
    monkeypatch.setattr(Instant, "given", [])
    rest = iter([9.0, 9.0, 9.0, 9.0])
    assert lanes.left(time.monotonic() - 9.0) == 0.0
    monkeypatch.setattr(lanes, "left", lambda until: next(rest, 0.0))
    assert {run for run, _ in lanes.played(list("abcde"), 1, 1.0)} == {"a", "b"}
    assert Instant.given == ["a", "b"]


class Busy(Instant):
    """A lane whose run does not end."""

    def give(self, run: str) -> None:
        Instant.given.append(run)


def test_runs_that_do_not_end_in_time_are_left_behind(monkeypatch):
    """They can be resumed. Kills a table that waits for its last run."""
    monkeypatch.setattr(lanes, "_Lane", Busy)
    monkeypatch.setattr(Instant, "given", [])
    assert list(lanes.played(list("abc"), 2, time.monotonic() + 0.01)) == []
    assert Instant.given == ["a", "b"]


def test_without_git_the_code_is_named_by_its_sources(tmp_path, monkeypatch):
    """Of every package: the same files have the same name, other ones another."""
    monkeypatch.setattr(kept, "ROOT", tmp_path)
    answer = SimpleNamespace(stdout="the commit of another project\n")
    monkeypatch.setattr(kept.subprocess, "run", lambda *_, **__: answer)
    names = set()
    for package in ("mechanisms", "client", "strategies", "server", "sim"):
        (tmp_path / package / "inner").mkdir(parents=True)
        (tmp_path / package / "inner" / "file.py").write_text(package)
        names.add(kept.code.__wrapped__())
    (tmp_path / "server" / "inner" / "file.py").write_text("changed")
    names.add(kept.code.__wrapped__())
    for name in ("z", "y", "a", "m"):  # in the order of their names, whatever the folder's
        (tmp_path / "sim" / f"{name}.py").write_text(name)
    whole = "mechanismsclientstrategieschangeda" + "sim" + "myz"
    expected = hashlib.sha256(whole.encode()).hexdigest()[:12]
    assert kept.code.__wrapped__() == f"sources {expected}"
    names.add(f"sources {expected}")
    (tmp_path / "pyproject.toml").touch()
    assert kept.code.__wrapped__() == "the commit of another project"
    monkeypatch.setattr(kept.subprocess, "run", failing)
    names.add(kept.code.__wrapped__())
    assert len(names) == 7 and all(re.fullmatch("sources [0-9a-f]{12}", name) for name in names)


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_with_git_the_code_is_named_by_its_commit_and_by_whether_files_differ(
    tmp_path, monkeypatch
):
    """The name says nothing of tags, for they move."""
    monkeypatch.setattr(kept, "ROOT", tmp_path)

    def git(*words: str) -> str:
        who = ("-c", "user.name=somebody", "-c", "user.email=somebody@example.org")
        line = ["git", "-C", str(tmp_path), *who, *words]
        return subprocess.run(line, capture_output=True, text=True, check=True).stdout.strip()

    git("init", "--quiet")
    (tmp_path / "pyproject.toml").touch()
    git("add", "--all")
    git("commit", "--quiet", "--message=first", "--no-gpg-sign")
    git("tag", "--annotate", "--message=newest", "newest")
    commit = git("rev-parse", "HEAD")[:12]
    assert kept.code.__wrapped__() == commit
    (tmp_path / "pyproject.toml").write_text("changed")
    assert kept.code.__wrapped__() == f"{commit}+"


def failing(*_, **__):
    raise OSError("there is no git")
