"""``python -m sim.account``: figures, ledgers, and one clear line for everything else."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from mechanisms.accounting import accountant, ledger
from mechanisms.accounting.events import Allotment, SampledGaussian, Unprotected, to_dict
from mechanisms.accounting.ledger import Ledger
from mechanisms.plan import planned
from mechanisms.registry import plan_table
from mechanisms.settings import Dpsur, Privacy, Screening
from server.store import Store
from sim.account import command
from sim.commands.guard import main_guard
from sim.config import caveats
from sim.phases import questions
from sim.run import command as train
from sim.showing import wording
from tests.reference_values import REFERENCE
from tests.refusing import refusal
from tests.running import in_progress
from tests.vouched import fix_orders, vouch

ROOT = Path(__file__).parent.parent
DPSGD = ["dpsgd", "--sample-rate", "0.01", "--steps", "1000"]


def run(capsys, *arguments):
    assert main_guard(command, [*map(str, arguments), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("flags", (["--clients=1"], ["--clients=20", "--fraction=0.05"]))
def test_sums_that_hide_nobody_are_priced_no_more_than_trained(capsys, tmp_path, flags):
    flags = [*flags, "--trust=aggregate", "--unit=client", "--rounds=2"]
    said = refusal(capsys, command, flags)
    assert said == refusal(capsys, train, [*flags, f"--out={tmp_path}"])
    assert "hides nobody below 2" in said


def test_a_run_without_privacy_has_no_budget_to_aim_at(capsys):
    flags = ["--clients=2", "--records=9"]
    assert "epsilon_target" not in run(capsys, "--mechanism=none", *flags)
    assert run(capsys, *flags)["epsilon_target"] == 8.0


def test_one_number_of_records_is_for_all_clients_of_a_run_s_own_data(capsys):
    """Whoever has a run's configuration alone has neither its data nor all sizes."""
    flags = ["--dataset=their.npz", "--partition=given", "--clients=7", "--records=9"]
    assert run(capsys, *flags)["clients"] == "0-6"


@pytest.mark.parametrize("row", REFERENCE["epsilon"])
def test_epsilons_of_the_reference(capsys, row):
    flags = {
        "sample-rate": row["q"],
        "noise-multiplier": row["sigma"],
        "steps": row["steps"],
        "delta": row["delta"],
    }
    found = run(capsys, "dpsgd", *(f"--{name}={value}" for name, value in flags.items()))
    assert found["epsilon_published"] == pytest.approx(row["epsilon"], rel=1e-9)
    assert found["order_published"] == row["order"]
    assert found["epsilon_certified"] < found["epsilon_renyi"] <= found["epsilon_published"]
    assert {name: found[name.replace("-", "_")] for name in flags} == flags


def test_a_curve_at_chosen_orders_is_that_of_all_steps(capsys):
    found = run(capsys, *DPSGD, "--noise-multiplier", 1.1, "--orders", "2,4,8.5")
    charges = {SampledGaussian(0.01, 1.1): 1000}
    assert found["orders"] == [2, 4, 8.5]
    for column in ("certified", "published"):
        assert found[f"rdp_{column}"] == accountant.rdp(charges, [2, 4, 8.5], column).tolist()
    assert found["epsilon_certified"] == accountant.epsilon(charges, 1e-5).epsilon


@pytest.mark.parametrize(
    "row", [row for row in REFERENCE["selective_release"] if row["alpha"] == 8][::4]
)
def test_curves_of_dpsur(capsys, row):
    names = ("sample_rate", "noise_multiplier", "validation_rate", "validation_noise", "beta")
    flags = [
        "dpsur",
        *(f"--{name.replace('_', '-')}={row[name]}" for name in names),
        "--orders=8",
        "--steps=3",
    ]
    expected = {"visible": "visible", "selective": "certified", "every-trial": "every_trial"}
    for accounting, key in expected.items():
        found = run(
            capsys,
            *flags,
            "--dpsur-accounting",
            accounting,
            *(() if accounting == "selective" else ("--trials=3",)),
        )
        assert found["rdp_certified"] == pytest.approx([3 * row[key]], rel=5e-5)
        assert found["rdp_published"] == pytest.approx([3 * row["published"]], rel=1e-9)
    trials = run(capsys, *flags, "--trials", 12, "--dpsur-accounting", "every-trial")
    assert trials["rdp_certified"] == pytest.approx([12 * row["every_trial"]], rel=1e-9)
    assert trials["rdp_published"] == found["rdp_published"]


