"""Tables of recipes: from the command to the table, killed and continued, and what is lacking is
said."""

import csv
import dataclasses
import json
import os
import signal
import statistics
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest

from sim import bench
from sim.benching import table
from sim.benching.runs import plan
from sim.commands.guard import main_guard
from sim.config.recipe import PLOTS, cells, read
from tests.processes import NEEDS_PROC, alive, descendants, wait_for
from tests.refusing import refusal

pytestmark = pytest.mark.usefixtures("no_report")
ROOT = Path(__file__).parent.parent

HEAD = """
title = "Small"
[settings]
dataset = "{records}"
rounds = 3
batch_size = 60
[[columns]]
name = "2"
settings = {{ epsilon = 2.0 }}
[[columns]]
name = "8"
settings = {{ epsilon = 8.0 }}
[[rows]]
name = "DPSGD"
settings = {{ mechanism = "dpsgd" }}
paper_cells = {{ 8 = ["dpis-ccs-2022/table-2/MNIST/k", "screening-2022/table-3/MNIST/DPSGD/94"] }}
"""
SECOND = """
[[rows]]
name = "DPSUR, beta 0"
settings = { mechanism = "dpsur", dpsur_validation_rate = 0.2 }
cells = { 2 = { dpsur_beta = 0.5 } }
certified = { dpsur_accounting = "every-trial" }
published = { dpsur_accounting = "selective" }
"""


@pytest.fixture
def records(tmp_path) -> str:
    return records_in(tmp_path)


def records_in(folder: Path) -> str:
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 360)
    x = (rng.normal(size=(360, 6)) + y[:, None]).astype(np.float32)
    np.savez(folder / "records.npz", x=x[60:], y=y[60:], x_test=x[:60], y_test=y[:60])
    return str(folder / "records.npz")


def recipe(folder: Path, records: str, more: str = SECOND, **replaced: str) -> Path:
    text = HEAD.format(records=records) + more
    for old, new in replaced.items():
        text = text.replace(old, new)
    (folder / "small.toml").write_text(text)
    return folder / "small.toml"


def run(path: Path, out: Path, *flags: str, expected: int = 0) -> list[dict[str, str]]:
    """The command in this process; the lines of its CSV table."""
    try:
        code = main_guard(bench.command, [str(path), f"--out={out}", "--processes=1", *flags])
    except SystemExit as end:
        code = end.code
    assert code == expected
    budget = "published" if "--budget=published" in flags else "certified"
    return list(csv.DictReader((out / f"{path.stem}-{budget}.csv").open())) if code < 2 else []


def summaries(folder: Path, cell: str) -> list[dict]:
    return [
        json.loads(path.read_text())
        for path in sorted(folder.glob(f"*/{cell}_seed-*/summary.json"))
    ]


def test_from_a_recipe_to_its_table(tmp_path, records, capsys):
    path, out = recipe(tmp_path, records), tmp_path / "out"
    lines = run(path, out, "--seeds=0,1")
    assert [(line["row"], line["column"], line["state"], line["seeds"]) for line in lines] == [
        (row, column, "done", "2") for row in ("DPSGD", "DPSUR, beta 0") for column in "28"
    ]
    for line, cell in zip(
        lines, ("dpsgd_2", "dpsgd_8", "dpsur-beta-0_2", "dpsur-beta-0_8"), strict=True
    ):
        two = summaries(out, cell)
        accuracies = [100 * one["accuracy"] for one in two]
        figures = [
            statistics.mean(accuracies),
            min(accuracies),
            max(accuracies),
            statistics.stdev(accuracies),
        ]
        figures += [max(one[f"epsilon_{c}"][0] for one in two) for c in ("certified", "published")]
        names = ("mean", "least", "largest", "deviation", "certified_epsilon", "published_epsilon")
        assert [float(line[name]) for name in names] == pytest.approx(figures, rel=1e-5)
        assert len({one["run_dir"] for one in two}) == 2 and float(
            line["certified_epsilon"]
        ) <= float(line["column"])
    assert float(lines[1]["difference"]) == pytest.approx(float(lines[1]["mean"]) - 5, abs=1e-3)
    assert (
        lines[1]["source"] == "dpis-ccs-2022/table-2/MNIST/k screening-2022/table-3/MNIST/DPSGD/94"
    )
    assert lines[0]["paper"] == lines[0]["difference"] == ""
    text = (out / "small-certified.md").read_text()
    assert (
        text in capsys.readouterr().out
        and "| DPSGD | 8 |" in text
        and "| DPIS 5, screening 1.64 | +" in text
        and "**" not in text
    )
    assert (out / "small-certified.svg").read_text().count('<g id="line2d') > 4


