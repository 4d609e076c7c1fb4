"""Every number that ``python -m sim.account`` prints, as JSON and in its table: all of them, each
under its name."""

import json
import math
from typing import Any

import pytest

from mechanisms import trials
from mechanisms.accounting import accountant, events
from mechanisms.accounting.acceptance import Acceptance
from mechanisms.accounting.ledger import Ledger
from server import orders
from server.guarantees import guarantees
from sim.account import command
from sim.commands.account import FIRST_WORDS
from sim.commands.guard import main_guard
from sim.config import caveats
from sim.phases import questions
from sim.showing import account as shown
from sim.showing import wording
from tests.vouched import fix_orders, vouch

DELTA, ORDERS = 2e-6, [3.0, 5.0, 12.5]
SGM = {"sample_rate": 0.013, "noise_multiplier": 0.85, "steps": 700}
STEP = (0.013, 0.85, 0.007, 2.1, -0.9)
DPSUR = {
    "dpsur_accounting": "visible",
    "dpsur_validation_rate": 0.007,
    "dpsur_validation_noise": 2.1,
}
DPSUR |= {"dpsur_loss_clip": 0.004, "dpsur_beta": -0.9}
DPIS = {"dpis_sampling": "importance", "dpis_slack": 3.0, "dpis_floor": 0.04, "dpis_norm_rate": 0.6}
DPIS |= {"dpis_norm_share": 0.03, "dpis_clip": None, "dpis_first_phase": 0.3}
SCREENING = {
    "screening_data": "own",
    "screening_gain": 2.0,
    "screening_q0": None,
    "screening_stages": 1,
}
OWN_TEST = {"screening_rate": 0.3, "screening_clip": 0.2, "screening_cap_share": 0.2}
SHARED = {
    "share_budget": 0.4,
    "share_rate": 0.3,
    "share_views": 3,
    "label_epsilon": 0.9,
    "public_labels": False,
}
SCALE = math.sqrt(3 / 14)
"""The smallest of DP-Hero's scales for eigenvalues 3, 2 and 1."""
LOWEST = Acceptance.of_noisy_loss(0.007, 2.1, -0.9).lowest
ACCEPTED = math.exp(-2.0 * 0.2)


def cap(lowest: float, steps: int, part: float) -> dict:
    return {events.TrialCap(lowest, trials.most_rejections(lowest, steps, part * DELTA)): steps}


def claims(accepted: int) -> dict:
    """What DPSUR's paper charges."""
    return {events.PaperClaim(0.013, 0.85): accepted, events.PaperClaim(0.007, 2.1): accepted}


