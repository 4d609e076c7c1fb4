"""Laws of every mechanism: each row of the registry, and the worked example of
docs/new-mechanism.md."""

import json
import os
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
from mechanisms.registry import MECHANISMS
from sim.commands.flags import parse
from sim.config.configuration import load
from sim.engines.start import train

ROOT = Path(__file__).parents[1]
EXAMPLE = ROOT / "docs" / "new-mechanism.md"
PRIVATE = [name for name, row in MECHANISMS.items() if row.private]
SMALL = (
    "--clients=6 --rounds=3 --steps=2 --sample-rate=0.5 --engine=inline --quiet --chunk-clients=2"
)


def run(folder: Path, name: str, *flags: str) -> Path:
    return train(parse([*SMALL.split(), "--out", str(folder), "--name", name, *flags], "run", ""))


def last(run_dir: Path) -> dict:
    return json.loads((run_dir / "rounds.jsonl").read_text().splitlines()[-1])


@pytest.mark.parametrize("mechanism", PRIVATE)
def test_a_run_meets_its_budget_and_its_files_say_so(tmp_path, mechanism):
    """The printed epsilon is the one that the ledger's files give, and within the target."""
    folder = run(tmp_path, "a", "--mechanism", mechanism, "--epsilon", "4")
    spent = read(folder / "ledger")
    recomputed = max(epsilon(charges, 1e-5).epsilon for charges in spent.values())
    assert len(spent) == 6
    assert last(folder)["epsilon_certified_max"] == pytest.approx(recomputed, rel=1e-12)
    assert 0.5 * 4 < recomputed <= 4


@pytest.mark.usefixtures("no_report")
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_grouping_changes_no_bit(tmp_path, mechanism):
    models = [
        load_file(
            run(tmp_path, f"g{groups}", "--mechanism", mechanism, "--groups", groups)
            / "model.safetensors"
        )
        for groups in ("1", "3")
    ]
    assert all(torch.equal(models[0][name], models[1][name]) for name in models[0])


@pytest.mark.usefixtures("no_report")
@pytest.mark.parametrize("mechanism", MECHANISMS)
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


def test_a_mechanism_is_one_file_and_one_name(tmp_path):
    """The example of the documentation, in a copy of the project, trains for what DPSGD costs."""
    for package in ("client", "mechanisms", "server", "sim", "strategies"):
        ignore = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / package, tmp_path / package, ignore=ignore)
    (source,) = re.findall(r"```python\n(.*?)```", EXAMPLE.read_text(), flags=re.DOTALL)
    (tmp_path / "mechanisms" / "signsgd.py").write_text(source)
    settings, row = tmp_path / "mechanisms" / "settings.py", "MechanismName = Literal["
    settings.write_text(settings.read_text().replace(row, f'{row}"signsgd", '))
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    for name in ("signsgd", "dpsgd"):
        words = f"-m sim.run {SMALL} --epsilon 4 --mechanism {name} --out . --name {name}"
        subprocess.run([sys.executable, *words.split()], cwd=tmp_path, env=variables, check=True)
    ours, theirs = (tmp_path / name for name in ("signsgd", "dpsgd"))
    spent = last(ours)["epsilon_certified_max"]
    assert spent == last(theirs)["epsilon_certified_max"] and 3.9 < spent <= 4
    models = [load_file(folder / "model.safetensors") for folder in (ours, theirs)]
    assert all(not torch.equal(models[0][name], models[1][name]) for name in models[0])


def test_training_without_privacy_is_the_only_mechanism_without_a_guarantee():
    """`Config.private` goes by the name. Kills a row that claims another."""
    for name, mechanism in MECHANISMS.items():
        assert load(None, {"mechanism": name}).private is mechanism.private is (name != "none")
