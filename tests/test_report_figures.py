"""Every number of the report stands under its own label: tiles, tables, captions and which picture
is where.

The figures of the run are unequal throughout (`tests.unequal`).
"""

import dataclasses
import html
import json
import re

import numpy as np
import pytest
from matplotlib.figure import Figure

from client.tensors import sealed
from mechanisms.accounting import accountant
from mechanisms.accounting.events import SampledGaussian
from mechanisms.accounting.ledger import Ledger
from server.records import RoundRecord, Summary
from sim.config import caveats
from sim.config.configuration import load
from sim.config.fields import SETTINGS, TABLES
from sim.config.use import used_by_table
from sim.library.result import Result
from sim.showing import page, plots, wording
from sim.showing.report import write_report
from tests import unequal
from tests.vouched import vouch


def page_of(folder) -> str:
    return write_report(vouch(folder)).read_text()


def test_the_tiles_of_a_finished_run(tmp_path):
    """From the summary: the largest client of all; what the last round says of loss and retired
    clients."""
    assert unequal.tiles(page_of(unequal.run_directory(tmp_path / "run"))) == {
        "Test accuracy": ("43.2%", "after round 3 of 9; loss 1.4200"),
        "Certified epsilon": ("7.25", "at delta 2e-06, largest of 5 clients; target 9.5"),
        "Published epsilon": ("8.375", "the paper's claim, for comparison; not the guarantee"),
        "Retired clients": ("2", "of 5: their budget pays for no further round"),
    }


def test_the_tiles_of_an_unfinished_run(tmp_path):
    """From the last round. With a certified budget that is what is proved; without, what has been
    spent."""
    folder = unequal.run_directory(tmp_path / "half", finished=False)
    assert [record.round for record in Result(folder).rounds] == [1, 2, 3]
    half = unequal.tiles(page_of(folder))
    assert half["Test accuracy"] == ("43.0%", "after round 3 of 9; loss 1.4200")
    assert half["Certified epsilon"] == (
        "9.5",
        f"at delta 2e-06, largest of 5 clients; target 9.5. {wording.UNFINISHED}",
    )
    assert half["Published epsilon"][0] == "8.375" and half["Retired clients"][0] == "2"
    free = unequal.run_directory(
        tmp_path / "free", finished=False, epsilon=None, noise_multiplier=3.0
    )
    shown = unequal.tiles(page_of(free))["Certified epsilon"]
    assert shown == (
        wording.epsilon(Result(free).epsilon),  # by the ledger: a round can be paid for since
        f"at delta 2e-06, largest of 5 clients, so far. {wording.UNDER_WAY}",
    )


def test_the_papers_budget_stands_at_the_papers_figure(tmp_path):
    """And an unfinished run then shows what it has spent as certified: the budget bounds the other
    column."""
    for finished, note in ((True, ""), (False, f", so far. {wording.UNDER_WAY}")):
        folder = unequal.run_directory(tmp_path / str(finished), finished, budget="published")
        found = unequal.tiles(page_of(folder))
        spent = wording.epsilon(Result(folder).epsilon)
        assert found["Certified epsilon"] == (spent, f"at delta 2e-06, largest of 5 clients{note}")
        claim = "the paper's claim, for comparison; not the guarantee; target 9.5"
        assert found["Published epsilon"] == ("8.375", claim)


def test_a_column_that_is_infinite_says_nothing_of_the_other(tmp_path):
    none = (*unequal.CERTIFIED[:4], None)
    closing = unequal.summary(epsilon_certified=none)
    found = unequal.tiles(page_of(unequal.run_directory(tmp_path / "a", closing=closing)))
    assert (found["Certified epsilon"][0], found["Published epsilon"][0]) == (
        "∞ (not private)",
        "8.375",
    )
    closing = unequal.summary(epsilon_published=none)
    found = unequal.tiles(page_of(unequal.run_directory(tmp_path / "b", closing=closing)))
    assert (found["Certified epsilon"][0], found["Published epsilon"][0]) == (
        "7.25",
        "∞ (not private)",
    )