@pytest.mark.parametrize(
    "row", [row for row in REFERENCE["importance_sampled_gaussian"] if row["alpha"] == 8]
)
def test_curves_of_dpis(capsys, row):
    names = ("batch_size", "clip_norm", "norm_sum", "records", "noise_multiplier")
    found = run(
        capsys, "dpis", *(f"--{name.replace('_', '-')}={row[name]}" for name in names), "--orders=8"
    )
    assert found["rdp_certified"] == found["rdp_published"] == pytest.approx([row["rdp"]], rel=1e-9)


@pytest.mark.parametrize("row", REFERENCE["heterogeneous_noise"])
def test_effective_noise_of_dphero(capsys, row):
    flags = [
        "dphero",
        "--eigenvalues",
        ",".join(map(str, row["eigenvalues"])),
        "--sample-rate=1",
        "--orders=2",
    ]
    flags += [f"--noise-multiplier={row['noise_multiplier']}"]
    isotropic = run(capsys, *flags, "--hero-clipping=isotropic")
    assert isotropic["effective_noise_multiplier"] == pytest.approx(
        row["effective_noise_multiplier"], rel=1e-9
    )
    assert isotropic["rdp_certified"] == pytest.approx(
        [row["effective_noise_multiplier"] ** -2], rel=1e-9
    )
    whitened = run(capsys, *flags)
    assert whitened["effective_noise_multiplier"] == row["noise_multiplier"]
    assert whitened["rdp_certified"] == isotropic["rdp_published"] == whitened["rdp_published"]


DPSUR_FLAGS = (
    "dpsur --sample-rate=0.2 --noise-multiplier=4 --dpsur-validation-rate=0.1 "
    "--dpsur-validation-noise=9 --steps=12"
)


@pytest.mark.parametrize(
    "line",
    [
        DPSUR_FLAGS,
        f"{DPSUR_FLAGS} --dpsur-accounting=every-trial",
        f"{DPSUR_FLAGS.replace('--noise-multiplier=4', '--epsilon=3')}",
        "screening --sample-rate=0.1 --noise-multiplier=2 --steps=5 --screening-data=public "
        "--public-records=9",
    ],
)
def test_where_every_trial_is_charged_accepted_steps_do_not_say_how_many(capsys, line):
    """At most half of the trials are accepted, so that a figure for as many trials as steps is
    below a run's."""
    assert main_guard(command, line.split()) == 2
    error = capsys.readouterr().err
    assert (
        "--trials is missing" in error
        and "--steps counts accepted ones" in error
        and error.count("\n") == 1
    )


@pytest.mark.parametrize("found", ["--trials=9", "--norm-sum=9", "--eigenvalues=3,2"])
@pytest.mark.parametrize(
    ("line", "own"),
    [
        ("dpsgd", ""),
        ("dpsur --dpsur-accounting=selective", ""),
        ("dpsur --dpsur-accounting=visible", "--trials=9"),
        ("dpis", "--norm-sum=9"),
        ("dphero", "--eigenvalues=3,2"),
        ("screening", ""),
        ("dpagd", ""),
    ],
)
def test_what_a_run_finds_prices_the_mechanism_that_finds_it_and_no_other(capsys, line, own, found):
    """Nor beside its own, which would be shown as if it counted."""
    first, *more = line.split()
    given = [first, "--sample-rate=0.1", "--noise-multiplier=2", "--records=50", "--steps=4", *more]
    assert main_guard(command, [*given, "--json", found]) == (0 if own == found else 2)
    out, err = capsys.readouterr()
    assert err.count("\n") == (own != found)
    if own == found:  # trials are planned; the others are outputs, which no plan knows
        assert (questions.OF_A_RUN in json.loads(out)["caveats"]) == (line in ("dpis", "dphero"))
    if own not in ("", found):
        assert main_guard(command, [*given, own, found]) == 2
        assert "are found by different mechanisms: give one" in capsys.readouterr().err


