"""Every number that ``python -m sim.account`` prints, as JSON and in its table: all of them, each under its name."""

import json
import math
from typing import Any

import pytest

from mechanisms import trials
from mechanisms.accounting import accountant, bundles, events
from mechanisms.accounting.acceptance import Acceptance
from mechanisms.accounting.ledger import Ledger
from server import orders
from sim.account import main
from sim.config import caveats
from sim.pricing.mechanisms import MECHANISMS
from sim.showing import wording

DELTA, ORDERS = 2e-6, [3.0, 5.0, 12.5]
SGM = {"sample_rate": 0.013, "noise_multiplier": 0.85, "steps": 700}
TEST = {"validation_rate": 0.007, "validation_noise": 2.1, "beta": -0.9}
SCREENED = {"test_rate": 0.3, "lowest_acceptance": 0.4}
DPIS = {"batch_size": 50.0, "clip_norm": 0.7, "norm_sum": 1400.0, "records": 4000.0}
STEP = (0.013, 0.85, 0.007, 2.1, -0.9)
SCALE = math.sqrt(3 / 14)
"""The smallest of DP-Hero's scales for eigenvalues 3, 2 and 1."""
LOWEST = Acceptance.of_noisy_loss(0.007, 2.1, -0.9).lowest


def cap(lowest: float, steps: int, part: float) -> dict:
    return {events.TrialCap(lowest, trials.most_rejections(lowest, steps, part * DELTA)): steps}


Row = tuple[dict[str, Any], dict, dict[str, Any], list[str]]
CASES: dict[str, Row] = {
    "dpsgd": (SGM, {events.SampledGaussian(0.013, 0.85): 700}, {}, []),
    "dpsur": (
        SGM | TEST | {"accounting": "visible", "trials": 900, "cap_share": 0.2},
        bundles.dpsur(events.DpsurStep(*STEP, "visible"), 700, 900),
        {},
        [],
    ),
    "dpsur every-trial": (
        SGM | TEST | {"accounting": "every-trial", "trials": 900, "cap_share": 0.2},
        bundles.dpsur(events.DpsurStep(*STEP, "every-trial"), 700, 900),
        {},
        [],
    ),
    "dpsur selective": (
        SGM | TEST | {"accounting": "selective", "trials": None, "cap_share": 0.2},
        {**bundles.dpsur(events.DpsurStep(*STEP, "selective"), 700, 700), **cap(LOWEST, 700, 0.2)},
        {},
        [caveats.HIDDEN],
    ),
    "dpis": (
        DPIS | {"noise_multiplier": 0.7, "steps": 700},
        {events.ImportanceSampledGaussian(50.0, 0.7, 1400.0, 4000.0, 0.7): 700},
        {},
        [],
    ),
    "dphero": (
        {"eigenvalues": [3.0, 2.0, 1.0], "hero_clipping": "isotropic"} | SGM | {"noise_multiplier": 2.0},
        {events.HeterogeneousGaussian(0.013, 2.0, SCALE): 700},
        {"effective_noise_multiplier": 2.0 * SCALE},
        [],
    ),
    "screening public-test": (
        SGM | SCREENED | {"accounting": "public-test", "trials": 900, "cap_share": 0.2},
        bundles.screening(events.ScreenedStep(0.013, 0.85, 0.3, 0.4, "public-test"), 700, 900),
        {},
        [],
    ),
    "screening clipped": (
        SGM | SCREENED | {"accounting": "clipped", "trials": None, "cap_share": 0.2},
        {**bundles.screening(events.ScreenedStep(0.013, 0.85, 0.3, 0.4, "clipped"), 700, 700), **cap(0.4, 700, 0.2)},
        {},
        [caveats.HIDDEN],
    ),
    "fedfed": (
        {"noise_std": None, "pixels": 784, "pixel_range": 2.0, "noise_draws": "record", "share_rate": 0.3}
        | {"classes": 7, "label_epsilon": 0.9, "public_labels": False, "noise_multiplier": 4.0, "views": 3},
        {events.VisibleChoice(0.3, 4.0 / math.sqrt(3)): 1, events.RandomizedResponse(0.9): 1},
        {"norm_bound": 56.0, "noise_std": 224.0, "labels_kept": math.exp(0.9) / (math.exp(0.9) + 6)},
        [],
    ),
}
"""Flags with their values, charges, further figures, and limits."""


def flags_of(given: dict[str, Any]) -> list[str]:
    """The flags as typed."""
    typed = []
    for name, value in given.items():
        option, text = "--" + name.replace("_", "-"), ",".join(map(str, value)) if isinstance(value, list) else value
        typed += [] if value is None or value is False else [option] if value is True else [f"{option}={text}"]
    return typed


