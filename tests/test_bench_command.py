"""``python -m sim.bench`` over finished runs: which files and lines it writes, of which runs, and
its status."""

import csv
import dataclasses
import json
import os
import shutil
import time
from datetime import datetime
from pathlib import Path

import pytest

from sim import bench
from sim.benching import kept, lanes
from sim.benching.runs import plan, play, result
from sim.commands import bench as bench_flags
from sim.commands.guard import main_guard
from sim.config.configuration import save
from sim.config.papers import RECIPES, ROOT
from sim.config.recipe import read
from sim.showing import plots
from tests import unequal
from tests.vouched import vouch

RECIPE = """
title = "Small"
axis = "noise"
plot = "{plot}"
[[columns]]
name = "3"
[[columns]]
name = "1"
[[rows]]
name = "A"
paper_cells = {{ 3 = ["screening-2022/table-3/MNIST/DPSGD/94"] }}
[[rows]]
name = "B"
settings = {{ mechanism = "dpsur" }}
"""
ACCURACY = {("A", "3"): 0.625, ("A", "1"): 0.5, ("B", "3"): 0.75, ("B", "1"): 0.25}
"""Of seed 4; seed 7 has an eighth more."""


def finished(
    folder: Path, name: str = "small", plot: str = "epsilon", budget: str = "certified"
) -> Path:
    """A recipe all of whose runs are there; certified epsilons are 8 times the accuracy, published
    ones 10 times."""
    path = folder / f"{name}.toml"
    path.write_text(RECIPE.format(plot=plot))
    for run in plan(
        read(path), folder / "out" / f"{name}-{budget}", budget, [4, 7], {"data_dir": "there"}
    ):
        accuracy = ACCURACY[run.cell.row, run.cell.column] + (run.seed == 7) / 8
        run.folder.mkdir(parents=True)
        save(run.config, run.folder / "config.toml")
        spent = {
            "epsilon_certified": (8 * accuracy, 0.5),
            "epsilon_published": (0.25, 10 * accuracy),
        }
        summary = unequal.summary(accuracy=accuracy, **spent)
        (run.folder / "summary.json").write_text(json.dumps(summary.to_json()))
        rounds = [
            dataclasses.replace(one, accuracy=accuracy * one.round / 3) for one in unequal.ROUNDS
        ]
        (run.folder / "rounds.jsonl").write_text(
            "".join(json.dumps(one.to_json()) + "\n" for one in rounds)
        )
        vouch(run.folder)
    return path


@pytest.fixture(autouse=True)
def figures(monkeypatch) -> list:
    made = []
    monkeypatch.setattr(plots, "svg", lambda figure: made.append(figure) or b"picture")
    monkeypatch.setattr(
        "sim.benching.lanes.play", lambda run: f"no data {run.config.data.data_dir}"
    )
    return made


def command(folder: Path, *words: str) -> int:
    flags = [f"--out={folder / 'out'}", "--data-dir=there", "--processes=1"]
    try:
        return main_guard(bench.command, [*words, *flags])
    except SystemExit as end:
        return int(end.code)


def lines(folder: Path, stem: str = "small-certified") -> list[dict[str, str]]:
    return list(csv.DictReader((folder / "out" / f"{stem}.csv").open()))


@pytest.mark.parametrize("budget", ["certified", "published"])
def test_the_table_is_of_all_cells_and_seeds(tmp_path, capsys, budget):
    path = finished(tmp_path, budget=budget)
    assert command(tmp_path, str(path), "--seeds=7,4,7", f"--budget={budget}") == 0
    found = lines(tmp_path, f"small-{budget}")
    assert [(one["row"], one["column"]) for one in found] == list(ACCURACY)
    for one, accuracy in zip(found, ACCURACY.values(), strict=True):
        assert (one["seeds"], one["state"], one["budget"]) == ("2", "done", budget)
        assert float(one["mean"]) == 100 * (accuracy + 1 / 16)
        assert float(one["certified_epsilon"]) == 8 * (accuracy + 1 / 8)
        assert float(one["published_epsilon"]) == 10 * (accuracy + 1 / 8)
    text = (tmp_path / "out" / f"small-{budget}.md").read_text()
    said = capsys.readouterr().out
    assert (
        said == f"\n{text}\n{tmp_path / 'out' / f'small-{budget}.md'}, .csv, .svg\n"
        and "# Small" in text
    )
    assert (tmp_path / "out" / f"small-{budget}.svg").read_bytes() == b"picture"


