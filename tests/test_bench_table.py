"""Every number of a bench's table, as Markdown, CSV and plot, under its heading; runs in which no
two figures agree."""

import csv
import dataclasses
import io
import re

import pytest

from server.records import RoundRecord
from sim.benching import kept, leaderboard, table
from sim.benching.runs import Result, Run
from sim.config.papers import Claim
from sim.config.recipe import Cell, Column, Recipe, Row
from tests import unequal


def says(value: float) -> tuple[Claim, ...]:
    """What a paper says."""
    return (Claim("paper", "paper/table-1/A", value),)


COLUMNS = (Column(name="3"), Column(name="1"))
RECIPE = Recipe(title="Title", axis="noise", columns=COLUMNS, rows=(Row(name="A"), Row(name="B|C")))


def rounds(*accuracies: float | None) -> tuple[RoundRecord, ...]:
    """Rounds 2, 4, ... of these accuracies, with a figure that is 10 times as large."""
    base = unequal.ROUNDS[0]
    figures = [{} if a is None else {"noise_level": 10 * a} for a in accuracies]
    return tuple(
        dataclasses.replace(base, round=2 * n, accuracy=a, metrics=own)
        for n, (a, own) in enumerate(zip(accuracies, figures, strict=True), 1)
    )


def result(accuracy: float | None, certified, published, seconds, number: int, *by_round) -> Result:
    one = unequal.summary(
        accuracy=accuracy,
        epsilon_certified=certified,
        epsilon_published=published,
        seconds=seconds,
        rounds=number,
        evaluated_on="validation",
    )
    return Result(one, rounds(*by_round))


FIRST = (
    result(0.625, (1.5, 2.75), (3.5, 3.25), 40.0, 12, 0.5, 0.25, 0.625),
    result(0.75, (2.25, 1.25), (4.5, 2.0), None, 9, 0.25, None, 0.5),
    result(0.5, (0.5, 2.5), (1.0, 4.75), 90.0, 10, 0.75),
)
"""Of the means, least and largest no two agree; the largest epsilon is the first run's second
client's."""
SECOND = (result(0.875, (6.5, None), (7.5, 7.0), None, 6, 0.125, 0.875),)
LINES = [
    table.Line(Cell("A", "3", {}, says(60.5)), 3, FIRST, ()),
    table.Line(Cell("A", "1", {}, ()), 3, SECOND, ("A, 1, seed 4: it diverged",)),
    table.Line(Cell("B|C", "3", {}, says(71.25)), 2, (), ()),
    table.Line(Cell("B|C", "1", {}, says(70.0)), 1, (), ("B|C, 1, seed 0: it died",)),
]
"""Whole, a seed that failed, nothing yet, and failed altogether."""


def test_the_markdown_table():
    text = table.markdown(RECIPE, "certified", LINES)
    head, _, *found = [
        [cell.strip() for cell in x.strip("|").split("|")]
        for x in text.splitlines()
        if x[:1] == "|"
    ]
    expected = ["", "noise", "validation accuracy, %", "paper", "difference", "certified epsilon"]
    assert head == [*expected, "published epsilon", "rounds", "seconds"]
    assert found == [
        [
            "A",
            "3",
            "62.50 (50.00 to 75.00)",
            "paper 60.5",
            "+2.00",
            "2.75",
            "4.75",
            "9 to 12",
            "65",
        ],
        ["A", "1", "87.50 **failed 2 of 3 seeds**", "", "", "infinite", "7.5", "6", ""],
        ["B/C", "3", "**missing**", "paper 71.25", "", "", "", "", ""],
        ["B/C", "1", "**failed**", "paper 70", "", "", "", "", ""],
    ]
    assert text.startswith(f"# Title\n\n{table.NOTES['certified']}\n\n|")
    assert text.endswith(
        "\n\nWhat failed:\n\n- A, 1, seed 4: it diverged\n- B|C, 1, seed 0: it died\n"
    )
    assert table.NOTES["published"] in table.markdown(RECIPE, "published", LINES[:1])
    assert "What failed" not in table.markdown(RECIPE, "published", LINES[:1])
    assert "| test accuracy, % |" in table.markdown(RECIPE, "certified", LINES[2:])


