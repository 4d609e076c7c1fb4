"""Scores by client that are released: what they cost, what noise they have, and that they are drawn
once."""

import math
from dataclasses import replace

import numpy as np
import pytest

import sim
from client import tensors
from client.messages import TrainRequest
from mechanisms.accounting import ledger
from mechanisms.accounting.accountant import epsilon
from mechanisms.accounting.events import Gaussian
from server import closing
from server.store import Store
from sim.config import configuration as config
from sim.engines.inline import inline_exchange
from sim.job import rundir
from sim.phases import course, evaluation
from sim.phases.build import build
from sim.run import command
from sim.showing import wording
from sim.showing.report import write_report
from tests.gaussian import SPOILERS, alarms
from tests.refusing import refusal

pytestmark = pytest.mark.usefixtures("no_report")
GIVEN = {"clients": 8, "rounds": 2, "engine": "inline", "epsilon": 4.0, "evaluation": "released"}
CLIENTS, NOISE = 900, 3.0


def trained(folder, **given) -> sim.Result:
    return sim.train(**GIVEN | {"out": folder, "name": "run"} | given)


def world(folder, **given):
    """Many clients of equal size that have paid for their scores, and a run directory."""
    folder.mkdir(exist_ok=True)
    x = np.random.default_rng(0).normal(size=(5 * CLIENTS, 3)).astype(np.float32)
    y = (x[:, 0] > 0).astype(np.int64)
    np.savez(folder / "records.npz", x=x, y=y, x_test=x[:9], y_test=y[:9])
    more = {"dataset": str(folder / "records.npz"), "clients": CLIENTS, "partition": "iid"}
    job = build(config.load(None, GIVEN | more | {"groups": 2, "score_noise": NOISE} | given))
    rundir.create(folder / "run", job)
    exchange = inline_exchange(job, folder / "run")
    return course.before_training(job, folder / "run", exchange), folder / "run"


def model_of(job) -> np.ndarray:
    return job.gradients.layout.initial(job.model).numpy()


@pytest.mark.parametrize("given", [{}, {"standardize": "private"}, {"release": True}])
def test_every_client_pays_before_training_which_gets_the_rest(tmp_path, given):
    """Kills scores that nobody charges, a calibration that does not know of them, and a charge
    that comes after them."""
    run = trained(tmp_path, score_noise=5.0, **given)
    plan = run.summary
    paid = ledger.read(run.folder / "ledger")
    assert all(charges[Gaussian(5.0)] == 1 for charges in paid.values()) and len(paid) == 8
    assert max(epsilon(charges, 1e-5).epsilon for charges in paid.values()) <= 4.0
    rounds = [one.round for one in ledger.entries(run.folder / "ledger" / "group-0000.jsonl", {})]
    assert rounds[0] < 0 and rounds == sorted(rounds) and rounds[-1] == 2
    plain = trained(tmp_path / "plain", evaluation="basic", **given).summary
    assert plan.noise_multiplier[0] > plain.noise_multiplier[0]
    assert plan.events[0] == plain.events[0] + 1


@pytest.mark.parametrize("release", [False, True])
def test_scores_are_the_records_that_are_found_behind_the_noise_that_is_charged(tmp_path, release):
    """False alarm below 1e-6. Kills noise that is left out, is the same for all, or has another
    scale than is charged; and scores of other records."""
    job, folder = world(tmp_path, release=release)
    (event,) = ledger.read(folder / "ledger")[CLIENTS - 1]
    found, sizes = evaluation._released(job, model_of(job), folder)
    right, _ = evaluation._rights(job, model_of(job), folder)
    true = right.reshape(CLIENTS, 5).sum(axis=1)
    assert (sizes == 5).all() and len(set(true.tolist())) > 4
    noise = found - true
    assert event == Gaussian(NOISE) and alarms(noise, NOISE) == set()
    controls = ("noise x 0.67", "noise x 1.5", "Laplace of the same deviation")
    assert all(alarms(SPOILERS[name](noise, NOISE), NOISE) for name in controls)
    assert abs(np.corrcoef(noise, true)[0, 1]) < 5 / math.sqrt(CLIENTS)


def test_nothing_leaves_before_the_end(tmp_path):
    """Kills records in an upload that only pays."""
    job, folder = world(tmp_path)
    assert (folder / evaluation.PAID).exists() and not (folder / evaluation.FILE).exists()
    who = np.array([2, 7])
    request = TrainRequest(-3, 0, "a", who, who * 0 + 1, np.zeros(0, np.float32), evaluation.NAME)
    upload = evaluation.node(job, 0, folder).train(request)
    assert upload.total.size == 0 and not upload.shared and not upload.metrics


def test_noise_does_not_depend_on_groups_and_depends_on_the_seed(tmp_path):
    found = {}
    for name, given in {"a": {}, "b": {"groups": 5}, "c": {"seed": 1}}.items():
        job, folder = world(tmp_path / name, **given)
        found[name] = evaluation._released(job, np.zeros_like(model_of(job)), folder)[0]
    assert np.array_equal(found["a"], found["b"])
    assert np.abs(found["a"] - found["c"]).min() > 0