@pytest.mark.parametrize("mechanism", ["dpsur", "screening"])
def test_hidden_rejections_cost_what_the_plan_of_a_run_costs(capsys, mechanism):
    """With the cap on rejections, which a part of delta pays for; its share has the run's own
    default."""
    if mechanism == "dpsur":
        own, flags = (
            Dpsur(
                dpsur_accounting="selective", dpsur_validation_rate=0.1, dpsur_validation_noise=9.0
            ),
            DPSUR_FLAGS.split(),
        )
        flags.append("--dpsur-accounting=selective")
    else:
        own = Screening(
            screening_data="own", screening_clip=0.5, screening_rate=0.1, screening_stages=1
        )
        flags = [
            "screening",
            "--sample-rate=0.2",
            "--noise-multiplier=4",
            "--steps=12",
            "--screening-clip=0.5",
        ]
        flags += ["--screening-rate=0.1", "--screening-stages=1"]
    privacy = Privacy(
        mechanism=mechanism, noise_multiplier=4.0, epsilon=None, sample_rate=0.2, delta=1e-5
    )
    charges = planned(plan_table(privacy, own, 3, 4, np.array([50])).of(0), 4)
    assert accountant.cap_delta(charges) > 1e-7
    found = run(capsys, *flags)
    for column in ("certified", "published"):
        expected = accountant.epsilon(charges, 1e-5, column).epsilon
        assert found[f"epsilon_{column}"] == pytest.approx(expected, rel=1e-12)
    assert found["caveats"] == [caveats.HIDDEN]
    share = "--dpsur-cap-share" if mechanism == "dpsur" else "--screening-cap-share"
    assert run(capsys, *flags, f"{share}=0.9")["epsilon_certified"] > found["epsilon_certified"]


def test_a_budget_for_dpsur_gives_the_noise_of_its_proposals(capsys):
    flags = [
        "dpsur",
        "--sample-rate=0.05",
        "--dpsur-validation-rate=0.01",
        "--dpsur-validation-noise=1",
        "--steps=100",
        "--trials=300",
    ]
    found = run(capsys, *flags, "--epsilon=3", "--dpsur-accounting=every-trial")
    assert 2.99 < found["epsilon_certified"] <= 3


def test_a_budget_for_what_a_paper_claims_gives_the_noise_of_that_column(capsys):
    """With a figure that a run finds out. Kills the noise of the certified column."""
    flags = ["dpsur", "--sample-rate=0.05", "--steps=10", "--trials=30", "--delta=1e-5"]
    flags += ["--dpsur-accounting=every-trial", "--epsilon=3"]
    claimed, proved = (run(capsys, *flags, f"--budget={one}") for one in ("published", "certified"))
    assert 2.99 < claimed["epsilon_published"] <= 3 < claimed["epsilon_certified"]
    assert 2.99 < proved["epsilon_certified"] <= 3
    assert claimed["noise_multiplier"] < proved["noise_multiplier"]


def test_a_budget_gives_the_noise_that_meets_it(capsys):
    found = run(capsys, *DPSGD, "--epsilon", 3)
    assert 2.99 < found["epsilon_certified"] <= 3
    again = run(capsys, *DPSGD, "--noise-multiplier", repr(found["noise_multiplier"]))
    assert again["epsilon_certified"] == found["epsilon_certified"]


def test_an_infinite_figure_is_null(capsys):
    found = run(capsys, "dpsgd", "--sample-rate=0.5", "--noise-multiplier=1e-200")
    assert (found["epsilon_certified"], found["epsilon_renyi"], found["order"]) == (
        None,
        None,
        None,
    )


def test_the_table_shows_the_figures(capsys):
    assert main_guard(command, [*DPSGD, "--noise-multiplier", "1.1"]) == 0
    out = capsys.readouterr().out
    assert "1.71196" in out
    assert "1.7253" in out


def make_run(folder, config, finished=True):
    with Ledger(folder / "ledger" / "group0.jsonl") as ledger:
        ledger.charge(
            "round 0", 0, [0, 2], {SampledGaussian(0.01, 1.1): 600, SampledGaussian(1.0, 50.0): 1}
        )
        ledger.charge("round 1", 1, [2], {SampledGaussian(0.01, 1.1): 400})
    (folder / "config.toml").write_text(config)
    return vouch(folder, finished)


