"""Budgets of adaptive runs: one order, and nothing is released that an allotment has not paid
for."""

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mechanisms.accounting import accountant, curves, sampled_gaussian
from mechanisms.accounting.allotment import (
    Account,
    AdaptivePlan,
    check_covered,
    check_settlement,
    cost,
    covered,
    least_multipliers,
    movement_of,
    overdrawn,
    payable,
    total,
)
from mechanisms.accounting.events import (
    Allotment,
    Covered,
    PaperClaim,
    SampledGaussian,
    from_dict,
    to_dict,
)
from mechanisms.accounting.ledger import Ledger, read
from mechanisms.dpis_plan import DpisPlan, Epoch, allocate
from mechanisms.settings import Dpis

SHARE, RELEASE = Allotment(4.0, 0.5, 10), SampledGaussian(0.1, 2.0)
PRICE = cost(RELEASE, 4.0)
FITS = math.floor(0.5 / PRICE)


def test_an_allotment_is_a_guarantee_at_its_own_order_alone():
    """Kills a finite curve at another order: the smallest epsilon over orders is no guarantee of an
    adaptive run."""
    orders = (2.0, 3.5, 4.0, 64.0)
    assert curves.rdp(SHARE, orders, "certified").tolist() == [math.inf, math.inf, 0.5, math.inf]
    found = accountant.epsilon({SHARE: 3}, 1e-5)
    assert found == accountant.convert(np.array([1.5]), (4.0,), 1e-5) and found.order == 4.0


def test_allotments_at_two_orders_are_none():
    assert accountant.epsilon({SHARE: 1, Allotment(5.0, 0.5, 10): 1}, 1e-5).epsilon == math.inf


@pytest.mark.parametrize("event", [SHARE, Covered(RELEASE, 4.0)], ids=["allotment", "covered"])
def test_events_survive_json(event):
    assert from_dict(json.loads(json.dumps(to_dict(event)))) == event


@pytest.mark.parametrize("event", [None, {"kind": "sampled_gaussian"}, 3.0])
def test_only_an_event_can_be_covered(event):
    with pytest.raises(ValueError, match=r"covered: event = .* must be an event"):
        Covered(event, 4.0)


@pytest.mark.parametrize(
    ("charges", "free"),
    [
        ({SHARE: 1, Covered(RELEASE, 4.0): FITS}, True),
        ({SHARE: 1, Covered(RELEASE, 4.0): FITS + 1}, False),
        ({SHARE: 2, Covered(RELEASE, 4.0): FITS + 1}, True),
        ({SHARE: 1, Covered(RELEASE, 3.0): 1}, False),
        ({Covered(RELEASE, 4.0): 1}, False),
        ({SHARE: 1, Covered(RELEASE, 4.0): 1, Covered(RELEASE, 3.0): 1}, False),
        ({SHARE: 1, Covered(RELEASE, 4.0): 1, Covered(RELEASE, 8.0): 1}, False),
    ],
    ids=[
        "within",
        "one too many",
        "another share",
        "other order",
        "no allotment",
        "a lower one too",
        "a higher one too",
    ],
)
def test_covered_releases_are_free_as_far_as_their_allotments_go(charges, free):
    """Anyone can check the filter from a ledger. Kills Covered as a free pass."""
    assert overdrawn(charges) is not free
    certified = accountant.epsilon(charges, 1e-5).epsilon
    assert certified == (
        accountant.epsilon({SHARE: charges[SHARE]}, 1e-5).epsilon if free else math.inf
    )
    assert (
        accountant.epsilon(charges, 1e-5, "published").epsilon == 0.0
    )  # a paper's claim would stand beside them


def test_an_account_refuses_what_it_does_not_cover():
    full = Account(4.0, 0.5).pay({RELEASE: FITS})
    assert full.spent == FITS * PRICE and full.left == 0.5 - FITS * PRICE
    with pytest.raises(ValueError, match=r"above the allotted 0\.5: more noise is needed"):
        full.pay({RELEASE: 1})
    assert Account(4.0, PRICE).pay({RELEASE: 1}).left == 0.0
    with pytest.raises(ValueError, match="above the allotted"):
        Account(4.0, math.nextafter(PRICE, 0)).pay({RELEASE: 1})
    with pytest.raises(ValueError, match="to nan, above the allotted"):
        Account(4.0, 0.5, spent=math.nan).pay({RELEASE: 1})


