"""DPAGD: a client pays for what it releases from its allotments, and never for more than they
cover."""

import dataclasses
import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from client.client_state import ClientState
from mechanisms import equal_rounds
from mechanisms.accounting.accountant import ORDERS, PUBLISHED_ORDERS, epsilon, rdp
from mechanisms.accounting.allotment import ROUNDING, Account, cost, overdrawn, payable
from mechanisms.accounting.events import Covered, GaussianAllotment, PaperClaim, SampledGaussian
from mechanisms.accounting.ledger import read
from mechanisms.cohort import LocalState
from mechanisms.dpagd import change_clip
from mechanisms.dpagd_plan import MAX_RAISES, DpagdPlan
from mechanisms.mechanism import local_round
from mechanisms.plan import Terms, merge, planned
from mechanisms.registry import MECHANISMS
from mechanisms.settings import Dpagd, Privacy
from sim.run import command
from tests.small import OWNED, model, start
from tests.test_dpagd import first, plan, world

DPAGD = MECHANISMS["dpagd"]


def rounds(one: DpagdPlan, number: int, keep: bool = True) -> tuple[list[dict], LocalState]:
    """All charges of four clients over their first rounds, and the state after the last."""
    paid: list[dict] = [{} for _ in OWNED]
    kept: dict[str, torch.Tensor] = {}
    for nth in range(1, number + 1):
        spent = [
            sum(n * cost(e.event, e.order) for e, n in p.items() if isinstance(e, Covered))
            for p in paid
        ]
        accounts = [Account(one.allotment.order, nth * one.allotment.rdp, s) for s in spent]
        here = dataclasses.replace(world([one] * 4, seed=nth), accounts=accounts, nth=[nth] * 4)
        end = local_round(
            DPAGD, here, start(model()), lambda fresh, kept=kept: fresh.remember(**kept)
        )
        kept = {name: end.memory[name] for name in DPAGD.lasting} if keep else {}
        released = DPAGD.realized(here, end)
        paid = [merge(p, one.round_charges(nth), r) for p, r in zip(paid, released, strict=True)]
    return paid, end


@pytest.mark.parametrize("raises", [0, 1, 3])
def test_charged_measurements_have_together_the_precision_that_is_reached(raises):
    """1/s^2 adds over what is charged for one gradient; kills a further measurement that is free or
    too cheap."""
    one = plan(agd_growth=0.3)
    counts = np.zeros((2, 4), dtype=np.int64)
    counts[0, 0], counts[1, 1 : raises + 1] = 1, 1
    charges = one.releases(counts)
    searches = charges.pop(SampledGaussian(1.0, one.search_multiplier))
    assert searches == raises + 1
    precision = sum(n / event.noise_multiplier**2 for event, n in charges.items())
    assert precision == pytest.approx(one.gradient_multiplier(raises) ** -2)
    assert cost(
        SampledGaussian(1.0, one.search_multiplier), 3.0
    ) * searches + 1.5 * precision == pytest.approx(
        rdp(one.releases(counts), (3.0,), "certified")[0]
    )
    assert one.releases(2 * counts) == merge(*2 * [one.releases(counts)])


OWN = st.fixed_dictionaries(
    {
        "agd_search_share": st.floats(0.01, 0.95),
        "agd_candidates": st.integers(1, 4),
        "agd_growth": st.floats(0.01, 1.0),
        "agd_raises": st.integers(0, 5),
        "agd_largest": st.sampled_from([0.1, 2.0, 50.0]),
    }
)


@settings(max_examples=8)
@given(OWN, st.sampled_from([0.3, 1.0]), st.floats(0.3, 20.0), st.integers(1, 3), st.booleans())
def test_the_filter_never_overspends(own, rate, noise, steps, keep):
    one = plan(rate, noise, steps, **own)
    for charges in rounds(one, 3, keep)[0]:
        assert not overdrawn(charges)
        assert payable(charges) == planned(one, 3)
        assert epsilon(charges, one.delta).epsilon == epsilon(planned(one, 3), one.delta).epsilon


