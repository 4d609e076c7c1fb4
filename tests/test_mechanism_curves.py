"""The curves of mechanisms other than DPSGD, and the charges that put their two columns
together."""

import dataclasses
import json
import math

import numpy as np
import pytest

from mechanisms import noise_shape
from mechanisms.accounting import accountant, curves, dominating, events, trial_cap
from mechanisms.accounting.acceptance import Acceptance
from mechanisms.accounting.selective import selective
from mechanisms.accounting.visible import every_trial, visible
from tests.reference_values import REFERENCE

ORDERS = (1.25, 2.0, 5.5, 16.0, 64.0)
DPSUR = events.DpsurStep(0.05, 2.0, 0.01, 1.0, -1.0, "visible")
SCREENED = events.ScreenedStep(0.05, 2.0, 0.1, 0.2, "clipped")
EXAMPLES = [
    events.SampledGaussian(0.1, 2.0),
    events.FixedBatchGaussian(3, 40, 2.0),
    events.Gaussian(2.0),
    events.PaperClaim(0.1, 2.0),
    events.ClassicClaim(0.1, 2.0),
    events.Unprotected(0.1),
    events.Unproved("raw losses"),
    DPSUR,
    events.ImportanceSampledGaussian(64.0, 0.5, 400.0, 1000.0, 1.5),
    events.NoisyNormSum(0.1, 20.0),
    events.HeterogeneousGaussian(0.1, 2.0, 0.5),
    SCREENED,
    events.TrialCap(0.1, 30),
    events.VisibleChoice(0.1, 2.0),
    events.PartialPass(0.1, 2.0),
    events.RandomizedResponse(1.5),
    events.PublicLabels(),
    events.SummedShares(1e-9),
]


def rdp(event, column="certified", orders=ORDERS):
    return curves.rdp(event, orders, column)


def sgm(rate, noise, orders=ORDERS):
    return curves.rdp(events.SampledGaussian(rate, noise), orders, "certified")


@pytest.mark.parametrize("event", EXAMPLES, ids=lambda event: event.kind)
def test_every_event_survives_json_and_has_two_rising_curves(event):
    assert events.from_dict(json.loads(json.dumps(events.to_dict(event)))) == event
    for column in curves.COLUMNS:
        values = rdp(event, column)
        assert (values >= 0).all()
        assert (values[1:] >= values[:-1]).all()


@pytest.mark.parametrize("event", EXAMPLES, ids=lambda event: event.kind)
def test_every_field_of_every_event_has_a_bound(event):
    for field in dataclasses.fields(event):
        for bad in (None, math.nan, -math.inf, True, ""):
            with pytest.raises(ValueError, match=f"{event.kind}: {field.name} = "):
                dataclasses.replace(event, **{field.name: bad})


@pytest.mark.parametrize("count", [0.0, 0.5, 2.5, -1.0])
def test_what_is_counted_is_a_whole_number_of_at_least_one(count):
    """Kills a cap, or a number of shares, that is a fraction."""
    for event, field in (
        (events.TrialCap(0.1, 30), "most_rejections"),
        (events.Allotment(6.0, 0.1, 3), "shares"),
    ):
        with pytest.raises(ValueError, match=f"{event.kind}: {field} = {count} must be a whole"):
            dataclasses.replace(event, **{field: count})


def test_a_sum_of_norms_is_at_least_that_at_which_all_are_drawn():
    """Below b C the rate b C / K would be above 1, where no curve holds."""
    least = events.ImportanceSampledGaussian(10.0, 0.5, 5.0, 100.0, 2.0)
    with pytest.raises(ValueError, match=r"norm_sum = 4\.999 must be at least b C = 5"):
        dataclasses.replace(least, norm_sum=4.999)


@pytest.mark.parametrize(
    "event",
    [
        events.SampledGaussian(1e-12, 1e-9),
        events.Gaussian(1e-200),
        events.FixedBatchGaussian(1, 10**12, 1e-200),
        events.FixedBatchGaussian(1, 10**12, 0.1),
        events.FixedBatchGaussian(1, 2, 1e9),
        events.DpsurStep(1.0, 1e-3, 1.0, 1e-3, -1.0, "selective"),
        events.DpsurStep(1.0, 1e-3, 1.0, 1e-3, -1.0, "visible"),
        events.DpsurStep(1e-9, 1e6, 1e-9, 1e-3, 50.0, "every-trial"),
        events.DpsurStep(1e-9, 1e6, 1e-9, 1e6, -1.0, "visible"),
        events.DpsurStep(1e-9, 1e6, 1e-9, 1e6, -1.0, "selective"),
        events.HeterogeneousGaussian(0.5, 1.0, 1e-200),
        events.VisibleChoice(1e-300, 1e-200),
        events.RandomizedResponse(1e200),
    ],
    ids=repr,
)
@pytest.mark.filterwarnings("error")
def test_extremes_give_no_nan(event):
    for column in curves.COLUMNS:
        assert (rdp(event, column, (1.25, 2.0, 64.0, 512.0)) >= 0).all()