AXES = {
    "epsilon": (
        "certified epsilon",
        "accuracy",
        {"A": [(5.0, 0.5625), (6.0, 0.6875)], "B": [(3.0, 0.3125), (7.0, 0.8125)]},
    ),
    "frontier": (
        "certified epsilon",
        "accuracy",
        {
            "A": [(5.0, 0.5625), (6.0, 0.6875)],
            "B": [(3.0, 0.3125), (7.0, 0.8125)],
            "frontier": [(3.0, 0.3125), (5.0, 0.5625), (6.0, 0.6875), (7.0, 0.8125)],
        },
    ),
    "column": (
        "noise",
        "accuracy",
        {"A": [(0, 0.6875), (1, 0.5625)], "B": [(0, 0.8125), (1, 0.3125)]},
    ),
    "acceptance_rate": (
        "round",
        "acceptance rate",
        {f"{row}, noise {column}": [(1, 0.75), (2, 0.25), (3, 0.625)] for row, column in ACCURACY},
    ),
}


@pytest.mark.parametrize("plot", AXES)
def test_the_plot_is_of_the_table_and_says_what_its_axes_are(tmp_path, figures, plot):
    assert command(tmp_path, str(finished(tmp_path, plot=plot)), "--seeds=4,7") == 0
    (axes,) = figures[-1].axes
    drawn = {
        line.get_label(): list(zip(line.get_xdata(), line.get_ydata(), strict=True))
        for line in axes.get_lines()
    }
    assert (axes.get_xlabel(), axes.get_ylabel(), drawn) == AXES[plot]
    ticks = [tick.get_text() for tick in axes.get_xticklabels()]
    assert ticks == ["3", "1"] if plot == "column" else len(ticks) > 2 and ticks != ["3", "1"]


def test_boxes_have_an_axis_of_columns(tmp_path, figures):
    assert command(tmp_path, str(finished(tmp_path, plot="boxes")), "--seeds=4,7") == 0
    (axes,) = figures[-1].axes
    assert (axes.get_xlabel(), axes.get_ylabel(), len(axes.patches)) == ("noise", "accuracy", 4)
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["3", "1"]


def test_cells_run_in_this_process_unless_the_recipe_names_an_engine(tmp_path):
    """Which changes no result: files of one engine count for the other."""
    path = tmp_path / "small.toml"
    path.write_text(RECIPE.format(plot="column"))
    first = plan(read(path), tmp_path / "out", "certified", [0], {})
    path.write_text(
        path.read_text().replace('name = "1"', 'name = "1"\nsettings = {engine = "ray"}')
    )
    then = plan(read(path), tmp_path / "out", "certified", [0], {})
    assert {run.config.run.engine for run in first} == {"inline"}
    assert [run.config.run.engine for run in then] == ["inline", "ray"] * 2
    assert [run.digest for run in first] == [run.digest for run in then]


