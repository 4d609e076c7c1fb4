"""What a finished model is judged by beside accuracy and loss: by class and by client.

Scores by client may be released: of each client, the number of its records that the model finds,
with Gaussian noise. A record moves it by at most 1. A phase before training pays for that, so that
training is calibrated to what is left of the budget, and the charge is on disk long before the
scores are drawn, once in a run. In a release records are scored one by one, so that none moves the
last bits of another's outputs.
"""

import hashlib
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from client import tensors
from client.messages import Upload
from client.sharing import Nothing, SharingNode
from mechanisms import durable
from mechanisms.arithmetic import of_seed
from mechanisms.plan import PlanTable
from mechanisms.randomness import draws_of
from mechanisms.sharing import SharingPlan, Sum
from server import closing, manifest
from server.closing import EVALUATION
from server.federation import Federation
from server.records import Evaluation
from server.store import MODEL
from sim.config.settings import CROSS_ENTROPY, UNPROTECTED
from sim.data.holdout import Held
from sim.job.copies import pair_on
from sim.job.job import Job
from sim.models import personal
from sim.models.objectives import LOSSES, PADDING
from sim.phases.phase import (
    Costs,
    Outlook,
    Phase,
    files,
    group_data,
    release,
    sharing_plan,
    write_result,
)
from sim.phases.training import outputs

NAME, PAID, FILE = "scores", "scores.safetensors", "released_scores.safetensors"
CPU = torch.device("cpu")
CALIBRATION_BINS = 15
"""Bins of equal width for the confidence of predictions."""


def write(folder: Path, job: Job, params: np.ndarray) -> tuple[str, ...]:
    """Write the evaluation of the final model ``[P]``, as configured; the names of the files."""
    asked = job.config.data.evaluation
    if asked == "basic":
        return ()
    found = evaluate(job, params, folder)
    content = (json.dumps(found.to_json(), indent=1) + "\n").encode()
    durable.write(folder / EVALUATION, content, private=bool(found.unprotected))
    return (EVALUATION, FILE) if asked == "released" else (EVALUATION,)


def evaluate(job: Job, params: np.ndarray, run_dir: Path) -> Evaluation:
    """The scores of the model ``[P]``, on the evaluated records and, if configured, by client.

    Raises:
        ValueError: a file of what clients keep is damaged.
    """
    data, (x, y) = job.config.data, job.tests
    if data.loss == CROSS_ENTROPY:
        every = torch.cat([output for output, _ in outputs(job, params, x, y)])
        scores = by_class(every.double().cpu(), y.cpu().numpy())
    else:
        scores = {"perplexity": _perplexity(job, params)}
    if data.evaluation == "clients":
        scores |= by_client(*_rights(job, params, run_dir))
    if data.evaluation == "released":
        scores |= with_noise(*_released(job, params, run_dir), data.score_noise)
    if "accuracy_by_client" in scores:
        scores["clients_on"] = "training" if job.held is None else "held-out"
    return Evaluation(evaluated_on=data.evaluate_on, **scores)


def by_class(outputs: Tensor, labels: np.ndarray) -> dict[str, Any]:
    """Scores of a classifier by class, and their means.

    Args:
        outputs: float64 ``[M, classes]``.
        labels: int64 ``[M]``.

    Classes without a record have NaN, and count in no mean.
    """
    classes, found = outputs.shape[1], outputs.argmax(1).numpy()
    records, claimed, right = (
        np.bincount(some, minlength=classes) for some in (labels, found, labels[found == labels])
    )
    with np.errstate(invalid="ignore"):
        accuracy = right / records
        f1 = np.where(records > 0, 2 * right / (records + claimed), math.nan)
    probabilities = outputs.softmax(1).numpy()
    areas = np.array([auroc(probabilities[:, c], labels == c) for c in range(classes)])
    return {
        "accuracy_by_class": tuple(accuracy.tolist()),
        "f1_by_class": tuple(f1.tolist()),
        "auroc_by_class": tuple(areas.tolist()),
        "f1": _mean(f1),
        "auroc": _mean(areas),
        "calibration_error": calibration_error(probabilities.max(1), found == labels),
    }