Row = tuple[dict[str, Any], dict, dict[str, Any], list[str]]
CASES: dict[str, Row] = {
    "dpsgd": (SGM, {events.SampledGaussian(0.013, 0.85): 700}, {}, []),
    "dpsur": (
        SGM | DPSUR | {"trials": 900},
        {events.DpsurStep(*STEP, "visible"): 900, **claims(700)},
        {},
        [],
    ),
    "dpsur every-trial": (
        SGM | DPSUR | {"dpsur_accounting": "every-trial", "trials": 900},
        {events.DpsurStep(*STEP, "every-trial"): 900, **claims(700)},
        {},
        [],
    ),
    "dpsur selective": (
        SGM | DPSUR | {"dpsur_accounting": "selective", "dpsur_cap_share": 0.2},
        {events.DpsurStep(*STEP, "selective"): 700, **cap(LOWEST, 700, 0.2), **claims(700)},
        {},
        [caveats.HIDDEN],
    ),
    "dpis norm sum": (
        SGM | DPIS | {"sample_rate": 0.0125, "records": 4000, "clip_norm": 0.7, "norm_sum": 1400.0},
        {events.ImportanceSampledGaussian(50.0, 0.7, 1400.0, 4000.0, 0.85): 700},
        {},
        [questions.OF_A_RUN],
    ),
    "dphero": (
        {"hero_floor": 0.2, "hero_refresh": 3, "hero_clipping": "isotropic"} | SGM,
        {events.HeterogeneousGaussian(0.013, 0.85, 0.2): 700},
        {},
        [],
    ),
    "dphero eigenvalues": (
        {
            "hero_floor": 0.2,
            "hero_refresh": 3,
            "hero_clipping": "isotropic",
            "eigenvalues": [3.0, 2.0, 1.0],
        }
        | SGM,
        {events.HeterogeneousGaussian(0.013, 0.85, SCALE): 700},
        {"effective_noise_multiplier": 0.85 * SCALE},
        [questions.OF_A_RUN],
    ),
    "screening public-test": (
        SGM | SCREENING | {"screening_data": "public", "forced_after": 4, "trials": 900},
        {
            events.ScreenedStep(0.013, 0.85, 1.0, 0.0, "public-test"): 900,
            events.ClassicClaim(0.013, 0.85): 700,
        },
        {},
        [],
    ),
    "screening clipped": (
        SGM | SCREENING | OWN_TEST,
        {events.ScreenedStep(0.013, 0.85, 0.3, ACCEPTED, "clipped"): 700, **cap(ACCEPTED, 700, 0.2)}
        | {events.ClassicClaim(0.013, 0.85): 700},
        {},
        [caveats.HIDDEN],
    ),
    "fedfed": (
        SHARED | {"noise_multiplier": 4.0, "steps": 1},
        {events.VisibleChoice(0.3, 4.0 / math.sqrt(3)): 1, events.RandomizedResponse(0.9): 1},
        {},
        [],
    ),
}
"""Flags with their values, charges, further figures, and limits."""
NOT_SHOWN = {"records", "clip_norm"}
EXTRA = {"screening public-test": ["--public-records=9"]}


def flags_of(given: dict[str, Any]) -> list[str]:
    """The flags as typed."""
    typed = []
    for name, value in given.items():
        option, text = (
            "--" + name.replace("_", "-"),
            ",".join(map(str, value)) if isinstance(value, list) else value,
        )
        typed += [] if value is None or value is False else [f"{option}={text}"]
    return typed


def expected(case: str) -> dict[str, Any]:
    """All that is to be printed, from the charges."""
    given, charges, extra, limits = CASES[case]
    certified, published = (
        accountant.epsilon(charges, DELTA, column) for column in ("certified", "published")
    )
    renyi = accountant.by_renyi(charges, DELTA)
    shared = case == "fedfed"
    return {
        "mechanism": case.split()[0],
        **{name: value for name, value in given.items() if name not in NOT_SHOWN},
        "delta": DELTA,
        "phase": "share" if shared else "train",
        "clients": "0",
        "rounds": 1,
        "events": priced(charges),
        **extra,
        "epsilon_certified": certified.epsilon,
        "method": certified.method,
        "epsilon_renyi": renyi.epsilon,
        "order": renyi.order,
        "epsilon_published": published.epsilon,
        "order_published": published.order,
        "caveats": limits,
        "orders": ORDERS,
        "rdp_certified": accountant.rdp(charges, ORDERS, "certified").tolist(),
        "rdp_published": accountant.rdp(charges, ORDERS, "published").tolist(),
    }


def priced(charges: dict) -> list[dict]:
    return [
        {**events.to_dict(event), "count": count}
        for event, count in sorted(charges.items(), key=repr)
    ]


def words(case: str) -> list[str]:
    given = dict(CASES[case][0])
    if case == "fedfed":
        given["share_noise"] = given.pop("noise_multiplier")
        del given["steps"]
    flags = [*flags_of(given), *EXTRA.get(case, ())]
    return [case.split()[0], *flags, f"--delta={DELTA}", "--orders=3,5,12.5"]


def table(capsys, *arguments: str) -> tuple[list[list[str]], list[str]]:
    """The rows of the printed table, its head first, and the lines below it."""
    assert main_guard(command, arguments) == 0
    lines = capsys.readouterr().out.splitlines()
    drawn = [line for line in lines if line[:1] in "┏┃┡│└├"]
    rows = [
        [cell.strip() for cell in line.strip("┃│").replace("┃", "│").split("│")] for line in drawn
    ]
    return [row for row in rows if len(row) > 1], lines[len(drawn) :]


