"""Budgets of adaptive runs of Gaussians of all records: they are dominated by one Gaussian."""

import json
import math

import numpy as np
import pytest
from scipy.signal import fftconvolve
from scipy.special import ndtr

from mechanisms.accounting import accountant
from mechanisms.accounting.accountant import IN_PROGRESS, epsilon
from mechanisms.accounting.allotment import Account, cost, gaussian, overdrawn
from mechanisms.accounting.events import (
    Allotment,
    Covered,
    Event,
    Gaussian,
    GaussianAllotment,
    ImportanceSampledGaussian,
    NoisyNormSum,
    SampledGaussian,
    from_dict,
    to_dict,
)
from mechanisms.accounting.ledger import Ledger
from mechanisms.equal_rounds import epsilons_spent, gaussian_epsilons
from mechanisms.plan import Terms, planned
from mechanisms.registry import MECHANISMS
from mechanisms.settings import Dpagd, Dpis, Privacy
from sim.verifying import proof

DELTA = 1e-5
SHARE = GaussianAllotment(3.0, 4)
ORDER = GaussianAllotment.order


def covered(event: Event) -> Covered:
    return Covered(event, ORDER)


def worst_delta(square: float, units: int, eps: float) -> float:
    """The most that an adversary reaches who chooses each release's precision by what he has seen,
    in units of ``square``, or stops: by backward induction over the loss and what is left."""
    width = 0.02
    losses = np.arange(-20.0, 24.0, width)
    noise = np.arange(-8.0, 8.0 + width / 2, width)
    stopped = -np.expm1(np.minimum(eps - losses, 0.0))
    best = [stopped]
    for left in range(1, units + 1):
        choices = [stopped]
        for spent in range(1, left + 1):
            mu2 = spent * square
            step = np.exp(-np.square(noise - mu2 / 2) / (2 * mu2))
            # P's loss is N(mu^2 / 2, mu^2)
            moved = fftconvolve(best[left - spent], step[::-1] / step.sum(), "same")
            choices.append(moved)
        best.append(np.max(choices, axis=0))
    return float(best[units][np.argmin(np.abs(losses))])


def gaussian_delta(square: float, eps: float) -> float:
    mean = math.sqrt(square)
    return float(ndtr(mean / 2 - eps / mean) - math.exp(eps) * ndtr(-mean / 2 - eps / mean))


@pytest.mark.parametrize("eps", [0.5, 2.0, 4.0])
def test_whoever_chooses_noise_by_what_he_has_seen_gains_nothing(eps):
    """Over one Gaussian with all of the budget. With another half of a unit he would."""
    square, units = 0.15, 6
    worst, exact = worst_delta(square, units, eps), gaussian_delta(units * square, eps)
    assert worst == pytest.approx(exact, rel=2e-3)
    assert gaussian_delta((units + 0.5) * square, eps) > 1.05 * worst


def test_sampled_releases_at_the_same_price_would_exceed_it():
    """Why a `GaussianAllotment` pays for none: the price at order 2 says nothing of rare losses."""
    rare = SampledGaussian(0.01, 0.5)
    count = math.floor(SHARE.rdp / cost(rare, ORDER))
    assert count > 10
    assert epsilon({rare: count}, DELTA).epsilon > 1.2 * epsilon({SHARE: 1}, DELTA).epsilon


def test_it_is_a_gaussian_that_is_spent_in_parts():
    """Certified by its loss distribution, at each order, and free in the published column."""
    assert epsilon({SHARE: 3}, DELTA) == epsilon({Gaussian(3.0): 3}, DELTA)
    assert epsilon({SHARE: 3}, DELTA).method == "loss distributions"
    orders = (1.5, 4.0, 32.0)
    own = accountant.rdp({SHARE: 2}, orders, "certified")
    assert own.tolist() == accountant.rdp({Gaussian(3.0): 2}, orders, "certified").tolist()
    assert epsilon({SHARE: 3}, DELTA, "published").epsilon == 0.0
    assert from_dict(json.loads(json.dumps(to_dict(SHARE)))) == SHARE


FOUR = Gaussian(6.0001)  # four of them cost a share
RELEASES = {
    "whole": ({SHARE: 1, covered(FOUR): 4}, True),
    "two shares": ({SHARE: 2, covered(FOUR): 8}, True),
    "other names": (
        {
            SHARE: 1,
            covered(SampledGaussian(1.0, 6.0)): 1,
            covered(ImportanceSampledGaussian(9.0, 1.0, 9.0, 9.0, 6.0)): 1,
            covered(NoisyNormSum(1.0, 6.0)): 1,
        },
        True,
    ),
    "one too many": ({SHARE: 1, covered(FOUR): 5}, False),
    "nothing paid": ({covered(FOUR): 1}, False),
    "sampled": ({SHARE: 1, covered(SampledGaussian(0.9, 60.0)): 1}, False),
    "sampled by norm": (
        {SHARE: 1, covered(ImportanceSampledGaussian(9.0, 1.0, 10.0, 90.0, 60.0)): 1},
        False,
    ),
    "another order": ({SHARE: 1, Covered(FOUR, 3.0): 1}, False),
}


