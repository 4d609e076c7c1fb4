"""The transcribed tables agree with themselves and with what can be computed, and every recipe
agrees with them."""

import json
import math
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from statistics import mean
from typing import Any

import pytest
from torch import nn

from mechanisms.accounting.acceptance import Acceptance
from mechanisms.accounting.accountant import epsilon
from mechanisms.accounting.events import ClassicClaim, PaperClaim
from sim.benching.runs import config_of
from sim.config import papers
from sim.config.recipe import Cell, Recipe, cells, read
from sim.data.words import Words
from sim.models.networks import build

RECIPES = {path.stem: read(path) for path in sorted(papers.RECIPES.glob("*.toml"))}
PAPERS = {
    path.stem: tomllib.loads(path.read_text())
    for path in sorted((papers.RECIPES / "papers").glob("*.toml"))
}
KEPT = Path(__file__).parents[1] / "benchmarks" / "results" / "cells"
DATA = {"mnist": "MNIST", "fmnist": "FMNIST", "cifar10": "CIFAR-10", "imdb": "IMDb"}
DPSUR, DPIS, SCREENING = "dpsur-pvldb-2024", "dpis-ccs-2022", "screening-2022"
MECHANISM = {
    "DPSUR": "dpsur",
    "DPIS": "dpis",
    "DPAGD": "dpagd",
    "DP-Hero": "dphero",
    "non-private": "none",
}
MECHANISM |= {
    "screening": "screening",
    "screening, free": "screening",
    "AC": "dpis",
    "fixed": "dpis",
}
"""A row's name in a paper, and what trains it; all other rows that are cited are variants of
DPSGD."""