def test_rows_columns_and_seeds_are_those_that_were_asked_for(tmp_path, capsys):
    """What is not there is tried, and what was wrong with it is said; what is there is not tried
    again. Other cells stand in the table with what they have."""
    assert (
        command(tmp_path, str(finished(tmp_path)), "--rows=B", "--columns=1, 3", "--seeds=4,5") == 1
    )
    found = [
        (one["row"], one["column"], one["seeds"], one["state"], one["mean"])
        for one in lines(tmp_path)
    ]
    assert found == [
        ("A", "3", "1", "missing 1 of 2 seeds", "62.5"),
        ("A", "1", "1", "missing 1 of 2 seeds", "50"),
        ("B", "3", "1", "failed 1 of 2 seeds", "75"),
        ("B", "1", "1", "failed 1 of 2 seeds", "25"),
    ]
    said = capsys.readouterr().out
    assert said.startswith(
        f"2 runs to train; rounds.jsonl in the folders of {tmp_path / 'out'} says how far they "
        "are\n"
        "1/2 small: B, 3, seed 5: failed: no data there\n2/2 small: B, 1, seed 5: failed: no data"
    )
    assert (
        "- B, 1, seed 5: no data there\n" in (tmp_path / "out" / "small-certified.md").read_text()
    )


def test_without_a_time_limit_a_cell_has_all_its_seeds_before_the_next_one(
    tmp_path, capsys, monkeypatch
):
    """In the recipe's order; with one, every cell has a first seed before any has a second."""
    monkeypatch.setattr(lanes, "played", lambda runs, *_: ((run, "no data") for run in runs))
    places = [f"{row}, {column}" for row, column in ACCURACY]
    pairs = [(place, seed) for place in places for seed in (5, 6)]
    for flags, order in (((), pairs), (("--hours=1",), pairs[::2] + pairs[1::2])):
        folder = tmp_path / str(len(flags))
        folder.mkdir()
        files = (f"--cells={folder / 'cells'}", f"--page={folder / 'page.md'}")
        assert command(folder, str(finished(folder)), "--seeds=5,6", *files, *flags) == 1
        said = [line for line in capsys.readouterr().out.splitlines() if ": failed: " in line]
        assert [line.split(" small: ")[1].split(": failed")[0] for line in said] == [
            f"{place}, seed {seed}" for place, seed in order
        ]


def test_a_missing_data_directory_is_told_once_and_nothing_is_written(tmp_path, capsys):
    """Every run failed, one after the other, and a table of failures took the last one's place."""
    path = tmp_path / "small.toml"
    path.write_text('settings = { dataset = "mnist" }\n' + RECIPE.format(plot="epsilon"))
    assert command(tmp_path, str(path)) == 2
    assert capsys.readouterr().err.startswith("error: data_dir = 'there' is no directory: ")
    assert not (tmp_path / "out").exists()


def test_one_table_that_lacks_a_cell_decides_the_status(tmp_path, capsys):
    """And the table that is whole is written all the same."""
    whole, lacking = finished(tmp_path), finished(tmp_path, "other")
    assert command(tmp_path, str(whole), str(lacking), "--seeds=4,7") == 0
    for path in (tmp_path / "out" / "other-certified").glob("b_3_*/summary.json"):
        path.unlink()
    assert command(tmp_path, str(whole), str(lacking), "--seeds=4,7") == 1
    assert {one["state"] for one in lines(tmp_path)} == {"done"}
    assert [one["state"] for one in lines(tmp_path, "other-certified")] == [
        "done",
        "done",
        "failed",
        "done",
    ]
    assert command(tmp_path, str(whole), str(whole)) == 2
    assert "two recipes have the same file name" in capsys.readouterr().err


@pytest.mark.parametrize(("fault", "status"), [("", 0), ("no data", 1)])
def test_with_an_end_what_there_was_no_time_for_is_no_fault_and_a_fault_is_one(
    tmp_path, monkeypatch, fault, status
):
    """One of four runs was tried."""
    monkeypatch.setattr(lanes, "played", lambda runs, *_: ((run, fault) for run in runs[:1]))
    flags = (
        "--hours=1",
        "--seeds=4,5",
        f"--cells={tmp_path / 'cells'}",
        f"--page={tmp_path / 'page.md'}",
    )
    assert command(tmp_path, str(finished(tmp_path)), *flags) == status