def test_a_runs_epsilons_are_recomputed_from_its_files(capsys, tmp_path):
    make_run(tmp_path, "[privacy]\ndelta = 1e-6\n[data]\nclients = 4\n")
    clients = run(capsys, "--ledger", tmp_path)["clients"]
    assert [row["client"] for row in clients] == [0, 1, 2, 3]
    charges = {SampledGaussian(0.01, 1.1): 1000, SampledGaussian(1.0, 50.0): 1}
    assert clients[2]["events"] == [
        {**to_dict(event), "count": count} for event, count in charges.items()
    ]
    for column in ("certified", "published"):
        assert clients[2][f"epsilon_{column}"] == accountant.epsilon(charges, 1e-6, column).epsilon
    unused = {
        "client": 3,
        "epsilon_certified": 0,
        "method": "",
        "order": None,
        "epsilon_published": 0,
        "delta": 1e-6,
        "events": [],
    }
    assert clients[3] == unused
    assert run(capsys, "--ledger", tmp_path, "--delta", 1e-4)["clients"][2]["delta"] == 1e-4


@pytest.mark.parametrize(
    "line",
    [
        "dphero --eigenvalues 3,2,1",
        "dpsur --dpsur-accounting every-trial --trials 30",
    ],
)
def test_one_round_is_the_first_however_the_noise_falls_later(capsys, line):
    flags = f"{line} --sample-rate 0.1 --steps 20 --noise-multiplier 3".split()
    found = run(capsys, *flags)["epsilon_certified"]
    assert run(capsys, *flags, "--noise-decay", "0.5")["epsilon_certified"] == found > 0


def test_of_what_shares_nothing_there_is_no_price(capsys):
    flags = ["fedfed", "--epsilon=4", "--public-records=9", "--shared-source="]
    for source in ("public", "none"):
        assert main_guard(command, [*flags[:-1], flags[-1] + source]) == 2
        said = capsys.readouterr().err
        assert said == "error: nothing is shared: leave out --strategy and --shared-source\n"


def test_the_folder_of_runs_is_no_run_and_the_newest_of_them_is_named(capsys, tmp_path):
    for name in ("a", "b"):
        make_run(tmp_path / name, "")
    for flag in ("--ledger", "--verify"):
        assert main_guard(command, [flag, str(tmp_path)]) == 2
        said = capsys.readouterr().err
        assert f"{flag} = {tmp_path} is no run directory, it has neither config.toml" in said
        assert said.endswith(f"give the directory of a run, such as {tmp_path / 'b'}\n")


BUDGET = '[privacy]\ndelta = 1e-6\nepsilon = 9.5\nbudget = "certified"\n[data]\nclients = 4\n'


def test_of_an_unfinished_run_the_figure_is_at_the_order_that_was_fixed_before_it_began(
    capsys, tmp_path
):
    """Kills the least over all orders, which holds for an end fixed beforehand only."""
    folder = make_run(tmp_path, BUDGET)
    least = [
        row["epsilon_certified"]
        for row in run(capsys, "--ledger", folder, "--delta", 1e-4)["clients"]
    ]
    (folder / "summary.json").unlink()
    lines = [{"orders": [3.0], "clients": "0-1"}, {"orders": [150.0, 20.0], "clients": "2-3"}]
    fix_orders(folder, lines)
    found = run(capsys, "--ledger", folder, "--delta", 1e-4)
    assert (found["finished"], found["note"]) == (False, wording.AT_ONE_ORDER)
    charges = {SampledGaussian(0.01, 1.1): 1000, SampledGaussian(1.0, 50.0): 1}
    shown = [row["epsilon_certified"] for row in found["clients"]]
    assert shown[2] == in_progress(charges, 1e-4, (150.0, 20.0)) > 1.05 * least[2]
    assert [row["order"] for row in found["clients"]] == [3.0, None, 20.0, None]
    assert main_guard(command, ["--ledger", str(folder)]) == 0
    assert wording.AT_ONE_ORDER in capsys.readouterr().out
    vouch(folder, finished=True)
    done = run(capsys, "--ledger", folder, "--delta", 1e-4)
    assert (done["finished"], done["note"]) == (True, "")
    assert [row["epsilon_certified"] for row in done["clients"]] == least


def test_a_budget_bounds_the_figure_of_an_unfinished_run_at_its_own_delta_alone(capsys, tmp_path):
    """And only if it is the certified figure that it bounds."""
    config = BUDGET.replace("9.5", "2.4")
    folder = make_run(tmp_path, config, finished=False)
    fix_orders(folder, [{"orders": [20.0], "clients": "0-3"}])

    def shown(delta):
        return run(capsys, "--ledger", folder, "--delta", delta)["clients"][2]["epsilon_certified"]

    assert shown(1e-6) == 2.4 < shown(1e-4)
    (folder / "config.toml").write_text(config.replace("certified", "published"))
    vouch(folder)
    assert shown(1e-6) > 2.4


