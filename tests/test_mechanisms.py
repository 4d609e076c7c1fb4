"""Laws of every mechanism: each row of the registry, and the worked example of
docs/new-mechanism.md."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from mechanisms.accounting.accountant import epsilon
from mechanisms.accounting.ledger import read
from mechanisms.dphero import HeroPlan
from mechanisms.dpsur import DpsurPlan
from mechanisms.plan import Terms
from mechanisms.registry import MECHANISMS
from mechanisms.screening import ScreeningPlan
from mechanisms.settings import DpHero, Dpsur, Privacy, Screening
from sim.commands.flags import parse
from sim.config.configuration import load
from sim.engines.start import train

pytestmark = pytest.mark.usefixtures("no_report")
ROOT = Path(__file__).parents[1]
EXAMPLE = ROOT / "docs" / "new-mechanism.md"
PRIVATE = [name for name, row in MECHANISMS.items() if row.private]
OWN = "signsgd:MECHANISM"
"""The worked example."""
SMALL = (
    "--clients=6 --rounds=3 --steps=2 --sample-rate=0.5 --engine=inline --quiet --chunk-clients=2"
)


def example() -> str:
    (source,) = re.findall(r"```python\n(.*?)```", EXAMPLE.read_text(), flags=re.DOTALL)
    return source


@pytest.fixture(autouse=True)
def beside(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """The worked example in a folder of its own, as a user has it."""
    folder = tmp_path_factory.mktemp("own")
    (folder / "signsgd.py").write_text(example())
    monkeypatch.syspath_prepend(str(folder))


def run(folder: Path, name: str, *flags: str) -> Path:
    return train(parse([*SMALL.split(), "--out", str(folder), "--name", name, *flags], "run", ""))


def last(run_dir: Path) -> dict:
    return json.loads((run_dir / "rounds.jsonl").read_text().splitlines()[-1])


@pytest.mark.parametrize("mechanism", [*PRIVATE, OWN])
def test_a_run_meets_its_budget_and_its_files_say_so(tmp_path, mechanism):
    """The printed epsilon is the one that the ledger's files give, and within the target."""
    folder = run(tmp_path, "a", "--mechanism", mechanism, "--epsilon", "4")
    spent = read(folder / "ledger")
    recomputed = max(epsilon(charges, 1e-5).epsilon for charges in spent.values())
    assert len(spent) == 6
    assert last(folder)["epsilon_certified_max"] == pytest.approx(recomputed, rel=1e-12)
    assert 0.5 * 4 < recomputed <= 4


@pytest.mark.parametrize("mechanism", [*MECHANISMS, OWN])
def test_grouping_changes_no_bit(tmp_path, mechanism):
    models = [
        load_file(
            run(tmp_path, f"g{groups}", "--mechanism", mechanism, "--groups", groups)
            / "model.safetensors"
        )
        for groups in ("1", "3")
    ]
    assert all(torch.equal(models[0][name], models[1][name]) for name in models[0])


@pytest.mark.parametrize("mechanism", [*MECHANISMS, OWN])
def test_chunks_change_rounding_only(tmp_path, mechanism):
    """A cohort of two clients is two cohorts of one. (One step: DP-Hero's eigenvectors amplify
    rounding.)"""
    flags = ("--mechanism", mechanism, "--rounds", "1", "--steps", "1")
    models = [
        load_file(
            run(tmp_path, f"c{width}", *flags, "--chunk-clients", width) / "model.safetensors"
        )
        for width in ("2", "1")
    ]
    for name in models[0]:
        torch.testing.assert_close(models[0][name], models[1][name], rtol=1e-3, atol=1e-3)


def test_a_mechanism_of_one_s_own_is_the_same_in_the_project(tmp_path):
    """There it is one file and one name, and a table of settings; here without those, at their
    defaults. It trains for what DPSGD costs."""
    for package in ("client", "mechanisms", "server", "sim", "strategies"):
        shutil.copytree(ROOT / package, tmp_path / package)
    ours = example().replace("terms.own.dead_zone", "0.0")
    (tmp_path / "mechanisms" / "signsgd.py").write_text(ours)
    settings, row = tmp_path / "mechanisms" / "settings.py", "MechanismName = Literal["
    settings.write_text(settings.read_text().replace(row, f'{row}"signsgd", '))
    words = f"-m sim.run {SMALL} --epsilon 4 --mechanism signsgd --out . --name inside"
    subprocess.run([sys.executable, *words.split()], cwd=tmp_path, check=True)
    inside = tmp_path / "inside"
    own, plain = (
        run(tmp_path, name.partition(":")[0], "--mechanism", name, "--epsilon", "4")
        for name in (OWN, "dpsgd")
    )
    spent = [last(folder)["epsilon_certified_max"] for folder in (inside, own, plain)]
    assert spent[0] == spent[1] == spent[2] and 3.9 < spent[0] <= 4
    models = [(folder / "model.safetensors").read_bytes() for folder in (inside, own, plain)]
    assert models[0] == models[1] != models[2]


def test_training_without_privacy_is_the_only_mechanism_without_a_guarantee():
    """`Config.private` goes by the name. Kills a row that claims another."""
    for name, mechanism in MECHANISMS.items():
        assert load(None, {"mechanism": name}).private is mechanism.private is (name != "none")


PLANS = {Dpsur: DpsurPlan, Screening: ScreeningPlan, DpHero: HeroPlan}


@pytest.mark.parametrize("sampling", ["fixed", "shuffled"])
@pytest.mark.parametrize(
    "own", [Dpsur(), Screening(screening_clip=0.01), DpHero()], ids=lambda own: type(own).__name__
)
def test_plans_that_charge_poisson_batches_draw_them_whatever_the_settings_say(own, sampling):
    """Sampler and event come from the plan. Kills a plan of DPSUR or DP-Hero whose steps draw
    batches of a fixed size at the price of Poisson's, or the other way."""
    of = PLANS[type(own)].of
    poisson, other = (
        of(Terms(Privacy(mechanism="dpsgd", sampling=how), own, 4, 2, 20), 1.5)
        for how in ("poisson", sampling)
    )
    assert other == poisson and other.sampling == "poisson" and other.records == 0
    assert other.round_charges(1) == poisson.round_charges(1)
