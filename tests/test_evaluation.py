"""Scores of the final model by class and by client: their formulas, their files, and where they are
refused."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.metrics import f1_score, roc_auc_score

from server import closing
from sim.commands.flags import parse
from sim.commands.guard import main_guard
from sim.config import caveats
from sim.config.settings import UNPROTECTED
from sim.library.result import Result
from sim.phases import evaluation, training
from sim.phases.build import build
from sim.run import command
from sim.showing.progress import closing_table
from sim.showing.report import write_report
from tests import unequal
from tests.test_objectives import settings as task

RNG = np.random.default_rng(5)
OUTPUTS = torch.from_numpy(np.round(RNG.normal(size=(90, 4)), 1))  # rounded: there are ties
LABELS = RNG.integers(0, 3, 90)
"""No record is of the last class, which is predicted nonetheless."""

FLAGS = (
    "--clients=12 --min-records=3 --dirichlet=0.3 --rounds=2 --engine=inline --quiet --name=run "
    "--steps=2"
)


def run(folder: Path, *flags: str) -> Result:
    command([*FLAGS.split(), f"--out={folder}", *flags])
    return Result(folder / "run")


@pytest.fixture(scope="module")
def scored(tmp_path_factory: pytest.TempPathFactory) -> Result:
    folder = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sim.engines.session.write_report", lambda folder: None)
        patch.setattr("sim.engines.drawer.write_report", lambda folder: None)
        return run(folder, "--evaluation=clients")


def test_scores_by_class_are_those_of_scikit_learn() -> None:
    """With classes of unequal sizes, ties, and a class that has predictions but no records."""
    found, here = evaluation.by_class(OUTPUTS, LABELS), [0, 1, 2]
    predicted, probabilities = OUTPUTS.argmax(1).numpy(), OUTPUTS.softmax(1).numpy()
    assert (predicted == 3).any()
    f1 = f1_score(LABELS, predicted, average=None, labels=here)
    areas = [roc_auc_score(c == LABELS, probabilities[:, c]) for c in here]
    right = [np.mean(predicted[c == LABELS] == c) for c in here]
    assert found["f1_by_class"][:3] == pytest.approx(f1, rel=1e-12)
    assert found["auroc_by_class"][:3] == pytest.approx(areas, rel=1e-12)
    assert found["accuracy_by_class"][:3] == pytest.approx(right, rel=1e-12)
    assert all(math.isnan(found[f"{name}_by_class"][3]) for name in ("f1", "auroc", "accuracy"))
    error = evaluation.calibration_error(probabilities.max(1), predicted == LABELS)
    assert found["calibration_error"] == pytest.approx(error)
    assert (found["f1"], found["auroc"]) == pytest.approx((np.mean(f1), np.mean(areas)))


def test_ties_count_half() -> None:
    scores, positive = np.array([1.0, 1.0, 0.0, 2.0]), np.array([True, False, False, True])
    assert evaluation.auroc(scores, positive) == 3.5 / 4
    assert evaluation.auroc(np.zeros(4), positive) == 0.5
    assert math.isnan(evaluation.auroc(scores, np.zeros(4, bool)))
    assert math.isnan(evaluation.auroc(scores, np.ones(4, bool)))


def test_the_calibration_error_is_that_of_its_bins() -> None:
    """Bins of one fifteenth; a bin weighs as many records as it has, and errors of opposite sign
    cancel in one bin and in no other."""
    confidence = np.array([0.48, 0.52, 0.95, 0.95, 0.95, 0.95])
    right = np.array([True, False, True, True, False, False])
    expected = 4 / 6 * abs(0.5 - 0.95)  # the first two cancel
    assert evaluation.calibration_error(confidence, right) == pytest.approx(expected)
    assert evaluation.calibration_error(np.ones(3), np.ones(3, bool)) == 0
    apart = np.array([0.4, 0.9]), np.array([True, False])
    assert evaluation.calibration_error(*apart) == pytest.approx(0.75)


def test_scores_of_a_model_that_has_diverged_are_unknown() -> None:
    found = evaluation.by_class(OUTPUTS.clone().fill_(math.inf), LABELS)
    assert math.isnan(found["auroc"]) and math.isnan(found["calibration_error"])
    assert not math.isnan(found["f1"])


def test_the_spread_is_over_clients_not_records() -> None:
    """Of 21 clients the worst tenth are three, whatever they hold."""
    sizes = np.arange(1, 22)
    right = np.concatenate([(np.arange(size) < size // 2).astype(float) for size in sizes])
    expected = np.array([size // 2 / size for size in sizes])
    found = evaluation.by_client(right, sizes)
    assert found["accuracy_by_client"] == tuple(expected.tolist())
    assert found["client_mean"] == pytest.approx(expected.mean())
    assert found["client_deviation"] == pytest.approx(math.sqrt(expected.var()))
    assert found["client_worst"] == 0
    assert found["client_worst_tenth"] == pytest.approx((0 + 1 / 3 + 2 / 5) / 3)
    assert found["unprotected"] == UNPROTECTED


def test_a_run_s_scores_are_those_of_its_model(scored: Result) -> None:
    """Of each client, on the records that are its own; the means agree with the summary."""
    job, model = build(scored.config), scored.model()
    found, data = scored.evaluation, job.dataset
    assert found is not None and scored.summary is not None

    def right(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        return (model(torch.from_numpy(x)).argmax(1).numpy() == y).astype(float)

    own = [right(data.x[job.partition.of(c)], data.y[job.partition.of(c)]) for c in range(12)]
    assert found.accuracy_by_client == pytest.approx([one.mean() for one in own])
    assert len(set(found.accuracy_by_client)) > 6
    counts = np.bincount(data.y_test, minlength=10)
    total = np.average(np.array(found.accuracy_by_class, float), weights=counts)
    assert total == pytest.approx(scored.summary.accuracy)
    expected = evaluation.by_class(
        model(torch.from_numpy(data.x_test)).double().detach(), data.y_test
    )
    assert found.f1 == pytest.approx(expected["f1"]) and found.auroc is not None
    assert found.calibration_error == pytest.approx(expected["calibration_error"], abs=1e-3)


def test_batches_change_no_score(scored: Result, monkeypatch: pytest.MonkeyPatch) -> None:
    job = build(scored.config)
    params = job.gradients.layout.initial(job.model).numpy()
    whole = evaluation.evaluate(job, params, scored.folder)
    monkeypatch.setattr(training, "EVALUATION_BATCH", 7)
    cut = evaluation.evaluate(job, params, scored.folder)
    assert cut.accuracy_by_client == whole.accuracy_by_client
    assert cut.accuracy_by_class == whole.accuracy_by_class
    assert cut.f1_by_class == whole.f1_by_class


def test_groups_change_no_bit(tmp_path: Path, no_report: None) -> None:
    """`tests/test_run.py` compares Ray's workers."""
    flags = "--evaluation=clients", "--chunk-clients=4"
    one, three = (run(tmp_path / n, *flags, f"--groups={n}") for n in "13")
    for name in (closing.EVALUATION, "model.safetensors"):
        assert (one.folder / name).read_bytes() == (three.folder / name).read_bytes()