def auroc(scores: np.ndarray, positive: np.ndarray) -> float:
    """Area under the ROC curve: the probability that a random positive record has a larger score
    than a random other one, ties counting half (Mann and Whitney's U).

    Args:
        scores: float64 ``[M]``.
        positive: bool ``[M]``.

    NaN without positive records, without others, or if a score is not finite.
    """
    count = int(positive.sum())
    pairs = count * (len(positive) - count)
    if not pairs or not np.isfinite(scores).all():
        return math.nan
    _, which, ties = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(ties) - (ties - 1) / 2)[which]  # ties share the mean of their ranks
    return float(ranks[positive].sum() - count * (count + 1) / 2) / pairs


def calibration_error(confidence: np.ndarray, right: np.ndarray) -> float:
    """Expected calibration error (Guo et al., arXiv:1706.04599, eq. 3): the mean over records of
    the distance between a bin's accuracy and its mean confidence.

    Args:
        confidence: float64 ``[M]``, the probability of the predicted class, in [0, 1].
        right: bool ``[M]``, whether it is the record's class.

    NaN if a confidence is not finite.
    """
    if not np.isfinite(confidence).all():
        return math.nan
    gaps, _ = np.histogram(confidence, CALIBRATION_BINS, (0, 1), weights=right - confidence)
    return float(np.abs(gaps).sum() / len(right))


def _perplexity(job: Job, params: np.ndarray) -> float:
    """The exponential of the mean loss of a word, without padding."""
    losses, words = 0.0, 0
    for output, y in outputs(job, params, *job.tests):
        real = (y != PADDING).sum(1)
        losses += float((job.objective.loss(output, y).double() * real).sum())
        words += int(real.sum())
    return float(np.exp(losses / words)) if words else math.nan


def _rights(job: Job, params: np.ndarray, run_dir: Path) -> tuple[np.ndarray, np.ndarray]:
    """Whether each client's records are found ``[N]``, those of client 0 first, and how many each
    holds ``[clients]``: those held out, or else those that it trained on. Whatever the groups."""
    held = job.held or Held(job.dataset.x, job.dataset.y, job.partition)
    x, y = pair_on(job.device, (held.x, held.y))
    metric = LOSSES[job.config.data.loss][1]
    at_a_time = 1 if job.config.run.release else None

    def right(model: np.ndarray, x: Tensor, y: Tensor) -> np.ndarray:
        found = [metric(output, y) for output, y in outputs(job, model, x, y, at_a_time)]
        return torch.cat([y.new_zeros(0).float(), *found]).cpu().numpy()

    found = right(params, x, y)
    for client, model in personal.models(run_dir, job.config, job.gradients.layout, params):
        at = held.partition.of(client)
        found[at] = right(model, x[at], y[at])
    return found[held.partition.indices], held.partition.sizes


def by_client(right: np.ndarray, sizes: np.ndarray) -> dict[str, Any]:
    """Accuracy of each client, and how it is spread; each client counts the same.

    Args:
        right: float64 ``[N]``, what of each record is found, those of client 0 first.
        sizes: int64 ``[clients]``, records of each client, at least 1 of one of them.

    Clients without a record have NaN, and count in no mean.
    """
    owner = np.repeat(np.arange(len(sizes)), sizes)
    with np.errstate(invalid="ignore"):
        accuracy = np.bincount(owner, weights=right, minlength=len(sizes)) / sizes
    known = accuracy[sizes > 0]
    worst = np.sort(known)[: math.ceil(len(known) / 10)]
    return {
        "unprotected": UNPROTECTED,
        "accuracy_by_client": tuple(accuracy.tolist()),
        "client_mean": float(known.mean()),
        "client_deviation": float(known.std()),
        "client_worst_tenth": float(worst.mean()),
        "client_worst": float(worst[0]),
    }