def protected(rows) -> list[str]:
    """The lines that say from whom."""
    return [f"{name:<18} {value}" for name, value in wording.protections(rows)]


def test_a_model_that_tells_nothing_is_protected_and_only_one_without_privacy_is_not():
    """Kills an epsilon of 0 taken for none."""
    row = {"adversary": "the server", "sees": "every upload", "unit": "one record"}
    assert wording.protections([row | {"epsilon": 0.0}]) == [
        ("protected", "one record"),
        ("from the server", "epsilon 0, seeing every upload"),
    ]
    assert wording.protections([row | {"epsilon": None}]) == [("protected", "nothing")]


def test_no_table_is_cut_off_where_the_terminal_is_narrow(capsys, monkeypatch):
    """Many clients take several lines, each of whole numbers; an epsilon takes one."""
    monkeypatch.setenv("COLUMNS", "20")
    odd = range(1, 100, 2)
    row = {"epsilon_certified": 1.2345671, "epsilon_published": 1.3, "delta": 1e-5}
    rows = [{"client": client, **row} for client in odd]
    shown.show_ledger({"clients": rows, "guarantees": [], "caveats": [], "note": ""})
    out = capsys.readouterr().out
    first = [line.split("│")[1] for line in out.splitlines() if line.startswith("│")]
    assert [int(one) for one in "".join(first).split(",")] == list(odd)
    assert "1.23457" in out and len(first) > 1 and "…" not in out


VERIFIED = {
    "confirmed": True,
    "verified": [],
    "histories": 0,
    "slack": 0.01,
    "seconds": 1.0,
    "not_proved": "",
    "caveats": [],
    "note": "",
}
"""What a run without histories gives."""


def test_bounds_of_a_verified_run_are_rounded_outward(capsys):
    """Kills a lower bound that is shown above itself."""
    row = {"clients": "0,1", "epsilon_certified": 1.2345671, "order": None, "verdict": "confirmed"}
    rows = [row | {"lower": 1.2345678, "upper": 1.2345679}]
    shown.show_verified(VERIFIED | {"verified": rows, "histories": 1})
    line = next(line for line in capsys.readouterr().out.splitlines() if "0, 1" in line)
    cells = [cell.strip() for cell in line.strip("│").split("│")]
    figures = ["1.23457", "loss distributions", "1.23456", "1.23457"]
    assert cells == ["0, 1", *figures, "confirmed"]


@pytest.mark.parametrize(
    ("slack", "said"), [(0.01, "at most 1 % above its"), (math.inf, "a lower bound is 0. Verified")]
)
def test_how_near_a_verified_run_is_to_its_lower_bounds(capsys, slack, said):
    shown.show_verified(VERIFIED | {"slack": slack})
    assert f"Every epsilon is proved, and {said}" in capsys.readouterr().out


def test_each_first_word_is_priced_here_or_by_what_a_run_pays():
    """DPAGD's plan has a price of its own alone: its allotment (tests/test_prices.py)."""
    assert {case.split()[0] for case in CASES} | {"dpagd"} == FIRST_WORDS.keys()


@pytest.mark.parametrize("case", CASES)
def test_the_figures_of_a_mechanism_are_those_of_its_charges(case, capsys):
    """All of them: a figure that is new, or missing, fails too."""
    assert main_guard(command, [*words(case), "--json"]) == 0
    found, right = json.loads(capsys.readouterr().out), expected(case)
    (phase,) = found.pop("phases")
    assert phase == {name: found[name] for name in phase} | {"steps": phase["steps"]}
    assert found.keys() == right.keys()
    assert same(found.pop("events"), right.pop("events"))
    for name, value in right.items():
        measured = isinstance(value, float) or (name.startswith("rdp") and value)
        assert found[name] == (pytest.approx(value, rel=1e-9) if measured else value), name
    figures = [
        found[name]
        for name in ("epsilon_certified", "epsilon_published", "epsilon_renyi")
        if found[name]
    ]
    proved = 2 if found["method"] == "Renyi" else 3
    assert len(set(figures)) == {"fedfed": 2}.get(case, proved)


