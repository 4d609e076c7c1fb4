"""Passes by bfloat16 factors: slightly different gradients, clipped to the same bound."""

import json

import pytest
import torch
from torch import Tensor

from mechanisms import grid
from mechanisms.gradients.factors import Unscaled
from mechanisms.gradients.record_gradients import RecordGradients
from sim.run import command
from tests.record_models import GENERAL, TAPPED
from tests.refusing import refusal

pytestmark = pytest.mark.usefixtures("no_report")
CASES = ("mlp", "conv2d", "conv2d, groups", "conv1d", "conv3d", "groupnorm", "long sequence")
WIDTH, BOUND = 16, torch.tensor([0.5, 3.0])


class Problem:
    """Five random records of each of two clients, and gradients by bfloat16 and by float32."""

    def __init__(self, name: str) -> None:
        case = {**TAPPED, **GENERAL}[name]
        with torch.random.fork_rng():
            torch.manual_seed(7)
            module = case.model()
            self.short, self.whole = (RecordGradients(module, bf16=bf16) for bf16 in (True, False))
            start = self.whole.layout.initial(module)
            self.params = start + 0.3 * torch.randn(2, len(start))
            self.x, self.y = torch.randn(2, 5, *case.shape), torch.randint(0, 3, (2, 5))

    def sum(self, gradients: RecordGradients, factors: object) -> tuple[Tensor, Tensor]:
        return gradients.scaled_sum(self.params, self.x, self.y, factors)


def ones(norms: Tensor) -> Tensor:
    return torch.ones_like(norms)


@pytest.mark.parametrize("factors", [ones, Unscaled(torch.ones(2, 5))])
@pytest.mark.parametrize("name", CASES)
def test_gradients_are_near_those_of_float32_and_not_the_same(name, factors):
    """Kills a setting that a layer does not follow, and a factor with fewer digits than 8."""
    p = Problem(name)
    short, whole = (p.sum(one, factors)[0] for one in (p.short, p.whole))
    far = (short - whole).norm(dim=1) / whole.norm(dim=1)
    assert (far < 0.02).all() and (far > 1e-5).all()


@pytest.mark.parametrize("name", CASES)
def test_a_record_s_norm_is_that_of_what_it_adds(name):
    """With all digits of float32, so that one clipped by it adds no more than the bound. Kills
    gradients of weights, and sums, by bfloat16 factors."""
    p = Problem(name)
    _, norms = p.sum(p.short, ones)
    for one in torch.eye(5):
        alone, _ = p.sum(p.short, lambda norms, one=one: one * ones(norms))
        assert torch.allclose(alone.norm(dim=1), norms[:, one > 0][:, 0], rtol=1e-5)
        clipped, _ = p.sum(p.short, lambda n, one=one: one * (BOUND[:, None] / n).clamp(max=1))
        assert (clipped.norm(dim=1) <= BOUND * (1 + 1e-5)).all()


@pytest.mark.parametrize("name", CASES)
def test_an_exact_sum_is_the_sum_of_each_record_s_own_part(name):
    """As in float32: what else is in a batch changes no bit of a record's part."""
    p = Problem(name)

    def part(mask: Tensor) -> Tensor:
        factors = lambda norms: (BOUND[:, None] / norms).clamp(max=1) * mask  # noqa: E731
        return p.short.whole_sum(p.params, p.x, p.y, factors, BOUND, WIDTH)[0]

    parts = torch.stack([part(one) for one in torch.eye(5)])
    assert torch.equal(part(torch.ones(5)), parts.sum(dim=0))
    most = grid.PART * (1 + 2.0**-22 * p.params.shape[1] ** 0.5)
    assert (parts.double().norm(dim=2) <= most).all() and parts.any()


@pytest.mark.parametrize("name", CASES)
def test_models_are_evaluated_in_float32(name):
    """Kills an accuracy, or a loss that a mechanism tests, with fewer digits."""
    p = Problem(name)
    assert torch.equal(p.short.logits(p.params, p.x), p.whole.logits(p.params, p.x))
    short, whole = (one.losses(p.params, p.x, p.y) for one in (p.short, p.whole))
    assert torch.equal(short, whole)


def test_a_model_without_taps_is_refused():
    """The setting would change nothing."""
    p = Problem("tied")
    with pytest.raises(ValueError, match="bf16 = true has no effect on a model"):
        p.sum(p.short, ones)


def test_a_run_trains_by_it_and_pays_the_same(tmp_path):
    """Kills a setting that does not reach the workers."""
    shown = {}
    for name, flags in (("short", ["--bf16"]), ("whole", [])):
        given = ["--engine=inline", "--quiet", f"--out={tmp_path}", f"--name={name}", *flags]
        command(["--clients=3", "--rounds=1", *given])
        shown[name] = json.loads((tmp_path / name / "rounds.jsonl").read_text())
    models = [(tmp_path / name / "model.safetensors").read_bytes() for name in shown]
    assert models[0] != models[1]
    assert shown["short"]["epsilon_certified_max"] == shown["whole"]["epsilon_certified_max"]
    assert abs(shown["short"]["loss"] - shown["whole"]["loss"]) < 0.05


def test_it_is_refused_before_a_run_begins(tmp_path, capsys, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "one_weight_twice.py").write_text(
        "from torch import nn\n\n\n"
        "class Tied(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.inner, self.outer = nn.Linear(64, 64), nn.Linear(64, 64)\n"
        "        self.outer.weight = self.inner.weight\n\n"
        "    def forward(self, x):\n"
        "        return self.outer(self.inner(x.flatten(1)).tanh())[:, :10]\n"
    )
    argv = ["--bf16", "--model=one_weight_twice:Tied", f"--out={tmp_path}/runs", "--quiet"]
    assert "bf16 = true has no effect" in refusal(capsys, command, argv)
    assert list((tmp_path / "runs").iterdir()) == []