def _mean(values: np.ndarray) -> float:
    """The mean of the finite values; NaN if there are none."""
    known = values[np.isfinite(values)]
    return float(known.mean()) if known.size else math.nan


def plan(outlook: Outlook, earlier: Costs) -> PlanTable | None:
    """Every client's score, which a record moves by at most 1; None if scores are not released."""
    data = outlook.config.data
    if data.evaluation != "released":
        return None
    return outlook.same(SharingPlan(data.score_noise, 1.0))


def federation(job: Job, run_dir: Path) -> Federation:
    """One round, in which clients pay."""

    def write(uploads: Sequence[Upload]) -> None:
        write_result(run_dir / PAID, {"noise": np.array([job.config.data.score_noise])})

    return release(job, NAME, np.zeros(0, np.float32), collect=write)


def node(job: Job, group: int, run_dir: Path) -> SharingNode:
    """The clients of a group, which pay for their scores."""
    plans, data = job.plans_of[NAME], group_data(job, group)
    return SharingNode(lambda _: Nothing(), data, plans, *files(run_dir, group, NAME), job.seed)


def _released(job: Job, params: np.ndarray, run_dir: Path) -> tuple[np.ndarray, np.ndarray]:
    """How many records of each client the model ``[P]`` finds, float32 ``[clients]``, with noise;
    and how many each holds. They are drawn once, and on disk twice before anything is made of them:
    who loses one file has the other, and who loses both while something was made of them goes no
    further.

    Raises:
        ValueError: they were drawn, and are lost, damaged, or of another model or run.
    """
    places = [run_dir / FILE, run_dir / NAME / FILE]
    made = [run_dir / name for name in (EVALUATION, MODEL, closing.FILE)]
    model = np.frombuffer(hashlib.blake2b(params.tobytes()).digest(), np.uint8)
    right, sizes = _rights(job, params, run_dir)
    if not any(path.exists() for path in (*places, *made)):
        plan = sharing_plan(job, NAME)
        own = torch.from_numpy(right)[:, None].split(sizes.tolist())
        draws = draws_of(job.seed, 0, range(len(sizes)), CPU)
        found = Sum(plan, lambda rights: rights, 1, "scores")(own, own, draws, of_seed(job.seed))
        write_result(places[0], {"right": found.sums[:, 0].numpy(), "model": model})
    path = next((path for path in places if path.exists()), places[0])
    if not path.exists():
        raise ValueError(f"{path} is missing, and scores are drawn once: restore it from a copy")
    labels, known = tensors.read(path)
    manifest.check_run(run_dir, path, labels.get(tensors.RUN))
    if not np.array_equal(known["model"], model):
        raise ValueError(
            f"{path} has the scores of another model of this run, and they were paid for once: "
            "start a new run"
        )
    for other in places:
        if not other.exists():
            durable.make_folder(other.parent)  # a death right after the payment has left none
            durable.write(other, durable.read(path))
    return known["right"], sizes


def with_noise(right: np.ndarray, sizes: np.ndarray, noise: float) -> dict[str, Any]:
    """Accuracy of each client by released scores, and how it is spread.

    Args:
        right: float32 ``[clients]``, how many records of each are found, with noise.
        sizes: int64 ``[clients]``, records of each client, at least 1 of one of them.
        noise: its standard deviation.
    """
    with np.errstate(invalid="ignore", divide="ignore"):
        accuracy = np.where(sizes > 0, right.astype(np.float64) / sizes, math.nan)
    known, variance = accuracy[sizes > 0], np.square(noise / sizes[sizes > 0])
    return {
        "score_noise": noise,
        "accuracy_by_client": tuple(accuracy.tolist()),
        "client_mean": float(known.mean()),
        "client_mean_noise": float(np.sqrt(variance.sum()) / len(known)),
        "client_deviation": float(np.sqrt(max(0.0, known.var() - variance.mean()))),
    }


PHASE = Phase(NAME, lambda config: 1, plan, federation, node, result=PAID)