@pytest.mark.parametrize("name", RELEASES)
def test_anyone_can_check_from_the_files_that_releases_are_covered(name):
    """By both programs. Kills a free pass where loss distributions are composed."""
    charges, free = RELEASES[name]
    paid = {event: count for event, count in charges.items() if event == SHARE}
    assert overdrawn(charges) is not free
    certified = epsilon(charges, DELTA).epsilon
    assert certified == (epsilon(paid, DELTA).epsilon if free else math.inf)
    assert (epsilon(charges, DELTA, orders=(4.0,)).epsilon < math.inf) is free
    low, high = proof.interval(charges, str((1 - IN_PROGRESS) * DELTA), None, certified)
    assert (low <= certified <= 1.01 * low and high <= certified) if free else low == math.inf
    assert (proof.interval(charges, str(DELTA), 4.0, 1.0)[0] < math.inf) is free


def test_more_releases_are_not_covered_because_fewer_were_known_to_be():
    """Of charges that are known to stay within a budget a part with fewer shares may not."""
    kept = {SHARE: 2, covered(FOUR): 8}
    target = epsilon(kept, DELTA).epsilon
    assert accountant.within(kept, target, DELTA)
    assert not accountant.within({SHARE: 1, covered(FOUR): 8}, target, DELTA)


def test_an_account_counts_precisions(tmp_path):
    with Ledger(tmp_path / "g.jsonl") as ledger:
        ledger.charge("r1", 1, [0], {SHARE: 1})
        ledger.charge("r1", 1, [0], {covered(FOUR): 3})
        account = ledger.account(0, ORDER)
    assert account == Account(ORDER, 1 / 9, 3 * cost(FOUR, ORDER))
    assert account.pay({Gaussian(6.0): 1}).left > 0.0
    with pytest.raises(ValueError, match="above the allotted"):
        account.pay({Gaussian(5.99): 1})


@pytest.mark.parametrize("own", [Dpagd(), Dpis()], ids=["dpagd", "dpis"])
def test_plans_of_whole_batches_have_less_noise_than_at_one_order(own, monkeypatch):
    """And spend what they were given; those of sampled batches have their order. Calibrated
    together they are as alone."""
    name = type(own).__name__.lower()
    mechanism = MECHANISMS[name]

    def terms(rate: float) -> Terms:
        privacy = Privacy(mechanism=name, epsilon=4.0, sample_rate=rate, delta=DELTA)
        return Terms(privacy, own, 2, 10, 60)

    rates = (1.0, 0.3, 1.0)
    plans = mechanism.calibrate(mechanism.plan, [terms(rate) for rate in rates])
    kinds = [type(plan.allotment) for plan in plans]
    assert kinds == [GaussianAllotment, Allotment, GaussianAllotment]
    assert plans[:2] == [mechanism.calibrate(mechanism.plan, [terms(r)])[0] for r in rates[:2]]
    spent = epsilon(planned(plans[0], 10), DELTA)
    assert 3.997 < spent.epsilon <= 4.0 and spent.method == "loss distributions"
    budget = [10 * plan.allotment.rdp for plan in plans]
    accounts = [Account(p.allotment.order, b) for p, b in zip(plans, budget, strict=True)]
    told = epsilons_spent(plans, accounts, budget)
    assert told == pytest.approx([4.0] * 3, rel=2e-3)
    assert epsilons_spent(plans, accounts, [0.0] * 3)[0] < 1e-99
    monkeypatch.setattr("mechanisms.equal_rounds.gaussian", lambda event: False)
    (at_one_order,) = mechanism.calibrate(mechanism.plan, [terms(1.0)])
    assert plans[0].noise_multiplier < 0.95 * at_one_order.noise_multiplier


def test_an_account_of_gaussians_is_told_at_the_epsilon_of_one_of_them():
    """Also what it takes of delta."""
    noises = np.array([0.5, 1.0, 10.0])
    told = gaussian_epsilons(noises**-2.0, np.full(3, 1e-5))
    assert told == pytest.approx(
        [epsilon({Gaussian(s): 1}, 1e-5).epsilon for s in noises], rel=2e-4
    )


def test_what_is_a_gaussian_of_all_records():
    assert gaussian(Gaussian(2.0)) and gaussian(SampledGaussian(1.0, 2.0))
    assert not gaussian(SampledGaussian(0.999, 2.0)) and not gaussian(NoisyNormSum(0.5, 2.0))
    assert not gaussian(Allotment(2.0, 1.0, 1))
