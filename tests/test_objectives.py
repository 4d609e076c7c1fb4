"""Losses and metrics by name: a number for each record, from that record alone, whatever it is that
models are to say; and what a run shows of it."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from mechanisms.gradients.record_gradients import RecordGradients
from sim.auditing.session import audit
from sim.config.checks import check_parts
from sim.config.configuration import load as configured
from sim.config.settings import Data
from sim.data.dataset import load
from sim.models import objectives
from sim.phases import training
from sim.phases.build import build
from sim.run import command
from sim.showing.progress import closing_table
from sim.showing.run import read_run

RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 4))
WORDS, LENGTH = 7, 5
SEQUENCES = RNG.integers(1, WORDS, (60, LENGTH + 1))
SEQUENCES[:30, LENGTH:] = 0


class NextWord(nn.Module):
    """Scores ``[B, T, V]`` of the next word at each place."""

    def __init__(self, words):
        super().__init__()
        self.layers = nn.Sequential(nn.Embedding(words, 6), nn.Linear(6, words))

    def forward(self, x):
        return self.layers(x)


TARGETS = {
    "binary-cross-entropy": {"y": (X[:, :3] > 0).astype(int)},
    "squared-error": {"y": X[:, :2] @ [1.0, -1.0]},
    "next-word": {"x": SEQUENCES[:, :-1], "y": SEQUENCES[:, 1:], "words": WORDS},
    f"{__name__}:absolute": {"y": X[:, :2]},
    f"{__name__}:classes": {"y": (X[:, 0] > 0).astype(int)},
}


def absolute(outputs, targets):
    return (outputs - targets).abs().sum(1)


def classes(outputs, targets):
    return nn.functional.cross_entropy(outputs, targets, reduction="none")


def averaged(outputs, targets):
    return (outputs - targets).square().mean()


def centred(outputs, targets):
    return (outputs - outputs.mean(0) - targets).square().mean(1)


EXTRA: torch.Tensor | None = None


def shifted(outputs, targets):
    targets += 1.0
    return (outputs - targets).abs().sum(1) if EXTRA is None else EXTRA


def wrong(outputs, targets):
    return outputs @ targets


def of_numbers(outputs, targets):
    return absolute(outputs, targets).detach()


def largest_error(outputs, targets):
    return (outputs - targets).abs().max().item()


def each_error(outputs, targets):
    return (outputs - targets).abs().sum(1)


VALUE = 3


def saved(folder, loss):
    np.savez(folder / "d.npz", **({"x": X} | TARGETS[loss]))
    return str(folder / "d.npz")


def settings(folder, loss, **given):
    model = f"{__name__}:NextWord" if loss == "next-word" else "linear"
    own = {"dataset": saved(folder, loss), "loss": loss, "model": model, "partition": "iid"}
    return own | {"clients": 3, "engine": "inline", "rounds": 2} | given


@pytest.mark.parametrize("loss", TARGETS)
def test_a_record_s_gradient_is_that_of_its_own_loss(tmp_path, loss):
    """On the route that runs take. Kills a loss that a pass averages, or takes of other records."""
    job = build(configured(None, settings(tmp_path, loss)))
    x, y = (torch.from_numpy(one[None, :6]) for one in (job.dataset.x, job.dataset.y))
    params = job.gradients.layout.initial(job.model)[None]
    norms = job.gradients.norms(params, x, y)
    for k in range(6):
        job.model.zero_grad()
        job.objective.loss(job.model(x[0, k : k + 1]), y[0, k : k + 1]).sum().backward()
        whole = math.hypot(*(p.grad.norm().item() for p in job.model.parameters()))
        assert norms[0, k].item() == pytest.approx(whole, rel=1e-5)
    if ":" not in loss:
        assert job.gradients.is_tapped(x, y)


FORMULAS = {
    "binary-cross-entropy": (
        lambda o, t: np.mean(
            [math.log1p(math.exp(-a if b else a)) for a, b in zip(o, t, strict=1)]
        ),
        lambda o, t: np.mean([(a > 0) == bool(b) for a, b in zip(o, t, strict=1)]),
    ),
    "squared-error": (
        lambda o, t: np.mean([(a - b) ** 2 for a, b in zip(o, t, strict=1)]),
        lambda o, t: np.mean([abs(a - b) for a, b in zip(o, t, strict=1)]),
    ),
    "next-word": (
        lambda o, t: np.mean(
            [np.log(np.exp(a).sum()) - a[b] for a, b in zip(o, t, strict=1) if b != 0]
        ),
        lambda o, t: np.mean([np.argmax(a) == b for a, b in zip(o, t, strict=1) if b != 0]),
    ),
}


@pytest.mark.parametrize("loss", FORMULAS)
def test_losses_and_metrics_are_means_over_what_a_record_has(tmp_path, loss, monkeypatch):
    """By their formulas, over unequal batches; padding counts nowhere."""
    monkeypatch.setattr(training, "EVALUATION_BATCH", 5)
    job = build(configured(None, settings(tmp_path, loss)))
    params = job.gradients.layout.initial(job.model).numpy()
    with torch.no_grad():
        outputs = job.model(torch.from_numpy(job.dataset.x_test)).double().numpy()
    pairs = list(zip(outputs, job.dataset.y_test, strict=True))
    expected = [np.mean([formula(o, t) for o, t in pairs]) for formula in FORMULAS[loss]]
    metric, found = training.evaluate(job, params)
    assert (found, metric) == (pytest.approx(expected[0], rel=1e-5), pytest.approx(expected[1]))


def test_a_sequence_of_padding_alone_has_no_loss_and_no_gradient():
    gradients = RecordGradients(NextWord(WORDS), objectives.next_word)
    params = gradients.layout.initial(NextWord(WORDS))[None]
    x, y = torch.ones(1, 2, LENGTH, dtype=torch.int64), torch.ones(1, 2, LENGTH, dtype=torch.int64)
    y[0, 1] = 0
    assert gradients.losses(params, x, y)[0, 1] == 0 and gradients.norms(params, x, y)[0, 1] == 0
    assert gradients.norms(params, x, y)[0, 0] > 0


@pytest.mark.parametrize("release", [False, True])
@pytest.mark.parametrize("loss", TARGETS)
def test_every_task_is_trained_privately_and_shown_under_its_name(
    tmp_path, no_report, loss, release
):
    given = settings(tmp_path, loss, out=str(tmp_path), name="r", release=release, quiet=True)
    flags = [f"--{name}={value}" for name, value in given.items() if not isinstance(value, bool)]
    command([*flags, "--quiet", *(["--release"] if release else [])])
    run = read_run(tmp_path / "r")
    assert run.summary.epsilon_certified[0] <= 8 and math.isfinite(run.summary.accuracy)
    name = {"squared-error": "absolute error"}.get(loss, "loss" if ":" in loss else "accuracy")
    assert closing_table(run.summary)[0][0] == f"test {name}"
    assert (run.counts is None) == (release or not loss.endswith(":classes"))


def test_the_report_names_the_metric_and_shows_no_classes_where_there_are_none(tmp_path):
    given = settings(tmp_path, "squared-error", out=str(tmp_path), name="r", rounds=1)
    command([*(f"--{name}={value}" for name, value in given.items()), "--quiet"])
    page, value = (tmp_path / "r" / "report.html").read_text(), read_run(tmp_path / "r").records
    assert "Test absolute error" in page and f"{value[-1].accuracy:.4f}" in page
    assert "48 records, 16 to 16 per client" in page
    assert "A release does not show" not in page and not (tmp_path / "r" / "partition.svg").exists()


@pytest.mark.parametrize(
    ("loss", "said"),
    [
        ("averaged", r"gives \(\) for 2 records, and must give one number for each, \(2,\)"),
        ("centred", "gives a record another loss in a batch than alone"),
        ("wrong", r"fails \(RuntimeError: .* on outputs of shape \(2, 2\) and targets of shape"),
        ("shifted", "writes into its targets, which are the records': compute from copies"),
        ("of_numbers", r"has no gradient: compute it from the outputs by operations of PyTorch"),
        ("VALUE", "is a int: name a function"),
        ("absent", "has no 'absent': name a function from"),
    ],
)
def test_a_loss_that_clipping_does_not_bound_is_refused_before_a_run(tmp_path, loss, said):
    """Though records would be computed one by one."""
    data = saved(tmp_path, f"{__name__}:absolute")
    given = {"dataset": data, "loss": f"{__name__}:{loss}", "partition": "iid", "clients": 3}
    with pytest.raises(ValueError, match=said):
        build(configured(None, given))


def test_a_metric_of_one_s_own_sees_all_test_records(tmp_path, monkeypatch):
    monkeypatch.setattr(training, "EVALUATION_BATCH", 5)
    loss, names = f"{__name__}:absolute", ("largest_error", "each_error")
    given = [settings(tmp_path, loss, metric=f"{__name__}:{name}") for name in names]
    jobs = [build(configured(None, one)) for one in given]
    params = jobs[0].gradients.layout.initial(jobs[0].model).numpy()
    with torch.no_grad():
        output = jobs[0].model(torch.from_numpy(jobs[0].dataset.x_test)).numpy()
    errors = np.abs(output - jobs[0].dataset.y_test)
    found = [training.evaluate(job, params)[0] for job in jobs]
    assert found == pytest.approx([errors.max(), errors.sum(1).mean()], rel=1e-5)
    assert jobs[0].config.data.metric_name == "largest_error"
    with pytest.raises(ValueError, match=r"metric = '.*:wrong' fails \(RuntimeError"):
        build(configured(None, given[0] | {"metric": f"{__name__}:wrong"}))


def test_a_metric_has_the_same_form_in_each_round(tmp_path, monkeypatch):
    """The mean of whatever it gave was taken. Kills a check before the run alone, and targets that
    a metric has written over in later rounds."""
    metric = f"{__name__}:shifted"
    job = build(configured(None, settings(tmp_path, f"{__name__}:absolute", metric=metric)))
    params = job.gradients.layout.initial(job.model).numpy()
    assert training.evaluate(job, params) == training.evaluate(job, params)
    for given, shape in ((torch.zeros(3), r"\(3,\)"), (torch.zeros(0), r"\(0,\)")):
        monkeypatch.setitem(globals(), "EXTRA", given)
        with pytest.raises(ValueError, match=f"shifted' gives {shape} for .* must give a number"):
            training.evaluate(job, params)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"loss": "cross-entopy"}, "did you mean 'cross-entropy'.*, or package.module:function"),
        ({"metric": "f1"}, "metric = 'f1' is unknown: leave --metric out for the loss"),
    ],
)
def test_an_unknown_name_is_refused_with_the_known_ones(given, said):
    with pytest.raises(ValueError, match=said):
        objectives.objective(Data(**given))


BAD = [
    ("binary-cross-entropy", {"y": np.arange(60) % 2}, r"0 or 1 for each label: .*\[N, L\]"),
    ("binary-cross-entropy", {"y": np.full((60, 2), 2)}, "0 or 1 for each label"),
    ("squared-error", {"y": np.full(60, np.nan)}, r"y\[0, 0\]|y\[0\] = nan, not finite as float32"),
    ("squared-error", {"y": np.zeros((60, 2, 2))}, "takes numbers: give them in shape"),
    ("squared-error", {"y": np.full(60, "a")}, "takes numbers"),
    (
        "next-word",
        {"x": SEQUENCES, "y": np.zeros(60), "words": WORDS},
        "numbers of words: give integers of shape",
    ),
    ("next-word", {"x": SEQUENCES, "y": SEQUENCES, "words": 3}, "outside 0 .. 2 of words"),
    ("next-word", {"x": SEQUENCES, "y": SEQUENCES}, "needs words, the size of the vocabulary"),
    ("cross-entropy", {"x": X, "y": np.arange(60) % 2, "words": 3}, "word numbers are integers"),
    ("next-word", {"x": SEQUENCES, "y": SEQUENCES + 5, "words": WORDS}, "y holds .* outside 0"),
    (
        "squared-error",
        {"y": X, "x_test": X, "y_test": X[:, :2]},
        r"y_test has targets of shape \(2,\), y of \(4,\)",
    ),
]


@pytest.mark.parametrize(("loss", "arrays", "said"), BAD)
def test_targets_that_a_loss_does_not_take_are_named(tmp_path, loss, arrays, said):
    np.savez(tmp_path / "d.npz", **({"x": X} | arrays))
    with pytest.raises(ValueError, match=said):
        load(str(tmp_path / "d.npz"), settings=Data(dataset=str(tmp_path / "d.npz"), loss=loss))


def test_a_built_in_data_set_has_classes():
    with pytest.raises(ValueError, match="loss is squared-error, but digits has classes"):
        load("digits", settings=Data(loss="squared-error"))
    assert len(load("digits", settings=Data(loss=f"{__name__}:classes")).x) == 1437


def test_what_divides_or_guesses_by_classes_is_refused_without_any(tmp_path):
    given = settings(tmp_path, "squared-error")
    with pytest.raises(ValueError, match="loss = 'mse' is unknown: known: cross-entropy, "):
        build(configured(None, given | {"partition": "dirichlet", "loss": "mse"}))
    with pytest.raises(ValueError, match="partition is dirichlet, which divides classes"):
        build(configured(None, given | {"partition": "dirichlet"}))
    with pytest.raises(ValueError, match="shared_source is prototypes, which needs classes"):
        shares = {"strategy": "fedfed", "shared_source": "prototypes"}
        check_parts(configured(None, given | shares))
    with pytest.raises(ValueError, match="loss is squared-error, but an audit knows classes only"):
        audit(configured(None, given), 10, False, 0.9)
    check_parts(configured(None, given | {"strategy": "fedfed", "shared_source": "none"}))
