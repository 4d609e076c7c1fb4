"""What the terminal shows: a line per round on a terminal, the closing table elsewhere, nothing
when quiet."""

import dataclasses
import io
import math
from contextlib import closing

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from server.guarantees import guarantees
from server.records import RoundRecord, RunInfo, Summary
from sim.config import caveats
from sim.showing import wording
from sim.showing.progress import Progress, closing_table
from tests import unequal

INFO = RunInfo(rounds=4, finished=1, clients=3, run_dir="runs/one", together=2)


def show(quiet=False, terminal=False, epsilon=2.5, width=120, release=False):
    """All that a run of rounds 2 to 4 prints."""
    text = io.StringIO()
    console = Console(
        file=text, force_terminal=terminal, width=width, highlight=False, color_system=None
    )
    with closing(Progress(quiet, console)) as progress:
        progress.started(INFO)
        for n in (2, 3, 4):
            progress.round(
                RoundRecord(n, 0.2 * n, 0.5, epsilon, epsilon, epsilon, 1, 3, 60.0, 50.0)
            )
        each, noise = (epsilon,) * 3, (1.5, 1.5, 2.0)
        head = (0.8, 0.5, each, each, 1e-5, 7, noise, (4,) * 3, 1, 4, 75, "runs/one", release)
        progress.finished(Summary(*head, caveats=() if release else (caveats.SEEDED, caveats.TEST)))
    return text.getvalue()


def test_quiet_prints_nothing():
    assert show(quiet=True) == show(quiet=True, terminal=True) == ""


def test_without_a_terminal_there_is_the_closing_table_only():
    text = show()
    assert "left" not in text and "\x1b" not in text and "\r" not in text
    table = dict(line.split(maxsplit=2)[::2] for line in text.splitlines()[:3])
    assert table["test"] and "certified epsilon  2.5 (median 2.5), delta 1e-05" in text
    for part in (
        "0.8000",
        "by Renyi alone",
        "1.5 to 2",
        "1 of 3",
        "1 min 15 s",
        "runs/one",
    ):
        assert part in text


def test_a_terminal_has_a_line_per_round():
    text = show(terminal=True)
    first = ("round 1/4", "starting, 2 clients at a time")
    for part in (
        *first,
        "round 2/4",
        "acc 0.400",
        "eps 2.5 (median 2.5)",
        "retired 1",
        "2:00 left",
    ):
        assert part in text
    assert "1:00 left" in text and "test accuracy" in text


def test_the_line_fits_a_narrow_terminal():
    line = "round 2/4 acc 0.400  loss 0.500  eps 3.22 (median 3.22)  retired 1  2:00 left"
    assert line in show(terminal=True, width=80, epsilon=3.217)


@pytest.mark.parametrize("epsilon", [None, math.inf])
def test_without_privacy_there_is_no_number(epsilon):
    for terminal in (False, True):
        text = show(epsilon=epsilon, terminal=terminal)
        assert "infinite (not private)" in text
        assert "published" not in text and "order" not in text and "delta" not in text
        live = "loss 0.500  epsilon infinite (not private)  retired 1"
        assert (live in text) is terminal


def test_caveats_are_printed_in_their_order_and_once():
    assert (
        show().splitlines()[-2:] == [caveats.SEEDED, caveats.TEST]
        and show().count("seeded simulation") == 1
    )
    assert "seeded simulation" not in show(release=True)


def test_the_terminal_is_restored_after_an_error():
    text = io.StringIO()
    console = Console(file=text, force_terminal=True)
    with pytest.raises(RuntimeError), closing(Progress(False, console)) as progress:
        progress.started(INFO)
        raise RuntimeError
    assert text.getvalue().rindex("\x1b[?25h") > text.getvalue().rindex("\x1b[?25l")


@given(st.floats(0, 1e6), st.integers(1, 6))
def test_a_shown_epsilon_is_never_below_the_true_one(value, digits):
    shown = float(wording.epsilon(value, digits))
    assert value <= shown <= value * (1 + 10.0 ** (1 - digits)) * (1 + 1e-12) + 1e-300


def test_an_epsilon_that_is_no_number_is_infinite():
    for value in (None, math.inf, math.nan):
        assert wording.epsilon(value) == wording.epsilon(value, 2) == "infinite (not private)"
        assert wording.epsilon(value, infinite="none") == "none"