def test_settings_go_over_each_other_from_the_recipe_to_the_cell(tmp_path, records):
    small = read(recipe(tmp_path, records))
    for budget, accounting in (("certified", "every-trial"), ("published", "selective")):
        runs = plan(small, tmp_path, budget, [4], {"rounds": 9, "seed": 5})
        by_name = {run.folder.name: run.config for run in runs}
        first, second = by_name["dpsur-beta-0_2_seed-4"], by_name["dpsur-beta-0_8_seed-4"]
        assert (first.dpsur.dpsur_beta, second.dpsur.dpsur_beta) == (0.5, -1.0)
        assert (first.privacy.epsilon, second.privacy.epsilon) == (2.0, 8.0)
        assert first.dpsur.dpsur_accounting == accounting and first.privacy.budget == budget
        assert (first.run.seed, first.rounds.rounds, first.data.clients) == (4, 9, 1)
    many = read(recipe(tmp_path, records, title='clients = "many"\ntitle'))
    assert plan(many, tmp_path, "certified", [0], {})[0].config.data.clients == 100


def test_a_recipe_may_state_the_only_budget_that_it_can_be_trained_with(tmp_path, records):
    stated = {'title = "Small"': 'title = "Small"\nbudget = "published"'}
    path, out = recipe(tmp_path, records, **stated), tmp_path / "out"
    words = [str(path), "--columns=2", f"--out={out}", "--processes=1"]
    assert main_guard(bench.command, words) == 0
    (summary,) = summaries(out, "dpsgd_2")
    assert summary["budget"] == "published"


def test_the_papers_budget_holds_its_own_column(tmp_path, records):
    lines = run(recipe(tmp_path, records), tmp_path / "out", "--budget=published", "--columns=2")
    for line in lines:
        assert 1.8 < float(line["published_epsilon"]) <= 2.0
    assert float(lines[1]["certified_epsilon"]) > 2.0
    assert "**" not in (tmp_path / "out" / "small-published.md").read_text()


def test_what_failed_and_what_is_missing_stands_in_its_cell(tmp_path, records):
    """A cell that diverges stops no other, and its reason is given; a seed that is not there yet is
    counted."""
    path, out = (
        recipe(tmp_path, records, SECOND.replace("dpsur_beta = 0.5", "lr = 1e30")),
        tmp_path / "out",
    )
    lines = run(path, out, expected=1)
    assert [line["state"] for line in lines] == ["done", "done", "failed", "done"]
    assert (
        "DPSUR, beta 0, 2, seed 0: " in (text := (out / "small-certified.md").read_text())
        and "diverged" in text
    )
    assert "**failed**" in text and lines[2]["mean"] == ""
    runs = plan(read(path), out / "small-certified", "certified", [0, 1], {})
    states = [line.state for line in table.lines(runs, {})]
    assert states == ["missing 1 of 2 seeds"] * 2 + ["missing", "missing 1 of 2 seeds"]
    text = table.markdown(read(path), "certified", table.lines(runs, {}))
    assert text.count("**missing**") == 1 and text.count("**missing 1 of 2 seeds**") == 3


def finished(out: Path) -> dict[str, bytes]:
    """The models and summaries of finished runs."""
    paths = out.glob("*/*/summary.json")
    return {str(p): p.read_bytes() + (p.parent / "model.safetensors").read_bytes() for p in paths}