def alone(folder, **changed) -> str:
    """The page of a run of one client, of 19 records."""
    one = {
        "epsilon_certified": (4.375,),
        "epsilon_published": (6.125,),
        "noise_multiplier": (2.71,),
        "events": (41,),
    }
    unequal.run_directory(folder, closing=unequal.summary(**one), clients=1, **changed)
    np.savez(folder / "partition.npz", sizes=np.array([19]), counts=unequal.COUNTS[:1])
    return page_of(folder)


def test_the_tiles_of_one_client(tmp_path):
    found = unequal.tiles(alone(tmp_path / "run", validation_records=5, evaluate_on="validation"))
    assert found == {
        "Validation accuracy": ("43.2%", "after round 3 of 9; loss 1.4200"),
        "Certified epsilon": ("4.375", "at delta 2e-06; target 9.5"),
        "Published epsilon": ("6.125", "the paper's claim, for comparison; not the guarantee"),
        "Budget": ("used up", "whether it pays for a further round"),
    }
    last = dataclasses.replace(unequal.ROUNDS[2], retired=0, accuracy=None, loss=None)
    (tmp_path / "run" / "rounds.jsonl").write_text(json.dumps(last.to_json()) + "\n")
    (tmp_path / "run" / "summary.json").unlink()
    found = unequal.tiles(page_of(tmp_path / "run"))
    assert found["Budget"][0] == "not used up"
    assert found["Validation accuracy"] == ("unknown", "after round 3 of 9; loss unknown")


def test_the_ledger_table(tmp_path):
    """Least, median and largest of each, which are of the third, fourth and second client, or
    others."""
    part = unequal.section(page_of(unequal.run_directory(tmp_path / "run")), "Privacy spent")
    several = 3  # rows of a table of its own
    assert unequal.rows(part)[:-several] == [
        ["Ledger", "Least", "Median", "Largest"],
        ["certified epsilon per client", "1.5", "3.125", "7.25"],
        ["published epsilon per client", "0.875", "5.25", "8.375"],
        ["privacy events charged per client", "19", "35", "67"],
        ["noise multiplier", "1.84", "2.18", "3.37"],
        ["what proves the largest certified epsilon", "", "", "loss distributions"],
        ["certified epsilon by Rényi order 5.5 alone", "", "", "7.875"],
    ]
    assert "Published and certified: The paper counts less." in html.unescape(part)
    closing = unequal.summary(
        method="", order=None, note="", epsilon_certified=(None, 1.5, 2.5, None, None)
    )
    part = unequal.section(
        page_of(unequal.run_directory(tmp_path / "b", closing=closing)), "Privacy spent"
    )
    assert [row[1:] for row in unequal.rows(part)[1:2]] == [
        ["1.5", "∞ (not private)", "∞ (not private)"]
    ]
    assert len(unequal.rows(part)) == 5 and "Published and certified" not in part


SHOWN = {
    "accuracy": "the accuracy's tile",
    "epsilon_certified": "a tile, the table and a picture",
    "epsilon_published": "a tile, the table and a picture",
    "epsilon_renyi": "the table",
    "method": "the table",
    "order": "the table",
    "noise_multiplier": "the table",
    "events": "the table",
    "note": "below the pictures",
    "budgets": "a table",
}
OTHERWISE = {
    "loss": "the last round's",
    "delta": "the configuration's",
    "retired": "the last round's",
    "rounds": "the number of records",
    "seconds": "the sum of the rounds'",
    "run_dir": "the folder that is read",
    "release": "the configuration's",
    "budget": "the configuration's",
    "evaluated_on": "the configuration's",
    "caveats": "the configuration's",
    "metric": "the configuration's",
    "guarantees": "the configuration's, at the largest certified epsilon",
}