UNEVEN = (
    "--clients 6 --partition quantity --batch-size 60 --rounds 4 --epsilon 5 --engine inline "
    "--quiet"
)


@pytest.mark.parametrize(
    "flags", ["", "--release", "--noise-multiplier 3 --epsilon none", "--mechanism dpagd"]
)
def test_a_run_that_was_broken_off_has_the_figure_that_its_last_round_showed(
    capsys, tmp_path, flags, monkeypatch
):
    """Of clients with different plans; and a round that is charged, but not finished, is counted on
    top."""
    append = Store.append

    def broken(self, record):
        append(self, record)
        if record.round == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(Store, "append", broken)
    assert (
        main_guard(
            train, [*UNEVEN.split(), *flags.split(), "--name", "run", "--out", str(tmp_path)]
        )
        == 130
    )
    capsys.readouterr()
    found = run(capsys, "--ledger", tmp_path / "run")
    last = json.loads((tmp_path / "run" / "rounds.jsonl").read_text().splitlines()[-1])
    figures = [row["epsilon_certified"] for row in found["clients"]]
    assert (
        max(figures) == last["epsilon_certified_max"]
        and np.median(figures) == last["epsilon_certified_median"]
    )
    spent = ledger.read(tmp_path / "run" / "ledger")
    least = [accountant.epsilon(spent[client], 1e-5).epsilon for client in range(6)]
    assert (
        all(a >= b for a, b in zip(figures, least, strict=True))
        and found["note"] == wording.AT_ONE_ORDER
    )
    sampled = [any(isinstance(event, Allotment) for event in spent[c]) for c in range(6)]
    assert len(set(sampled)) == (2 if "dpagd" in flags else 1) and sum(figures) > sum(least)
    rows = zip(figures, least, sampled, strict=True)
    assert all(a == b for a, b, one in rows if one), "an allotment has one order from the beginning"


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ({"orders": ["x"], "clients": "0-3"}, "orders.json is damaged"),
        ({"orders": [3.0], "clients": "3-0"}, "orders.json is damaged"),
        ({"clients": "0-3"}, "orders.json is damaged"),
        ({"orders": [], "clients": "0-3"}, "orders.json is damaged"),
        ({"orders": 3.0, "clients": "0-3"}, "orders.json is damaged"),
        ({"orders": [1.0], "clients": "0-3"}, "order"),
        ({"orders": [3.0], "clients": "0"}, "client 2 has no Renyi order"),
    ],
)
def test_orders_that_cannot_be_used_are_one_clear_line_and_status_2(capsys, tmp_path, line, words):
    folder = make_run(tmp_path, BUDGET, finished=False)
    fix_orders(folder, [line])
    assert main_guard(command, ["--ledger", str(folder)]) == 2
    err = capsys.readouterr().err
    assert words in err and err.count("\n") == 1


def test_clients_with_equal_figures_share_a_line_of_the_table(capsys, tmp_path):
    make_run(tmp_path, "[privacy]\ndelta = 1e-6\n[data]\nclients = 100\n")
    assert main_guard(command, ["--ledger", str(tmp_path)]) == 0
    assert "1, 3-99" in capsys.readouterr().out


