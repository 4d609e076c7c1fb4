"""What a guarantee leaves out or takes for granted is said wherever its epsilon is; and what must
stay hidden does."""

import html
import json
import re

import pytest
import torch

from mechanisms.accounting import ledger
from mechanisms.accounting.events import PublicLabels, RandomizedResponse
from sim import account
from sim.benching import table
from sim.benching.runs import Result
from sim.commands.guard import main_guard
from sim.config import caveats
from sim.config import configuration as config
from sim.config.recipe import Cell, Column, Recipe, Row
from sim.run import command
from sim.showing.run import read_run

FEDFED = "--strategy fedfed --shared-source distilled --distill-rounds 2 --rounds 2"
RECIPE = Recipe(title="title", columns=(Column(name="column"),), rows=(Row(name="row"),))
DPSUR = "--mechanism dpsur --noise-multiplier 5 --dpsur-validation-noise 8 --steps 2 --rounds 2"
SCREENING = (
    "--mechanism screening --noise-multiplier 5 --screening-data own --screening-clip 0.5 "
    "--screening-stages 2 --steps 2 --rounds 2"
)


def run(folder, flags: str):
    """A small run of five clients: its directory."""
    common = f"--clients 5 --groups 1 --workers 1 --sample-rate 0.3 --name run --out {folder}"
    command([*flags.split(), *common.split()])
    return folder / "run"


def configured(given: dict) -> config.Config:
    """A configuration that has settings whether they are in use or not."""
    found = config.load(None, given, lenient=config.SETTINGS)
    for name, value in given.items():
        table = config.SETTINGS[name].table
        found = found.model_copy(
            update={table: getattr(found, table).model_copy(update={name: value})}
        )
    return found


class Net(torch.nn.Sequential):
    """A model of the user's own."""

    def __init__(self, classes: int):
        super().__init__(torch.nn.Flatten(), torch.nn.Linear(64, classes))