def test_without_the_filter_it_would_overspend(monkeypatch):
    """The test above can fail; and with it clients do stop early, and use later what they did not
    spend."""
    one = plan(agd_search_share=0.5, agd_growth=1.0)
    charges, state = rounds(one, 3)
    assert (state.taken < one.steps).any() and not any(overdrawn(c) for c in charges)
    spent = [
        sum(n * cost(e.event, e.order) for e, n in c.items() if isinstance(e, Covered))
        for c in charges
    ]
    assert min(spent) > 0.5 * 3 * one.allotment.rdp
    row = dataclasses.replace(DPAGD, active=lambda here, state: state.taken < here.plan("steps"))
    monkeypatch.setitem(globals(), "DPAGD", row)
    assert any(overdrawn(c) for c in rounds(one, 3)[0])


def test_rounding_lets_no_release_pass_its_allotment():
    """A client whose next step would bring it above by less than sums of floats lose. Kills a
    filter with room for rounding on the wrong side."""
    one = plan()
    order, allotted = one.allotment.order, one.allotment.rdp
    for share, goes_on in ((1.0 + ROUNDING / 4.0, False), (1.0 - 2.0 * ROUNDING, True)):
        spent = share * allotted - one.costs[0, 0]
        here = dataclasses.replace(world([one]), accounts=[Account(order, allotted, spent)])
        assert DPAGD.active(here, first(here)).tolist() == [goes_on]


def test_the_plan_is_calibrated_to_its_allotments():
    """The published column: the planned budget, at full batches that of zCDP, a rho for every order
    a."""
    terms = Terms(Privacy(mechanism="dpagd", epsilon=4.0), Dpagd(), 2, 10, 1)
    (found,) = DPAGD.calibrate(DPAGD.plan, [terms])
    charges = planned(found, 10)
    assert {type(e) for e in charges} == {GaussianAllotment, PaperClaim}
    assert 3.99 < epsilon(charges, 1e-5).epsilon <= 4.0
    zcdp = 10 * 2 / (2 * found.noise_multiplier**2)
    np.testing.assert_allclose(
        rdp(charges, PUBLISHED_ORDERS, "published"), zcdp * np.array(PUBLISHED_ORDERS)
    )
    assert found.worst_round() == {
        SampledGaussian(1.0, found.gradient_multiplier(0)): 2,
        SampledGaussian(1.0, found.search_multiplier): 2,
    }


def test_the_room_that_allotments_have_for_rounding_is_within_the_budget(monkeypatch):
    """A target that the planned rounds meet to the last bit. Kills allotments that add up to
    more."""
    sampled = Privacy(mechanism="dpagd", sample_rate=0.5)
    plain = DpagdPlan.of(Terms(sampled, Dpagd(), 2, 3, 9), 2.0)
    run = {event: 3 * count for event, count in plain.worst_round().items()}
    target = epsilon(run, 1e-5, orders=ORDERS).epsilon
    monkeypatch.setattr(equal_rounds, "least_noises", lambda run_of, terms, one_order: [2.0])
    terms = Terms(sampled.model_copy(update={"epsilon": target}), Dpagd(), 2, 3, 9)
    (found,) = equal_rounds.calibrate(DpagdPlan.of, [terms])
    assert (
        epsilon(terms.run(found), 1e-5).epsilon <= target and 2.0 < found.noise_multiplier < 2.001
    )


@pytest.mark.parametrize(
    ("privacy", "own", "message"),
    [
        ({"noise_decay": 0.1}, Dpagd(), "drop --noise-decay"),
        ({"clip_quantile": 0.5}, Dpagd(), "drop --clip-quantile"),
        ({}, Dpagd(agd_raises=MAX_RAISES + 1), "lower --agd-raises"),
        ({}, None, "must be the settings of DPAGD"),
    ],
)
def test_what_has_no_meaning_is_refused(privacy, own, message):
    with pytest.raises(ValueError, match=message):
        DpagdPlan.of(Terms(Privacy(mechanism="dpagd", **privacy), own, 1, 1, 1), 1.0)


def test_plans_without_accounts_are_refused():
    with pytest.raises(ValueError, match="2 plans of type DpagdPlan and 0 accounts"):
        first(dataclasses.replace(world([plan()] * 2), accounts=[]))