def test_a_run_without_privacy_has_no_epsilon(capsys, tmp_path):
    (tmp_path / "config.toml").write_text(
        '[privacy]\nmechanism = "none"\ndelta = 1e-6\n[data]\nclients = 2\n'
    )
    (vouch(tmp_path) / "ledger").mkdir()
    assert [row["epsilon_certified"] for row in run(capsys, "--ledger", tmp_path)["clients"]] == [
        None,
        None,
    ]
    with Ledger(tmp_path / "ledger" / "g.jsonl") as ledger:
        ledger.charge("round 0", 0, [0], {Unprotected(0.5): 3})
    rows = run(capsys, "--ledger", tmp_path)["clients"]
    assert [(row["epsilon_certified"], row["epsilon_published"]) for row in rows] == [
        (None, None)
    ] * 2
    assert [len(row["events"]) for row in rows] == [1, 0]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("dpsgd --sampl-rate 0.1 --noise-multiplier 1", "--sampl-rate did you mean --sample-rate"),
        ("--ledgr runs", "--ledgr --ledger"),
        ("dpsdg --sample-rate 0.1", "dpsdg did you mean dpsgd"),
        ("none --sample-rate 0.1", "none known: dpsgd"),
        ("dpsgd --noise-multiplier 1", "--sample-rate is missing"),
        ("dpsgd --batch-size 5 --noise-multiplier 1", "--records is missing"),
        ("dpis --sample-rate 0.5 --noise-multiplier 1", "--records is missing"),
        ("dpsgd --sample-rate 0.1", "--noise-multiplier --epsilon"),
        (
            "dpsgd --sample-rate 0.1 --noise-multiplier 1 --epsilon 1",
            "--noise-multiplier --epsilon not both",
        ),
        ("dpsgd --sample-rate 1.5 --noise-multiplier 1", "sample_rate 1.5 (0, 1]"),
        ("dpsgd --sample-rate 0.1 --noise-multiplier 0", "noise_multiplier is 0 above 0"),
        ("dpsgd --sample-rate many --noise-multiplier 1", "sample_rate 'many'"),
        ("dpsgd --sample-rate 0.1 --noise-multiplier 1 --steps 0", "steps 0 at least 1"),
        ("dpsgd --sample-rate 0.1 --noise-multiplier 1 --delta 2", "delta 2.0 [1e-300,"),
        ("dpsgd --sample-rate 0.1 --noise-multiplier 1 --orders 1,2", "--orders 1,2 above 1"),
        ("dpsgd --sample-rate 0.1 --noise-multiplier 1 --orders 2;3", "--orders 2;3 commas"),
        ("dpsgd --sample-rate 0.1 --noise-multiplier 1 --orders inf", "--orders inf at most 1e+06"),
        ("dpsgd --sample-rate 0.1 --noise-multiplier 1 --orders 1e15", "--orders 1e15 1e+06"),
        ("dpsgd --sample-rate 0.1 --noise-multiplier 1 --trials 3", "--trials leave it out"),
        ("dpsur --sample-rate 0.1 --epsilon 1 --steps 4 --trials 3", "--trials = 3 --steps = 4"),
        ("dpsur --sample-rate 0.1 --epsilon 1 --trials 0", "--trials = 0 --steps = 1"),
        (
            "dpis --batch-size 5 --records 9 --noise-multiplier 1 --norm-sum 0",
            "--norm-sum = 0 at least 5",
        ),
        ("--trials 0", "--trials name a mechanism"),
        ("dpsur --sample-rate 0.1 --epsilon 1 --rounds 2 --trials 3", "rounds is 2 --steps"),
        ("dpsur --sample-rate 0.1 --epsilon 1 --trials few", "--trials few an integer"),
        ("dpsgd --sample-rate 0.1 --epsilon 1e-14", "budget too small raise epsilon"),
        ("--delta 0.1 dpsgd --sample-rate 0.1 --noise-multiplier 1", "'dpsgd'"),
        ("--ledger no/such/run", "no/such/run existing run directory"),
        ("--ledger runs --steps 3", "--ledger drop steps"),
        ("--ledger runs --records 9 --orders 2", "--ledger drop orders, records"),
        ("--verify runs --records 9", "--verify drop records"),
        ("--check runs --orders 2", "--check drop orders"),
        ("--check runs --ledger runs", "--ledger drop check"),
        ("--node a.toml --delta 1e-6", "--node drop delta"),
        ("--node no/such.toml", "--node = no/such.toml cannot be read"),
        ("dpsgd --node a.toml --sample-rate 0.1 --epsilon 1", "--node dpsgd drop one"),
        ("dpsgd --ledger runs --sample-rate 0.1 --epsilon 1", "--ledger dpsgd drop one"),
        ("dpsgd --group 2 --sample-rate 0.1 --epsilon 1", "--group dpsgd drop one"),
        ("dphero --sample-rate .1 --noise-multiplier 1 --eigenvalues 3,x", "--eigenvalues 3,x"),
        ("dphero --sample-rate .1 --noise-multiplier 1 --eigenvalues 0", "eigenvalues = [0.0]"),
        (
            "dpsur --sample-rate .1 --noise-multiplier 1 --dpsur-accounting all",
            "accounting all visible",
        ),
        ("fedfed --public-labels", "--share-noise --epsilon"),
        ("fedfed --public-labels --share-noise 1 --epsilon 1", "--share-noise --epsilon not both"),
        ("fedfed --share-noise 2", "label_epsilon --label-epsilon --public-labels"),
        ("fedfed --share-noise 1 --share-views 0", "share_views 0 at least 1"),
        ("fedfed --share-noise 1 --public-labels --trials 3", "--trials not for fedfed leave"),
        ("fedfed --share-noise 1 --public-labels --norm-sum 3", "--norm-sum not for fedfed"),
        ("fedfed --share-noise 1 --public-labels --eigenvalues 3", "--eigenvalues not for fedfed"),
        ("fedfed --epsilon 1 --label-epsilon 2", "share_budget 0.3 pays for no release"),
        ("--trials 3", "--trials name a mechanism"),
        ("--clients 3 --records 4,5", "--records 2 numbers 3 clients"),
        ("--clients 2 --records 4,0", "--records 4,0 from 1 to 1e+12"),
        ("--clients 2 --records 1e300", "--records 1e300 from 1 to 1e+12"),
        ("--clients 2 --records inf", "--records inf from 1 to 1e+12"),
        ("--records 50 --epsilon 1e-3 --noise-multiplier 1", "epsilon too small"),
        ("--records 50 --evaluate-on validation", "evaluate_on validation_records is 0"),
        ("--records 50 --strategy fedfed --shared-source public", "public_records is 0"),
    ],
)
def test_bad_input_is_one_clear_line_and_status_2(capsys, arguments, words):
    status = main_guard(command, arguments.split())
    out, err = capsys.readouterr()
    assert (status, out, err.count("\n")) == (2, "", 1)
    for word in words.split():
        assert word in err


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ("[data]\nclients = 4\n", "delta --delta"),
        ("[privacy]\ndelta = 0.0\n", "delta = 0.0"),
        ("[privacy]\ndelta = 'x'\n", "delta = 'x'"),
        ("[privacy]\ndelta = 1e-5\n[data]\nclients = true\n", "clients = True"),
        ("privacy = 3\n", "privacy"),
        ("[privacy\n", "TOML"),
    ],
)
def test_a_run_that_cannot_be_used_is_one_clear_line_and_status_2(capsys, tmp_path, config, words):
    assert main_guard(command, ["--ledger", str(make_run(tmp_path, config))]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    for word in words.split():
        assert word in err


def test_a_run_whose_ledger_is_lost_has_no_price(capsys, tmp_path):
    """It has not cost nothing. Kills an epsilon of 0."""
    for name in ("dpsgd", "none"):
        (tmp_path / "config.toml").write_text(
            f'[privacy]\nmechanism = "{name}"\ndelta = 1e-6\n[data]\nclients = 2\n'
        )
        assert main_guard(command, ["--ledger", str(vouch(tmp_path)), "--json"]) == 2
        out, err = capsys.readouterr()
        assert "must be an existing folder" in err and out == ""


def test_a_warning_of_the_accountant_is_a_line_beside_clean_json():
    command = [
        sys.executable,
        "-m",
        "sim.account",
        "dpsgd",
        "--sample-rate=1e-3",
        "--noise-multiplier=1e-9",
        "--json",
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["order"] == 1.25
    assert "warning: epsilon = " in done.stderr
    assert "Traceback" not in done.stderr


def test_help_loads_nothing_heavy():
    command = [sys.executable, "-X", "importtime", "-m", "sim.account", "--help"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    loaded = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "dpsgd" in done.stdout and "sim.commands.account" in loaded
    assert not loaded & {"scipy", "torch", "ray", "flwr", "rich"}


FORMER = (
    "--validation-rate=0.1 --validation-noise 9 --beta -1.5 --accounting selective --cap-share=0.2"
)


def test_former_names_of_dpsur_are_taken_after_its_name_alone(capsys):
    flags, now = (
        ["--sample-rate=0.2", "--noise-multiplier=4", "--steps=12"],
        FORMER.replace("--", "--dpsur-"),
    )
    assert run(capsys, "dpsur", *flags, *FORMER.split()) == run(
        capsys, "dpsur", *flags, *now.split()
    )
    for words in (["dpsgd", *flags, "--beta=-1.5"], ["--mechanism=dpsur", "--beta=-1.5"]):
        with pytest.raises(ValueError, match="--beta is called --dpsur-beta now"):
            command(words)