HOLDS = {
    caveats.CLIENT_SCORES: [{"evaluation": "clients"}],
    caveats.OWN_LAYERS: [{"personal_layers": "1.bias"}],
    caveats.TEST: [{}, {"release": True}, {"public_records": 5}],
    caveats.AGGREGATED: [{"trust": "aggregate"}, {"trust": "aggregate", "unit": "client"}],
    caveats.TRACED: [{"dropout_trace": "0@1"}, {"dropout_trace": "a.csv", "release": True}],
    caveats.TRUSTED: [{"trust": "server"}, {"trust": "server", "unit": "client"}],
    caveats.TIMES: [
        {},
        {"release": True},
        {"mechanism": "dpsur"},
        {"mechanism": "dpsgd", "release": True},
        {"mechanism": "module:NAME"},
    ],
    caveats.TRIES: [{}, {"release": True}],
    caveats.SEEDED: [{}],
    caveats.PLACES: [{"release": True}],
    caveats.PARTITION: [{"release": True, "partition": p} for p in ("iid", "quantity", "shards")],
    caveats.PARTITION_BY_LABEL: [{"release": True}],
    caveats.OWN_MECHANISM: [{"mechanism": "module:NAME"}],
    caveats.OWN_STRATEGY: [{"strategy": "module:function"}],
    caveats.OWN_PARTITION: [
        {"partition": "module:function"},
        {"partition": "module:function", "release": True},
    ],
    caveats.BACKBONE: [{"features": "module:NAME"}],
    caveats.STARTED: [{"init_from": "runs/a"}],
    caveats.OWN_MODEL: [{"model": "package.module:Class"}, {"model": "module:Class"}],
    caveats.OWN_LOSS: [{"loss": "package.module:function"}],
    caveats.OWN_DATA: [{"dataset": "module:function"}],
    caveats.GIVEN: [{"partition": "given"}, {"partition": "given", "release": True}],
    caveats.ONE_RECORD: [{"partition": "given"}],
    caveats.COLUMNS: [{"dataset": "t.csv"}, {"dataset": "T.PARQUET", "release": True}],
    caveats.PUBLIC_RECORDS: [{"public_records": 5}],
    caveats.VALIDATION: [
        {"validation_records": 5},
        {"validation_records": 5, "evaluate_on": "validation"},
    ],
    caveats.HIDDEN: [
        {"mechanism": "dpsur", "dpsur_accounting": "selective"},
        {"mechanism": "screening", "screening_data": "own", "screening_clip": 0.5},
    ],
    caveats.PUBLIC_LABELS: [
        {"strategy": "fedfed", "shared_source": "distilled", "public_labels": True}
    ],
    caveats.PUBLISHED_BUDGET: [
        {"budget": "published"},
        {"budget": "published", "budgets": "a=1:1"},
    ],
    caveats.PERSONAL: [{"budgets": "a=1:1"}, {"budgets": "b.csv", "trust": "server"}],
}
FAILS = {
    caveats.CLIENT_SCORES: [{}, {"evaluation": "detailed"}],
    caveats.OWN_LAYERS: [{}, {"strategy": "mrmtl"}],
    caveats.TEST: [{"validation_records": 5, "evaluate_on": "validation"}],
    caveats.AGGREGATED: [{}, {"trust": "server"}],
    caveats.TRACED: [{}, {"dropout": 0.5}],
    caveats.TRUSTED: [{}, {"release": True}, {"trust": "aggregate"}],
    caveats.TIMES: [
        {"mechanism": "dpsur", "dpsur_accounting": "selective", "release": True},
        {"trust": "server", "unit": "client", "fraction": 0.5, "release": True},
        {"mechanism": "module:NAME", "release": True},
    ],
    caveats.TRIES: [],
    caveats.SEEDED: [{"release": True}],
    caveats.PLACES: [{}],
    caveats.PARTITION: [{}, {"release": True}, {"release": True, "partition": "given"}],
    caveats.PARTITION_BY_LABEL: [{}, {"release": True, "partition": "iid"}],
    caveats.OWN_MECHANISM: [{}, {"mechanism": "dpsur"}, {"model": "module:Class"}],
    caveats.OWN_STRATEGY: [
        {},
        {"strategy": "fedadam"},
        {"strategy": "flwr.serverapp.strategy:FedAvg"},
    ],
    caveats.OWN_PARTITION: [{}, {"partition": "given"}, {"partition": "iid", "release": True}],
    caveats.BACKBONE: [{}, {"features": "scattering"}],
    caveats.STARTED: [{}, {"model": "module:Class"}],
    caveats.OWN_MODEL: [{}, {"model": "mlp"}],
    caveats.OWN_LOSS: [{}, {"loss": "squared-error"}, {"model": "module:Class"}],
    caveats.OWN_DATA: [{}, {"dataset": "hf:name"}, {"dataset": "t.csv"}],
    caveats.GIVEN: [{}, {"partition": "iid", "release": True}],
    caveats.ONE_RECORD: [{}],
    caveats.COLUMNS: [{}, {"dataset": "t.csv", "columns": "known.toml"}, {"dataset": "t.npz"}],
    caveats.PUBLIC_RECORDS: [{}, {"validation_records": 5}],
    caveats.VALIDATION: [{}, {"public_records": 5}],
    caveats.HIDDEN: [
        {},
        {"dpsur_accounting": "selective"},
        {"mechanism": "dpsur", "dpsur_accounting": "visible"},
        {"mechanism": "screening", "screening_data": "own", "screening_clip": None},
        {
            "mechanism": "screening",
            "screening_data": "public",
            "screening_clip": 0.5,
            "public_records": 9,
        },
    ],
    caveats.PUBLIC_LABELS: [
        {},
        {"public_labels": True},
        {"public_labels": True, "strategy": "fedfed"},
        {"public_labels": True, "shared_source": "distilled"},
        {"public_labels": False, "strategy": "fedfed", "shared_source": "distilled"},
    ],
    caveats.PERSONAL: [{}, {"epsilon": None, "noise_multiplier": 3.0}],
    caveats.PUBLISHED_BUDGET: [
        {},
        {"budget": "published", "epsilon": None, "noise_multiplier": 3.0},
    ],
}


@pytest.mark.parametrize("text", caveats.CAVEATS)
def test_a_limit_is_named_where_it_holds_and_not_elsewhere(text):
    """Kills a line without a condition, one with another's, and a new line that no test knows."""
    assert HOLDS[text] and all(text in caveats.caveats(configured(given)) for given in HOLDS[text])
    assert not any(text in caveats.caveats(configured(given)) for given in FAILS[text])
    assert not any(
        caveats.caveats(configured(given | {"mechanism": "none"})) for given in HOLDS[text]
    )
    assert "\n" not in text and text.endswith(".")


WHOLE = [
    ("", 4),
    ("--release", 5),
    (
        "--model tests.test_caveats:Net --public-records 20 --validation-records 20 --budget "
        "published",
        8,
    ),
    (f"--release {DPSUR} --dpsur-accounting selective", 5),
    ("--mechanism none", 0),
]


@pytest.mark.parametrize(("flags", "lines"), WHOLE)
def test_every_limit_is_one_line_in_the_terminal_the_summary_and_the_report(
    tmp_path, capsys, flags, lines
):
    """The terminal stays short: nothing is said twice, and nothing else follows the table."""
    folder = run(tmp_path, f"--rounds 1 {flags}")
    shown = capsys.readouterr().out.splitlines()
    expected = list(caveats.caveats(config.load(folder / "config.toml", {})))
    after = shown[[line.split("  ")[0] for line in shown].index("run directory") + 1 :]
    notes = [line for line in after if line == read_run(folder).summary.note]
    assert after == notes + expected and len(expected) == lines
    assert json.loads((folder / "summary.json").read_text())["caveats"] == expected
    page = html.unescape((folder / "report.html").read_text())
    assert [page.count(f"<li>{text}</li>") for text in expected] == [1] * lines
    assert page.partition("What it leaves out")[2].partition("</ul>")[0].count("<li>") == lines