def test_after_a_round_only_covered_releases_and_claims_are_written_down():
    """Kills a settlement in which what is paid for lets the rest through."""
    paid = {PaperClaim(0.1, 1.0): 3, Covered(RELEASE, 4.0): 1}
    check_settlement(paid)
    for unpaid in (RELEASE, SHARE):
        for charges in ({unpaid: 1}, paid | {unpaid: 1}):
            with pytest.raises(ValueError, match="was not paid for when its round started"):
                check_settlement(charges)
    assert payable({Covered(RELEASE, 4.0): 2, SHARE: 1}) == {SHARE: 1}


@settings(max_examples=60)
@given(
    st.lists(
        st.tuples(st.floats(0.01, 1.0), st.floats(0.3, 20.0), st.floats(0.01, 50.0)),
        min_size=1,
        max_size=5,
    ),
    st.sampled_from([1.5, 3.5, 6.0, 32.0]),
)
def test_the_noise_that_is_solved_for_meets_its_limit_and_hardly_more(rows, order):
    """Where that is possible within a factor of 16 below the start."""
    rates, start, scale = map(np.array, zip(*rows, strict=True))
    limits = np.minimum(sampled_gaussian.rdp(rates, start, order) * scale, 1e6)
    found = least_multipliers(rates, limits, order, start)
    assert (sampled_gaussian.rdp(rates, found, order) < limits).all()
    less = sampled_gaussian.rdp(rates, found * (1 - 3e-4), order) > limits * (1 - 1e-3)
    assert (less | (found <= start / 16 * (1 + 1e-9))).all()


def test_the_noise_that_is_solved_for_leaves_room_for_a_sum_that_is_rounded():
    """What is left is all but five parts in 10^10 of what the start costs. Kills room on the other
    side of a limit."""
    rates, start = np.array([0.1, 0.5]), np.array([2.0, 1.0])
    limits = sampled_gaussian.rdp(rates, start, 4.0) * (1 - 5e-10)
    assert (
        sampled_gaussian.rdp(rates, least_multipliers(rates, limits, 4.0, start), 4.0) < limits
    ).all()


@pytest.mark.parametrize("limits", [[0.0, 0.0], [0.5, -0.1], [math.nan, 0.5]], ids=str)
def test_nothing_left_for_one_of_them_is_an_error(limits):
    with pytest.raises(ValueError, match="nothing is left"):
        least_multipliers(np.array([0.1, 0.2]), np.array(limits), 4.0, np.ones(2))


def plan(steps=12, rounds=4, rate=0.2, **own) -> DpisPlan:
    return DpisPlan(rate, 1.2, 1.0, steps, rounds, 1e-5, 40, Dpis(**own))


@settings(max_examples=25)
@given(st.data())
def test_no_sequence_of_norm_sums_spends_more_than_was_allotted(data):
    """The filter, over whole runs with any K, any C, and rounds beyond the planned ones; and what
    is left gets used."""
    draw = data.draw
    own = plan(
        steps=draw(st.integers(1, 13)),
        rounds=draw(st.integers(1, 4)),
        rate=draw(st.sampled_from([0.1, 0.3, 0.999])),
        dpis_first_phase=draw(st.sampled_from([0.0, 0.4, 1.0])),
        dpis_clip=draw(st.sampled_from([None, 1.0])),
        dpis_norm_share=draw(st.sampled_from([0.01, 0.5])),
    )
    account = Account(own.allotment.order, 0.0)
    for nth in range(1, own.rounds + draw(st.integers(1, 3))):
        account = Account(account.order, account.allotted + own.allotment.rdp, account.spent)
        for number in range(own.epochs):
            epoch = Epoch(
                own,
                nth,
                number,
                account,
                draw(st.floats(own.sample_rate, 1.0)),
                draw(st.floats(0.01, 1.0)),
            )
            ((_, account),) = allocate([epoch])
        assert account.spent <= account.allotted
        if nth == own.rounds and not own.first_phase(nth, own.epochs - 1):
            assert account.left < 1e-3 * account.allotted


