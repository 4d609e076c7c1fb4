"""What ``python -m sim.account`` prices are the plans that a run with the same flags uses: its
ledger says the same."""

import json
from collections import Counter

import numpy as np
import pytest

from mechanisms.accounting import ledger
from mechanisms.accounting.accountant import epsilon, rdp
from mechanisms.accounting.events import (
    ClassicClaim,
    Covered,
    Gaussian,
    PaperClaim,
    from_dict,
    to_dict,
)
from mechanisms.accounting.ranges import parse_ranges
from mechanisms.dpsgd import DpsgdPlan
from mechanisms.plan import merge, most, planned
from mechanisms.settings import MECHANISM_NAMES
from sim.account import command
from sim.commands.flags import parse
from sim.commands.guard import main_guard
from sim.config.caveats import PUBLIC_LABELS
from sim.phases import course
from sim.phases.course import BEFORE
from sim.phases.prices import outlook_of
from sim.run import command as run

pytestmark = pytest.mark.usefixtures("no_report")
COMMON = (
    "--clients 3 --partition quantity --batch-size 40 --steps 2 --rounds 3 --epsilon 6 --delta 1e-4"
)
RUNS = {
    "dpsgd": "--noise-decay 0.2",
    "dpsgd noise": "--noise-multiplier 3 --epsilon 3",
    "dpsgd share": "--strategy fedfed --shared-source prototypes",
    "dpsgd statistics": "--standardize private --standardize-noise 30",
    "dpsgd scores": "--evaluation released --score-noise 20",
    "dpsgd distill": "--strategy fedfed --shared-source distilled --distill-rounds 2",
    "dpsgd fraction": "--max-participations 2 --noise-multiplier 9",
    "dpsur": "--mechanism dpsur",
    "dpsur selective": "--mechanism dpsur --dpsur-accounting selective --dpsur-validation-noise 2 "
    "--noise-multiplier 9 --epsilon none",
    "dpis": "--mechanism dpis",
    "dphero": "--mechanism dphero --hero-clipping isotropic --hero-floor 0.4",
    "screening": "--mechanism screening --screening-stages 2 --noise-multiplier 20 --epsilon none "
    "--rounds 2",
    "dpagd": "--mechanism dpagd",
}
CLAIMS = (PaperClaim.kind, ClassicClaim.kind)
"""What papers charge for accepted steps is known only when they are taken."""