def test_the_csv_table():
    found = list(csv.DictReader(io.StringIO(table.as_csv(RECIPE, "published", LINES))))
    assert found[0] == {
        "recipe": "Title",
        "row": "A",
        "column": "3",
        "budget": "published",
        "state": "done",
        "seeds": "3",
        "mean": "62.5",
        "least": "50",
        "largest": "75",
        "deviation": "12.5",
        "paper": "60.5",
        "difference": "2",
        "certified_epsilon": "2.75",
        "published_epsilon": "4.75",
        "rounds": "10.3333",
        "seconds": "65",
        "source": "paper/table-1/A",
    }
    second = {
        "state": "failed 2 of 3 seeds",
        "seeds": "1",
        "mean": "87.5",
        "least": "87.5",
        "largest": "87.5",
    }
    second |= {
        "deviation": "",
        "paper": "",
        "difference": "",
        "certified_epsilon": "inf",
        "published_epsilon": "7.5",
    }
    second |= {"rounds": "6", "seconds": "", "column": "1"}
    assert {name: found[1][name] for name in second} == second
    for line, state, paper in ((found[2], "missing", "71.25"), (found[3], "failed", "70")):
        given = {name for name, value in line.items() if value}
        assert given == {"recipe", "row", "column", "budget", "state", "seeds", "paper", "source"}
        assert (line["row"], line["state"], line["seeds"], line["paper"]) == (
            "B|C",
            state,
            "0",
            paper,
        )


def test_a_cell_is_compared_with_the_first_of_several_claims():
    both = (*says(60.5), Claim("other", "other/table-2/A", 80.0))
    assert table.Line(Cell("A", "3", {}, both), 3, FIRST, ()).difference == 62.5 - 60.5


def test_an_epsilon_is_rounded_up_in_both_tables():
    """What is shown is a guarantee too, as everywhere."""
    line = table.Line(
        Cell("A", "3", {}, ()), 1, (result(0.5, (2.7500004,), (4.7500004,), 1.0, 5),), ()
    )
    (found,) = csv.DictReader(io.StringIO(table.as_csv(RECIPE, "certified", [line])))
    assert (found["certified_epsilon"], found["published_epsilon"]) == ("2.75001", "4.75001")
    assert "| 2.751 | 4.751 |" in table.markdown(RECIPE, "certified", [line])


def test_a_model_that_was_never_measured_has_no_accuracy_and_hides_no_other():
    half = table.Line(
        Cell("A", "3", {}, says(60.0)), 2, (*FIRST[:1], result(None, (9.0,), (8.0,), 20.0, 5)), ()
    )
    assert (half.measured, half.mean, half.difference) == ([62.5], 62.5, 2.5)
    assert half.epsilon("certified") == 9.0 and half.epsilon("published") == 8.0 and half.complete
    never = table.Line(
        Cell("A", "3", {}, says(60.0)), 1, (result(None, (9.0,), (8.0,), 20.0, 5),), ()
    )
    assert never.mean is None and never.difference is None
    short = dataclasses.replace(never, cell=Cell("A", "90", {}, says(60.0), reach=90.0))
    half = dataclasses.replace(short, seeds=2)
    for line, said in ((never, "**done**"), (short, "not reached")):
        assert f"| {said} | paper 60 |" in table.markdown(RECIPE, "certified", [line])
    assert "| **missing 1 of 2 seeds** | paper" in table.markdown(RECIPE, "certified", [half])


def test_lines_are_the_cells_with_their_runs_and_faults(tmp_path):
    """Runs of two cells and two seeds; a fault that was mended is none, nor is one of a run that
    another process has finished."""
    runs = [
        Run(LINES[c].cell, seed, None, tmp_path / f"{c}-{seed}") for c in (0, 1) for seed in (4, 7)
    ]
    for run, found in ((runs[0], FIRST[0]), (runs[3], SECOND[0])):
        unequal.run_directory(run.folder, closing=found.summary)
    lines = table.lines(runs, {runs[0]: "in use", runs[1]: "it died", runs[2]: ""})
    assert [(one.cell.column, one.seeds, one.state) for one in lines] == [
        ("3", 2, "failed 1 of 2 seeds"),
        ("1", 2, "missing 1 of 2 seeds"),
    ]
    assert [one.faults for one in lines] == [("A, 3, seed 7: it died",), ()]
    assert [one.results[0].summary.accuracy for one in lines] == [0.625, 0.875]
    assert lines[0].results[0].rounds == unequal.ROUNDS


WHOLE = [
    table.Line(Cell("A", "3", {}, ()), 3, FIRST, ()),
    table.Line(
        Cell("A", "1", {}, ()), 1, (result(0.375, (1.25,), (9.0,), None, 6, 0.125, 0.375),), ()
    ),
    table.Line(Cell("B|C", "3", {}, ()), 1, SECOND, ()),
    table.Line(Cell("B|C", "1", {}, ()), 1, (), ()),
]
BY_ROUND = {
    "A, noise 3": [(2, 0.5), (4, 0.25), (6, 0.5625)],
    "A, noise 1": [(2, 0.125), (4, 0.375)],
    "B|C, noise 3": [(2, 0.125), (4, 0.875)],
}