def guarantee(folder) -> str:
    """The report's section on what the guarantee means."""
    page = html.unescape((folder / "report.html").read_text())
    return re.search(r"What the guarantee means.*?</section>", page, re.DOTALL).group(0)


@pytest.mark.parametrize("public", [True, False])
def test_labels_that_are_shared_as_they_are_are_named_wherever_the_guarantee_is(
    tmp_path, capsys, public
):
    folder = run(tmp_path, FEDFED + " --public-labels" * public)
    assert (caveats.PUBLIC_LABELS in capsys.readouterr().out) is public
    named = json.loads((folder / "summary.json").read_text())["caveats"]
    assert (
        caveats.PUBLIC_LABELS in named
    ) is public and "features of records alone" in caveats.PUBLIC_LABELS
    assert (caveats.PUBLIC_LABELS in guarantee(folder)) is public
    spent = ledger.read(folder / "ledger")
    assert len(spent) == 5
    for charges in spent.values():
        labels = [
            event for event in charges if isinstance(event, PublicLabels | RandomizedResponse)
        ]
        assert [type(event) for event in labels] == [PublicLabels if public else RandomizedResponse]
    assert main_guard(account.command, ["--ledger", str(folder)]) == 0
    assert (caveats.PUBLIC_LABELS in capsys.readouterr().out) is public
    assert main_guard(account.command, ["--ledger", str(folder), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["caveats"] == [caveats.PUBLIC_LABELS] * public
    assert ("public_labels" in {event["kind"] for event in found["clients"][0]["events"]}) is public


def test_labels_are_no_matter_where_they_are_not_shared_one_by_one(tmp_path):
    for flags in (
        "--strategy fedfed --public-labels",
        f"{FEDFED} --public-labels --mechanism none",
    ):
        with pytest.raises(ValueError, match="public_labels is on, which"):
            run(tmp_path, flags)


@pytest.mark.parametrize(
    "flags", [f"{DPSUR} --dpsur-accounting selective", SCREENING], ids=["dpsur", "screening"]
)
@pytest.mark.parametrize("release", [True, False])
def test_hidden_rejections_are_said_and_a_release_tells_no_times(tmp_path, capsys, flags, release):
    """The time of a round tells the number of its trials. A simulation is for the one who has the
    records anyway."""
    folder = run(tmp_path, flags + " --release" * release)
    shown = capsys.readouterr().out
    assert caveats.HIDDEN in shown and caveats.HIDDEN in guarantee(folder)
    assert (re.search(r"^time  ", shown, re.MULTILINE) is None) is release
    assert (re.search(r"^trained in  ", shown, re.MULTILINE) is None) is release
    found = read_run(folder)
    assert (
        caveats.HIDDEN in found.summary.caveats
        and (caveats.TIMES in found.summary.caveats) is not release
    )
    times = [
        found.summary.seconds,
        *(r.seconds for r in found.records),
        *(r.seconds_training for r in found.records),
    ]
    assert len(times) == 5 and all((time is None) is release for time in times)
    page = (folder / "report.html").read_text()
    assert (re.search(r"2 of 2 rounds, finished", page) is not None) is release
    if release:
        line = table.Line(
            Cell("row", "column", {}, ()), 1, (Result(found.summary, found.records),), ()
        )
        assert table.markdown(RECIPE, "certified", [line]).endswith("| 2 |  |\n")
        assert table.as_csv(RECIPE, "certified", [line]).endswith(",2,,\n")


@pytest.mark.parametrize("flags", [DPSUR, f"{DPSUR} --dpsur-accounting every-trial", "--rounds 2"])
def test_other_releases_tell_their_times(tmp_path, capsys, flags):
    folder = run(tmp_path, f"{flags} --release")
    assert caveats.HIDDEN not in capsys.readouterr().out and caveats.HIDDEN not in guarantee(folder)
    found = read_run(folder)
    assert (
        min(found.summary.seconds, *(record.seconds for record in found.records)) > 0
        and len(found.records) == 2
    )


def test_a_release_without_exact_sums_is_refused_before_it_is_made(tmp_path):
    with pytest.raises(ValueError, match="whitened"):
        run(tmp_path, "--release --mechanism dphero --hero-clipping isotropic")
    assert not (tmp_path / "run").exists()