def test_a_fault_in_one_of_several_tables_decides_the_status(tmp_path, monkeypatch):
    monkeypatch.setattr(lanes, "played", lambda runs, *_: ((run, "no data") for run in runs[:1]))
    paths = [str(finished(tmp_path, name)) for name in ("small", "other")]
    files = (f"--cells={tmp_path / 'cells'}", f"--page={tmp_path / 'page.md'}")
    assert command(tmp_path, *paths, "--hours=1", "--seeds=4,5", *files) == 1


@pytest.mark.parametrize("budget", ["certified", "published"])
def test_a_path_is_drawn_against_the_epsilon_that_the_budget_bounds(tmp_path, figures, budget):
    path = finished(tmp_path, plot="path", budget=budget)
    assert command(tmp_path, str(path), "--seeds=4,7", f"--budget={budget}") == 0
    assert figures[-1].axes[0].get_xlabel() == f"{budget} epsilon"


def test_runs_that_were_finished_before_are_kept_in_small_files(tmp_path):
    """Nothing is left to be trained. Kills files of what is trained at the moment alone."""
    path, cells = finished(tmp_path), tmp_path / "cells"
    assert command(tmp_path, str(path), "--seeds=4,7", f"--cells={cells}") == 0
    assert len(list(cells.glob("small-certified/*.json"))) == 2 * len(ACCURACY)


def test_the_page_of_the_project_is_not_written_of_cells_that_are_kept_elsewhere(
    tmp_path, monkeypatch
):
    page = tmp_path / "project" / "docs" / "leaderboard.md"
    page.parent.mkdir(parents=True)
    monkeypatch.setattr(bench_flags, "ROOT", tmp_path / "project")
    monkeypatch.setattr("sim.benching.files.RECIPES", tmp_path)
    flags = (str(finished(tmp_path)), "--seeds=4,7", "--hours=0")
    assert command(tmp_path, *flags, f"--cells={tmp_path / 'cells'}") == 0 and not page.exists()
    assert command(tmp_path, *flags) == 0 and page.is_file()


def test_tables_pages_and_results_are_written_by_several_commands_at_once(tmp_path):
    """A folder stands for what another one is writing under that name."""
    path, cells = finished(tmp_path), tmp_path / "cells"
    flags = (str(path), "--seeds=4,7", "--hours=0", f"--cells={cells}", f"--page={tmp_path / 'p'}")
    assert command(tmp_path, *flags) == 0
    written = [one for one in tmp_path.glob("out/small-certified.*") if one.is_file()]
    written += [tmp_path / "p", *cells.rglob("*.json")]
    assert len(written) == 3 + 1 + 8
    for one in written:
        one.unlink()
        one.with_name(one.name + ".part").mkdir()
    assert command(tmp_path, *flags) == 0 and all(one.is_file() for one in written)


def test_the_page_of_the_project_has_all_its_recipes_whatever_is_asked_for(tmp_path, monkeypatch):
    """A row of one recipe, by the papers' claim, once replaced the page by one of its own."""
    project = tmp_path / "project"
    own, page = project / "recipes", project / "docs" / "leaderboard.md"
    own.mkdir(parents=True)
    page.parent.mkdir()
    monkeypatch.setattr(bench_flags, "ROOT", project)
    monkeypatch.setattr("sim.benching.files.RECIPES", own)
    for name in ("small", "other"):
        path = finished(tmp_path, name)
        assert command(tmp_path, str(path), "--seeds=4,7", "--hours=0") == 0
        path.rename(own / path.name)
    page.unlink()
    without = RECIPE.format(plot="epsilon").replace('name = "A"', 'name = "C"')
    (own / "without.toml").write_text(without)
    flags = ("--rows=A", "--columns=3", "--seeds=4", "--hours=0", "--budget=published")
    assert command(tmp_path, str(own / "small.toml"), *flags) == 0
    text = page.read_text()
    for name in ("small", "other"):  # of seeds 0 to 4, seed 4 is there
        assert f"| {name} | certified | 4 | 4 | 0 |  |" in text