def same(found: list[dict], right: list[dict]) -> bool:
    """Whether events and counts agree, to the rounding of a rate times a size."""
    return len(found) == len(right) and all(
        a.keys() == b.keys()
        and all(
            a[k] == (pytest.approx(b[k], rel=1e-12) if isinstance(b[k], float) else b[k]) for k in b
        )
        for a, b in zip(found, right, strict=True)
    )


@pytest.mark.parametrize("case", CASES)
def test_the_table_of_a_mechanism_has_each_figure_under_its_name(case, capsys, monkeypatch):
    (head, *rows), below = table(capsys, *words(case))
    right = expected(case)
    del right["events"]
    assert head == ["quantity", "value"] and below == right.pop("caveats")

    def shown(name: str, value: Any) -> str:
        if isinstance(value, list):
            return ", ".join(f"{one:.6g}" for one in value)
        if isinstance(value, float):
            return wording.epsilon(value, 6) if name.startswith("epsilon_") else f"{value:.6g}"
        return "-" if value is None else str(value)

    assert sorted(rows) == sorted(
        [name.replace("_", " "), shown(name, value)] for name, value in right.items()
    )


def test_a_calibrated_figure_names_its_target(capsys):
    arguments = [
        "dpsgd",
        "--sample-rate=0.013",
        "--steps=700",
        "--epsilon=2",
        f"--delta={DELTA}",
        "--json",
    ]
    assert main_guard(command, arguments) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["epsilon_target"] == 2.0 and 1.99 < found["epsilon_certified"] <= 2.0
    charges = {events.SampledGaussian(0.013, found["noise_multiplier"]): 700}
    assert found["epsilon_certified"] == accountant.epsilon(charges, DELTA).epsilon
    assert not found.keys() & {"orders", "rdp_certified", "rdp_published"}


PAID: dict[int, dict] = {
    0: {events.SampledGaussian(0.1, 2.0): 40},
    1: {
        events.DpsurStep(0.1, 2.0, 0.05, 3.0, -1.0, "every-trial"): 90,
        events.PaperClaim(0.1, 2.0): 20,
        events.PaperClaim(0.05, 3.0): 20,
    },
    2: {events.SampledGaussian(0.1, 2.0): 40},
    4: {events.SampledGaussian(0.2, 1.5): 30, events.PublicLabels(): 1},
}


def run_directory(folder):
    """Clients 3 and 5 have released nothing; 0 and 2 the same; certified and published differ."""
    for client, charges in PAID.items():
        with Ledger(folder / "ledger" / f"group{client}.jsonl") as ledger:
            ledger.charge("round-1", 1, [client], charges)
    (folder / "config.toml").write_text(
        f'[privacy]\nmechanism = "dpsur"\ndelta = {DELTA}\nepsilon = 9.0\nbudget = "certified"\n'
        "[data]\nclients = 6\n"
    )
    return vouch(folder)


def row(client: int, order: float | None = None) -> dict[str, Any]:
    charges = PAID.get(client, {})
    certified = accountant.epsilon(charges, DELTA)
    if order is not None:
        certified = orders.running(charges, DELTA, (order,), 9.0)
    published = accountant.epsilon(charges, DELTA, "published")
    released = sorted(charges.items(), key=repr)
    return {
        "client": client,
        "epsilon_certified": certified.epsilon,
        "method": certified.method,
        "order": certified.order,
        "epsilon_published": published.epsilon,
        "delta": DELTA,
        "events": [{**events.to_dict(event), "count": count} for event, count in released],
    }


