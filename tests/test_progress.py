"""What the terminal shows: a line per round on a terminal, the closing table elsewhere, nothing when quiet."""

import io
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from server.records import RoundRecord, RunInfo, Summary
from sim.showing import wording
from sim.showing.progress import Progress

INFO = RunInfo(rounds=4, finished=1, clients=3, run_dir="runs/one", together=2)


def show(quiet=False, terminal=False, epsilon=2.5, width=120, release=False):
    """All that a run of rounds 2 to 4 prints."""
    text = io.StringIO()
    console = Console(file=text, force_terminal=terminal, width=width, highlight=False, color_system=None)
    with Progress(quiet, console) as progress:
        progress.started(INFO)
        for n in (2, 3, 4):
            progress.round(RoundRecord(n, 0.2 * n, 0.5, epsilon, epsilon, epsilon, 1, 3, 60.0, 50.0))
        each, noise = (epsilon,) * 3, (1.5, 1.5, 2.0)
        head = (0.8, 0.5, each, each, 2.25, 1e-5, 7, noise, (4,) * 3, 1, 4, 75, "runs/one", release)
        progress.finished(Summary(*head, limits=() if release else (wording.SEEDED, wording.TEST)))
    return text.getvalue()


def test_quiet_prints_nothing():
    assert show(quiet=True) == show(quiet=True, terminal=True) == ""


def test_without_a_terminal_there_is_the_closing_table_only():
    text = show()
    assert "left" not in text and "\x1b" not in text and "\r" not in text
    table = dict(line.split(maxsplit=2)[::2] for line in text.splitlines()[:3])
    assert table["test"] and "certified epsilon  2.5 (median 2.5), delta 1e-05" in text
    for part in ("0.8000", "PLD epsilon        2.25", "1.5 to 2", "1 of 3", "1 min 15 s", "runs/one"):
        assert part in text


def test_a_terminal_has_a_line_per_round():
    text = show(terminal=True)
    first = ("round 1/4", "starting, 2 clients at a time")
    for part in (*first, "round 2/4", "acc 0.400", "eps 2.5 (median 2.5)", "retired 1", "2:00 left"):
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


def test_limits_are_printed_in_their_order_and_once():
    assert show().splitlines()[-2:] == [wording.SEEDED, wording.TEST] and show().count("seeded simulation") == 1
    assert "seeded simulation" not in show(release=True)


def test_the_terminal_is_restored_after_an_error():
    text = io.StringIO()
    console = Console(file=text, force_terminal=True)
    with pytest.raises(RuntimeError), Progress(False, console) as progress:
        progress.started(INFO)
        raise RuntimeError
    assert text.getvalue().rindex("\x1b[?25h") > text.getvalue().rindex("\x1b[?25l")


@given(st.floats(0, 1e6), st.integers(1, 6))
def test_a_shown_epsilon_is_never_below_the_true_one(value, digits):
    shown = float(wording.epsilon(value, digits))
    assert value <= shown <= value * (1 + 10.0 ** (1 - digits)) * (1 + 1e-12) + 1e-300


@pytest.mark.parametrize(
    ("seconds", "long", "short"),
    [
        (0, "0.0 s", "0:00"),
        (59.6, "1 min 0 s", "1:00"),
        (9.96, "10 s", "0:10"),
        (200, "3 min 20 s", "3:20"),
        (7500, "2 h 5 min", "2:05:00"),
    ],
)
def test_durations(seconds, long, short):
    assert (wording.duration(seconds), wording.clock(seconds)) == (long, short)


def test_spans():
    assert wording.span([1.0, 1.00001]) == "1" and wording.span([2.5, 1.0]) == "1 to 2.5"