def expected(case: str) -> dict[str, Any]:
    """All that is to be printed, from the charges."""
    given, charges, extra, limits = CASES[case]
    certified, published = (accountant.epsilon(charges, DELTA, column) for column in ("certified", "published"))
    claim = case != "fedfed"
    return {
        "mechanism": case.split()[0],
        **given,
        "delta": DELTA,
        **extra,
        "epsilon_certified": certified.epsilon,
        "order": certified.order,
        "epsilon_published": published.epsilon if claim else None,
        "order_published": published.order if claim else None,
        "epsilon_pld": accountant.pld_epsilon(charges, DELTA),
        "limits": limits,
        "orders": ORDERS,
        "rdp_certified": accountant.rdp(charges, ORDERS, "certified").tolist(),
        "rdp_published": accountant.rdp(charges, ORDERS, "published").tolist() if claim else None,
    }


def command(case: str) -> list[str]:
    return [case.split()[0], *flags_of(CASES[case][0]), f"--delta={DELTA}", "--orders=3,5,12.5"]


def table(capsys, *arguments: str) -> tuple[list[list[str]], list[str]]:
    """The rows of the printed table, its head first, and the lines below it."""
    assert main([*arguments]) == 0
    lines = capsys.readouterr().out.splitlines()
    drawn = [line for line in lines if line[:1] in "┏┃┡│└├"]
    rows = [[cell.strip() for cell in line.strip("┃│").replace("┃", "│").split("│")] for line in drawn]
    return [row for row in rows if len(row) > 1], lines[len(drawn) :]


def test_each_row_of_the_command_is_priced_here():
    assert {case.split()[0] for case in CASES} == MECHANISMS.keys()


@pytest.mark.parametrize("case", CASES)
def test_the_figures_of_a_mechanism_are_those_of_its_charges(case, capsys):
    """All of them: a figure that is new, or missing, fails too."""
    assert main([*command(case), "--json"]) == 0
    found, right = json.loads(capsys.readouterr().out), expected(case)
    assert list(found) and found.keys() == right.keys()
    for name, value in right.items():
        measured = isinstance(value, float) or (name.startswith("rdp") and value)
        assert found[name] == (pytest.approx(value, rel=1e-9) if measured else value), name
    figures = [found[name] for name in ("epsilon_certified", "epsilon_published", "epsilon_pld") if found[name]]
    assert len(set(figures)) == len(figures) == {"dpsgd": 3, "fedfed": 1}.get(case, 2)


