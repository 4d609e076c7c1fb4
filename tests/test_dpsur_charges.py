"""What DPSUR is charged: trials or accepted steps, the cap on rejections out of delta, and claims
beside them."""

import html
import json
import math

import numpy as np
import pytest
from scipy.stats import norm

from mechanisms.accounting.acceptance import Acceptance
from mechanisms.accounting.accountant import ORDERS, epsilon, rdp
from mechanisms.accounting.events import DpsurStep, PaperClaim, TrialCap
from mechanisms.dpsur import DpsurPlan
from mechanisms.mechanism import local_round
from mechanisms.plan import Terms, planned
from mechanisms.registry import MECHANISMS, plan_table
from mechanisms.settings import Dpsur, Privacy
from sim import account
from sim.commands.guard import main_guard
from sim.config import caveats
from sim.run import command
from tests.small import cohort, model, start

DPSUR = MECHANISMS["dpsur"]


def own_plan(steps: int = 2, **own) -> DpsurPlan:
    terms = Terms(Privacy(sample_rate=0.1, clip_norm=2.0), Dpsur(**own), steps, 30, 9)
    return DpsurPlan.of(terms, 3.0)


def test_claims_with_equal_parameters_are_both_counted():
    assert own_plan(dpsur_validation_rate=0.1, dpsur_validation_noise=3.0).claims(10, 1) == {
        PaperClaim(0.1, 3.0): 20
    }


def test_the_cap_is_the_smallest_that_its_share_of_delta_allows():
    plan = own_plan(dpsur_accounting="selective", dpsur_validation_noise=1.2, dpsur_cap_share=0.2)
    lowest = norm.cdf(-2 / 2.4)
    assert (
        60 * (1 - lowest) ** plan.most_rejections
        <= 0.2 * 1e-5
        < 60 * (1 - lowest) ** (plan.most_rejections - 1)
    )
    (cap,) = (event for event in plan.round_charges(1) if isinstance(event, TrialCap))
    assert cap.lowest_acceptance == pytest.approx(lowest)
    assert [own_plan(dpsur_accounting=a).most_rejections for a in ("visible", "every-trial")] == [
        0,
        0,
    ]


def test_a_test_that_hardly_ever_accepts_has_no_cap():
    with pytest.raises(ValueError, match="test more gently"):
        own_plan(dpsur_accounting="selective", dpsur_validation_noise=0.1)
    hopeless = own_plan(dpsur_accounting="selective", dpsur_validation_noise=None)
    assert hopeless.validation_noise == 9.0
    search = DpsurPlan.of(Terms(Privacy(), Dpsur(dpsur_accounting="selective"), 1, 1, 9), 0.01)
    assert epsilon(search.round_charges(1), 1e-5).epsilon == math.inf


@pytest.mark.parametrize("accounting", ["visible", "every-trial"])
def test_where_bits_are_public_trials_are_paid_in_advance_and_claims_recorded_afterwards(
    accounting,
):
    plan = own_plan(steps=6, dpsur_accounting=accounting, dpsur_validation_rate=0.3)
    step = DpsurStep(0.1, 3.0, 0.3, 9.0, -1.0, accounting)
    assert plan.round_charges(1) == {step: 6}
    world = cohort([plan] * 3)
    end = local_round(DPSUR, world, start(model()))
    assert end.memory["tried"].tolist() == [6] * 3
    assert DPSUR.metrics(world, end)["acceptance_rate"].tolist() == (end.taken / 6).tolist()
    claims = [
        {PaperClaim(0.1, 3.0): n, PaperClaim(0.3, 9.0): n} if n else {} for n in end.taken.tolist()
    ]
    assert DPSUR.realized(world, end) == claims and any(claims)


def test_accepted_steps_are_claimed_at_the_noise_of_their_round():
    """In the third round of clients whose noise falls. Kills the claims of a first round."""
    own = Dpsur(dpsur_validation_rate=0.3, dpsur_validation_noise=9.0)
    plan = DpsurPlan.of(Terms(Privacy(sample_rate=0.1, noise_decay=0.5), own, 6, 3, 9), 3.0)
    world = cohort([plan] * 3, nth=3)
    claims = [
        paid for paid in DPSUR.realized(world, local_round(DPSUR, world, start(model()))) if paid
    ]
    noise = 3.0 * math.exp(-0.5 * 2)
    assert claims and all(
        paid.keys() == {PaperClaim(0.1, noise), PaperClaim(0.3, 9.0)} for paid in claims
    )