def test_a_result_file_that_has_changed_is_read_again(tmp_path):
    path, file, found = finished(tmp_path), tmp_path / "kept.json", []
    run = plan(
        read(path), tmp_path / "out" / "small-certified", "certified", [4], {"data_dir": "there"}
    )[0]
    for moment, accuracy in enumerate((0.5, 0.75)):
        kept.save(file, run.cell, run.config, run.folder, unequal.summary(accuracy=accuracy))
        os.utime(file, ns=(moment, moment))
        found.append(kept.load(file, run.digest).summary.accuracy)
    assert found == [0.5, 0.75]


@pytest.mark.parametrize("text", ["[]", "{}", "[" * 5000, '{"digest": "", "rounds": [3]}', "no"])
def test_a_damaged_result_file_is_named(tmp_path, capsys, text):
    path, cells = finished(tmp_path), tmp_path / "cells"
    file = cells / "small-certified" / "a_3_seed-4.json"
    file.parent.mkdir(parents=True)
    file.write_text(text)
    assert main_guard(bench.command, [str(path), "--seeds=4", f"--cells={cells}"]) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"error: {file} is no result file (") and err.count("\n") == 1


@pytest.mark.parametrize("wrong", [{"accuracy": "0.9"}, {"epsilon_certified": ["x"]}])
def test_a_result_file_with_texts_for_numbers_is_named(tmp_path, capsys, wrong):
    """The table failed, with a TypeError and without the file's name."""
    path, flags = finished(tmp_path), ["--seeds=4,7", f"--cells={tmp_path / 'cells'}"]
    assert command(tmp_path, str(path), *flags) == 0
    file = tmp_path / "cells" / "small-certified" / "a_3_seed-4.json"
    content = json.loads(file.read_text())
    file.write_text(json.dumps(content | {"summary": content["summary"] | wrong}))
    shutil.rmtree(tmp_path / "out")
    assert main_guard(bench.command, [str(path), *flags, f"--out={tmp_path / 'out'}"]) == 2
    assert f"{file} is no result file (TypeError: '" in capsys.readouterr().err


def test_a_damaged_record_of_a_round_is_named(tmp_path, capsys):
    path = finished(tmp_path)
    file = tmp_path / "out" / "small-certified" / "a_3_seed-4" / "rounds.jsonl"
    file.write_text("[" * 5000 + "]" * 4999 + "}\n")
    assert command(tmp_path, str(path), "--seeds=4", f"--cells={tmp_path / 'cells'}") == 2
    err = capsys.readouterr().err
    assert err.startswith(f"error: {file} has been changed: restore it") and err.count("\n") == 1


def test_a_fault_without_words_is_one_all_the_same(tmp_path, monkeypatch):
    """As when the memory is full. Kills a run that counts as done."""

    def train(request: object) -> None:
        raise MemoryError

    monkeypatch.setattr("sim.engines.start.train", train)
    path = finished(tmp_path)
    run = plan(
        read(path), tmp_path / "out" / "small-certified", "certified", [4], {"data_dir": "there"}
    )[0]
    assert play(run) == "MemoryError"


def test_a_recipe_of_the_project_is_found_by_its_name_unless_a_file_has_it(tmp_path, monkeypatch):
    """Kills names that hide files, and names that are looked for in the current folder alone."""
    monkeypatch.chdir(tmp_path)
    assert bench_flags.parse(["digits-small"], "").recipes == [RECIPES / "digits-small.toml"]
    assert bench_flags.parse(["absent"], "").recipes == [Path("absent")]
    Path("digits-small").touch()
    assert bench_flags.parse(["digits-small"], "").recipes == [Path("digits-small")]