@pytest.mark.parametrize("case", CASES)
def test_the_table_of_a_mechanism_has_each_figure_under_its_name(case, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    (head, *rows), below = table(capsys, *command(case))
    right = expected(case)
    assert head == ["quantity", "value"] and below == right.pop("limits")

    def shown(name: str, value: Any) -> str:
        if isinstance(value, list):
            return ", ".join(f"{one:.6g}" for one in value)
        if isinstance(value, float):
            return wording.epsilon(value, 6) if name.startswith("epsilon_") else f"{value:.6g}"
        return "-" if value is None else str(value)

    assert sorted(rows) == sorted([name.replace("_", " "), shown(name, value)] for name, value in right.items())


def test_a_calibrated_figure_names_its_target(capsys):
    arguments = ["dpsgd", "--sample-rate=0.013", "--steps=700", "--epsilon=2", f"--delta={DELTA}", "--json"]
    assert main(arguments) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["epsilon_target"] == 2.0 and 1.99 < found["epsilon_certified"] <= 2.0
    charges = {events.SampledGaussian(0.013, found["noise_multiplier"]): 700}
    assert found["epsilon_certified"] == accountant.epsilon(charges, DELTA).epsilon
    assert not found.keys() & {"orders", "rdp_certified", "rdp_published", "epsilon"}


DEFAULTS: dict[str, tuple[list[str], dict[str, Any]]] = {
    "dpsgd": (["--sample-rate=0.1"], {}),
    "dpsur": (
        ["--sample-rate=0.1", "--validation-rate=0.1", "--validation-noise=2", "--trials=3"],
        {"beta": -1.0, "accounting": "visible", "cap_share": 0.1},
    ),
    "dpis": (["--batch-size=5", "--clip-norm=1", "--norm-sum=50", "--records=100"], {}),
    "dphero": (["--sample-rate=0.1", "--eigenvalues=2,1"], {"hero_clipping": "whitened"}),
    "screening": (
        ["--sample-rate=0.1"],
        {"accounting": "unproved", "test_rate": 1.0, "lowest_acceptance": 0.0, "trials": None, "cap_share": 0.1},
    ),
    "fedfed": (
        ["--public-labels"],
        {"noise_std": None, "pixels": None, "pixel_range": 1.0, "noise_draws": "record", "share_rate": 1.0}
        | {"classes": 10, "label_epsilon": None, "views": 1},
    ),
}


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_what_is_not_given_is_said_too(mechanism, capsys):
    """Every figure is that of the flags beside it, the ones that nobody gave among them."""
    given, others = DEFAULTS[mechanism]
    assert main([mechanism, *given, "--noise-multiplier=2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    expected = others | {"delta": 1e-5} | ({} if mechanism == "fedfed" else {"steps": 1})
    assert {name: found[name] for name in expected} == expected
    typed = {word.partition("=")[0].strip("-").replace("-", "_") for word in given}
    assert typed | others.keys() == {flag.name for flag in MECHANISMS[mechanism].flags} | (others.keys() & {"views"})


PAID: dict[int, dict] = {
    0: {events.SampledGaussian(0.1, 2.0): 40},
    1: {**bundles.dpsur(events.DpsurStep(0.1, 2.0, 0.05, 3.0, -1.0, "every-trial"), 20, 90)},
    2: {events.SampledGaussian(0.1, 2.0): 40},
    4: {events.SampledGaussian(0.2, 1.5): 30, events.PublicLabels(): 1},
}


def run_directory(folder):
    """Clients 3 and 5 have released nothing; 0 and 2 the same; certified and published differ."""
    for client, charges in PAID.items():
        with Ledger(folder / "ledger" / f"group{client}.jsonl") as ledger:
            ledger.charge("round-1", 1, [client], charges)
    (folder / "config.toml").write_text(
        f'[privacy]\nmechanism = "dpsur"\ndelta = {DELTA}\nepsilon = 9.0\nbudget = "certified"\n[data]\nclients = 6\n'
    )
    return folder


def row(client: int, at: tuple[float, ...] | None = None) -> dict[str, Any]:
    charges = PAID.get(client, {})
    certified = accountant.epsilon(charges, DELTA, orders=at)
    published = accountant.epsilon(charges, DELTA, "published")
    released = sorted(charges.items(), key=repr)
    return {
        "client": client,
        "epsilon_certified": certified.epsilon,
        "order": certified.order,
        "epsilon_published": published.epsilon,
        "delta": DELTA,
        "events": [{**events.to_dict(event), "count": count} for event, count in released],
    }


def test_the_figures_of_a_ledger_are_each_clients_own(tmp_path, capsys):
    folder = run_directory(tmp_path)
    (folder / "summary.json").touch()
    assert main(["--ledger", str(folder), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    clients = [row(client) for client in range(6)]
    assert found == {"finished": True, "note": "", "clients": clients, "limits": [caveats.PUBLIC_LABELS]}
    figures = {(one["epsilon_certified"], one["epsilon_published"], one["order"]) for one in clients}
    assert len(figures) == 4 and clients[1]["epsilon_certified"] > 1.2 * clients[1]["epsilon_published"]


def test_the_table_of_a_ledger_has_each_clients_figures(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    folder = run_directory(tmp_path)
    (folder / "summary.json").touch()
    (head, *rows), below = table(capsys, "--ledger", str(folder))
    assert head == ["clients", "epsilon (certified)", "epsilon (published)", "delta"]
    names = {"0,2": 0, "1": 1, "3,5": 3, "4": 4}
    texts = [[wording.epsilon(row(c)[f"epsilon_{k}"], 6) for k in ("certified", "published")] for c in names.values()]
    assert rows == [[name, *text, "2e-06"] for name, text in zip(names, texts, strict=True)]
    assert below == [caveats.PUBLIC_LABELS]


def test_of_an_unfinished_run_each_client_has_its_own_order_and_a_note_says_so(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    folder = run_directory(tmp_path)
    lines = [{"order": 3.0, "clients": "0,3-5"}, {"order": 12.0, "clients": "1-2"}]
    (folder / orders.FILE).write_text(json.dumps(lines))
    assert main(["--ledger", str(folder), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    at = {0: 3.0, 1: 12.0, 2: 12.0, 3: 3.0, 4: 3.0, 5: 3.0}
    assert found["clients"] == [row(client, (at[client],)) for client in range(6)]
    assert (found["finished"], found["note"], found["limits"]) == (False, wording.AT_ONE_ORDER, [caveats.PUBLIC_LABELS])
    (_, *rows), below = table(capsys, "--ledger", str(folder))
    assert [one[0] for one in rows] == ["0", "1", "2", "3,5", "4"]
    assert below == [caveats.PUBLIC_LABELS, wording.AT_ONE_ORDER]


def test_the_budget_is_shown_for_whoever_has_paid_while_it_holds_for_all(tmp_path, capsys):
    """Client 1's certified figure is above its published one: the budget is compared with what is proved."""
    folder = run_directory(tmp_path)
    largest = max(row(client)["epsilon_certified"] for client in PAID)
    assert main(["--ledger", str(folder), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert largest <= 9.0 and found["note"] == wording.AT_THE_BUDGET
    assert [one["epsilon_certified"] for one in found["clients"]] == [9.0, 9.0, 9.0, 0.0, 9.0, 0.0]
    assert [one["order"] for one in found["clients"]] == [None] * 6
    config = folder / "config.toml"
    for target, note in ((largest, wording.AT_THE_BUDGET), (math.nextafter(largest, 0), wording.AT_THE_BEST_ORDER)):
        config.write_text(config.read_text().replace("epsilon = 9.0", f"epsilon = {target!r}"))
        assert main(["--ledger", str(folder), "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["note"] == note
        config.write_text(config.read_text().replace(f"epsilon = {target!r}", "epsilon = 9.0"))