def test_for_the_worst_norm_sum_the_plan_is_spent_evenly():
    own = plan(dpis_first_phase=0.5)
    account, seen = Account(own.allotment.order, 0.0), []
    for nth in range(1, own.rounds + 1):
        account = Account(account.order, account.allotted + own.allotment.rdp, account.spent)
        for number in range(own.epochs):
            ((multiplier, account),) = allocate([Epoch(own, nth, number, account, 1.0, 1.0)])
            seen.append(multiplier)
    assert seen[: len(seen) // 2] == [1.2] * 6 and seen == pytest.approx([1.2] * 12, rel=2e-2)
    assert seen == sorted(seen, reverse=True), (
        "what norm sums with more noise have saved goes to later steps"
    )


def test_small_norm_sums_buy_less_noise_afterwards():
    """Section 4.2: the first phase takes the worst K for granted; the second one uses what it has
    saved."""
    own = plan(dpis_first_phase=0.5)
    account, seen = Account(own.allotment.order, 0.0), []
    for nth in range(1, own.rounds + 1):
        account = Account(account.order, account.allotted + own.allotment.rdp, account.spent)
        for number in range(own.epochs):
            ((multiplier, account),) = allocate([Epoch(own, nth, number, account, 0.4, 1.0)])
            seen.append(multiplier)
    assert (
        seen[:6] == [1.2] * 6
        and max(seen[6:]) < 0.93 * 1.2
        and seen[6:] == pytest.approx([seen[6]] * 6, rel=1e-2)
    )


def test_several_clients_are_allocated_as_each_alone():
    account = Account(plan().allotment.order, 3 * plan().allotment.rdp, plan().allotment.rdp)
    other = plan(rate=0.5)
    epochs = [
        Epoch(plan(), 3, 0, account, 0.3, 1.0),
        Epoch(plan(), 1, 0, Account(account.order, plan().allotment.rdp), 0.9, 1.0),
        Epoch(other, 3, 1, Account(other.allotment.order, 3 * other.allotment.rdp), 0.7, 0.5),
    ]
    for got, epoch in zip(allocate(epochs), epochs, strict=True):
        assert got[0] == pytest.approx(allocate([epoch])[0][0], rel=3e-4)


def release(count: int) -> dict:
    return covered({RELEASE: count}, 4.0)


def test_a_ledger_tells_what_is_left_also_after_it_was_read_again(tmp_path):
    path = tmp_path / "g.jsonl"
    for _ in range(2):
        with Ledger(path) as ledger:
            for number in (1, 2):
                ledger.charge(f"r{number}", number, [0, 1], {SHARE: 1})
                ledger.charge(f"r{number}", number, [0], release(number))
            assert ledger.account(0, 4.0) == Account(4.0, 1.0, math.fsum([PRICE, 2 * PRICE]))
            assert ledger.account(1, 4.0) == Account(4.0, 1.0) and ledger.account(
                7, 4.0
            ) == Account(4.0, 0.0)
            assert ledger.account(0, 5.0) == Account(5.0, 0.0)
    assert not overdrawn(read(tmp_path)[0])


def test_a_replayed_round_sees_the_account_as_it_was(tmp_path):
    """Its own releases and all of later rounds do not count, its own allotment does. Kills a replay
    that differs."""
    with Ledger(tmp_path / "g.jsonl") as ledger:
        seen = []
        for number in (1, 2, 3):
            ledger.charge(f"r{number}", number, [0], {SHARE: 1})
            seen.append(ledger.account(0, 4.0, number))
            ledger.charge(f"r{number}", number, [0], release(number))
        assert [ledger.account(0, 4.0, number) for number in (1, 2, 3)] == seen
        assert [account.allotted for account in seen] == [0.5, 1.0, 1.5]
        assert [account.spent for account in seen] == [0.0, PRICE, math.fsum([PRICE, 2 * PRICE])]


@settings(max_examples=30)
@given(st.permutations(range(6)))
def test_an_account_does_not_depend_on_the_order_of_the_lines(order):
    events = [SHARE] * 3 + [Covered(SampledGaussian(0.1, 1.7 + n), 4.0) for n in range(3)]
    moved = [movement_of(n, event, n + 1) for n, event in enumerate(events)]
    assert total([moved[n] for n in order], 4.0) == total(moved, 4.0)


def test_all_releases_of_a_round_are_paid_for_together():
    """Two kinds of releases, for each of which alone enough is left, overdraw the allotments."""

    class Allotted(AdaptivePlan):
        allotment = SHARE

    other = SampledGaussian(0.1, 2.5)
    charges, price = covered({RELEASE: 1, other: 1}, 4.0), PRICE + cost(other, 4.0)
    check_covered(charges, Allotted(), Account(4.0, price))
    with pytest.raises(ValueError, match="more noise is needed"):
        check_covered(charges, Allotted(), Account(4.0, 0.99 * price))