@given(st.floats(0, 100), st.integers(1, 6))
def test_a_shown_lower_bound_is_never_above_the_true_one(value, digits):
    shown = float(wording.lower_bound(value, digits))
    assert value * (1 - 10.0 ** (1 - digits)) * (1 - 1e-12) <= shown <= value


@pytest.mark.parametrize(
    ("seconds", "long", "short"),
    [
        (0, "0.0 s", "0:00"),
        (59.6, "1 min 0 s", "1:00"),
        (9.96, "10 s", "0:10"),
        (200, "3 min 20 s", "3:20"),
        (9.94, "9.9 s", "0:10"),
        (59.4, "59 s", "0:59"),
        (3599, "59 min 59 s", "59:59"),
        (3600, "1 h 0 min", "1:00:00"),
        (7500, "2 h 5 min", "2:05:00"),
    ],
)
def test_durations(seconds, long, short):
    assert (wording.duration(seconds), wording.clock(seconds)) == (long, short)


def test_spans():
    assert wording.span([1.0, 1.00001]) == "1" and wording.span([2.5, 1.0]) == "1 to 2.5"


CLOSING = {
    "validation accuracy": "0.4321",
    "validation loss": "1.4187",
    "certified epsilon": "7.25 (median 3.125), delta 2e-06, by loss distributions",
    "published epsilon": "8.375",
    "by Renyi alone": "7.875 at order 5.5",
    "noise multiplier": "1.84 to 3.37",
    "retired clients": "2 of 5",
    "rounds": "3",
    "time": "18 s",
    "run directory": "runs/unequal",
}
GUARANTEES = guarantees("server", "client", 5, 7.25)
AGAINST = {
    "protected": "one whole client",
    "from other clients": "epsilon 7.25, seeing every round's model",
    "from anyone else": "epsilon 7.25, seeing the final model",
    "from the server": "not at all: trusted with what clients send",
}
SILENT = {"events": "ledger figures are in the report", "release": "", "budget": "a limit says so"}
BELOW = {"note", "caveats"}
"""The table, what it leaves out, and what stands below it."""


def test_the_closing_table_has_each_figure_under_its_name():
    assert dict(closing_table(unequal.summary(evaluated_on="validation"))) == CLOSING
    said = closing_table(unequal.summary(guarantees=GUARANTEES, evaluated_on="validation"))
    assert dict(said) == CLOSING | AGAINST
    nothing = closing_table(unequal.summary(guarantees=guarantees("local", "record", 5, None)))
    assert dict(nothing)["protected"] == "nothing" and "from the server" not in dict(nothing)


def test_a_field_of_the_summary_that_changes_shows_in_its_line_and_no_other():
    """A new field fails here until it is given its line, or is said to have none."""
    before = dict(closing_table(unequal.summary()))
    five = (9.5, 9.25, 9.125, 9.0, 9.75)
    other = {
        "accuracy": (0.5, {"test accuracy"}),
        "loss": (0.5, {"test loss"}),
        "epsilon_certified": (five, {"certified epsilon"}),
        "epsilon_published": (five, {"published epsilon"}),
        "epsilon_renyi": (1.0, {"by Renyi alone"}),
        "method": ("Renyi", {"certified epsilon"}),
        "delta": (0.5, {"certified epsilon"}),
        "order": (9.0, {"by Renyi alone"}),
        "noise_multiplier": (five, {"noise multiplier"}),
        "retired": (4, {"retired clients"}),
        "rounds": (8, {"rounds"}),
        "guarantees": (GUARANTEES, set(AGAINST)),
        "budgets": (
            ({"group": "a", "budget": 9.0, "clients": 5, "largest": 7.25},),
            {"group a", "certified epsilon"},
        ),
        "seconds": (3.0, {"time"}),
        "run_dir": ("elsewhere", {"run directory"}),
        "evaluated_on": (
            "validation",
            {"test accuracy", "test loss", "validation accuracy", "validation loss"},
        ),
        "metric": ("error", {"test accuracy", "test error"}),
        **{name: (None, set()) for name in (*SILENT, *BELOW)},
    }
    assert other.keys() == unequal.names(Summary)
    for name, (value, lines) in other.items():
        after = dict(closing_table(unequal.summary(**{name: value})))
        assert {
            line for line in before.keys() | after.keys() if before.get(line) != after.get(line)
        } == lines