def board(row: str, column: str, results, *claims: Claim, **settings) -> table.Line:
    return table.Line(Cell(row, column, settings, claims), 3, tuple(results), ())


def test_the_leaderboard_has_each_figure_of_each_cell_and_its_order():
    """By data set, then the epsilon asked for, then the best accuracy; what has no bound comes
    last, and a cell by the epsilon for an accuracy has a table of its own. Kills the first or the
    least epsilon of several, published in the place of certified, the worst first, counts of other
    cells, and an accuracy that only some seeds have reached."""
    mnist = {"dataset": "mnist"}
    settings = mnist | {"epsilon": 2.0}
    reach = table.Line(Cell("A", "94", settings, tuple(says(1.5)), reach=40.0), 3, FIRST, ())
    short = table.Line(Cell("A", "70", settings, (), reach=70.0), 3, FIRST, ())
    small = [
        board("A", "3", FIRST, *says(60.5), *says(71.25), **mnist, epsilon=3.0, clients=20),
        board("A", "1", SECOND, **mnist, epsilon=1.0),
        board("B|C", "3", FIRST[1:2], **mnist, epsilon=3.0),
        board("B|C", "2", FIRST[2:], **mnist, epsilon=2),
        board("B|C", "1", (), **mnist, epsilon=1.0),
        reach,
        short,
    ]
    other = [board("A", "8", FIRST[:2], epsilon=8.0), board("A", "4", (), epsilon=4.0)]
    lines = leaderboard.page(
        [
            leaderboard.Table("small", "certified", small, 5400.0),
            leaderboard.Table("o", "published", other, 36000.0),
        ]
    ).splitlines()
    rows = [[cell.strip() for cell in x.strip("|").split("|")] for x in lines if x[:1] == "|"]
    assert rows[0] == [
        *("certified epsilon", "data", "clients", "row", "accuracy, %", "seeds"),
        *("published epsilon", "papers", "recipe"),
    ]
    papers = "60.5 (paper, table 1, A); 71.25 (paper, table 1, A)"
    assert rows[2:7] == [
        ["2.75", "digits", "1", "A", "68.75 (62.50 to 75.00)", "2", "4.5", "", "o, 8"],
        ["2.5", "mnist", "1", "B/C", "50.00", "1", "4.75", "", "small, 2"],
        ["2.25", "mnist", "1", "B/C", "75.00", "1", "4.5", "", "small, 3"],
        ["2.75", "mnist", "20", "A", "62.50 (50.00 to 75.00)", "3", "4.75", papers, "small, 3"],
        ["infinite", "mnist", "1", "A", "87.50", "1", "7.5", "", "small, 1"],
    ]
    assert rows[7][:2] == ["epsilon", "budget"] and rows[9:11] == [
        [
            "2.75 (2.75 to 2.75)",
            "certified",
            "mnist",
            "A",
            "40",
            "3",
            "1.5 (paper, table 1, A)",
            "small, 94",
        ],
        ["not reached", "certified", "mnist", "A", "70", "3", "", "small, 70"],
    ]
    assert rows[11] == ["recipe, row", "cells", "why"]
    assert rows[13:14] == [["small, A", "3: 62.50 of 71.25", "not measured"]]
    assert rows[14] == [
        *("recipe", "budget", "cells", "with a seed", "with three", "core hours", "without any")
    ]
    assert rows[16:] == [
        ["small", "certified", "7", "6", "3", "1.5", "B/C: 1"],
        ["o", "published", "2", "1", "0", "10", "A: 4"],
    ]


def test_cells_below_the_best_of_their_papers_figures_are_listed_by_row_with_the_cause():
    """As printed: what is level with its paper is not below. Kills the first or the least of
    several figures, and cells that are level."""

    def cell(row: str, column: str, mean: float, *reported: float, below: str = "") -> table.Line:
        claims = tuple(claim for value in reported for claim in says(value))
        found = result(mean / 100, (2.0,), (2.0,), None, 6, 0.125, 0.375)
        return table.Line(Cell(row, column, {}, claims, below=below), 1, (found,), ())

    lines = [
        cell("A", "1", 62.25, 62.0, 63.5, 61.0, below="fewer |\n  epochs"),
        cell("A", "2", 70.0, 72.125, below="fewer |\n  epochs"),
        cell("A", "3", 71.998, 72.0, below="fewer |\n  epochs"),
        cell("B", "1", 50.0, below="never"),
        cell("C|D", "1", 40.0, 41.0),
    ]
    text = leaderboard.page([leaderboard.Table("small", "certified", lines, 0.0)])
    (section,) = re.findall(r"## Below a paper's figure\n(.*?)\n\n## ", text, re.DOTALL)
    assert section.splitlines()[-2:] == [
        "| small, A | 2: 70.00 of 72.125; 1: 62.25 of 63.5 | fewer / epochs |",
        "| small, C/D | 1: 40.00 of 41 | not measured |",
    ]


