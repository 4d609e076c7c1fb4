"""Every purpose for which random numbers are drawn has its law somewhere: a new one fails by being
absent here."""

import ast
from pathlib import Path

import numpy as np
import pytest

from mechanisms.arithmetic import FLOATS
from mechanisms.randomness import Streams, seed_key
from mechanisms.registry import MECHANISMS
from tests import releases
from tests.phases import PHASES
from tests.releases import CPU, PLANS, RELEASES, VARIANTS

ROOT = Path(__file__).parent.parent
LAWS = {
    "noise": "test_bits.py::"
    "test_the_noise_of_every_release_is_gaussian_with_the_scale_that_is_charged",
    "count": "test_bits.py::"
    "test_the_noise_of_every_release_is_gaussian_with_the_scale_that_is_charged",
    "search": "test_bits.py::"
    "test_the_noise_of_every_release_is_gaussian_with_the_scale_that_is_charged",
    "class sums": "test_phases.py::"
    "test_the_noise_of_every_phase_has_the_scale_that_its_ledger_says",
    "scores": "test_released_scores.py::"
    "test_scores_are_the_records_that_are_found_behind_the_noise_that_is_charged",
    "sum": "test_phases.py::test_the_noise_of_every_phase_has_the_scale_that_its_ledger_says",
    "slot noise": "test_phases.py::"
    "test_the_noise_of_every_phase_has_the_scale_that_its_ledger_says",
    "validation noise": "test_dpsur.py::test_acceptance_has_its_probability_at_both_ends",
    "clip sum": "test_dpis_coins.py::"
    "test_every_record_enters_each_norm_sum_by_a_coin_of_the_charged_rate",
    "norm sum": "test_dpis_coins.py::"
    "test_every_record_enters_each_norm_sum_by_a_coin_of_the_charged_rate",
    "slots": "test_sharing.py::test_slots_are_chosen_by_coins_that_do_not_look_at_records",
    "slot labels": "test_sharing.py::test_labels_go_through_randomized_response",
    "batch": "test_rates.py::test_records_enter_every_batch_with_the_rate_that_is_charged",
    "validation": "test_rates.py::test_records_enter_every_batch_with_the_rate_that_is_charged",
    "search batch": "test_rates.py::test_records_enter_every_batch_with_the_rate_that_is_charged",
    "accept": "test_dpis.py::test_records_enter_with_probability_b_norm_over_k",
    "acceptance": "test_screening.py::"
    "test_worse_proposals_are_accepted_with_the_probability_that_is_charged",
    "dropout": "test_dropout.py::test_each_client_has_a_coin_in_each_round",
    "own coin": "test_personal_budgets.py::"
    "test_updates_enter_sums_by_own_coins_of_the_charged_rate",
    "shared": "test_fedfed.py::"
    "test_a_large_shared_set_is_drawn_from_afresh_by_each_client_in_each_step",
}
"""By purpose, the test of what is drawn for it against what is charged for it."""
DRAWING = {"of", "normal", "rounded", "noised", "below"}


def named() -> set[str]:
    """The purposes that stand in calls that draw, in all of `mechanisms` and `strategies`."""
    found = set()
    for folder in ("mechanisms", "strategies", "client"):
        for path in (ROOT / folder).rglob("*.py"):
            tree = ast.parse(path.read_text())
            for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
                called = getattr(call.func, "attr", getattr(call.func, "id", ""))
                if called in DRAWING | {"_noised", "_places"}:
                    words = [one.value for one in call.args if isinstance(one, ast.Constant)]
                    found |= {word for word in words if isinstance(word, str)}
    return found


class Noted(Streams):
    """Streams that say for which purposes they were asked."""

    def __init__(self, clients: int):
        super().__init__(seed_key(0), 1, range(clients), CPU)
        self.purposes: set[str] = set()

    def of(self, purpose: str):
        self.purposes.add(purpose)
        return super().of(purpose)


def asked() -> set[str]:
    """The purposes for which the releases of the table ask for random numbers."""
    rows = [
        *RELEASES.values(),
        *(releases.row(name.split(",")[0], plan) for name, plan in VARIANTS.items()),
    ]
    purposes = set()
    for row in rows:
        streams = Noted(3)
        row.run(releases.owned(np.ones(3, dtype=bool)), streams, FLOATS)
        purposes |= streams.purposes
    return purposes


def test_every_purpose_has_its_law():
    """Those that stand in the code, and those that are really asked for. `shared` draws from public
    records, who drops out is asked of a node, and own coins are for sums."""
    assert named() - {"shared", "dropout", "own coin"} <= asked()
    assert named() | asked() == set(LAWS)


@pytest.mark.parametrize("law", sorted(set(LAWS.values())))
def test_the_law_is_there(law):
    file, _, name = law.partition("::")
    assert f"def {name}(" in (ROOT / "tests" / file).read_text()


def test_every_mechanism_and_every_phase_has_its_rows():
    private = {name for name, one in MECHANISMS.items() if one.private}
    assert private == {name.split(",")[0] for name in PLANS | VARIANTS}
    assert {"class sums", "statistics", "single records"} <= set(RELEASES) & set(PHASES)
