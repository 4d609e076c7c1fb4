"""The worked example of docs/new-phase.md: a release before training is one file and one row."""

import json
import re
import sys
import types
from pathlib import Path

import pytest
from safetensors.numpy import load

from mechanisms.accounting import ledger
from mechanisms.accounting.events import Gaussian, SampledGaussian
from sim.account import command as account
from sim.phases import course, training
from sim.run import command as run

EXAMPLE = Path(__file__).parents[1] / "docs" / "new-phase.md"
FLAGS = ["--clients", "4", "--rounds", "2", "--epsilon", "5", "--partition", "iid", "--steps", "2"]


@pytest.fixture(autouse=True)
def norms(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """The file and the row, as they stand in the documentation."""
    source, row = re.findall(r"```python\n(.*?)```", EXAMPLE.read_text(), flags=re.DOTALL)
    module = types.ModuleType("norms")
    exec(compile(source, str(EXAMPLE), "exec"), module.__dict__)
    monkeypatch.setitem(sys.modules, "norms", module)
    names = vars(course) | {"norms": module}
    exec(row, names)
    monkeypatch.setattr(course, "BEFORE", names["BEFORE"])
    monkeypatch.setattr(course, "PHASES", (*names["BEFORE"], training.PHASE))
    return module


@pytest.mark.usefixtures("no_report")
def test_a_phase_is_released_charged_priced_and_counted_in_the_budget(norms, tmp_path, capsys):
    run([*FLAGS, "--engine=inline", "--quiet", "--name=run", f"--out={tmp_path}"])
    folder = tmp_path / "run"
    mean = load((folder / norms.FILE).read_bytes())["mean"]
    assert mean.shape == (1,) and 0 < mean[0] < norms.CLIP + 5  # five deviations of the noise
    assert account([*FLAGS, "--json"]) is None
    priced = json.loads(capsys.readouterr().out)
    assert [row["phase"] for row in priced["phases"]] == ["norms", "train"]
    paid = ledger.read(folder / "ledger")
    (noise,) = {e.noise_multiplier for e in paid[0] if isinstance(e, SampledGaussian)}
    expected = {Gaussian(norms.NOISE): 1, SampledGaussian(1.0, noise): 4}
    assert all(charges == expected for charges in paid.values()) and sorted(paid) == [0, 1, 2, 3]
    assert noise == priced["noise_multiplier"] and 4.99 < priced["epsilon_certified"] <= 5
