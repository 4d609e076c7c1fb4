"""Cells that borrow from other cells, and columns that measure the least epsilon of an accuracy."""

import csv
import json

import pytest

from sim import central
from sim.benching import table
from sim.benching.runs import config_of, plan
from sim.commands import flags as cli
from sim.commands.guard import main_guard
from sim.config.configuration import differences
from sim.config.paper_presets import PRESETS
from sim.config.papers import RECIPES
from sim.config.recipe import cells, read
from tests.test_bench import HEAD, records, run

__all__ = ["records"]
pytestmark = pytest.mark.usefixtures("no_report")

REACHING = """
[[columns]]
name = "10"
reach = 10.0
[[columns]]
name = "99.9"
reach = 99.9
"""


def written(folder, records, more: str, replaced: str = "") -> str:
    path = folder / "small.toml"
    path.write_text(
        HEAD.format(records=records).replace('title = "Small"', f'title = "Small"\n{replaced}')
        + more
    )
    return path


def test_columns_of_an_accuracy_are_one_training_and_give_its_least_epsilon(tmp_path, records):
    path, out = written(tmp_path, records, REACHING, 'plot = "path"'), tmp_path / "out"
    for budget, seeds in (("certified", "01"), ("published", "0")):
        flags = (f"--seeds={','.join(seeds)}", f"--budget={budget}", "--columns=10,99.9")
        lines = {line["column"]: line for line in run(path, out, *flags)}
        trained = sorted(out.glob(f"small-{budget}/*"))
        assert [folder.name for folder in trained] == [f"dpsgd_reach_seed-{seed}" for seed in seeds]
        assert lines["10"]["state"] == "done"
        least = []
        for folder in trained:
            rounds = [
                json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()
            ]
            least.append(next(r[f"epsilon_{budget}_max"] for r in rounds if r["accuracy"] >= 0.1))
        assert float(lines["10"]["mean"]) == pytest.approx(sum(least) / len(seeds), rel=1e-5)
        assert lines["99.9"]["mean"] == "" and lines["99.9"]["state"] == "done"
        text = (out / f"small-{budget}.md").read_text()
        assert "| at epsilon " in text and "| not reached |" in text and "**" not in text
    with (out / "small-certified.csv").open() as file:
        assert [line["column"] for line in csv.DictReader(file)] == ["10", "99.9"]


def test_a_path_is_the_epsilon_and_the_accuracy_of_each_round(tmp_path, records):
    path, out = written(tmp_path, records, "", 'plot = "path"'), tmp_path / "out"
    run(path, out, "--columns=8")
    found = table.lines(plan(read(path), out / "small-certified", "certified", [0], {})[1:], {})
    ((_, curve),) = table.points(read(path), found).items()
    rounds = found[0].results[0].rounds
    figures = [(r.epsilon_certified_max, r.accuracy) for r in rounds]
    assert curve == sorted(figures) and len(curve) == 3


def test_a_row_that_is_like_a_cell_has_its_settings_below_its_own(tmp_path, records):
    like = (
        '\n[[rows]]\nname = "A"\nlike = "mnist-scattering/DPSUR/3"\nsettings = { '
        "dpsur_beta = 0.5 }\n"
    )
    by_column = '\n[[rows]]\nname = "B"\nlike = "mnist-scattering/DPSUR"\n'
    theirs = {
        (c.row, c.column): c.settings for c in cells(read_project("mnist-scattering"), "published")
    }
    ours = {
        (c.row, c.column): c.settings
        for c in cells(read(written(tmp_path, records, like)), "published")
    }
    taken = theirs["DPSUR", "3"] | {
        "dataset": records,
        "rounds": 3,
        "batch_size": 60,
        "epsilon": 8.0,
        "dpsur_beta": 0.5,
    }
    assert ours["A", "8"] == taken and ours["A", "8"]["dpsur_accounting"] == "selective"
    small = read(written(tmp_path, records, by_column.replace('"B"', '"B"\ncolumns = ["2"]')))
    (other,) = (c.settings for c in cells(small, "certified") if c.row == "B")
    assert (
        other["dpsur_validation_noise"]
        == theirs["DPSUR", "2"]["dpsur_validation_noise"]
        != taken["dpsur_validation_noise"]
    )
    assert other["dpsur_accounting"] == "visible"


def test_what_a_row_follows_lies_above_its_column_and_below_its_own_settings(tmp_path, records):
    follows = 'follows = ["dpis-ccs-2022/table-2/IMDb"]\nsettings = { dpis_slack = 9.0 }\n'
    column = '\n[[columns]]\nname = "9"\nsettings = { dpis_first_phase = 0.3 }\n'
    small = read(written(tmp_path, records, f'{column}\n[[rows]]\nname = "A"\n{follows}'))
    found = {(c.row, c.column): c.settings for c in cells(small, "certified")}
    assert (found["A", "9"]["dpis_slack"], found["A", "9"]["dpis_first_phase"]) == (9.0, 0.8)
    assert (
        found["DPSGD", "9"]["dpis_first_phase"] == 0.3 and "dpis_slack" not in found["DPSGD", "9"]
    )