def test_perplexity_is_that_of_all_words(tmp_path: Path) -> None:
    """Each word counts the same, in short sequences and long ones; padding does not count."""
    given = task(tmp_path, "next-word") | {"evaluation": "clients"}
    job = build(parse([f"--{name}={value}" for name, value in given.items()], "run", "").config)
    y_test = job.dataset.y_test.copy()
    y_test[0, 1:], y_test[1, :] = 0, 0
    job.dataset.y_test[...] = y_test
    params = job.gradients.layout.initial(job.model).numpy()
    found = evaluation.evaluate(job, params, tmp_path)
    losses = torch.nn.functional.cross_entropy(
        job.model(torch.from_numpy(job.dataset.x_test)).flatten(0, 1),
        torch.from_numpy(y_test).flatten(),
        ignore_index=0,
    )
    assert found.perplexity == pytest.approx(math.exp(losses.item()), rel=1e-5)
    assert len(found.accuracy_by_client) == 3 and found.f1 is None
    assert closing_table(unequal.summary(), "", found)[2][1].startswith("perplexity ")


def test_scores_of_clients_are_marked_wherever_they_are_shown(scored: Result) -> None:
    path = scored.folder / closing.EVALUATION
    written = json.loads(path.read_text())
    assert path.stat().st_mode & 0o777 == 0o600
    assert written["unprotected"] == UNPROTECTED and "unprotected" in UNPROTECTED.lower()
    assert scored.summary is not None and caveats.CLIENT_SCORES in scored.summary.caveats
    row = dict(closing_table(scored.summary, "", scored.evaluation))["further scores"]
    assert row.startswith("macro F1 ") and "unprotected: mean of clients " in row
    part = unequal.section(write_report(scored.folder).read_text(), "Scores of the final model")
    found, shown = scored.evaluation, dict(unequal.rows(part))
    assert found is not None
    assert shown["macro F1"] == f"{found.f1:.4f}" and shown["AUROC"] == f"{found.auroc:.4f}"
    assert shown["calibration error"] == f"{found.calibration_error:.4f}"
    assert shown["unprotected: mean of clients"] == f"{found.client_mean:.4f}"
    assert shown["standard deviation"] == f"{found.client_deviation:.4f}"
    assert shown["worst tenth"] == f"{found.client_worst_tenth:.4f}"
    assert shown["worst client"] == f"{found.client_worst:.4f}"
    captions = {alt: caption for alt, (_, caption) in unequal.pictures(part).items()}
    assert captions["accuracy by class"] == "Accuracy of each class, test part."
    assert captions["accuracy by client"].endswith(UNPROTECTED)