@pytest.mark.parametrize("row", REFERENCE["importance_sampled_gaussian"])
def test_importance_sampling_reference(row):
    sizes = (row["batch_size"], row["clip_norm"], row["norm_sum"], row["records"])
    for column in curves.COLUMNS:
        value = rdp(
            events.ImportanceSampledGaussian(*sizes, row["noise_multiplier"]),
            column,
            [row["alpha"]],
        )
        assert value == pytest.approx([row["rdp"]], rel=1e-9)


def test_importance_sampling_with_equal_norms_is_uniform_sampling():
    """K = N C: every record enters with b / N and adds C; that is DPSGD at the rate b / N."""
    event = events.ImportanceSampledGaussian(50.0, 0.5, 1000 * 0.5, 1000.0, 1.5)
    assert rdp(event) == pytest.approx(sgm(0.05, 1.5), rel=1e-12)
    with pytest.raises(ValueError, match=r"norm_sum = 24\.9 must be at least b C = 25\.0"):
        dataclasses.replace(event, norm_sum=24.9)


@pytest.mark.parametrize("row", REFERENCE["heterogeneous_noise"])
def test_heterogeneous_noise_reference(row):
    smallest = min(noise_shape.scales(row["eigenvalues"]))
    assert row["noise_multiplier"] * smallest == pytest.approx(
        row["effective_noise_multiplier"], rel=1e-12
    )
    event = events.HeterogeneousGaussian(0.1, row["noise_multiplier"], smallest)
    assert rdp(event) == pytest.approx(sgm(0.1, row["effective_noise_multiplier"]), rel=1e-9)
    assert np.array_equal(rdp(event, "published"), sgm(0.1, row["noise_multiplier"]))


def test_noise_scales_keep_the_mean_square_and_refuse_what_is_no_spectrum():
    assert np.mean(np.square(noise_shape.scales([9.0, 0.5, 0.0, 1e-200]))) == pytest.approx(1.0)
    assert noise_shape.scales([1.0, 2.0]) == pytest.approx([math.sqrt(2 / 5), math.sqrt(8 / 5)])
    none = min(noise_shape.scales([1.0, 0.0]))
    assert np.isinf(rdp(events.HeterogeneousGaussian(0.1, 1.0, none))).all()
    for bad in ([], [0.0, 0.0], [1.0, -1.0], [math.inf], [math.nan]):
        with pytest.raises(ValueError, match="eigenvalues = "):
            noise_shape.scales(bad)


@pytest.mark.parametrize("row", REFERENCE["visible_choice"])
def test_visible_choice_reference(row):
    value = rdp(
        events.VisibleChoice(row["share_rate"], row["noise_multiplier"]), orders=[row["alpha"]]
    )
    assert value == pytest.approx([row["rdp"]], rel=1e-12)


def test_a_visible_choice_is_linear_in_small_shares_and_gaussian_at_one():
    orders = np.array(ORDERS)
    assert rdp(events.VisibleChoice(1.0, 3.0)) == pytest.approx(
        rdp(events.Gaussian(3.0)), rel=1e-12
    )
    limit = 1e-12 * np.expm1(orders * (orders - 1) / (2 * 50.0**2)) / (orders - 1)
    assert rdp(events.VisibleChoice(1e-12, 50.0)) == pytest.approx(limit, rel=1e-6)


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 4.0])
@pytest.mark.parametrize("labels", [2, 10])
def test_randomized_response_costs_at_least_its_divergence(epsilon, labels):
    orders = np.array(ORDERS)
    kept = math.exp(epsilon) / (math.exp(epsilon) + labels - 1)
    other = kept / math.exp(epsilon)
    moments = (
        kept**orders * other ** (1 - orders)
        + other**orders * kept ** (1 - orders)
        + (labels - 2) * other
    )
    exact = np.log(moments) / (orders - 1)
    found = rdp(events.RandomizedResponse(epsilon))
    assert (exact <= found).all()
    assert (found <= epsilon).all()
    assert found[0] == pytest.approx(min(epsilon, 1.25 * epsilon**2 / 2))


def test_a_noisy_norm_sum_is_charged_with_the_noise_that_is_inside_the_average():
    event = events.NoisyNormSum(0.1, 20.0)
    assert np.array_equal(rdp(event), sgm(0.1, 2.0))
    assert np.array_equal(rdp(event, "published"), sgm(0.1, 20.0))


def test_screening_claims_what_its_theorem_1_claims_and_proves_what_it_did():
    """Integer orders from 2 to 64 and the conversion of Lemma 2, which is above the tighter one;
    MNIST of Table 2."""
    rate, noise, steps, delta = 512 / 60_000, 1.23, 4_698, 1e-5
    orders = np.arange(2.0, 65.0)
    claimed = (steps * sgm(rate, noise, tuple(orders)) - math.log(delta) / (orders - 1)).min()
    step = dataclasses.replace(
        SCREENED, sample_rate=rate, noise_multiplier=noise, accounting="public-test"
    )
    charges = {step: steps, events.ClassicClaim(rate, noise): steps}
    assert accountant.epsilon(charges, delta, "published").epsilon == pytest.approx(
        claimed, rel=1e-10
    )
    more = {event: count + 1 for event, count in charges.items()}
    assert 2.999 < claimed <= 3.0 < accountant.epsilon(more, delta, "published").epsilon
    tighter = {step: steps, events.PaperClaim(rate, noise): steps}
    assert accountant.epsilon(tighter, delta, "published").epsilon < 0.9 * claimed
    for orders in (None, accountant.ORDERS):
        found = [accountant.epsilon(paid, delta, orders=orders) for paid in (tighter, charges)]
        assert found[0] == found[1]