def leaves(value: Any, way: str = "") -> Iterator[tuple[str, Any]]:
    """Every entry below a table with the way to it."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from leaves(inner, f"{way}/{key}" if way else key)
    else:
        yield way, value


def all_cells(budget: str) -> Iterator[tuple[str, Cell]]:
    for stem, recipe in RECIPES.items():
        yield from ((stem, cell) for cell in cells(recipe, budget))


def deviating(recipe: Recipe) -> set[str]:
    """The words in which a recipe names what is not as in the papers, among them settings."""
    return {word for what in recipe.deviations for word in re.findall(r"\w+", what)}


CELLS = {budget: list(all_cells(budget)) for budget in ("certified", "published")}


@pytest.mark.parametrize("stem", PAPERS)
def test_a_transcription_is_numbers_with_their_places(stem):
    paper = PAPERS[stem]
    assert paper["name"] and paper["title"]
    for place, table in paper.items():
        if isinstance(table, dict) and place != "uncertain":
            assert table["what"], place
    for way in paper["uncertain"]:
        papers.entry(f"{stem}/{way}")
    for way, value in leaves({k: v for k, v in paper.items() if k.startswith(("table", "figure"))}):
        if isinstance(value, float | int):
            assert math.isfinite(value) and value >= -1.0, way


def test_both_versions_of_dpsur_give_the_same_figures():
    journal, preprint = PAPERS[DPSUR], PAPERS["dpsur-arxiv"]
    own = {"name", "title", "uncertain", "table-5", "table-6", "table-7"}
    assert {k: v for k, v in journal.items() if k not in own} == {
        k: v for k, v in preprint.items() if k not in own
    }


@pytest.mark.parametrize(
    ("stem", "place", "data"), [(DPSUR, "table-2", DATA), (DPIS, "table-3", DATA)]
)
def test_accuracies_rise_with_epsilon_but_where_the_paper_has_it_otherwise(stem, place, data):
    falls = []
    for name in data.values():
        for row, figures in PAPERS[stem][place][name].items():
            if isinstance(figures, dict):
                values = [figures[column] for column in sorted(figures, key=float)]
                assert values[0] > 40 and values[-1] < 100
                falls += [(name, row)] * (values != sorted(values))
    assert falls == ([("MNIST", "DPSGD-HF")] if stem == DPSUR else [])


def test_dpis_agrees_with_itself():
    """Table 4 without adaptive clipping is Table 3 on images; with it, on IMDb, but for one figure
    that is marked."""
    main, clipping = PAPERS[DPIS]["table-3"], PAPERS[DPIS]["table-4"]
    for name in DATA.values():
        same = {e: value for e, value in main[name]["DPIS"].items() if e != "4"}
        other = dict(clipping[name]["AC" if name == "IMDb" else "fixed"])
        if name == "IMDb":
            assert (
                "table-4/IMDb/AC/1" in PAPERS[DPIS]["uncertain"]
                and other.pop("1") == same.pop("1") + 0.1
            )
        assert other == same
    assert len(dict(leaves(main))) == (3 * 5 + 4) * 5 + 4 + 1


def test_dp_heros_gains_are_those_of_its_text():
    table = PAPERS["dphero-fedfed"]["table-1"]["CIFAR-10"]
    for work, gain in PAPERS["dphero-fedfed"]["model-accuracy"]["gains"].items():
        (theirs,), (ours,) = table[work][work].values(), table[work]["DP-Hero"].values()
        assert 100 * (ours / theirs - 1) == pytest.approx(gain, abs=1)


def test_dpsurs_probabilities_of_acceptance_are_those_of_its_formula():
    """Equations 11 and 12 with sigma_v = 1; the paper cuts digits off."""
    for place, beta in (("Z = 0", 0.0), ("Z = -0.1", -1.0)):
        for kind, sign in (("better", 1.0), ("worse", -1.0)):
            exact = 50.0 * (1 + math.erf((beta + sign) / 2 / math.sqrt(2)))
            assert PAPERS[DPSUR]["figure-5"][place][kind] == pytest.approx(exact, abs=0.1)


@pytest.mark.parametrize("noise", [0.8, 1.0, 1.3])
def test_chances_of_acceptance_differ_most_at_a_threshold_of_zero(noise):
    """Not around -1, as DPSUR's text reads off its Figure 6; worse steps' share does fall."""
    found = {beta / 10: Acceptance.of_noisy_loss(0.01, noise, beta / 10) for beta in range(-35, 6)}
    gain = {beta: one.highest - one.lowest for beta, one in found.items()}
    worse = [one.lowest / (one.lowest + one.highest) for one in found.values()]
    assert max(gain, key=lambda beta: gain[beta]) == 0.0 and worse == sorted(worse)
    if noise == 1.0:
        assert (gain[0.0], gain[-1.0]) == pytest.approx((0.383, 0.341), abs=5e-4)


@pytest.mark.parametrize(("data", "epochs"), [("MNIST", 40), ("FMNIST", 40), ("CIFAR-10", 30)])
def test_screenings_noise_pays_for_whole_epochs_by_its_own_conversion_alone(data, epochs):
    """Table 2's noise at epsilon 3 is 40, 40 and 30 epochs by Lemma 2, as its sources have it; 30 %
    more otherwise."""
    row, records = PAPERS[SCREENING]["table-2"][data], PAPERS[DPSUR]["records"][data]
    rate = row["B"] / records

    def spent(event: type[PaperClaim]) -> float:
        steps = round(epochs / rate)
        return epsilon({event(rate, row["sigma"]): steps}, row["delta"], "published").epsilon

    assert spent(ClassicClaim) == pytest.approx(row["epsilon"], rel=0.012)
    assert spent(PaperClaim) < 0.92 * row["epsilon"]


MAIN = {
    DPSUR: ["table-2"],
    DPIS: ["table-3", "table-4", "table-5", "table-6"],
    SCREENING: ["table-1", "table-3"],
    "dphero-fedfed": ["table-1"],
}


@pytest.mark.parametrize("stem", MAIN)
def test_every_cell_of_the_main_tables_has_a_recipe(stem):
    cited = {claim.reference for _, cell in CELLS["certified"] for claim in cell.claims}
    wanted = set()
    for place in MAIN[stem]:
        for way, value in leaves(PAPERS[stem][place]):
            if not isinstance(value, str):
                wanted.add(f"{stem}/{place}/{way}")
    if stem == "dphero-fedfed":  # other works' methods are not here
        wanted = {way for way in wanted if way.split("/")[-2] in ("DP-Hero", "DP-SGD")}
    assert wanted - cited == set() and len(wanted) > 15


@pytest.mark.parametrize("budget", CELLS)
def test_figures_stand_beside_the_data_set_the_epsilon_and_the_mechanism_that_they_are_of(budget):
    for stem, cell in CELLS[budget]:
        settings = cell.settings
        for claim in cell.claims:
            file, place, data, *row, column = claim.reference.split("/")
            assert place.startswith(("table", "figure")) and claim.value == papers.entry(
                claim.reference
            )
            if place.startswith("table"):
                assert data == DATA[settings["dataset"]], (stem, cell.label, claim.reference)
            name = row[-1] if row else column
            if file == SCREENING and place == "table-3":
                assert cell.reach == float(column) and settings["epsilon"] == 6.0
            elif (file, place) in ((DPIS, "table-5"), (DPIS, "table-6")):
                key = "dpis_first_phase" if place == "table-5" else "dpis_slack"
                assert settings[key] == float(column) and settings["epsilon"] == 1.0
                continue
            elif place.startswith("figure"):
                continue
            elif column in ("non-private", "inf"):
                assert settings["epsilon"] == "none"
            else:
                assert settings["epsilon"] == float(column), (stem, cell.label, claim.reference)
            expected = (
                MECHANISM.get(name, "dpsgd") if column != "inf" or name == "DP-Hero" else "none"
            )
            assert settings["mechanism"] == expected, (stem, cell.label)


FOLLOWED = {
    "DPSUR": [f"{DPSUR}/section-6.1.3/all", f"{DPSUR}/section-6.1.3/{{}}", f"{DPSUR}/table-1/{{}}"],
    "DPIS": [f"{DPIS}/table-2/{{}}"],
    "screening": [f"{SCREENING}/table-2/{{}}"],
}


@pytest.mark.parametrize("budget", CELLS)
def test_settings_are_the_papers_or_a_deviation_says_why(budget):
    """Of every cell that is compared with a mechanism's own paper; in an ablation, but for what it
    varies."""
    seen = set()
    for stem, cell in CELLS[budget]:
        data = DATA.get(cell.settings.get("dataset", ""), "")
        for claim in cell.claims[:1]:
            name, own = claim.reference.split("/")[-2], {DPSUR: "DPSUR", SCREENING: "screening"}
            own_paper = own.get(claim.reference.split("/")[0]) == name or name == "DPIS"
            if not own_paper or "table" not in claim.reference:
                continue
            seen.add((name, data))
            given = papers.settings([one.format(data) for one in FOLLOWED[name]], cell.column)
            allowed = deviating(RECIPES[stem])
            differs = [key for key, value in given.items() if cell.settings.get(key) != value]
            differs = [key for key in differs if key not in ("epsilon",) and key not in allowed]
            assert differs == [], (
                stem,
                cell.label,
                {key: cell.settings.get(key) for key in differs},
            )
    assert len(seen) == 4 + 4 + 3


@pytest.mark.parametrize(("stem", "recipe"), list(RECIPES.items()), ids=list(RECIPES))
def test_what_goes_over_a_followed_setting_is_a_deviation(stem, recipe):
    allowed = deviating(recipe)
    rows = {row.name: row for row in recipe.rows}
    varied = {column.name: column.settings for column in recipe.columns}
    for budget in CELLS:
        for cell in cells(recipe, budget):
            given = papers.settings([*recipe.follows, *rows[cell.row].follows], cell.column)
            over = [
                key
                for key, value in given.items()
                if cell.settings[key] != value and key not in allowed
            ]
            over = [key for key in over if key not in varied[cell.column] and key != "epsilon"]
            if cell.settings.get("mechanism") != "none":
                assert over == [], (cell.label, over)


def test_dpis_norm_sums_are_of_a_batch():
    for stem, cell in CELLS["certified"]:
        if (
            cell.row == "DPIS"
            and "dpis_norm_rate" in cell.settings
            and "batch_size" in cell.settings
        ):
            records = PAPERS[DPSUR]["records"][DATA[cell.settings["dataset"]]]
            given = cell.settings["dpis_norm_rate"]
            assert given == 1.0 or given == pytest.approx(
                cell.settings["batch_size"] / records, rel=1e-5
            ), stem


def described(module: nn.Module) -> list[str]:
    """The layers of a network in the words of the transcriptions; activations left out."""
    words = []
    for layer in module.children():
        if isinstance(layer, nn.Conv2d):
            (kernel, _), (stride, _), (padding, _) = layer.kernel_size, layer.stride, layer.padding
            words.append(
                f"conv {layer.out_channels} {kernel}x{kernel} stride {stride} padding {padding}"
            )
        elif isinstance(layer, nn.MaxPool2d):
            words.append(f"max-pool {layer.kernel_size}x{layer.kernel_size} stride {layer.stride}")
        elif isinstance(layer, nn.Linear):
            words.append(f"linear {layer.out_features}")
        elif isinstance(layer, nn.Embedding):
            words.append(f"embedding {layer.embedding_dim}")
        elif isinstance(layer, nn.LSTM):
            words.append(f"{'bidirectional ' * layer.bidirectional}LSTM {layer.hidden_size}")
    return words


@pytest.mark.parametrize(
    ("reference", "model", "shape"),
    [
        ("dpsur-arxiv/table-5", "cnn", (1, 28, 28)),
        ("dpsur-arxiv/table-6", "cnn-cifar", (3, 32, 32)),
        ("dpsur-arxiv/table-7", "lstm", (80,)),
        ("dpis-ccs-2022/table-1", "lstm", (80,)),
    ],
)
def test_networks_are_the_papers_layer_by_layer(reference, model, shape):
    words = Words(20_000) if model == "lstm" else None
    module = build(model, shape, 2 if words else 10, 0, words=words)
    assert described(module) == papers.entry(f"{reference}/layers")


def test_dp_heros_networks_have_what_its_text_names():
    layers = described(build("cnn-5x5", (3, 32, 32), 10, 0))
    named = papers.entry("dphero-fedfed/model-architecture/CIFAR-10/layers")
    short = [line.replace(" 64 ", " ").split(" stride")[0] for line in layers]
    assert short == [*named, "linear 10"]


@pytest.mark.parametrize("number", [1, 2, 3, 5, 6])
def test_dp_heros_figures_have_its_levels_and_lots(number):
    stem = f"dphero-figure-{number}"
    drawn = [
        cell.settings
        for cell in cells(RECIPES[stem], "published")
        if cell.settings["mechanism"] == "dphero"
    ]
    setup, figure = (
        PAPERS["dphero-fedfed"]["experimental-setup"],
        PAPERS["dphero-fedfed"].get(stem[7:], {}),
    )
    wanted = figure.get("noise", setup["noise"])
    assert {one["noise_multiplier"] for one in drawn} == set(wanted)
    assert {one["lr"] for one in drawn} == {figure.get("rate", setup["rates"][0])}
    if number == 5:
        assert len(drawn) == 12 and {one["batch_size"] for one in drawn} == set(setup["lots"])


@pytest.mark.parametrize(
    ("reference", "part"),
    [
        ("dpsur-pvldb-2025/table-2", "did you mean 'dpsur-pvldb-2024'?"),
        ("dpsur-pvldb-2024/table-22", "did you mean 'table-2'?"),
        ("dpsur-pvldb-2024/table-2/MNIST/DPSUR/3/4", "has no '4' there"),
        ("dpsur-arxiv/table-5/layers", "a cell needs a number"),
    ],
)
def test_a_reference_that_leads_nowhere_says_so(reference, part):
    with pytest.raises(ValueError) as fault:
        papers.claims([reference], "3")
    assert part in str(fault.value)


def test_a_row_without_the_column_is_skipped_and_the_next_one_counts():
    """In the order of the references; a number needs no column."""
    rows = [f"{DPSUR}/table-2/MNIST/DPSUR", f"{DPIS}/table-3/MNIST/DPIS"]
    single = f"{DPIS}/table-3/IMDb/DPIS/4"
    found = {c: papers.claims([*rows, single], c) for c in ("0.5", "3", "9")}
    values = {column: [claim.value for claim in some] for column, some in found.items()}
    assert values == {"0.5": [96.8, 70.2], "3": [98.88, 98.8, 70.2], "9": [70.2]}
    assert [claim.reference for claim in found["0.5"]] == [f"{rows[1]}/0.5", single]
    assert [claim.paper for claim in found["3"]] == ["DPSUR", "DPIS", "DPIS"]


def test_settings_come_from_rows_by_symbol_by_column_and_by_share():
    assert papers.settings([f"{DPSUR}/table-1/IMDb"], "2") == {"dpsur_validation_noise": 1.2}
    assert papers.settings([f"{DPSUR}/table-1/IMDb"], "0.5") == {}
    assert papers.settings([f"{DPSUR}/section-6.1.3/IMDb"], "2") == {
        "optimizer": "adam",
        "dpsur_validation_rate": 128 / 25_000,
    }
    both = papers.settings([f"{DPIS}/table-2/FMNIST", f"{DPIS}/table-2/IMDb"], "1")
    assert both == {"dpis_slack": 3.0, "dpis_first_phase": 0.8, "dpis_clip": 1.0}
    with pytest.raises(ValueError, match="is not a row of settings"):
        papers.settings([f"{DPSUR}/table-2/MNIST"], "1")


def test_screening_runs_at_the_papers_strength():
    """Published: Q0 10 for each step, to the last; certified: minimal clipping, c times the last
    gain is 2."""
    for name in ("mnist", "fmnist", "cifar10"):
        for budget in CELLS:
            found = {
                c.row: c for c in cells(RECIPES[f"screening-{name}"], budget) if c.column == "3"
            }
            config = config_of(found["noise screening"], {}, central=True)
            own = config.screening
            if budget == "published":
                assert own.screening_q0 == 10.0 and own.screening_clip is None
            else:
                assert own.screening_gain * own.screening_clip == pytest.approx(2.0, rel=1e-2)
                assert own.screening_gain > 1e4 and own.screening_q0 is None


def test_recipes_hold_no_figure_of_a_paper_themselves():
    for path in papers.RECIPES.glob("*.toml"):
        for row in tomllib.loads(path.read_text())["rows"]:
            cited = [
                *row.get("paper", []),
                *(one for some in row.get("paper_cells", {}).values() for one in some),
            ]
            assert all(isinstance(one, str) and Path(one).parts[0] in PAPERS for one in cited), path


def test_every_cell_below_a_papers_figure_says_why():
    """Of those that the repository keeps, the mean over seeds."""
    kept: dict[tuple[str, str, str], list[float]] = {}
    for path in KEPT.glob("*-certified/*.json"):
        found, stem = json.loads(path.read_text()), path.parent.name.removesuffix("-certified")
        accuracies = kept.setdefault((stem, found["row"], found["column"]), [])
        accuracies.append(100 * found["summary"]["accuracy"])
    reported = {
        (stem, cell.row, cell.column): (max(claim.value for claim in cell.claims), cell.below)
        for stem, cell in CELLS["certified"]
        if cell.claims and cell.reach is None
    }
    shown = {name: (round(mean(kept[name]), 2), *reported[name]) for name in kept.keys() & reported}
    below = {name: why for name, (ours, most, why) in shown.items() if ours < most}
    assert len(below) > 20
    assert [name for name, why in below.items() if len(why) < 40] == []