def test_each_field_of_the_summary_shows_or_is_said_otherwise(tmp_path, monkeypatch):
    """A new field fails here until a test of this file answers for it. Pictures are left out: they
    are drawn below."""
    assert SHOWN.keys() | OTHERWISE.keys() == unequal.names(Summary)
    monkeypatch.setattr(plots, "svg", lambda figure: b'<svg viewBox="0 0 7 9"></svg>')
    pages = {"": page_of(unequal.run_directory(tmp_path / "run"))}
    other = {
        "accuracy": 0.5,
        "epsilon_renyi": 1.0,
        "method": "Renyi",
        "order": 9.0,
        "note": "Another.",
        "events": (1, 2, 3, 4, 5),
    }
    other |= {
        name: (9.1, 9.2, 9.3, 9.4, 9.5)
        for name in SHOWN
        if name.startswith("epsilon_c") or "published" in name
    }
    other |= {
        "noise_multiplier": (1.0,) * 5,
        "loss": 9.0,
        "delta": 0.1,
        "retired": 4,
        "rounds": 8,
        "seconds": 999.0,
    }
    other |= {
        "run_dir": "elsewhere",
        "release": True,
        "budget": "published",
        "evaluated_on": "validation",
        "metric": "another",
    }
    other |= {"caveats": ("Another.",), "guarantees": ({"adversary": "another"},)}
    other["budgets"] = ({"group": "a", "budget": 2.0, "clients": 5, "largest": 1.0},)
    for name, value in other.items():
        (tmp_path / "run" / "summary.json").write_text(
            json.dumps(unequal.summary(**{name: value}).to_json())
        )
        pages[name] = page_of(tmp_path / "run")
    assert {name for name, page in pages.items() if page != pages[""]} == SHOWN.keys()


def test_the_head_of_the_page(tmp_path):
    page = page_of(
        unequal.run_directory(tmp_path / "run", mechanism="dpsur", strategy="fedadam", model="mlp")
    )
    assert (
        "<h1>run: digits, 5 clients</h1>" in page
        and "<title>run: digits, 5 clients</title>" in page
    )
    head = "dpsur, fedadam, model mlp, a simulation with seed 77. 3 of 9 rounds in 18 s, finished."
    assert f'<p class="subtitle">{head}</p>' in page
    half = page_of(unequal.run_directory(tmp_path / "half", finished=False, release=True))
    assert "dpsgd, fedavg, model linear, a release. 3 of 9 rounds in 18 s, not finished." in half
    assert f"python -m sim.run --resume {tmp_path / 'half'}" in half and "--resume" not in page
    assert (
        f"python -m sim.account --ledger {tmp_path / 'run'}\npython -m sim.report "
        f"{tmp_path / 'run'}" in page
    )
    single = alone(tmp_path / "alone", mechanism="none")
    assert (
        "<h1>alone: digits, 1 client</h1>" in single
        and "no privacy, fedavg, model linear" in single
    )


def test_rounds_that_were_not_all_timed_have_no_time(tmp_path):
    folder = unequal.run_directory(tmp_path / "run")
    untimed = [
        dataclasses.replace(one, seconds=None if one.round == 2 else one.seconds)
        for one in unequal.ROUNDS
    ]
    (folder / "rounds.jsonl").write_text(
        "".join(json.dumps(one.to_json()) + "\n" for one in untimed)
    )
    assert "3 of 9 rounds, finished." in page_of(folder)


@pytest.fixture(autouse=True)
def figures(monkeypatch) -> dict[str, Figure]:
    """The figures that stand in a page, by what stands there for them: to draw them takes
    longest."""
    made: dict[str, Figure] = {}

    def drawn(figure: Figure) -> bytes:
        token = f"figure {len(made)}"
        made[token] = figure
        return f'<svg viewBox="0 0 7 9">{token}</svg>'.encode()

    monkeypatch.setattr(plots, "svg", drawn)
    return made


def pictures(figures: dict[str, Figure], page: str) -> dict[str, tuple[Figure, str]]:
    """The figure and the caption of each picture of the report, by the text that stands for it."""
    return {
        alt: (figures[data], caption) for alt, (data, caption) in unequal.pictures(page).items()
    }


def ys(figure: Figure, place: int = 0) -> dict[str, list[float]]:
    return {str(line.get_label()): list(line.get_ydata()) for line in figure.axes[place].lines}


