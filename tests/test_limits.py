"""What a guarantee leaves out or takes for granted is said wherever its epsilon is; and what must stay hidden does."""

import html
import json
import re

import pytest

from mechanisms.accounting import ledger
from mechanisms.accounting.events import PublicLabels, RandomizedResponse
from sim import account
from sim.benching import table
from sim.benching.recipe import Cell, Column, Recipe, Row
from sim.benching.runs import Result
from sim.report import read_run
from sim.run import command
from sim.showing import wording

FEDFED = "--strategy fedfed --shared-source distilled --rounds 2"
RECIPE = Recipe(title="title", columns=(Column(name="column"),), rows=(Row(name="row"),))
DPSUR = "--mechanism dpsur --noise-multiplier 5 --validation-noise 8 --steps 2 --rounds 2"
SCREENING = "--mechanism screening --noise-multiplier 5 --screening-data own --screening-clip 0.5 --steps 2 --rounds 2"


def run(folder, flags: str):
    """A small run of five clients: its directory."""
    common = f"--clients 5 --groups 1 --engine inline --sample-rate 0.3 --name run --out {folder}"
    command([*flags.split(), *common.split()])
    return folder / "run"


def guarantee(folder) -> str:
    """The report's section on what the guarantee means."""
    page = html.unescape((folder / "report.html").read_text())
    return re.search(r"What the guarantee means.*?</section>", page, re.DOTALL).group(0)


@pytest.mark.parametrize("public", [True, False])
def test_labels_that_are_shared_as_they_are_are_named_wherever_the_guarantee_is(tmp_path, capsys, public):
    folder = run(tmp_path, FEDFED + " --public-labels" * public)
    assert (wording.PUBLIC_LABELS in capsys.readouterr().out) is public
    limits = json.loads((folder / "summary.json").read_text())["limits"]
    assert limits == [wording.PUBLIC_LABELS] * public and "features of records alone" in wording.PUBLIC_LABELS
    assert (wording.PUBLIC_LABELS in guarantee(folder)) is public
    for charges in ledger.read(folder / "ledger").values():
        labels = [event for event in charges if isinstance(event, PublicLabels | RandomizedResponse)]
        assert [type(event) for event in labels] == [PublicLabels if public else RandomizedResponse]
    assert account.main(["--ledger", str(folder)]) == 0
    assert (wording.PUBLIC_LABELS in capsys.readouterr().out) is public
    assert account.main(["--ledger", str(folder), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["limits"] == limits
    assert ("public_labels" in {event["kind"] for event in found["clients"][0]["events"]}) is public


def test_labels_are_no_matter_where_they_are_not_shared_one_by_one(tmp_path, capsys):
    for n, flags in enumerate(("--strategy fedfed --public-labels", f"{FEDFED} --public-labels --mechanism none")):
        folder = run(tmp_path / str(n), flags)
        assert wording.PUBLIC_LABELS not in capsys.readouterr().out
        assert json.loads((folder / "summary.json").read_text())["limits"] == []


@pytest.mark.parametrize("flags", [f"{DPSUR} --accounting selective", SCREENING], ids=["dpsur", "screening"])
@pytest.mark.parametrize("release", [True, False])
def test_hidden_rejections_are_said_and_a_release_tells_no_times(tmp_path, capsys, flags, release):
    """The time of a round tells the number of its trials. A simulation is for the one who has the records anyway."""
    folder = run(tmp_path, flags + " --release" * release)
    shown = capsys.readouterr().out
    assert wording.HIDDEN in shown and wording.HIDDEN in guarantee(folder)
    assert (re.search(r"^time  ", shown, re.MULTILINE) is None) is release
    found = read_run(folder)
    assert found.summary.limits == (wording.HIDDEN,)
    times = [found.summary.seconds, *(r.seconds for r in found.records), *(r.seconds_training for r in found.records)]
    assert len(times) == 5 and all((time is None) is release for time in times)
    page = (folder / "report.html").read_text()
    assert (re.search(r"2 of 2 rounds, finished", page) is not None) is release
    if release:
        line = table.Line(Cell("row", "column", {}, None), 1, (Result(found.summary, found.records),), ())
        assert table.markdown(RECIPE, "certified", [line]).endswith("| 2 |  |\n")
        assert table.as_csv(RECIPE, "certified", [line]).endswith(",2,\n")


@pytest.mark.parametrize("flags", [DPSUR, f"{DPSUR} --accounting every-trial", "--rounds 2"])
def test_other_releases_tell_their_times(tmp_path, capsys, flags):
    folder = run(tmp_path, f"{flags} --release")
    assert wording.HIDDEN not in capsys.readouterr().out and wording.HIDDEN not in guarantee(folder)
    assert all(record.seconds > 0 for record in read_run(folder).records) and read_run(folder).summary.seconds > 0
