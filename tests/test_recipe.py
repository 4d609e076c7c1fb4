"""Recipes: which layer of settings goes over which, which cells there are, and what a run of one
is."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from sim.benching.runs import Run, plan, play, result
from sim.config import papers
from sim.config import recipe as recipes

TEXT = """
title = "Layers"
[settings]
dataset = "{records}"
batch_size = 60
lr = 1.0
momentum = 0.1
clip_norm = 1.0
rounds = 1
optimizer = "adam"
max_records = 7
[[columns]]
name = "a"
settings = {{ lr = 2.0, momentum = 0.2, clip_norm = 2.0, rounds = 2 }}
[[columns]]
name = "b"
rows = ["first"]
[[rows]]
name = "first"
settings = {{ lr = 3.0, clip_norm = 3.0, rounds = 3, max_records = "none" }}
certified = {{ lr = 4.0, rounds = 4 }}
published = {{ lr = 5.0, rounds = 5 }}
cells = {{ a = {{ lr = 6.0 }} }}
paper_cells = {{ b = ["screening-2022/table-3/MNIST/DPSGD/94"] }}
[[rows]]
name = "second"
[[rows]]
name = "third"
columns = ["b"]
"""


@pytest.fixture
def layers(tmp_path) -> recipes.Recipe:
    x, y = np.random.default_rng(0).normal(size=(130, 3)), np.arange(130) % 3
    np.savez(tmp_path / "records.npz", x=x, y=y)
    (tmp_path / "layers.toml").write_text(TEXT.format(records=tmp_path / "records.npz"))
    return recipes.read(tmp_path / "layers.toml")


def runs(
    layers: recipes.Recipe, folder: Path, budget: str = "certified", **given: object
) -> dict[str, Run]:
    return {run.folder.name: run for run in plan(layers, folder, budget, [3, 8], given)}


def test_cells_go_over_the_budget_over_rows_over_columns_over_the_recipe(layers, tmp_path):
    for budget, lr, rounds in (("certified", 4.0, 4), ("published", 5.0, 5)):
        own = {name: run.config for name, run in runs(layers, tmp_path / "runs", budget).items()}
        seen = [
            (
                c.local.lr,
                c.rounds.rounds,
                c.privacy.clip_norm,
                c.local.momentum,
                c.local.optimizer,
                c.local.max_records,
            )
            for c in (own[f"{cell}_seed-3"] for cell in ("first_a", "first_b", "second_a"))
        ]
        assert seen[0] == (6.0, rounds, 3.0, 0.2, "adam", None)
        assert seen[1] == (lr, rounds, 3.0, 0.1, "adam", None)
        assert seen[2] == (2.0, 2, 2.0, 0.2, "adam", 7)
        assert {c.privacy.budget for c in own.values()} == {budget}
    given = runs(layers, tmp_path / "runs", lr=9.0, max_records=2)
    assert {(run.config.local.lr, run.config.local.max_records) for run in given.values()} == {
        (9.0, 2)
    }


def test_rows_and_columns_say_which_cells_there_are_and_what_the_paper_has(layers):
    found = [(cell.row, cell.column, cell.paper) for cell in recipes.cells(layers, "certified")]
    assert found == [("first", "a", None), ("first", "b", 1.64), ("second", "a", None)]


def test_a_run_has_its_seed_its_folder_and_one_client_unless_there_are_many(layers, tmp_path):
    for clients, number in (("one", 1), ("many", 100)):
        for name, run in runs(
            layers.model_copy(update={"clients": clients}), tmp_path / "runs"
        ).items():
            assert (
                run.config.run.seed == run.seed == int(name[-1])
                and run.folder == tmp_path / "runs" / name
            )
            assert (run.config.run.out, run.config.run.name) == (str(tmp_path / "runs"), name)
            assert (run.config.run.engine, run.config.run.quiet) == ("inline", True)
            assert run.config.data.clients == number


def test_a_run_that_was_begun_goes_on_where_it_was_and_no_other_settings_are_taken_up(
    layers, tmp_path, monkeypatch
):
    monkeypatch.setattr("sim.engines.session.write_report", lambda folder: folder)
    run = runs(layers, tmp_path / "runs")["second_a_seed-3"]
    assert not run.finished and result(run) is None
    assert play(run) == "" and run.finished
    before = (run.folder / "model.safetensors").read_bytes()
    closing = result(run)
    assert [record.round for record in closing.rounds] == [1, 2]
    assert closing.summary.accuracy == closing.rounds[-1].accuracy
    (run.folder / "summary.json").unlink()
    assert not run.finished
    assert play(run) == "" and (run.folder / "model.safetensors").read_bytes() == before
    own = run.config
    free = own.model_copy(
        update={"run": own.run.model_copy(update={"out": "elsewhere", "workers": 7})}
    )
    replace(run, config=free).check()
    for table, change in (
        ("run", {"seed": 4}),
        ("privacy", {"epsilon": 2.0}),
        ("local", {"lr": 0.5}),
    ):
        other = own.model_copy(update={table: getattr(own, table).model_copy(update=change)})
        with pytest.raises(ValueError, match=rf"other settings \({next(iter(change))}\)"):
            replace(run, config=other).check()


@pytest.mark.parametrize("name", ["budget", "name", "out", "quiet", "seed"])
def test_what_the_bench_gives_itself_is_refused_in_a_recipe(layers, tmp_path, name):
    """Kills a seed that a recipe names and nobody takes."""
    row = layers.rows[0].model_copy(update={"settings": layers.rows[0].settings | {name: 1}})
    other = layers.model_copy(update={"rows": (row,)})
    with pytest.raises(ValueError, match=f"{name} is given by sim.bench itself: leave it out"):
        runs(other, tmp_path / "runs")


@pytest.mark.parametrize("name", ["../x", "-3", "über", "(a)"])
def test_a_name_that_no_folder_can_have_is_refused(layers, name):
    row = layers.rows[0].model_dump() | {"name": name}
    given = layers.model_dump() | {"rows": [row]}
    with pytest.raises(ValueError, match="begins with neither a letter of a to z nor a digit"):
        recipes.Recipe(**given)


def test_a_former_name_in_a_recipe_is_refused_with_the_new_one():
    with pytest.raises(ValueError, match="unknown setting beta: it is called dpsur_beta now"):
        recipes.checked({"lr": 1.0, "beta": -1.0})
    with pytest.raises(ValueError, match="unknown setting clinets; did you mean clients"):
        recipes.checked({"clinets": 3})
    assert recipes.checked({"epsilon": "none", "mechanism": "none", "name": ""}) == {
        "epsilon": None,
        "mechanism": "none",
        "name": None,
    }


@pytest.mark.parametrize("place", ["digits-small", "digits-small/absent", "digits-small/DPSGD/x"])
def test_a_cell_that_is_like_none_is_refused_by_its_name(place):
    with pytest.raises(ValueError, match=rf"like = '{place}' is no cell: .*known: "):
        recipes._like(place, "3", "certified")


LAYERS = """
title = "All"
like = "below/first/a"
follows = ["given/table/0"]
settings = {3}
columns = [{{ name = "a", settings = {4} }}, {{ name = "b" }}]
[[rows]]
name = "row"
like = "below/second"
follows = ["given/table/1"]
settings = {6}
{budget} = {7}
cells = {{ a = {8} }}
"""
BELOW = """
title = "Below"
columns = [{{ name = "a" }}, {{ name = "b", settings = {{ n9 = "of its column" }} }}]
rows = [{{ name = "first", settings = {0} }}, {{ name = "second", settings = {1} }}]
"""
GIVEN = """
name = "A paper"
[table]
sets = {{ {sets} }}
0 = {2}
1 = {5}
"""


@pytest.mark.parametrize("budget", ["certified", "published"])
def test_each_layer_of_settings_goes_over_all_before_it(budget, tmp_path, monkeypatch):
    """The layer with number k sets the settings from number k on."""
    names = [f"n{number}" for number in range(9)]
    values = [
        f"{{ {', '.join(f'{name} = {layer}' for name in names[layer:])} }}" for layer in range(9)
    ]
    sets = ", ".join(f'{name} = "{name}"' for name in names)
    (tmp_path / "papers").mkdir()
    for place, text in (("all", LAYERS), ("below", BELOW), ("papers/given", GIVEN)):
        filled = text.format(*values, budget=budget, sets=sets)
        (tmp_path / f"{place}.toml").write_text(filled)
    for module in (recipes, papers):
        monkeypatch.setattr(module, "RECIPES", tmp_path)
    try:
        cell, other = recipes.cells(recipes.read(tmp_path / "all.toml"), budget)
    finally:
        recipes._known.cache_clear()
        papers._paper.cache_clear()
    assert cell.settings == {name: number for number, name in enumerate(names)}
    assert other.settings["n9"] == "of its column"
    assert cell.own == {"n6", "n7", "n8"}