def test_the_pictures_are_of_the_records(tmp_path, figures):
    """What each of them shows is in test_plots.py; here: that it is given the right figures, under
    the right words."""
    folder = unequal.run_directory(tmp_path / "run", validation_records=5, evaluate_on="validation")
    found = pictures(figures, page_of(folder))
    assert {alt: caption for alt, (_, caption) in found.items()} == {
        "accuracy by round": "Validation part, after each round.",
        "loss by round": "Validation part, after each round.",
        "epsilon by round": "Spent so far, after each round, at the run's delta.",
        "epsilon per client": "Spent by each client in the whole run.",
        "acceptance_rate by round": "Public metric of the mechanism: mean over each round's "
        "clients.",
        "noise by round": "Public metric of the mechanism: mean over each round's clients.",
        "records by client and class": "Partition dirichlet: 153 records, 7 to 56 per client "
        "(median 30). Above: records of each client. Below: of each class.",
    }
    by_round = ys(found["epsilon by round"][0])
    assert by_round["certified, largest"] == [2.75, 4.5, 7.25] and by_round["target 9.5"] == [
        9.5,
        9.5,
    ]
    assert by_round["certified, median"] == [1.25, 2.25, 3.125]
    assert by_round["published, largest"] == [3.875, 6.625, 8.375]
    _, certified, claimed = found["epsilon per client"][0].axes[0].patches
    assert certified.get_data().values.tolist() == sorted(unequal.CERTIFIED)
    assert claimed.get_data().values.tolist() == [8.375, 2.125, 0.875, 6.125, 5.25]
    assert ys(found["epsilon per client"][0])["target 9.5"] == [9.5, 9.5]
    for name, label, values in (
        ("accuracy", "validation accuracy", [0.31, 0.57, 0.43]),
        ("loss", "validation loss [nats]", [1.91, 1.13, 1.42]),
        ("acceptance_rate", "acceptance rate", [0.75, 0.25, 0.625]),
        ("noise", "noise", [1.5, 4.5]),
    ):
        (axes,) = found[f"{name} by round"][0].axes
        assert axes.get_ylabel() == label and list(axes.lines[0].get_ydata()) == values
    assert found["records by client and class"][0].axes[0].patches[
        0
    ].get_data().values.tolist() == [19, 41, 7, 30, 56]
    shown = (folder / "partition.svg").read_text()
    assert figures[re.search(">(.*)<", shown)[1]] is found["records by client and class"][0]


def test_pictures_that_have_nothing_to_show_are_left_out(tmp_path):
    folder = unequal.run_directory(tmp_path / "run", finished=False)
    plain = [dataclasses.replace(one, metrics={}) for one in unequal.ROUNDS]
    (folder / "rounds.jsonl").write_text("".join(json.dumps(one.to_json()) + "\n" for one in plain))
    words = {"accuracy by round", "loss by round", "epsilon by round"}
    words |= {"records by client and class"}
    assert unequal.pictures(page_of(folder)).keys() == words
    single = alone(tmp_path / "alone")
    assert "epsilon per client" not in unequal.pictures(
        single
    ) and "epsilon by round" in unequal.pictures(single)
    caption = unequal.pictures(single)["records by client and class"][1]
    assert caption == "One client holds all 19 records. Below: of each class."


def test_a_round_has_no_field_that_the_report_forgets():
    """Each field of a round is read above, by tile, head or picture; two are in rounds.jsonl
    alone."""
    read = {
        "round",
        "accuracy",
        "loss",
        "epsilon_certified_max",
        "epsilon_certified_median",
        "epsilon_published_max",
    }
    assert read | {"retired", "seconds", "metrics"} | {
        "participants",
        "seconds_training",
    } == unequal.names(RoundRecord)


def test_every_setting_in_use_is_listed_with_its_value_and_meaning(tmp_path):
    folder = unequal.run_directory(tmp_path / "run", max_participations=7)
    page, used = page_of(folder), used_by_table(load(folder / "config.toml", {}))
    found = unequal.rows(unequal.section(page, "Configuration"))
    by_name = {row[0]: row[1:] for row in found if len(row) == 3 and row[0] != "Setting"}
    assert list(by_name) == [name for names in used.values() for name in names]
    assert found[0] == ["Setting", "Value", "Meaning"]
    for name, value in (
        ("epsilon", "9.5"),
        ("delta", "2e-06"),
        ("seed", "77"),
        ("max_participations", "7"),
    ):
        assert by_name[name] == [value, SETTINGS[name].info.description]
    assert by_name["noise_multiplier"][0] == ""
    heads = [row[0] for row in found if len(row) == 1]
    assert heads == [
        f"{model.__doc__} [{table}]" for table, model in TABLES.items() if table in used
    ]