def test_a_round_in_a_result_file_has_its_figures_in_one_order():
    """That of the files that there are, which hold no names. Kills certified and published that
    change places in writing and in reading alike, and an epsilon that is rounded down."""
    record = unequal.ROUNDS[0]
    stored = [1, 0.31, 2.75, 3.875, {"acceptance_rate": 0.75, "noise": 1.5}]
    assert kept._short(record.to_json()) == stored
    thirds = dataclasses.replace(
        record, accuracy=1 / 3, epsilon_certified_max=1 / 3, metrics={"noise": 1 / 3}
    )
    assert kept._short(thirds.to_json()) == [1, 0.333333, 1 / 3, 3.875, {"noise": 0.333333}]
    found = RoundRecord.from_json(kept._long(stored))
    assert (found.round, found.accuracy, found.metrics) == (1, 0.31, record.metrics)
    assert (found.epsilon_certified_max, found.epsilon_published_max) == (2.75, 3.875)


@pytest.mark.parametrize(
    ("plot", "expected"),
    [
        ("epsilon", {"A": [(1.25, 0.375), (2.75, 0.625)]}),
        ("column", {"A": [(0, 0.625), (1, 0.375)], "B|C": [(0, 0.875)]}),
        ("accuracy", BY_ROUND),
        ("noise_level", {name: [(n, 10 * a) for n, a in line] for name, line in BY_ROUND.items()}),
        ("path", {name: sorted((2.75, a) for _, a in line) for name, line in BY_ROUND.items()}),
        ("loss", {}),
        ("boxes", {"A": [(0, 0.5), (0, 0.625), (0, 0.75), (1, 0.375)], "B|C": [(0, 0.875)]}),
    ],
)
def test_the_points_of_each_plot(plot, expected):
    """Against the certified epsilon, in its order; by column in theirs, of boxes each seed; by
    round as means over the seeds that have one.

    A cell whose epsilon is infinite has no place on the first, one without a run has none anywhere.
    """
    assert table.points(RECIPE.model_copy(update={"plot": plot}), WHOLE) == expected


@pytest.mark.parametrize(
    ("rows", "columns", "name"), [(2, 2, "A, noise 3"), (1, 2, "noise 3"), (2, 1, "A")]
)
def test_a_line_by_round_is_named_by_what_tells_it_from_others(rows, columns, name):
    part = {"plot": "accuracy", "rows": RECIPE.rows[:rows], "columns": RECIPE.columns[:columns]}
    assert list(table.points(RECIPE.model_copy(update=part), WHOLE[:1])) == [name]


def test_a_level_is_reached_by_a_round_that_has_exactly_that_accuracy():
    """Round n of the three has spent n. Kills a level that must be exceeded, and the last round."""
    one = result(0.75, (3.0,), (4.0,), None, 3, 0.5, 0.625, 0.75)
    records = [
        dataclasses.replace(record, epsilon_certified_max=float(n), epsilon_published_max=n + 0.5)
        for n, record in enumerate(one.rounds, 1)
    ]
    spent = dataclasses.replace(one, rounds=tuple(records))
    assert [table.reached(spent, level) for level in (50.0, 62.5, 62.6, 76.0)] == [1, 2, 3, None]
    failing = result(0.5, (3.0,), (4.0,), None, 3, 0.5, 0.5)
    cell = Cell("A", "60", {}, says(2.0), reach=60.0)
    line, short = (table.Line(cell, 2, two, ()) for two in ((spent, spent), (spent, failing)))
    assert (line.measured, line.mean, line.difference) == ([2.0, 2.0], 2.0, 0.0)
    assert (short.measured, short.mean, short.difference) == ([2.0], None, None)
    assert "| not reached |" in table.markdown(RECIPE, "certified", [short]), (
        "the mean of the seeds that reach it would be too low"
    )


def test_the_frontier_has_what_no_other_cell_beats_at_a_smaller_epsilon():
    """Kills points below it, equals further right, and the lower of two at one epsilon."""
    curves = {"a": [(1.0, 0.5), (2.0, 0.4), (4.0, 0.7)], "b": [(1.0, 0.6), (3.0, 0.7), (5.0, 0.8)]}
    assert table._frontier(curves) == [(1.0, 0.6), (3.0, 0.7), (5.0, 0.8)]