def test_nothing_of_clients_is_written_unless_it_is_asked_for(
    tmp_path: Path, no_report: None
) -> None:
    """A release may have scores on the test part, as it has accuracy."""
    assert run(tmp_path / "basic").evaluation is None
    assert not (tmp_path / "basic/run" / closing.EVALUATION).exists()
    found = run(tmp_path / "release", "--release", "--evaluation=detailed").evaluation
    assert found is not None and found.f1 is not None
    assert found.accuracy_by_client == () and found.unprotected == "" and found.client_mean is None


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (
            ["--release", "--evaluation=clients"],
            "error: evaluation is clients, whose scores come from private records without noise: "
            "use --evaluation released or detailed, or leave out --release\n",
        ),
        (
            ["--loss=tests.test_objectives:classes", "--evaluation=detailed"],
            "error: evaluation is detailed, which needs --loss cross-entropy or next-word, and "
            "loss is tests.test_objectives:classes: use --evaluation basic\n",
        ),
    ],
)
def test_what_cannot_be_evaluated_is_refused_before_a_run(
    flags: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main_guard(command, [*FLAGS.split(), f"--out={tmp_path}", *flags]) == 2
    assert capsys.readouterr().err == said and not list(tmp_path.iterdir())


def test_an_edited_file_is_refused_and_written_again(tmp_path: Path, no_report: None) -> None:
    result = run(tmp_path, "--evaluation=clients")
    path = result.folder / closing.EVALUATION
    content = path.read_bytes()
    path.write_bytes(content.replace(b"0.", b"1.", 1))
    with pytest.raises(ValueError, match=r"evaluation.json has been changed: restore it"):
        _ = result.evaluation
    command([f"--resume={result.folder}", "--quiet"])
    assert path.read_bytes() == content