def price(capsys, flags: str) -> dict:
    capsys.readouterr()
    assert main_guard(command, [*flags.split(), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def counted(events: list[dict]) -> Counter:
    return Counter(
        {json.dumps({k: v for k, v in e.items() if k != "count"}): e["count"] for e in events}
    )


def kind(event: str) -> str:
    return json.loads(event)["kind"]


PLANS = [
    *RUNS.values(),
    "--trust server --unit client",
    "--trust server --unit client --noise-decay 0.1",
]


@pytest.mark.parametrize("flags", PLANS)
def test_rounds_cost_together_what_they_cost_one_by_one(flags):
    """Kills rounds that are priced as so many first ones where they differ."""
    common = COMMON.replace("--partition quantity", "")
    if "--trust server" in flags:
        common = common.replace("--batch-size 40", "")
    outlook = outlook_of(parse([*common.split(), *flags.split()], "", "").config, (60,))
    plans = [plan for table in course.plan(outlook).values() for plan in table.plans]
    for plan in plans:
        for rounds in (0, 1, 7):
            each = [most(plan, nth) for nth in range(1, rounds + 1)]
            assert planned(plan, rounds) == merge(*each)


def test_a_plan_of_one_s_own_is_asked_for_every_round():
    """Though it is one of ours in all but what rounds cost."""

    class Later(DpsgdPlan):
        def round_charges(self, nth):
            return {Gaussian(self.noise_multiplier / nth): 1}

    plan = Later(0.5, 2.0, 1.0, 1)
    assert planned(plan, 2) == {Gaussian(2.0): 1, Gaussian(1.0): 1}


def test_a_million_rounds_are_planned_at_once(monkeypatch):
    """Kills a price that takes as long as they are many."""
    asked = []
    monkeypatch.setattr(
        DpsgdPlan, "round_charges", lambda self, nth: asked.append(nth) or {Gaussian(2.0): 3}
    )
    assert planned(DpsgdPlan(0.5, 2.0, 1.0, 3), 10**6) == {Gaussian(2.0): 3 * 10**6}
    assert asked == [1]


def test_every_mechanism_and_every_phase_is_priced():
    private = set(MECHANISM_NAMES) - {"none"}
    assert {name.split()[0] for name in RUNS} == private
    assert {phase.name for phase in BEFORE} <= {word for name in RUNS for word in name.split()}


@pytest.mark.parametrize("name", RUNS)
def test_what_is_priced_is_what_a_run_pays(name, capsys, tmp_path):
    """Event by event and client by client; clients differ in size, so in rate and noise. What an
    allotment covers is paid with it."""
    flags = f"{COMMON} {RUNS[name]}"
    run([*flags.split(), "--engine=inline", "--quiet", "--name=run", f"--out={tmp_path}"])
    answered, paid = price(capsys, flags), ledger.read(tmp_path / "run" / "ledger")
    assert (
        sorted(paid) == list(range(3))
        and len({tuple(sorted(map(repr, c))) for c in paid.values()}) > 1
    )
    for client, charges in paid.items():
        planned, known = Counter(), Counter()
        for row in answered["phases"]:
            planned += (
                counted(row["events"]) if client in parse_ranges(row["clients"]) else Counter()
            )
        for event, count in charges.items():
            known[json.dumps(to_dict(event))] += count if not isinstance(event, Covered) else 0
        late = () if "selective" in name or name != "dpsur" else CLAIMS
        planned, known = (
            Counter({e: c for e, c in some.items() if kind(e) not in late})
            for some in (planned, known)
        )
        assert planned == known
    spent = [epsilon(charges, 1e-4).epsilon for charges in paid.values()]
    assert answered["epsilon_certified"] == pytest.approx(max(spent), rel=1e-12)
    assert min(spent) < max(spent) or "noise" not in name


@pytest.mark.parametrize("name", ["dpsgd", "dpis", "dpsgd statistics"])
def test_sizes_of_clients_are_as_good_as_their_records(name, capsys, tmp_path):
    flags = f"{COMMON} {RUNS[name]}"
    run([*flags.split(), "--engine=inline", "--quiet", "--name=run", f"--out={tmp_path}"])
    with np.load(tmp_path / "run" / "partition.npz") as held:
        sizes = held["sizes"].tolist() if "sizes" in held else np.diff(held["offsets"]).tolist()
    known = price(capsys, f"{flags} --records {','.join(map(str, sizes))}")
    assert known == price(capsys, flags)


def test_one_number_of_records_is_that_of_every_client(capsys):
    flags = "--clients 3 --batch-size 10 --rounds 2 --epsilon 2 --delta 1e-3 --records"
    assert price(capsys, f"{flags} 40") == price(capsys, f"{flags} 40,40,40")
    assert [row["clients"] for row in price(capsys, f"{flags} 40,50,40")["phases"]] == ["0,2", "1"]


def test_a_run_stops_paying_where_the_next_round_would_pass_the_budget(capsys):
    flags = (
        "--clients 2 --records 50 --batch-size 10 --rounds 9 --delta 1e-3 --noise-multiplier 1 "
        "--epsilon"
    )
    whole = price(capsys, f"{flags} none")
    some = price(capsys, f"{flags} {whole['epsilon_certified'] / 1.5}")
    assert (
        whole["rounds"] == 9 > some["rounds"]
        and some["epsilon_certified"] < whole["epsilon_certified"] / 1.5
    )
    assert [event["count"] for event in some["events"]] == [some["rounds"]]


def test_rounds_are_counted_beside_what_was_paid_before_them(capsys):
    """Statistics take a part of the budget, and noise is given. Kills rounds that are bought from
    the whole budget, and a phase that forgets what those before it have cost."""
    flags = (
        "--clients 2 --records 50 --batch-size 10 --rounds 90 --delta 1e-3 --noise-multiplier 0.9 "
        "--epsilon 6 --strategy fedfed --shared-source prototypes --share-noise 4"
    )
    alone = price(capsys, flags)
    after = price(capsys, f"{flags} --standardize private --standardize-noise 3")
    assert 1 < after["rounds"] < alone["rounds"] < 90
    for found in (alone, after):
        assert found["epsilon_certified"] <= 6.0
        charges = Counter()
        for row in found["phases"]:
            charges += counted(row["events"])
        (step,) = counted(found["phases"][-1]["events"])
        events = [from_dict(json.loads(event)) for event in charges]
        paid = dict(zip(events, charges.values(), strict=True))
        assert epsilon(paid, 1e-3).epsilon == pytest.approx(found["epsilon_certified"])
        one_more = merge(paid, {from_dict(json.loads(step)): 1})
        assert epsilon(one_more, 1e-3).epsilon > 6.0


def test_each_phase_has_the_price_of_its_own_events(capsys):
    """What came before it is in the price of the whole run."""
    flags = (
        "--clients 2 --records 50,40 --batch-size 10 --rounds 3 --delta 1e-3 --noise-multiplier 2 "
        "--epsilon none --strategy fedfed --shared-source prototypes --share-noise 4"
    )
    rows = price(capsys, f"{flags} --standardize private --standardize-noise 3")["phases"]
    assert [row["phase"] for row in rows] == ["statistics", "share", "train", "train"]
    for row in rows:
        events = counted(row["events"]).items()
        charges = {from_dict(json.loads(event)): count for event, count in events}
        for column in ("certified", "published"):
            expected = epsilon(charges, 1e-3, column).epsilon
            assert row[f"epsilon_{column}"] == pytest.approx(expected, rel=1e-12)


def test_public_records_are_reckoned_with_where_numbers_of_records_are_given(capsys):
    """They are shared at no cost. Kills an outlook without them."""
    flags = "--clients 3 --records 40 --rounds 2 --epsilon 2 --strategy fedfed"
    shared = price(capsys, f"{flags} --shared-source public --public-records 9")
    assert [row["phase"] for row in shared["phases"]] == ["train"]
    assert shared["epsilon_certified"] <= 2.0


def test_a_curve_at_chosen_orders_is_that_of_all_phases(capsys):
    """Kills the curve of training alone."""
    flags = (
        "--clients 2 --records 50 --batch-size 10 --rounds 3 --delta 1e-3 --noise-multiplier 1.5 "
        "--epsilon none --strategy fedfed --shared-source prototypes --share-noise 4 --orders 2,8.5"
    )
    found, paid = price(capsys, flags), Counter()
    for row in found["phases"]:
        for event, count in counted(row["events"]).items():
            paid[from_dict(json.loads(event))] += count
    assert len(found["phases"]) == 2
    for column in ("certified", "published"):
        expected = rdp(paid, (2.0, 8.5), column).tolist()
        assert found[f"rdp_{column}"] == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("public", [False, True])
def test_caveats_are_those_of_all_phases(capsys, public):
    """Labels are shared before training. Kills what training alone takes for granted."""
    flags = (
        "--clients 2 --records 50 --batch-size 10 --rounds 2 --delta 1e-3 --epsilon 6 "
        "--strategy fedfed --shared-source distilled --distill-rounds 1"
    )
    found = price(capsys, f"{flags} --public-labels" if public else flags)
    assert (PUBLIC_LABELS in found["caveats"]) == public
    assert found["phase"] == "train"


def test_the_tighter_figure_is_that_of_all_phases(capsys):
    """Kills that of training alone."""
    flags = (
        "--clients 2 --records 50 --batch-size 10 --rounds 3 --delta 1e-3 --noise-multiplier 1.5 "
        "--epsilon none"
    )
    alone = price(capsys, flags)
    assert 0 < alone["epsilon_certified"] < alone["epsilon_renyi"]
    shared = "--strategy fedfed --shared-source prototypes --share-noise 4"
    both = price(capsys, f"{flags} {shared}")
    assert len(both["phases"]) == 2 and both["method"] == "loss distributions"
    assert alone["epsilon_certified"] < both["epsilon_certified"] < both["epsilon_renyi"]
