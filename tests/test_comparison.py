"""The page that compares runs: every figure in its own row, and only what differs."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from sim.commands.guard import main_guard
from sim.comparing import comparison
from sim.comparing.comparison import write_comparison
from sim.config import caveats
from sim.library.result import Result
from sim.report import command
from sim.showing import page, plots, wording
from tests import unequal
from tests.vouched import vouch

OTHER = replace(
    unequal.summary(),
    accuracy=0.8765,
    epsilon_certified=(0.5, 3.625, 1.0, 2.0, 0.25),
    epsilon_published=(9.0,) * 5,
)


@pytest.fixture
def three(tmp_path: Path) -> list[Path]:
    """Two finished runs with different budgets, and one that is not finished."""
    return [
        unequal.run_directory(tmp_path / "a"),
        unequal.run_directory(tmp_path / "b", closing=OTHER, epsilon=4.25, delta=3e-6),
        unequal.run_directory(tmp_path / "c", finished=False, lr=0.375, clients=7),
    ]


def sections(runs: list[Path]) -> dict[str, str]:
    page = write_comparison(runs).read_text()
    titles = re.findall(r"<h2>(.*?)</h2>", page)
    return {title: unequal.section(page, title) for title in titles}


def test_every_result_stands_in_the_row_of_its_run(three):
    head, *rows = unequal.rows(sections(three)["Results"])
    assert head[1:4] == ["Score", "Certified epsilon", "Delta"]
    rest = ["one record", "3 of 9", "18 s"]
    so_far = wording.epsilon(Result(three[2]).epsilon)  # by the ledger
    assert rows == [
        ["a", "0.4321 (test accuracy)", "7.25", "2e-06", *rest],
        ["b", "0.8765 (test accuracy)", "3.625", "3e-06", *rest],
        ["c", "0.4300 (test accuracy)", f"{so_far}, not finished", "2e-06", *rest],
    ]


def test_an_unfinished_run_has_the_accuracy_that_was_measured_last(tmp_path):
    folder = unequal.run_directory(tmp_path / "a", finished=False)
    last = replace(unequal.ROUNDS[-1], round=4, accuracy=None, seconds=None, participants=0)
    with (folder / "rounds.jsonl").open("a") as file:
        file.write(json.dumps(last.to_json()) + "\n")
    empty = unequal.run_directory(tmp_path / "b", finished=False)
    (empty / "rounds.jsonl").unlink()
    _, first, second = unequal.rows(sections([folder, empty])["Results"])
    assert first[1] == "0.4300 (test accuracy)" and first[-2:] == ["4 of 9", "unknown"]
    assert second[1:3] == ["unknown (test accuracy)", "unknown"]


def test_each_metric_has_curves_of_its_own_and_each_unit_its_name(three):
    """Kills a picture in which accuracies and errors share an axis."""
    folder = three[0].parent / "d"
    unequal.run_directory(folder, loss="squared-error", trust="server", unit="client")
    found = sections([*three, folder])
    row = unequal.rows(found["Results"])[4]
    assert row[1] == "0.4321 (test absolute error)" and row[4] == "one whole client"
    assert list(found) == [
        *("Results", "Accuracy", "Absolute error"),
        *("Privacy spent", "Settings that differ"),
    ]


def test_without_privacy_there_is_no_epsilon_and_no_delta(tmp_path):
    gone = replace(OTHER, epsilon_certified=(None,) * 5)
    runs = [
        unequal.run_directory(tmp_path / "a"),
        unequal.run_directory(tmp_path / "b", closing=gone, mechanism="none"),
    ]
    row = unequal.rows(sections(runs)["Results"])[2]
    assert row[2:5] == ["infinite (not private)", "none", "nothing"]


def test_only_the_settings_that_differ_are_shown(three):
    """And a setting of one run's mechanism is not used by the other one."""
    assert unequal.rows(sections(three)["Settings that differ"]) == [
        ["Setting", "a", "b", "c"],
        ["clients", "5", "5", "7"],
        ["epsilon", "9.5", "4.25", "9.5"],
        ["delta", "2e-06", "3e-06", "2e-06"],
        ["lr", "1.0", "1.0", "0.375"],
    ]
    folder = three[0].parent / "d"
    unequal.run_directory(folder, mechanism="dpsur", dpsur_beta=0.75)
    rows = {
        name: own
        for name, *own in unequal.rows(sections([three[0], folder])["Settings that differ"])
    }
    assert rows["mechanism"] == ["dpsgd", "dpsur"] and rows["dpsur_beta"] == ["not used", "0.75"]
    assert rows["sampling"] == ["poisson", "not used"] and "epsilon" not in rows


def test_where_results_go_is_no_difference(tmp_path):
    runs = [unequal.run_directory(tmp_path / n, name=n, out=n, quiet=n == "a") for n in "ab"]
    found = sections(runs)["Settings that differ"]
    assert "None but where results go." in found and "<table" not in found