def test_a_classic_claim_that_was_never_made_converts_nothing():
    claims = {events.PaperClaim(0.1, 2.0): 3, events.ClassicClaim(0.1, 2.0): 0}
    alone = accountant.epsilon({events.PaperClaim(0.1, 2.0): 3}, 1e-5, "published")
    assert accountant.epsilon(claims, 1e-5, "published") == alone


def test_claims_cost_nothing_certified_and_what_is_unproved_costs_nothing_published():
    assert not rdp(events.PaperClaim(0.1, 2.0)).any()
    assert np.array_equal(rdp(events.PaperClaim(0.1, 2.0), "published"), sgm(0.1, 2.0))
    assert np.isinf(rdp(events.Unproved("raw losses"))).all()
    assert not rdp(events.Unproved("raw losses"), "published").any()


@pytest.mark.parametrize(
    ("mode", "price"),
    [("visible", visible), ("selective", selective), ("every-trial", every_trial)],
)
def test_dpsur_is_priced_by_its_accounting(mode, price):
    event = dataclasses.replace(DPSUR, accounting=mode)
    test = Acceptance.of_noisy_loss(0.01, 1.0, -1.0)
    assert np.array_equal(rdp(event), price(0.05, 2.0, test, ORDERS))
    assert not rdp(event, "published").any()


def test_screening_is_priced_by_where_its_test_runs():
    public, unproved = (
        dataclasses.replace(SCREENED, accounting=mode) for mode in ("public-test", "unproved")
    )
    assert np.array_equal(rdp(public), sgm(0.05, 2.0))
    assert np.isinf(rdp(unproved)).all()
    assert np.array_equal(rdp(SCREENED), selective(0.05, 2.0, Acceptance(0.2, 1.0, 0.1), ORDERS))
    assert np.isinf(rdp(dataclasses.replace(SCREENED, lowest_acceptance=0.0))).all()
    assert not any(rdp(event, "published").any() for event in (public, unproved, SCREENED))


@pytest.mark.parametrize("lowest", [1e-3, 0.16, 0.9])
@pytest.mark.parametrize("delta_cap", [1e-9, 1e-3])
def test_the_smallest_cap_is_the_smallest_one(lowest, delta_cap):
    cap = trial_cap.smallest_cap(lowest, 1000, delta_cap)
    assert 1000 * (1 - lowest) ** cap <= delta_cap * (1 + 1e-9)
    assert 1000 * (1 - lowest) ** (cap - 1) > delta_cap


def test_a_cap_is_paid_from_epsilon_and_delta():
    charges, cap = {events.SampledGaussian(0.01, 1.1): 1000}, events.TrialCap(0.2, 90)
    lost = 1000 * 0.8**90
    assert trial_cap.with_cap(2.0, 1e-6) == pytest.approx(2.0 + 1e-6 / (1 - 1e-6), rel=1e-15)
    assert trial_cap.with_cap(2.0, 0.1) == pytest.approx(2.0 + 0.1 / 0.9), (
        "a share of delta so large that what is added to epsilon shows"
    )
    alone = accountant.composed(charges, 0.995 * 1e-5 - lost, dominating.ways)
    expected = alone + lost / (1 - lost)
    assert accountant.epsilon({**charges, cap: 1000}, 1e-5).epsilon == pytest.approx(
        expected, rel=1e-9
    )
    at_orders = accountant.epsilon({**charges, cap: 1000}, 1e-5, orders=accountant.ORDERS)
    renyi = accountant.epsilon(charges, 1e-5 - lost, orders=accountant.ORDERS)
    assert at_orders.epsilon == pytest.approx(renyi.epsilon + lost / (1 - lost), rel=1e-9)
    assert accountant.epsilon({**charges, cap: 1000}, 1e-5, "published") == accountant.epsilon(
        charges, 1e-5, "published"
    )
    assert accountant.epsilon({**charges, cap: 10_000}, 1e-5).epsilon == math.inf
    whole = {**charges, events.TrialCap(0.5, 1): 1}
    left = accountant.guarantee(whole, 0.5, "certified", accountant.ORDERS)
    assert left.epsilon == math.inf, "nothing is left of delta"
    with pytest.raises(ValueError, match="delta_cap = "):
        trial_cap.with_cap(2.0, 1.0)


@pytest.mark.parametrize(
    "arguments", [(0.0, 10, 0.1), (1.1, 10, 0.1), (0.5, 0, 0.1), (0.5, 10, 0.0), (0.5, 10, 1.0)]
)
def test_a_cap_that_cannot_be_is_refused(arguments):
    with pytest.raises(ValueError, match="must be"):
        trial_cap.smallest_cap(*arguments)
