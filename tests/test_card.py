"""What is taken away: a model that loads without the project, its card, and its ONNX file."""

import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from mechanisms.randomness import generator
from server.records import largest
from sim.config.configuration import load
from sim.job import card
from sim.library.result import Result
from sim.phases.build import build
from sim.run import command
from sim.showing import wording
from sim.showing.run import read_run

pytestmark = pytest.mark.usefixtures("no_report")


def run(folder, *flags: str):
    """Six clients of unequal sizes, hence of unequal epsilons."""
    common = "--partition quantity --clients 6 --batch-size 9 --noise-multiplier 3 --rounds 2"
    argv = [*common.split(), "--engine=inline", "--quiet", f"--out={folder}", "--name=run"]
    command([*argv, *flags])
    return folder / "run"


def test_a_card_has_the_rows_that_it_has_whatever_a_file_s_name_is(tmp_path):
    """A line's end ended the table, and a bar was the end of a cell."""
    x, y = np.eye(6, dtype=np.float32), np.arange(6) % 2
    np.savez(tmp_path / "a |\n<i>.npz", x=x, y=y, x_test=x, y_test=y)
    own = f"--dataset={tmp_path}/a |\n<i>.npz", "--clients=2", "--partition=iid"
    lines = (run(tmp_path, "--epsilon=none", *own) / "model_card.md").read_text().split("\n")
    assert lines[0] == f"# run: linear for {tmp_path}/a | &lt;i&gt;.npz" and not lines[1]
    (row,) = (line for line in lines if line.startswith("| data |"))
    assert row.startswith(f"| data | `{tmp_path}/a \\| <i>.npz`: 6 training records")


def test_a_card_says_that_a_clip_norm_moves(tmp_path):
    folder = run(tmp_path, "--epsilon=none", "--model=mlp", "--clip-quantile=0.25")
    said = "| mechanism | dpsgd, clip norm 1, moving to the quantile 0.25, noise 3 |"
    assert said in (folder / "model_card.md").read_text()


def test_a_card_tells_a_group_s_budget_from_what_was_spent_of_it(tmp_path):
    folder = run(tmp_path, "--epsilon=none")
    group = {"group": "few", "budget": 2.0, "clients": 4, "largest": 1.25}
    summary = replace(read_run(folder).summary, budgets=(group,))
    card.write(folder, build(load(folder / "config.toml", {})), summary)
    text = (folder / "model_card.md").read_text()
    assert "| group few | 4 clients, budget 2, largest 1.25 |" in text


def test_a_card_says_what_is_proved_and_what_is_not(tmp_path):
    folder = run(tmp_path, "--epsilon=none", "--model=mlp")
    summary = read_run(folder).summary
    epsilon = largest(summary.epsilon_certified)
    assert min(summary.epsilon_certified) < 0.9 * epsilon
    text = (folder / "model_card.md").read_text()
    for said in (
        f"| certified epsilon | {wording.epsilon(epsilon)}, by {summary.method} |",
        "| delta | 1e-05 |",
        "| unit | One training record of one client.",
        f"| the server | what clients send | one record | {wording.epsilon(epsilon)} |",
        "| mechanism | dpsgd, clip norm 1, noise 3 |",
        "| noise | A simulation: see the limits. |",
        "1437 training records, 6 clients, partition quantity",
        f"| accuracy | {summary.accuracy:.4f} on the test part, which is not protected |",
        "[B, 1, 8, 8] of float32",
        "(1): Linear(in_features=64, out_features=32, bias=True)",
        *(f"\n- {line}\n" for line in summary.caveats),
    ):
        assert said in text, said


def test_a_card_promises_nothing_against_who_is_trusted(tmp_path):
    trusting = ["--trust=server", "--unit=client", "--fraction=0.5", "--partition=iid"]
    text = (run(tmp_path, *trusting) / "model_card.md").read_text()
    assert "| unit | One client with all of its records." in text
    assert "| the server | what clients send | one whole client | none |" in text
    assert "One training record" not in text


def test_a_card_of_a_release_says_where_its_noise_came_from(tmp_path):
    held = ["--validation-records=300", "--evaluate-on=validation"]
    text = (run(tmp_path, "--release", *held) / "model_card.md").read_text()
    assert wording.RELEASED in text and "simulation" not in text
    assert " on the validation part, which is not protected |" in text


def test_a_card_without_privacy_promises_nothing(tmp_path):
    argv = [
        "--clients=6",
        "--mechanism=none",
        "--rounds=1",
        "--engine=inline",
        "--quiet",
        "--name=run",
    ]
    command([*argv, f"--out={tmp_path}"])
    text = (tmp_path / "run" / "model_card.md").read_text()
    assert "it may reveal any of its training records" in text and "epsilon" not in text


def test_the_weights_load_into_a_plain_module(tmp_path):
    """Its predictions are the run's own model's."""
    folder = run(tmp_path, "--model=mlp")
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 10))
    module.load_state_dict(load_file(folder / "model.safetensors"))
    x = torch.from_numpy(generator(b"x", "records").normal(size=(5, 1, 8, 8)).astype(np.float32))
    assert torch.equal(module.eval()(x), Result(folder).model()(x))


def test_an_onnx_file_predicts_what_the_model_does(tmp_path):
    for name in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(name, reason="the extra [onnx], or onnxruntime, is not installed")
    import onnxruntime

    result = Result(run(tmp_path, "--model=mlp"))
    path = result.to_onnx(tmp_path / "model.onnx")
    x = generator(b"x", "records").normal(size=(5, 1, 8, 8)).astype(np.float32)
    (found,) = onnxruntime.InferenceSession(str(path)).run(None, {"records": x})
    with torch.no_grad():
        expected = result.model()(torch.from_numpy(x)).numpy()
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert [one.name for one in tmp_path.iterdir() if one.is_file()] == ["model.onnx"]


def test_without_onnx_its_packages_are_named(tmp_path, monkeypatch):
    result = Result(run(tmp_path))
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(ValueError, match="pip install onnx onnxscript"):
        result.to_onnx(tmp_path / "model.onnx")
    with pytest.raises(ValueError, match="path is 3: give a path"):
        result.to_onnx(3)
    assert not (tmp_path / "model.onnx").exists()