def models(out: Path) -> dict[str, bytes]:
    return {path.parent.name: path.read_bytes() for path in out.glob("*/*/model.safetensors")}


def lanes_of(pid: int) -> list[int]:
    """The lanes of a bench: its children that were spawned to work."""
    return [process for process, title in descendants(pid).items() if "spawn_main" in title]


@NEEDS_PROC
def test_a_killed_bench_goes_on_and_repeats_nothing(tmp_path, records):
    """One lane is killed, then the whole command; its lanes end with it, and what was finished
    stays as it was."""
    path, out = (
        recipe(tmp_path, records, SECOND, rounds="keep_checkpoints = 2\nrounds"),
        tmp_path / "out",
    )
    words = [sys.executable, "-m", "sim.bench", str(path), f"--out={out}", "--processes=2"]
    process = subprocess.Popen(
        words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    wait_for(
        lambda: len(lanes_of(process.pid)) == 2 and list(out.glob("*/*/rounds.jsonl")), process
    )
    os.kill(lanes_of(process.pid)[0], signal.SIGKILL)
    wait_for(lambda: finished(out), process)
    lanes = lanes_of(process.pid)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    wait_for(lambda: not any(map(alive, lanes)))
    before = finished(out)
    assert 1 <= len(before) < 4
    lines = run(path, out)
    after = finished(out)
    assert len(after) == 4 and {name: after[name] for name in before} == before
    assert [line["state"] for line in lines] == ["done"] * 4
    run(path, tmp_path / "straight")
    assert models(out) == models(tmp_path / "straight")


@NEEDS_PROC
def test_lanes_end_with_the_command(tmp_path, records):
    """Killed, it can tell them nothing: they see it themselves, thousands of rounds before the end
    of their runs."""
    path, out = recipe(tmp_path, records, "", **{"rounds = 3": "rounds = 5000"}), tmp_path / "out"
    words = [sys.executable, "-m", "sim.bench", str(path), f"--out={out}", "--processes=2"]

    def rounds() -> int:
        return sum(path.read_bytes().count(b"\n") for path in out.glob("*/*/rounds.jsonl"))

    with subprocess.Popen(
        words, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        wait_for(lambda: len(list(out.glob("*/*/rounds.jsonl"))) == 2, process)
        lanes, before = lanes_of(process.pid), rounds()
        process.send_signal(signal.SIGKILL)
    try:
        assert len(lanes) == 2
        wait_for(lambda: not any(map(alive, lanes)) or rounds() > before + 500)
        assert not any(map(alive, lanes))
    finally:
        for lane in filter(alive, lanes):
            os.kill(lane, signal.SIGKILL)


@NEEDS_PROC
def test_a_dead_lane_costs_its_run_alone(tmp_path, records):
    """As when the memory does not suffice. Both lanes die, one of them idle, the other at a run
    that would not end; others go on. Kills a run that a dead lane is given."""
    from sim.benching import lanes

    runs = plan(read(recipe(tmp_path, records)), tmp_path / "out", "certified", [0], {})
    rounds = runs[1].config.rounds.model_copy(update={"rounds": 10**6})
    endless = runs[1].config.model_copy(update={"rounds": rounds})
    runs[1] = dataclasses.replace(runs[1], config=endless)
    said = []
    for run_, fault in lanes.played(runs, 2):
        said.append((run_, fault))
        if len(said) == 1:
            for lane in lanes_of(os.getpid()):
                os.kill(lane, signal.SIGKILL)
                os.waitid(os.P_PID, lane, os.WEXITED | os.WNOWAIT)  # all its threads are gone
    assert said[0] == (runs[0], "") and {run_ for run_, _ in said} == set(runs) and len(said) == 4
    assert [run_ for run_, fault in said if "its process died" in fault] == [runs[1]]
    assert [run_.finished for run_ in runs] == [True, False, True, True]
    assert lanes_of(os.getpid()) == []


def test_a_finished_table_is_written_without_training(tmp_path, records, monkeypatch):
    path, out = recipe(tmp_path, records), tmp_path / "out"
    first = run(path, out)
    monkeypatch.setattr("sim.benching.lanes.play", lambda run: pytest.fail("trained again"))
    assert run(path, out) == first


def test_a_part_of_a_table_leaves_the_rest_in_it(tmp_path, records):
    """What other rows and columns have given stays, of run directories and of result files; the
    exit status is of what was requested. Kills a table of the requested cells alone."""
    path, out, cells_ = recipe(tmp_path, records), tmp_path / "out", f"--cells={tmp_path / 'cells'}"
    part = run(path, out, "--rows=DPSGD", "--columns=2", cells_)
    assert [(line["row"], line["column"]) for line in part] == [("DPSGD", "2")]
    whole = run(path, out, cells_)
    assert len(whole) == 4 and whole[0] == part[0]
    assert run(path, out, "--rows=DPSGD") == whole
    assert run(path, tmp_path / "other", "--columns=8", cells_) == whole


def test_a_table_of_many_clients_goes_on_in_its_folder(tmp_path, records, capsys):
    """How many clients are computed together is chosen by a run, and saved. Kills a comparison
    that takes it for another setting; one that is given is."""
    many = {"[settings]": 'clients = "many"\n[settings]\nclients = 3'}
    path, cell = recipe(tmp_path, records, **many), ("--rows=DPSGD", "--columns=2")
    first = run(path, tmp_path / "out", *cell)
    assert run(path, tmp_path / "out", *cell) == first
    many["[settings]"] += "\nchunk_clients = 1"
    run(recipe(tmp_path, records, **many), tmp_path / "out", *cell, expected=2)
    assert "trained with other settings (chunk_clients)" in capsys.readouterr().err


def test_other_settings_need_another_folder(tmp_path, records, capsys):
    run(recipe(tmp_path, records), tmp_path / "out", "--rows=DPSGD", "--columns=2")
    run(recipe(tmp_path, records, rounds="rounds = 4\nsteps"), tmp_path / "out", expected=2)
    said = capsys.readouterr().err
    assert "trained with other settings (epochs, rounds, steps)" in said and "--out" in said


@pytest.mark.parametrize(
    ("replaced", "flags", "parts"),
    [
        (
            {"mechanism": "mecanism"},
            (),
            ["DPSGD, 2", "unknown setting mecanism", "did you mean mechanism?"],
        ),
        ({"epsilon = 2.0": "epsilon = -2.0"}, (), ["DPSGD, 2", "epsilon is -2.0"]),
        ({"rounds = 3": "clients = 3"}, (), ["clients is 3", "sim.run"]),
        ({"paper_cells = { 8": "paper_cells = { 9"}, (), ["small.toml", "'9' is no row or column"]),
        ({'name = "8"': 'name = "2"'}, (), ["small.toml", "column '2' has the name of another"]),
        (
            {'name = "8"': 'name = "50 %"\nreach = 50', 'name = "2"': 'name = "Reach"'}
            | {"settings = { epsilon = 8.0 }": "", "{ 8 = [": '{ "50 %" = ['},
            (),
            ["small.toml", "column 'Reach' has the name of the folder in which '50 %' is measured"],
        ),
        ({"title": "titel"}, (), ["small.toml", "title"]),
        ({"[settings]": "plto = 1\n[settings]"}, (), ["plto: unknown", "did you mean plot?"]),
        ({"[settings]": "[settings"}, (), ["small.toml is not a TOML file"]),
        ({}, ("--rows=DPIS",), ["--rows DPIS is not in 'Small'", "known: DPSGD"]),
        ({}, ("--rows=DPSGD, DPIS, 2",), ["--rows DPIS is not in 'Small'", "known: DPSGD"]),
        (
            {'name = "DPSGD"': 'name = "DPSGD"\ncolumns = ["8"]'},
            ("--rows=DPSGD", "--columns=2"),
            ["small.toml has no cell in --rows DPSGD and --columns 2: choose others"],
        ),
        ({}, ("--processes=0",), ["processes = 0", "--processes"]),
    ],
)
def test_faults_are_one_line_before_anything_runs(
    tmp_path, records, capsys, replaced, flags, parts
):
    run(recipe(tmp_path, records, **replaced), tmp_path / "out", *flags, expected=2)
    said = capsys.readouterr().err
    assert [part for part in parts if part not in said] == [] and said.count("\n") == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("flag", ["out", "cells", "page"])
def test_what_cannot_be_written_is_refused_before_anything_runs(tmp_path, records, capsys, flag):
    """It was found out once the first cell had been trained."""
    (tmp_path / "file").touch()
    place, folder = f"--{flag}={tmp_path / 'file' / 'x' / 'y'}", tmp_path / "out"
    run(recipe(tmp_path, records), folder, place, expected=2)
    said = capsys.readouterr().err
    assert f"{flag} = {tmp_path}/file/x" in said and f"give --{flag} a writable folder" in said
    assert said.count("\n") == 1 and not list(folder.glob("*"))


def test_the_folder_of_a_page_is_made(tmp_path, records):
    page = tmp_path / "site" / "page.md"
    run(
        recipe(tmp_path, records), tmp_path / "out", "--rows=DPSGD", "--columns=2", f"--page={page}"
    )
    assert page.is_file()


def test_a_plot_of_nothing_is_said_once_its_runs_are_done(tmp_path, records):
    path, out = recipe(tmp_path, records, title='plot = "acceptance_rat"\ntitle'), tmp_path / "out"
    said = "plot = 'acceptance_rat' draws nothing"
    with pytest.warns(UserWarning, match=f"{said}.*: known: {', '.join(PLOTS)}$"):
        run(path, out, "--rows=DPSGD")
    with pytest.warns(UserWarning, match=f"{said}.* did you mean 'acceptance_rate'. known: "):
        run(path, out, "--columns=2")
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        run(recipe(tmp_path, records, title='plot = "acceptance_rate"\ntitle'), out)


def test_a_recipe_of_the_project_is_suggested(capsys):
    said = refusal(capsys, bench.command, ["mnist-scatterin"])
    assert "cannot be read (No such file or directory); did you mean mnist-scattering? " in said


@pytest.mark.parametrize(
    "path", sorted((ROOT / "recipes").glob("*.toml")), ids=lambda path: path.stem
)
@pytest.mark.parametrize("budget", ["certified", "published"])
def test_every_recipe_of_the_project_can_be_planned(tmp_path, path, budget):
    small = read(path)
    runs = plan(small, tmp_path, budget, [0], {})
    shared = sum(run.cell.reach is not None for run in runs)
    assert len({run.folder for run in runs if run.cell.reach is None}) == len(runs) - shared > 1
    assert len(runs) == len(cells(small, budget))
    assert small.plot in PLOTS or small.plot.startswith("dpis_")


def test_plots_by_column_and_by_round(tmp_path, records):
    """Of columns, points stand in their order; by round, a mean over seeds; figures of the
    mechanism by their name."""
    path, out = recipe(tmp_path, records), tmp_path / "out"
    run(path, out, "--seeds=0,1")
    small = read(path)
    lines = table.lines(plan(small, out / "small-certified", "certified", [0, 1], {}), {})
    drawn = {
        p: table.points(small.model_copy(update={"plot": p}), lines)
        for p in (*PLOTS, "acceptance_rate")
    }
    assert {name: [x for x, _ in one] for name, one in drawn["column"].items()} == {
        "DPSGD": [0, 1],
        "DPSUR, beta 0": [0, 1],
    }
    assert [x for x, _ in drawn["epsilon"]["DPSGD"]] == [
        line.epsilon("certified") for line in lines[:2]
    ]
    two = [[r.accuracy for r in one.rounds] for one in lines[0].results]
    assert drawn["accuracy"]["DPSGD, epsilon 2"] == [
        (n, statistics.mean(pair)) for n, pair in enumerate(zip(*two, strict=True), 1)
    ]
    assert set(drawn["acceptance_rate"]) == {"DPSUR, beta 0, epsilon 2", "DPSUR, beta 0, epsilon 8"}