@pytest.mark.parametrize("release", [True, False])
def test_the_guarantee_of_a_simulation_stands_out_as_a_notice(tmp_path, release):
    page = page_of(unequal.run_directory(tmp_path / "run", release=release))
    assert ('<section class="notice"><h2>What the guarantee means</h2>' in page) is not release
    assert (wording.RELEASED in html.unescape(page)) is release


@pytest.mark.parametrize(("delta", "said"), [(1 / 153, True), (0.999 / 153, False)])
def test_delta_is_compared_with_all_records(tmp_path, delta, said):
    page = html.unescape(page_of(unequal.run_directory(tmp_path / "run", delta=delta)))
    assert (f"Delta {delta:g} is not below 1 / 153 records" in page) is said


@pytest.mark.parametrize(("delta", "said"), [(1 / 5, True), (0.999 / 5, False)])
def test_delta_is_compared_with_the_clients_where_these_are_protected(tmp_path, delta, said):
    whole = {"trust": "server", "unit": "client", "delta": delta}
    page = html.unescape(page_of(unequal.run_directory(tmp_path / "run", **whole)))
    assert (f"Delta {delta:g} is not below 1 / 5 clients" in page) is said
    assert ("Delta" in page and "records: it allows" in page) is False


def test_what_clients_share_and_its_price(tmp_path, figures):
    """The largest price of a client, of what was paid before the first round: not the first, nor
    with the rounds'."""
    folder = unequal.run_directory(
        tmp_path / "run", strategy="fedfed", shared_source="distilled", public_labels=False
    )
    rng = np.random.default_rng(0)
    x, y = rng.random((53, 1, 4, 4), dtype=np.float32), rng.integers(0, 90, 53)
    (folder / "shared.safetensors").write_bytes(sealed({"x": x, "y": y}, {}))
    with Ledger(folder / "ledger" / "group0.jsonl") as ledger:
        for client, noise in enumerate((5.0, 3.0, 9.0)):
            ledger.charge("shared", 0, [client], {SampledGaussian(1.0, noise): 2})
            ledger.charge("round-1", 1, [client], {SampledGaussian(1.0, 1.0): 1})
    figure, caption = pictures(figures, page_of(folder))["shared records"]
    assert caption == "40 of 53 shared records with their released labels."
    assert [one.get_title() for one in figure.axes] == [str(label) for label in y[:40]]
    part = html.unescape(
        unequal.section((folder / "report.html").read_text(), "What clients share")
    )
    price = wording.epsilon(accountant.epsilon({SampledGaussian(1.0, 3.0): 2}, 2e-6).epsilon)
    assert (
        f"all that came before training: {price}, at delta 2e-06; it is part of the run's." in part
    )
    assert "Features of single records" in part and caveats.PUBLIC_LABELS not in part
    (folder / "shared.safetensors").write_bytes(sealed({"x": x[:7], "y": y[:7]}, {}))
    figure, caption = pictures(figures, page_of(folder))["shared records"]
    assert (
        caption.startswith("7 of 7 shared records")
        and [one.get_title() for one in figure.axes[:8]][7] == ""
    )


def test_every_text_of_a_page_is_escaped_once():
    """Names of data sets, models and files are the user's. Kills a piece that passes on a text as
    it is, and one that escapes it twice."""
    sly = "<b>&</b>"
    pieces = {
        page.page(sly, sly, []): 3,
        page.tiles([(sly, sly, sly)]): 3,
        page.section(sly, "<p>", notice=True): 1,
        page.paragraph(sly): 1,
        page.listing([sly, sly]): 2,
        page.commands([sly, sly]): 2,
        page.picture(b'<svg viewBox="0 0 7 9"></svg>', sly, sly): 2,
        page.section(sly, folded=True): 1,
        page.table((sly, sly), [(sly,), (sly, sly)]): 5,
    }
    for piece, times in pieces.items():
        assert piece.count("&lt;b&gt;&amp;&lt;/b&gt;") == times and "<b>" not in piece, piece
