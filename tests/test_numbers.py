"""Numbers that no setting changes: those of papers, of proofs, of results, and of what is on the
disk.

Written down a second time: with another one, every run would be another run, or a proof would be of
something else.
"""

import importlib

import pytest

NUMBERS: dict[str, dict[str, object]] = {
    "mechanisms.accounting.accountant": {"IN_PROGRESS": 0.005},
    "mechanisms.accounting.allotment": {"ROUNDING": 1e-9, "TOLERANCE": 1e-4, "SEARCHED": 16.0},
    "mechanisms.accounting.worst_pair": {"MARGIN": 1e-6, "ROUNDING": 4e-15, "NEGLIGIBLE": 42.0},
    "mechanisms.clipping": {"STABILITY": 0.01},
    "mechanisms.dpagd": {"LASTING": ("level", "alpha_max", "peak", "moves")},
    "mechanisms.dpagd_plan": {"MAX_RAISES": 100},
    "mechanisms.dphero": {"MAX_ROWS": 1024},
    "mechanisms.dpis": {"MIN_CLIP": 0.1},
    "mechanisms.dpis_plan": {"NORM_NOISE": 0.02},
    "mechanisms.dpsur": {"NOISE_RATIO": 3.0},
    "mechanisms.gradients.forms": {"DIRECTION": 2.0**23, "_EXACT_RECORDS": 2**8},
    "mechanisms.gradients.passes": {"_HELD_ON_CPU": 64 * 2**20, "_HELD_ELSEWHERE": 2**30},
    "mechanisms.gradients.record_gradients": {"_SMALLEST_NORM": 1e-12},
    "mechanisms.gradients.record_trial": {
        "SCALES": (1.0, 1e2, 1e4),
        "EXTREMES": (1e-30, 1e30),
        "SIZES": (3, 8, 64),
    },
    "mechanisms.grid": {"PART": 2.0**44, "MAX_RECORDS": 2**18, "MAX_POINT": 2.0**51},
    "mechanisms.importance": {"EDGE": 1 - 2.0**-40},
    "mechanisms.quantile": {"SHARE": 0.01, "RATE": 0.2, "MIN_BOUND": 1e-3},
    "mechanisms.randomness": {"SERVER": -1},
    "mechanisms.rounded_gaussian": {"SCALE_BITS": 28, "MARGIN": 2.0**-8},
    "mechanisms.sampling": {"COIN": 2.0**-53},
    "mechanisms.screening": {"MAX_CHANGE": 1e300},
    "mechanisms.trials": {"MAX_REJECTIONS": 100_000},
    "client.sums": {"SCALE": 2.0**32, "LIMIT": 2.0**31},
    "server.app": {"PATIENCE": 120.0, "POLL": 0.2},
    "strategies.distillation": {"HIDDEN": 64, "CODE_WEIGHT": 0.01},
}


@pytest.mark.parametrize("name", NUMBERS)
def test_a_number_is_the_one_that_is_documented(name):
    module = importlib.import_module(name)
    assert {number: getattr(module, number) for number in NUMBERS[name]} == NUMBERS[name]


def test_the_orders_are_quarters_up_to_eleven_whole_numbers_up_to_64_and_some_larger_ones():
    """The papers' are the whole ones alone."""
    accountant = importlib.import_module("mechanisms.accounting.accountant")
    quarters = [1 + n / 4 for n in range(1, 40)]
    larger = [72, 80, 96, 112, 128, 160, 192, 256, 320, 384, 448, 512]
    found = {column: accountant.default_orders(column) for column in ("certified", "published")}
    assert found == {
        "certified": tuple(quarters + list(range(11, 65)) + larger),
        "published": tuple(range(2, 65)),
    }