def test_scores_are_drawn_once(tmp_path):
    """In a release, second ones would have noise of their own, for one charge. Kills scores that
    are drawn again, and those of an earlier model that pass for the last one's."""
    run = trained(tmp_path, release=True)
    before, places = run.evaluation, [run.folder / evaluation.FILE]
    places.append(run.folder / evaluation.NAME / evaluation.FILE)
    content = places[0].read_bytes()
    assert before is not None and evaluation.FILE in closing.load(run.folder)["files"]
    for lost in places:
        lost.unlink()
        assert sim.train(resume=run.folder).evaluation == before
        assert [path.read_bytes() for path in places] == [content, content]
    job = build(config.load(run.folder / "config.toml", {}))
    with pytest.raises(ValueError, match="scores of another model of this run"):
        evaluation._released(job, model_of(job) + 1, run.folder)
    labels, known = tensors.read(places[0])
    places[0].write_bytes(tensors.sealed(known, labels | {tensors.RUN: "another"}))
    with pytest.raises(ValueError, match=f"{evaluation.FILE} is of another run"):
        evaluation._released(job, model_of(job), run.folder)
    places[0].write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(ValueError, match=f"{evaluation.FILE} is damaged"):
        sim.train(resume=run.folder)
    for path in places:
        path.unlink()
    for made in (closing.FILE, closing.EVALUATION, "model.safetensors"):
        with pytest.raises(ValueError, match=f"{evaluation.FILE} is missing, and scores are drawn"):
            sim.train(resume=run.folder)
        (run.folder / made).unlink()


def dies(*_, **__):
    raise KeyboardInterrupt


def test_a_crash_between_the_payment_and_the_record_of_its_round_stops_no_run(
    tmp_path, monkeypatch
):
    """Kills a second file in a folder that nobody has made."""
    with monkeypatch.context() as patch:
        patch.setattr(Store, "append", dies)
        with pytest.raises(KeyboardInterrupt):
            trained(tmp_path)
    sim.train(resume=tmp_path / "run")
    assert (tmp_path / "run" / evaluation.NAME / evaluation.FILE).exists()


def test_scores_that_a_crash_has_left_are_not_drawn_again(tmp_path, monkeypatch):
    """Though somebody has read them, and removed the file."""
    with monkeypatch.context() as patch:
        patch.setattr(rundir, "finish", dies)
        with pytest.raises(KeyboardInterrupt):
            trained(tmp_path, release=True)
    path = tmp_path / "run" / evaluation.FILE
    seen = path.read_bytes()
    path.unlink()
    sim.train(resume=tmp_path / "run")
    assert path.read_bytes() == seen


def test_a_release_scores_records_one_by_one(tmp_path, monkeypatch):
    """Kills batches, in which a record could move the last bits of another's outputs."""
    sizes = {}
    for release in (False, True):
        job, folder = world(tmp_path / str(release), release=release)
        asked = sizes.setdefault(release, set())
        logits = job.gradients.logits

        def noted(rows, x, logits=logits, asked=asked):
            asked.add(x.shape[1])
            return logits(rows, x)

        monkeypatch.setattr(type(job.gradients), "logits", lambda self, rows, x: noted(rows, x))
        evaluation._rights(job, model_of(job), folder)
        monkeypatch.undo()
    assert sizes[True] == {1} and max(sizes[False]) > 100


def test_the_spread_is_that_of_clients_without_the_noise():
    """Of unequal clients. Kills a variance with the noise in it, and noise that is not divided by
    the records."""
    rng, sizes = np.random.default_rng(1), np.tile([20, 200], 4000)
    accuracy = rng.normal(0.7, 0.08, len(sizes))
    right = (accuracy * sizes + rng.normal(0, 4.0, len(sizes))).astype(np.float32)
    found = evaluation.with_noise(right, sizes, 4.0)
    assert found["client_mean"] == pytest.approx(0.7, abs=0.006)
    assert found["client_deviation"] == pytest.approx(0.08, abs=0.012)
    assert np.std(found["accuracy_by_client"]) > 0.15
    by_hand = np.sqrt(((4.0 / sizes) ** 2).sum()) / len(sizes)
    assert found["client_mean_noise"] == pytest.approx(by_hand)
    few = evaluation.with_noise(np.array([2.0, 9.0, 1.5], np.float32), np.array([4, 0, 3]), 0.1)
    assert few["accuracy_by_client"][::2] == (0.5, 0.5) and math.isnan(few["accuracy_by_client"][1])
    assert few["client_mean"] == 0.5 and few["client_deviation"] == 0.0
    assert few["client_mean_noise"] == pytest.approx(0.1 * math.hypot(1 / 4, 1 / 3) / 2)


def test_they_are_shown_as_what_they_are(tmp_path):
    """Kills a mark as unprotected, and one that is missing for those without noise."""
    run = trained(tmp_path, client_holdout=0.5)
    found = closing.evaluation(run.folder)
    assert found is not None and found.clients_on == "held-out" and found.score_noise == 8.0
    assert found.client_worst is None and found.unprotected == ""
    rows = dict(wording.scores(replace(found, client_mean=0.25, client_mean_noise=0.5)))
    assert rows["released: mean of clients, held-out records"] == "0.2500"
    assert rows["standard deviation of its noise"] == "0.5000"
    write_report(run.folder)
    page = (run.folder / "report.html").read_text()
    assert "released: mean of clients" in page and "unprotected: mean" not in page
    assert not any("Accuracy by client" in one for one in run.summary.caveats)
    assert "worst tenth" not in rows and len(found.accuracy_by_client) == 8


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--mechanism", "none"], "but mechanism is none"),
        (["--trust", "server"], "but trust is server"),
        (["--evaluation", "basic", "--score-noise", "3"], "--evaluation released does"),
        (["--score-noise", "0"], "score_noise is 0"),
        (["--score-noise", "1e7"], "a number in (0, 1000000.0]"),
        (
            ["--client-holdout=0.3", "--clients=1437", "--partition=iid", "--min-records=1"],
            "no client has a second record",
        ),
        (["--personal-layers", "1"], "add --client-holdout 0.2"),
    ],
)
def test_what_they_do_not_go_with_is_refused(capsys, argv, words):
    base = [] if "--evaluation" in argv else ["--evaluation", "released"]
    assert words in refusal(capsys, command, [*base, *argv])