def test_the_figures_of_a_ledger_are_each_clients_own(tmp_path, capsys):
    folder = run_directory(tmp_path)
    vouch(folder, finished=True)
    assert main_guard(command, ["--ledger", str(folder), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    clients = [row(client) for client in range(6)]
    assert found == {
        "finished": True,
        "note": "",
        "clients": clients,
        "caveats": [caveats.PUBLIC_LABELS],
        "guarantees": list(
            guarantees("local", "record", 6, max(one["epsilon_certified"] for one in clients))
        ),
    }
    figures = {
        (one["epsilon_certified"], one["epsilon_published"], one["order"]) for one in clients
    }
    assert (
        len(figures) == 4
        and clients[1]["epsilon_certified"] > 1.2 * clients[1]["epsilon_published"]
    )


def test_the_table_of_a_ledger_has_each_clients_figures(tmp_path, capsys):
    folder = run_directory(tmp_path)
    vouch(folder, finished=True)
    (head, *rows), below = table(capsys, "--ledger", str(folder))
    assert head == ["clients", "epsilon (certified)", "epsilon (published)", "delta"]
    names = {"0, 2": 0, "1": 1, "3, 5": 3, "4": 4}
    texts = [
        [wording.epsilon(row(c)[f"epsilon_{k}"], 6) for k in ("certified", "published")]
        for c in names.values()
    ]
    assert rows == [[name, *text, "2e-06"] for name, text in zip(names, texts, strict=True)]
    largest = max(row(client)["epsilon_certified"] for client in range(6))
    against = guarantees("local", "record", 6, largest)
    assert below == [*protected(against), caveats.PUBLIC_LABELS]


def test_of_an_unfinished_run_each_client_has_its_own_order_and_a_note_says_so(
    tmp_path, capsys, monkeypatch
):
    folder = run_directory(tmp_path)
    lines = [{"orders": [3.0], "clients": "0,3-5"}, {"orders": [12.0], "clients": "1-2"}]
    fix_orders(folder, lines)
    assert main_guard(command, ["--ledger", str(folder), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    at = {0: 3.0, 1: 12.0, 2: 12.0, 3: 3.0, 4: 3.0, 5: 3.0}
    assert found["clients"] == [row(client, at[client]) for client in range(6)]
    assert (found["finished"], found["note"], found["caveats"]) == (
        False,
        wording.AT_ONE_ORDER,
        [caveats.PUBLIC_LABELS],
    )
    (_, *rows), below = table(capsys, "--ledger", str(folder))
    assert [one[0] for one in rows] == ["0", "1", "2", "3, 5", "4"]
    assert below == [*protected(found["guarantees"]), caveats.PUBLIC_LABELS, wording.AT_ONE_ORDER]


def test_a_price_of_several_phases_has_a_row_for_each(capsys):
    """Below the total, each figure under its name; a price of one phase has no such table."""
    flags = "--clients=3 --records=50,40,40 --rounds=2 --batch-size=10 --epsilon=4 --delta=1e-3 "
    flags += "--noise-multiplier=3 --standardize=private"
    assert main_guard(command, [*flags.split(), "--json"]) == 0
    phases = json.loads(capsys.readouterr().out)["phases"]
    assert [row["phase"] for row in phases] == ["statistics", "train", "train"]
    rows, _ = table(capsys, *flags.split())
    names = ("phase", "clients", "rounds", "steps", "sample_rate", "noise_multiplier")
    head = ["phase", "clients", "rounds", "steps", "rate", "multiplier", "certified", "published"]
    start = rows.index(head)

    def shown(row: dict) -> list[str]:
        found = [row.get(name) for name in names]
        texts = ["-" if one is None else f"{one:.6g}" for one in found[2:]]
        epsilons = [wording.epsilon(row[f"epsilon_{c}"], 6) for c in ("certified", "published")]
        return [*found[:2], *texts, *epsilons]

    assert rows[start + 1 :] == [shown(row) for row in phases]
    assert len({tuple(row) for row in rows[start + 1 :]}) == 3
    one = flags.replace("--standardize=private", "").replace("50,40,40", "40")
    alone, _ = table(capsys, *one.split())
    assert not any(row[0] == "phase" and len(row) > 2 for row in alone)