def test_what_there_is_not_has_no_line():
    """One column that is infinite leaves the other as it is; nothing is shown of what was not
    computed."""
    table = dict(closing_table(unequal.summary(epsilon_certified=(None,) * 5)))
    assert (
        table["certified epsilon"] == "infinite (not private)"
        and table["published epsilon"] == "8.375"
    )
    assert not table.keys() & {"by Renyi alone", "noise multiplier"}
    table = dict(closing_table(unequal.summary(epsilon_published=(1.0, None))))
    assert (
        table["published epsilon"] == "infinite (not private)"
        and table["certified epsilon"][:4] == "7.25"
    )
    table = dict(
        closing_table(
            unequal.summary(method="", order=None, seconds=None, accuracy=None, loss=None)
        )
    )
    assert not table.keys() & {"by Renyi alone", "time"}
    assert table["test accuracy"] == table["test loss"] == "unknown"


def test_the_closing_table_of_one_client_speaks_of_its_budget():
    one = {
        "epsilon_certified": (4.375,),
        "epsilon_published": (6.125,),
        "noise_multiplier": (2.71,),
    }
    for retired, words in ((1, "used up"), (0, "pays for further rounds")):
        table = dict(closing_table(unequal.summary(**one, retired=retired)))
        assert (
            table["certified epsilon"] == "4.375, delta 2e-06, by loss distributions"
            and table["published epsilon"] == "6.125"
        )
        assert (
            table["budget"] == words
            and "retired clients" not in table
            and table["noise multiplier"] == "2.71"
        )


def live(records, clients=5, width=160, finished=0):
    """The line after each round, and what the run prints at its end."""
    text = io.StringIO()
    console = Console(
        file=text, force_terminal=True, width=width, highlight=False, color_system=None
    )
    lines = []
    with closing(Progress(False, console)) as progress:
        progress.started(
            RunInfo(rounds=9, finished=finished, clients=clients, run_dir="", together=3)
        )
        for record in records:
            progress.round(record)
            frame = text.getvalue().rpartition("\x1b[2K")[2]
            lines.append(" ".join(word for word in frame.split() if word.isascii()))
        progress.finished(unequal.summary())
    return lines, text.getvalue()


def test_the_line_of_each_round_has_its_figures_under_their_names():
    """Time left: the mean of the rounds after the first, which is the estimate as long as it is
    alone."""
    lines, closing = live(unequal.ROUNDS)
    figures = (
        "round 1/9 acc 0.310 loss 1.910 eps 2.75 (median 1.25) retired 0 1:06 left",
        "round 2/9 acc 0.570 loss 1.130 eps 4.5 (median 2.25) retired 1 0:26 left",
        "round 3/9 acc 0.430 loss 1.420 eps 7.25 (median 3.13) retired 2 0:28 left",
    )
    for line, expected in zip(lines, figures, strict=True):
        assert line == expected
    assert closing.splitlines()[-3:] == [
        "The paper counts less.",
        "The first limit.",
        "The second limit.",
    ]


def test_a_field_of_a_round_that_changes_shows_where_it_belongs():
    """A new field fails here until its place is said."""
    before = live(unequal.ROUNDS[:1])[0][0]
    other = {
        "round": 2,
        "accuracy": 0.5,
        "loss": 0.5,
        "retired": 4,
        "seconds": 99.0,
        "participants": 99,
    }
    other |= {
        f"epsilon_{name}": 9.5 for name in ("certified_max", "certified_median", "published_max")
    }
    other |= {"seconds_training": 99.0, "metrics": {"noise": 9.0}}
    assert other.keys() == unequal.names(RoundRecord)
    shown = set()
    for name, value in other.items():
        after = live([dataclasses.replace(unequal.ROUNDS[0], **{name: value})])[0][0]
        shown |= {name} if after != before else set()
    assert other.keys() - shown == {
        "epsilon_published_max",
        "participants",
        "seconds_training",
        "metrics",
    }


def test_the_line_of_one_client_has_no_figures_of_many():
    lines, _ = live(unequal.ROUNDS[:1], clients=1)
    assert (
        "eps 2.75 1:06 left" in lines[0] and "median" not in lines[0] and "retired" not in lines[0]
    )


def test_rounds_of_before_and_rounds_without_a_time_do_not_count_for_the_time_left():
    """A run that goes on after two rounds; of the third it is told no time."""
    untimed = dataclasses.replace(unequal.ROUNDS[2], seconds=None)
    lines, _ = live([*unequal.ROUNDS[:2], untimed], finished=2)
    assert not any("left" in line for line in lines)
    lines, _ = live(unequal.ROUNDS, finished=2)
    assert "0:33 left" in lines[2] and "left" not in lines[0] + lines[1]