def test_where_rejections_are_hidden_nothing_tells_them():
    plan = own_plan(
        steps=6, dpsur_accounting="selective", dpsur_validation_rate=0.1, dpsur_validation_noise=3.0
    )
    step = DpsurStep(0.1, 3.0, 0.1, 3.0, -1.0, "selective")
    cap = TrialCap(Acceptance.of(step).lowest, plan.most_rejections)
    assert plan.round_charges(1) == {step: 6, cap: 6, PaperClaim(0.1, 3.0): 12}
    world = cohort([plan] * 3)
    end = local_round(DPSUR, world, start(model()))
    assert end.taken.tolist() == [6] * 3 and len(set(end.memory["tried"].tolist())) > 1
    assert DPSUR.metrics(world, end) == {} and DPSUR.realized(world, end) == [{}] * 3


def test_the_cap_is_paid_out_of_delta():
    """(epsilon + d / (1 - d), delta) with epsilon at 0.995 delta - d. Kills a cap that costs
    nothing."""
    step, count = DpsurStep(1.0, 9.0, 1.0, 9.0, -1.0, "selective"), 7
    for rejections in (15, 40):
        charges = {step: count, TrialCap(0.5, rejections): count}
        lost = count * 0.5**rejections
        if lost >= 1e-5:
            assert epsilon(charges, 1e-5).epsilon == math.inf
        else:
            within = epsilon({step: count}, 0.995 * 1e-5 - lost, orders=ORDERS).epsilon
            assert epsilon(charges, 1e-5).epsilon == pytest.approx(
                within + lost / (1 - lost), rel=1e-12
            )
    assert (rdp({TrialCap(0.5, 9): 5}, [2.0, 8.0], "certified") == 0).all()


def test_a_calibrated_plan_meets_its_target():
    privacy = Privacy(mechanism="dpsur", epsilon=3.0, delta=1e-5)
    plan = plan_table(privacy, Dpsur(dpsur_accounting="selective"), 1, 3, np.array([9])).of(0)
    assert plan.validation_noise == 3 * plan.noise_multiplier
    assert 0.99 * 3.0 < epsilon(planned(plan, 3), 1e-5).epsilon <= 3.0


@pytest.mark.parametrize("accounting", ["every-trial", "selective"])
def test_a_run_and_its_ledger_agree(accounting, tmp_path, capsys):
    words = (
        "--mechanism dpsur --engine inline --rounds 3 --clients 8 --steps 2 --noise-multiplier 5 "
        "--quiet --name run"
    )
    rates = "--sample-rate 0.2 --dpsur-validation-rate 0.2"
    command(
        [*words.split(), *rates.split(), "--dpsur-accounting", accounting, "--out", str(tmp_path)]
    )
    capsys.readouterr()
    assert main_guard(account.command, ["--ledger", str(tmp_path / "run"), "--json"]) == 0
    clients = json.loads(capsys.readouterr().out)["clients"]
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    rounds = [
        json.loads(line) for line in (tmp_path / "run" / "rounds.jsonl").read_text().splitlines()
    ]
    for column in ("certified", "published"):
        assert [one[f"epsilon_{column}"] for one in clients] == summary[f"epsilon_{column}"]
    assert rounds[-1]["epsilon_published_max"] == max(summary["epsilon_published"]) > 0
    public = accounting != "selective"
    assert [list(one["metrics"]) for one in rounds] == [["acceptance_rate"] if public else []] * 3
    assert (len(set(summary["epsilon_published"])) > 1) == public
    page = html.unescape((tmp_path / "run" / "report.html").read_text())
    assert (
        summary["note"] == DPSUR.note
        and DPSUR.note in page
        and (caveats.HIDDEN in page) == (not public)
    )