@pytest.mark.usefixtures("no_report")
def test_the_command_runs_and_its_ledger_covers_all_releases(tmp_path):
    """Three rounds in which clients keep their state; the ledger holds the planned charges and what
    they paid for."""
    flags = (
        "--mechanism dpagd --engine inline --rounds 3 --clients 6 --steps 2 --keep-state --quiet "
        "--name a"
    )
    command([*flags.split(), "--out", str(tmp_path), "--agd-search-share", "0.5"])
    last = json.loads((tmp_path / "a" / "rounds.jsonl").read_text().splitlines()[-1])
    spent = read(tmp_path / "a" / "ledger")
    assert len(spent) == 6 and 7.9 < last["epsilon_certified_max"] <= 8
    for charges in spent.values():
        claims = {e: n for e, n in charges.items() if isinstance(e, PaperClaim)}
        (allotted,) = (e for e in charges if isinstance(e, GaussianAllotment))
        covered = {e: n for e, n in charges.items() if isinstance(e, Covered)}
        assert charges[allotted] == 3 and sum(claims.values()) == 12 and not overdrawn(charges)
        total = sum(n * cost(e.event, e.order) for e, n in covered.items())
        assert 0.5 * 3 * allotted.rdp < total <= 3 * allotted.rdp


def test_a_client_keeps_its_budget_and_its_step_sizes_and_no_measurement(tmp_path):
    """From one round to the next, over the disk."""
    here = dataclasses.replace(world([plan()] * 2), accounts=[Account(4.0, 1.0)] * 2)
    fresh, clients = DPAGD.start(here, start(model())), np.array([0, 1])
    moved = {name: tensor + 1 for name, tensor in fresh.memory.items()}
    kept = ClientState(tmp_path, DPAGD.lasting)
    with kept.round(1):
        kept.keep(clients, lambda resume: fresh.remember(**moved))
    again = ClientState(tmp_path, DPAGD.lasting)
    with again.round(2):
        resumed = again.keep(clients, lambda resume: resume(fresh)).memory
    kept = {name for name in resumed if torch.equal(resumed[name], moved[name])}
    assert kept == {"level", "alpha_max", "peak", "moves"}
    assert all(torch.equal(resumed[name], fresh.memory[name]) for name in resumed.keys() - kept)


def test_a_round_ends_with_its_planned_steps_whatever_is_left_to_spend():
    """What earlier rounds have left over pays for more measurements, not for more steps."""
    one = plan(steps=2, agd_raises=0)
    here = dataclasses.replace(
        world([one] * 4), accounts=[Account(one.allotment.order, 10 * one.allotment.rdp)] * 4
    )
    assert local_round(DPAGD, here, start(model())).taken.tolist() == [2.0] * 4


def test_the_figures_are_of_each_clients_own_round():
    """Steps, measurements, growth of the budget and the largest step size, as the state has
    them."""
    one = plan(agd_growth=0.3, agd_raises=3)
    _, end = rounds(one, 1)
    here = dataclasses.replace(
        world([one] * 4), accounts=[Account(one.allotment.order, one.allotment.rdp)] * 4
    )
    levels, counts = torch.tensor([0, 1, 2, 3]), torch.zeros_like(end.memory["counts"])
    counts[:, 0, 0], counts[2:, 1, 1] = torch.tensor([1, 2, 3, 4]), 5
    told = DPAGD.metrics(here, end.remember(level=levels, counts=counts))
    assert told["agd_steps"].tolist() == end.taken.tolist()
    assert told["agd_measurements"].tolist() == [1, 2, 8, 9]
    assert told["agd_gradient_budget"].tolist() == pytest.approx([1.3**level for level in range(4)])
    assert torch.equal(told["agd_largest_step_size"], end.memory["alpha_max"])
    spent = told["agd_epsilon_spent"].tolist()
    assert spent == sorted(spent) and len(set(spent)) == 4


@pytest.mark.parametrize(("change", "bound"), [(None, 2.0), (0.1, 0.1), (2.0, 2.0), (5.0, 2.0)])
def test_a_change_of_loss_is_bounded_by_the_loss_too(change, bound):
    """Losses lie in [0, 2], so no change is larger: noise for more would be for nothing."""
    assert change_clip(plan(agd_change_clip=change, agd_loss_clip=2.0)) == bound
