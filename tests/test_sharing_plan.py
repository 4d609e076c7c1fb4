"""How a budget is split between what clients share and what they train."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch

from mechanisms.accounting.accountant import ORDERS, Charges, epsilon, guarantee
from mechanisms.accounting.events import (
    Gaussian,
    PublicLabels,
    RandomizedResponse,
    Unprotected,
    VisibleChoice,
)
from mechanisms.arithmetic import GRID
from mechanisms.dpis_plan import DpisPlan
from mechanisms.plan import Plan, PlanTable, merge, planned
from mechanisms.registry import plan_table
from mechanisms.settings import Dpagd, Dpis, Privacy
from mechanisms.sharing import SharingPlan, _parts
from sim.config import configuration as config
from sim.job.job import TRAIN
from sim.phases import course, generator, sharing
from sim.phases.phase import Outlook

SHAPE, EPSILON = (2, 8), 6.0
GIVEN = {
    "dataset": "x.npz",
    "strategy": "fedfed",
    "epsilon": EPSILON,
    "share_budget": 0.5,
    "distill_rounds": 4,
}
DISTILLED = {"shared_source": "distilled", "share_rate": 0.5}


@dataclass(frozen=True)
class Before:
    """The plans of a client before training, and what they cost together."""

    generator: Plan | None
    release: SharingPlan
    charges: Charges


def plan(public: bool = False, **given: object) -> Before | None:
    outlook = Outlook(
        config.load(None, GIVEN | given, lenient=config.SETTINGS), SHAPE, np.array([20, 30]), public
    )
    tables, costs = {}, {}
    for phase in course.BEFORE:
        if (table := phase.plan(outlook, costs)) is not None:
            tables[phase.name] = table.plans[0]
            costs[phase.name] = planned(table.plans[0], phase.rounds(outlook.config))
    if not tables:
        return None
    return Before(tables.get(generator.NAME), tables[sharing.NAME], merge(*costs.values()))


def test_labels_get_a_quarter_of_the_share_budget_unless_it_is_said_otherwise():
    """And nothing where they are public."""
    kinds = {"none": {}, "given": {"label_epsilon": 0.3}, "public": {"public_labels": True}}
    charges = {
        name: plan(**DISTILLED, **given).release.round_charges(1) for name, given in kinds.items()
    }
    assert (
        charges["none"][RandomizedResponse(0.25 * 0.5 * EPSILON)]
        == charges["given"][RandomizedResponse(0.3)]
        == 1
    )
    assert charges["public"][PublicLabels()] == 1 and len(charges["public"]) == 2


SHARED = [
    {},
    DISTILLED,
    DISTILLED | {"distill_clip": 0.4},
    {"prototype_features": "distilled"},
    {"share_budget": 0.2},
]


@pytest.mark.parametrize("given", [*SHARED, DISTILLED | {"delta": 1e-3}], ids=str)
def test_all_that_precedes_training_costs_the_share_budget_and_no_more(given):
    found, share = plan(**given), given.get("share_budget", 0.5) * EPSILON
    delta = given.get("delta", 1e-5)
    trained = {} if found.generator is None else planned(found.generator, 4)
    assert found.charges == merge(trained, found.release.round_charges(1))
    assert 0.98 * share < epsilon(found.charges, delta).epsilon <= share
    if found.generator:
        assert 0.98 * 0.5 * share < epsilon(trained, delta).epsilon <= 0.5 * share
        assert found.generator.clip_norm == given.get("distill_clip", 1.0)


def test_a_run_with_every_phase_costs_its_budget_and_what_is_shared_its_share():
    """From the plans of the whole course. Kills a phase that is told of one round of an earlier
    one, or of none."""
    given = GIVEN | DISTILLED | {"standardize": "private", "rounds": 3, "evaluation": "released"}
    settings, sizes = config.load(None, given, lenient=config.SETTINGS), np.array([20, 30])
    plans = course.plan(Outlook(settings, SHAPE, sizes, False))
    paid = {
        phase.name: planned(plans[phase.name].plans[0], phase.rounds(settings))
        for phase in course.BEFORE
    }
    shared = epsilon(merge(paid[generator.NAME], paid[sharing.NAME]), 1e-5).epsilon
    assert 0.98 * 0.5 * EPSILON < shared <= 0.5 * EPSILON
    for own in plans[TRAIN].plans:
        whole = epsilon(merge(*paid.values(), planned(own, 3)), 1e-5).epsilon
        assert 0.98 * EPSILON < whole <= EPSILON


def test_the_bound_is_half_the_norm_of_a_record_of_ones_unless_it_is_given():
    assert plan().release.clip_norm == 0.5 * np.linalg.norm(np.ones(SHAPE))
    assert plan(share_clip=0.7).release.clip_norm == 0.7


def test_a_given_noise_is_taken():
    """Also where there is no budget of which it could be a share."""
    for given in ({}, {"epsilon": None, "noise_multiplier": 1.0}):
        assert plan(share_noise=9.0, **given).release.round_charges(1) == {Gaussian(9.0): 1}
    single = plan(share_noise=9.0, share_views=4, **DISTILLED).release
    assert single.singly and VisibleChoice(0.5, 4.5) in single.round_charges(1)


@pytest.mark.parametrize("given", [{}, DISTILLED, DISTILLED | {"share_noise": 9.0}], ids=str)
def test_a_share_of_no_budget_is_refused(given):
    """Noise that is given pays for the release, not for the generator. Kills a budget without
    end."""
    with pytest.raises(
        ValueError, match=r"^share_budget is a share of epsilon, which is not set: "
    ):
        plan(epsilon=None, noise_multiplier=1.0, **given)


def test_without_privacy_nothing_is_clipped_noised_or_hidden():
    found = plan(mechanism="none", **DISTILLED)
    assert (
        found.charges == {Unprotected(0.5): 1, Unprotected(1.0): 4}
        and found.release.clip_norm == np.inf
    )
    assert found.release.label_epsilon is None


def test_what_is_public_or_nothing_needs_no_plan():
    assert plan(public=True, shared_source="public") is None and plan(shared_source="none") is None
    assert plan(strategy="fedavg") is None
    with pytest.raises(ValueError, match="public_records is 0"):
        plan(shared_source="public")


@pytest.mark.parametrize("mechanism", ["dpsgd", "dpis", "dpagd"])
def test_a_plan_knows_what_is_paid_before_it(mechanism):
    """Calibrated noise pays for both; a given one is refused where both together pass the
    budget."""
    prior, sizes = {Gaussian(3.0): 1}, np.array([20])
    own = {"dpis": Dpis(), "dpagd": Dpagd()}.get(mechanism)

    def table(noise: float | None, prior: dict) -> PlanTable:
        privacy = Privacy(mechanism=mechanism, epsilon=3.0, noise_multiplier=noise, sample_rate=0.5)
        return plan_table(privacy, own, 2, 3, sizes, prior)

    alone, after = (table(None, paid).plans[0] for paid in ({}, prior))
    assert after.noise_multiplier > 1.05 * alone.noise_multiplier
    assert 0.98 * 3.0 < epsilon(merge(planned(after, 3), prior), 1e-5).epsilon <= 3.0
    assert table(6.0, prior).plans[0].noise_multiplier == 6.0
    assert table(2.0, {}).plans
    with pytest.raises(ValueError, match="too small for a single round"):
        table(2.0, {Gaussian(1.5): 1})


def test_the_order_of_a_run_is_the_best_for_all_that_is_paid():
    """For its rounds and what precedes them. Kills an order of the rounds alone."""
    prior = {Gaussian(1.0): 1}
    orders = []
    for paid in ({}, prior):
        own = DpisPlan(0.5, 8.0, 1.0, 2, 3, 1e-5, 20, Dpis(), prior=tuple(paid.items()))
        rounds = {event: 3 * count for event, count in own.worst_round().items()}
        orders.append(guarantee(merge(rounds, paid), 1e-5, "certified", ORDERS).order)
        assert (own.allotment.order, own.allotment.shares) == (orders[-1], 3)
    assert orders[1] < 0.7 * orders[0]


def test_parts_of_a_release_are_in_units_of_the_bound_as_it_is_charged():
    """Of a bound that float32 does not hold, to the last unit of 2^44."""
    features = torch.tensor([[0.03125, -0.0625], [0.0, 0.015625]])
    parts = _parts(SharingPlan(1.0, 0.1), features, GRID)
    assert parts.tolist() == [
        [round(value * 2**44 / 0.1) for value in row] for row in features.tolist()
    ]
