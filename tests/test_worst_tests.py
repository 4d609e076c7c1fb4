"""Steps that are tested, against whoever chooses their tests by what was released before."""

import pytest

from mechanisms.accounting.accountant import IN_PROGRESS, epsilon
from mechanisms.accounting.events import DpsurStep
from tests.brute_force import least_epsilon
from tests.test_readme import ROOT
from tests.worst_tests import Grid, worst_epsilon

MNIST = (0.01707, 1.35, 0.00427, 0.9, -1.0)
"""DPSUR's settings in its paper."""
DELTA = 1e-5
OF_THE_END = (1.0 - IN_PROGRESS) * DELTA
PAGE = ROOT / "docs/decisions/0039-what-tested-steps-lose.md"


@pytest.mark.parametrize(
    ("accounting", "count", "passes"), [("visible", 25, 2), ("selective", 8, 4)]
)
def test_tests_that_follow_what_was_released_cost_more_than_one_and_no_more_than_is_charged(
    accounting, count, passes
):
    """Kills an induction that is none: a test for all losses."""
    step = DpsurStep(*MNIST, accounting)
    grid = Grid(low=-1.5, high=1.5, outcomes=80)
    found = worst_epsilon(step, count, OF_THE_END, passes, grid)
    assert 1.002 * least_epsilon(step, count, OF_THE_END) < found
    assert found <= epsilon({step: count}, DELTA).epsilon


@pytest.mark.slow
@pytest.mark.parametrize(
    ("accounting", "count", "passes", "grid"),
    [
        ("visible", 2_000, 2, Grid(-3.2, 2.5, 0.008, 160)),
        ("selective", 1_475, 4, Grid(-6.0, 3.0, 0.012, 100)),
    ],
)
def test_the_figures_of_many_steps_are_those_of_the_page(accounting, count, passes, grid):
    """What is charged, and the worst tests that were found."""
    step = DpsurStep(*MNIST, accounting)
    charged = epsilon({step: count}, DELTA).epsilon
    found = worst_epsilon(step, count, OF_THE_END, passes, grid)
    row = f"`{accounting}` | {charged:.3f} | {found:.3f} | {100 * (charged / found - 1):.1f} %"
    assert row in PAGE.read_text(encoding="utf-8")