def test_what_a_row_follows_need_not_be_in_use_and_what_it_says_itself_must(tmp_path, records):
    """A paper's row has settings of all that the paper tried. Kills a recipe that is refused for
    them, and one of whose own words one has no effect."""
    follows = '\n[[rows]]\nname = "A"\nfollows = ["dpis-ccs-2022/table-2/IMDb"]\n'
    own = (
        "settings = { lr = 2.0 }\ncertified = { rounds = 2 }\ncells = { 2 = { momentum = 0.5 } }\n"
    )
    found = cells(read(written(tmp_path, records, follows + own)), "certified")
    names = {(cell.row, cell.column): cell.own for cell in found}
    assert names["A", "2"] == {"lr", "rounds", "momentum"} and names["A", "8"] == {"lr", "rounds"}
    (cell,) = (one for one in found if (one.row, one.column) == ("A", "2"))
    assert "dpis_slack" in cell.settings
    assert config_of(cell, {}, central=True).privacy.mechanism == "dpsgd"


def read_project(stem: str):
    return read(RECIPES / f"{stem}.toml")


@pytest.mark.parametrize(
    ("more", "part"),
    [
        (
            '\n[[rows]]\nname = "A"\nlike = "mnist-scattering/DPSURR/3"\n',
            "is no cell: did you mean 'DPSUR'? known: DPSGD-HF; DPSUR; DPIS; DPIS, our settings; ",
        ),
        (
            '\n[[rows]]\nname = "A"\nlike = "mnist-scattering/dpsur"\n',
            "is no cell: did you mean 'DPSUR'? known: ",
        ),
        (
            '\n[[rows]]\nname = "A"\nlike = "mnist-scattering/DPSUR"\ncolumns = ["2.5"]\n'
            '\n[[columns]]\nname = "2.5"\n',
            "'DPSUR' has no column '2.5': write mnist-scattering/DPSUR/COLUMN with one of its own",
        ),
        (
            '\n[[rows]]\nname = "A"\nlike = "mnist-scatering/DPSUR/3"\n',
            "mnist-scatering.toml cannot be read",
        ),
        (
            '\n[[rows]]\nname = "A"\npaper = ["dpsur-pvldb-2024/table-2/MNIS/DPSUR"]\n',
            "has no 'MNIS' there",
        ),
        (
            '\n[[columns]]\nname = "9"\nreach = 9.0\nsettings = { lr = 1.0 }\n',
            "has reach and settings",
        ),
        ('\n[[columns]]\nname = "9"\nreach = 900.0\n', "columns.2.reach"),
        ('\n[[rows]]\nname = "A b"\n\n[[rows]]\nname = "a-B"\n', "row 'A b' has the name"),
    ],
)
def test_what_leads_nowhere_is_said_before_anything_runs(tmp_path, records, capsys, more, part):
    run(written(tmp_path, records, more), tmp_path / "out", expected=2)
    assert part in capsys.readouterr().err and not (tmp_path / "out").exists()


def config(*words: str):
    return cli.parse(words, "", "", central=not many(words[0])).config


def many(preset: str) -> bool:
    """Whether a preset is of many clients."""
    return "fedfed" in preset or "federated" in preset


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_the_cell_of_its_recipe(name):
    stem, row, column = PRESETS[name].split("/")
    for budget in ("certified", "published"):
        every = {c.column: c for c in cells(read_project(stem), budget) if c.row == row}
        given = {"budget": budget, "seed": 3}
        wanted = config_of(every[column], given, central=not many(name))
        assert (
            differences(config(f"--preset={name}", f"--budget={budget}", "--seed=3"), wanted) == []
        )
        for other in every.values():
            if not many(name) and other.reach is None and other.settings["epsilon"] != "none":
                flags = (
                    f"--preset={name}",
                    f"--epsilon={other.settings['epsilon']}",
                    f"--budget={budget}",
                    "--seed=3",
                )
                assert differences(config(*flags), config_of(other, given, central=True)) == []


def test_file_and_flags_go_over_a_preset_and_it_over_the_data_set(tmp_path):
    (tmp_path / "own.toml").write_text("[local]\nlr = 0.7\nmomentum = 0.5\n")
    plain = config("--preset=dpsur-pvldb-mnist", "--epsilon=2.5")
    assert (plain.local.lr, plain.privacy.epsilon, plain.dpsur.dpsur_validation_noise) == (
        2.0,
        2.5,
        0.9,
    )
    over = config(
        "--preset=dpsur-pvldb-mnist",
        "--config",
        str(tmp_path / "own.toml"),
        "--momentum=0.1",
        "--epochs=1",
    )
    assert (over.local.lr, over.local.momentum, over.local.epochs, over.local.steps) == (
        0.7,
        0.1,
        1.0,
        None,
    )
    assert over.data.features == "scattering" and over.data.model == "cnn-scattering"


@pytest.mark.parametrize(
    ("flags", "part"),
    [
        (["--preset=dpsur-pvldb-mnit"], "did you mean 'dpsur-pvldb-mnist'"),
        (["--preset=dphero-fedfed-mnist"], "use python -m sim.run"),
        (["--preset=dphero-mnist", "--resume=runs/x"], "--preset dphero-mnist and --resume runs/x"),
        (["--preset", "dphero-mnist", "--epsilon=-1"], "epsilon is -1.0"),
    ],
)
def test_a_preset_that_cannot_be_used_is_one_line(flags, part, capsys):
    assert main_guard(central.command, flags) == 2
    said = capsys.readouterr().err
    assert part in said and said.count("\n") == 1


def test_presets_of_one_client_are_not_for_many():
    with pytest.raises(ValueError, match=r"use python -m sim\.central"):
        cli.parse(["--preset=screening-2022-cifar10"], "", "")