def test_the_curves_are_of_the_runs(three, monkeypatch):
    """Accuracy and epsilon by round, a line for each run. Rounds without a value are left out."""
    drawn = {}
    real = plots.curves

    def curves(lines, x, y):
        drawn[y] = lines
        return real(lines, x, y)

    rounds = [replace(unequal.ROUNDS[0], accuracy=None), *unequal.ROUNDS[1:]]
    lines = [json.dumps(one.to_json()) + "\n" for one in rounds]
    (three[1] / "rounds.jsonl").write_text("".join(lines))
    vouch(three[1])
    monkeypatch.setattr(plots, "curves", curves)
    found = sections(three)
    accuracy = [(one.round, one.accuracy) for one in unequal.ROUNDS]
    epsilon = [(one.round, one.epsilon_certified_max) for one in unequal.ROUNDS]
    assert drawn == {
        "accuracy": {"a": accuracy, "b": accuracy[1:], "c": accuracy},
        "certified epsilon": dict.fromkeys("abc", epsilon),
    }
    for title, name in (("Accuracy", "accuracy"), ("Privacy spent", "certified epsilon")):
        caption = f"{name.capitalize()} after each round."
        picture = plots.svg(real(drawn[name], "round", name))
        assert page.picture(picture, f"{name} by round", caption) in found[title]


@pytest.mark.parametrize(
    ("changed", "note"),
    [
        ({"delta": 3e-6}, comparison._OTHER_GUARANTEE),
        ({"trust": "server"}, comparison._OTHER_GUARANTEE),
        ({"trust": "server", "unit": "client"}, comparison._OTHER_GUARANTEE),
        ({"dataset": "mnist"}, comparison._OTHER_RECORDS),
        ({"evaluate_on": "validation", "validation_records": 9}, comparison._OTHER_RECORDS),
    ],
)
def test_what_cannot_be_compared_is_said(tmp_path, changed, note):
    runs = [unequal.run_directory(tmp_path / "a"), unequal.run_directory(tmp_path / "b")]
    other = unequal.run_directory(tmp_path / "c", **changed)
    alike, unlike = sections(runs)["Results"], sections([runs[0], other])["Results"]
    assert note in unlike and note not in alike and caveats.TRIES in alike


def test_runs_of_other_units_other_records_and_unfinished_ones_are_told_apart(tmp_path):
    units = [
        unequal.run_directory(tmp_path / unit, trust="server", unit=unit)
        for unit in ("record", "client")
    ]
    assert comparison._OTHER_GUARANTEE in sections(units)["Results"], "records and clients"
    held = {"evaluate_on": "validation", "validation_records": 9}
    again = [unequal.run_directory(tmp_path / f"v{s}", **held, seed=s) for s in (1, 2)]
    assert comparison._OTHER_RECORDS in sections(again)["Results"], "drawn by another seed"
    fewer = unequal.run_directory(tmp_path / "v3", **held | {"validation_records": 8}, seed=1)
    assert comparison._OTHER_RECORDS in sections([again[0], fewer])["Results"], "fewer of them"
    half = unequal.run_directory(tmp_path / "d", finished=False)
    assert wording.UNDER_WAY not in sections(units)["Results"]
    assert wording.UNDER_WAY in sections([*units, half])["Results"]


def test_two_runs_of_one_name_have_their_paths(tmp_path):
    for parent in ("x", "y"):
        (tmp_path / parent).mkdir()
    runs = [unequal.run_directory(tmp_path / parent / "a") for parent in ("x", "y")]
    names = [row[0] for row in unequal.rows(sections(runs)["Results"])[1:]]
    assert names == [str(folder.resolve()) for folder in runs]


def contents(folders):
    """All files below the folders."""
    paths = (path for folder in folders for path in folder.rglob("*"))
    return {path: path.read_bytes() for path in paths if path.is_file()}


def test_the_command_prints_where_the_page_is(three, tmp_path, capsys):
    """One file that loads nothing, the same again; the runs stay as they are."""
    before = contents(three)
    words = [str(folder) for folder in three]
    assert main_guard(command, words) == 0
    page = tmp_path / "comparison.html"
    assert capsys.readouterr().out.strip() == str(page.resolve())
    assert main_guard(command, [*words, "--out", str(tmp_path / "other.html")]) == 0
    assert (tmp_path / "other.html").read_bytes() == page.read_bytes()
    assert not unequal.LOADS.search(page.read_text())
    assert contents(three) == before


@pytest.mark.parametrize("broken", ["config.toml", "partition.npz", "rounds.jsonl", "summary.json"])
def test_a_damaged_run_is_refused_in_one_line_and_no_page_is_written(three, capsys, broken):
    (three[1] / broken).write_text("{}\n[}")
    assert main_guard(command, [str(folder) for folder in three]) == 2
    said = capsys.readouterr().err
    assert str(three[1]) in said and said.count("\n") == 1
    assert not (three[0].parent / comparison.FILE).exists()


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["a", "missing"], "missing is no run directory"),
        (["a", "b", "b/../a"], "b/../a is given twice: leave one out"),
        (["a", "--out=x.html"], "--out is x.html"),
    ],
)
def test_what_cannot_be_compared_is_refused(three, capsys, monkeypatch, words, named):
    monkeypatch.chdir(three[0].parent)
    assert main_guard(command, words) == 2
    said = capsys.readouterr().err
    assert named in said and said.count("\n") == 1 and not list(three[0].parent.glob("*.html"))