@pytest.mark.parametrize(("words", "seconds"), [(["--hours=2"], 7_200), (["--hours=0.5"], 1_800)])
def test_a_time_limit_in_hours_ends_that_much_later_and_has_defaults_of_its_own(words, seconds):
    """Kills minutes and seconds that are taken for hours, and a given file that is not used."""
    before = time.monotonic()
    given = bench_flags.parse(["absent", *words], "")
    assert before + seconds <= given.end <= time.monotonic() + seconds
    assert given.seeds == [0, 1, 2, 3, 4]
    assert given.cells == ROOT / "benchmarks" / "results" / "cells"
    assert given.page == ROOT / "docs" / "leaderboard.md"
    given = bench_flags.parse(["absent", *words, "--cells=there", "--seeds=3,1"], "")
    assert (given.cells, given.page, given.seeds) == (Path("there"), None, [1, 3])
    with pytest.raises(ValueError, match="docs is "):
        bench_flags.parse(["absent", *words, f"--page={ROOT / 'docs'}"], "")
    given = bench_flags.parse(["absent", *words, "--cells=there", "--page=p.md"], "")
    assert (given.cells, given.page) == (Path("there"), Path("p.md"))


def test_without_a_time_limit_there_is_one_seed_and_no_leaderboard():
    given = bench_flags.parse(["absent"], "")
    assert (given.seeds, given.end, given.cells, given.page) == ([0], None, None, None)
    assert (given.budget, given.out, given.rows) == ("certified", Path("runs/bench"), None)
    assert given.processes == os.cpu_count()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["absent", "--budget=publish"], "argument --budget: invalid choice: 'publish'"),
        (["absent", "--seeds=x"], "argument --seeds: 'x' must be integers with commas between"),
        ([], "the following arguments are required: RECIPE; python -m sim.bench --help lists"),
        (["absent", "--cells", ""], "argument --cells: '' is no path, and . is this folder: give"),
        (["absent", "--out="], "argument --out: '' is no path"),
        (["absent", "--page="], "argument --page: '' is no path"),
    ],
)
def test_arguments_that_cannot_be_read_are_one_line(capsys, words, said):
    """Kills a parser that prints its usage and ends the process."""
    assert main_guard(bench.command, words) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"error: {said}") and err.count("\n") == 1


@pytest.mark.parametrize("flag", ["--page", "--out"])
def test_what_cannot_be_written_is_refused_before_anything_runs(tmp_path, capsys, flag):
    path = finished(tmp_path)
    assert main_guard(bench.command, [str(path), f"{flag}=/dev/null"]) == 2
    err = capsys.readouterr().err
    assert "/dev/null is no " in err and "give " in err and err.count("\n") == 1


def test_a_time_of_day_is_the_next_one(monkeypatch):
    """At 9:30, that time is a day ahead, 9:31 a minute and 9:29 almost a day."""

    class Clock(datetime):
        @classmethod
        def now(cls, tz=None):
            return cls(2024, 5, 6, 9, 30)

    monkeypatch.setattr(bench_flags, "datetime", Clock)
    found = [bench_flags._moment(text) for text in ("09:30", "09:31", "09:29", "10:05")]
    assert found == [86_400, 60, 86_340, 2_100]


def test_a_run_s_own_folder_counts_before_its_result_file(tmp_path):
    """The file is a copy with fewer digits. Kills a copy that goes over the run."""
    path, cells = finished(tmp_path), tmp_path / "cells"
    folder = tmp_path / "out" / "small-certified"
    (run, *_) = plan(read(path), folder, "certified", [4], {"data_dir": "there"}, cells)
    run.keep()
    summary = unequal.summary(accuracy=0.123456789)
    (run.folder / "summary.json").write_text(json.dumps(summary.to_json()))
    vouch(run.folder)
    assert result(run).summary.accuracy == 0.123456789 and run.finished
    (run.folder / "summary.json").unlink()
    assert result(run).summary.accuracy == 0.625 and run.finished
