"""LiRA: Carlini, Chien, Nasr, Song, Terzis, Tramer, "Membership Inference Attacks From First
Principles", S&P 2022.

Models are trained on random halves of the records. For each record the scaled confidence
``log(p / (1 - p))`` of its label is nearly Gaussian over the models, with one mean for models
trained on it and another for the rest; the score is the likelihood ratio of the two at the target's
confidence. Variances are pooled over records, as in the paper for few models. Each model is the
target once, with the others as its shadows.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import stats
from sklearn.metrics import roc_auc_score, roc_curve

from mechanisms.randomness import generator
from sim.auditing.trainings import Trained
from sim.commands.attack import MIN_MODELS

Floats = NDArray[np.float64]

MIN_CONFIDENCE = 1e-12
"""Probabilities are clamped to this distance from 0 and 1."""
MIN_OTHERS = 2
"""Minimum models with and without a record to fit its Gaussians."""


@dataclass(frozen=True)
class Roc:
    """The ROC curve of membership scores.

    Attributes:
        false, true: false- and true-positive rates ``[points]``, ascending.
        area: area under the curve.
    """

    false: Floats
    true: Floats
    area: float

    def at(self, rate: float) -> float:
        """The true-positive rate at a false-positive rate of at most ``rate``."""
        return float(self.true[self.false <= rate].max())


def halves(records: int, models: int, key: bytes) -> NDArray[np.bool_]:
    """Which records each model is trained on, by fair coins: bool ``[models, records]``.

    With exact halves, the other models would reveal whether the target had a record.
    """
    return generator(key, "lira halves").random((models, records)) < 0.5


def confidences(trained: Trained, records: NDArray[np.int64]) -> Floats:
    """``log(p / (1 - p))`` of each record's label, float64 ``[models, records]``."""
    labels = torch.from_numpy(trained.job.dataset.y[records])
    index = labels.expand(len(trained.params), -1)[:, :, None]
    right = trained.probabilities(records).gather(2, index)[:, :, 0]
    return right.clamp(MIN_CONFIDENCE, 1 - MIN_CONFIDENCE).logit().numpy()


def likelihood_ratios(confidence: Floats, inside: NDArray[np.bool_]) -> Floats:
    """Log likelihood ratios ``[models, records]``, each model being the target of the others.

    It is 0 for records that fewer than `MIN_OTHERS` of the others were, or were not, trained on.

    Args:
        confidence: scaled confidences ``[models, records]``.
        inside: bool of the same shape: whether the model was trained on the record.

    Raises:
        ValueError: too few models.
    """
    if len(confidence) < MIN_MODELS:
        raise ValueError(f"models = {len(confidence)} must be at least {MIN_MODELS}: train more")
    scores = np.zeros_like(confidence)
    for target in range(len(confidence)):
        others = np.arange(len(confidence)) != target
        seen, had = confidence[others], inside[others]
        known = np.minimum(had.sum(axis=0), (~had).sum(axis=0)) >= MIN_OTHERS
        value, seen, had = confidence[target, known], seen[:, known], had[:, known]
        scores[target, known] = _log_density(value, seen, had) - _log_density(value, seen, ~had)
    return scores


def _log_density(value: Floats, seen: Floats, part: NDArray[np.bool_]) -> Floats:
    """Log densities of values ``[records]`` under a Gaussian for each record, fitted to its part.

    Means are over ``part [models, records]``; the variance is common to all records.
    """
    count = part.sum(axis=0)
    mean = np.where(part, seen, 0.0).sum(axis=0) / count
    # each record's mean costs one degree of freedom, so the pooled variance is unbiased
    squares = np.where(part, (seen - mean) ** 2, 0.0).sum()
    spread = float(np.sqrt(squares / (count - 1).sum()))
    return np.asarray(stats.norm.logpdf(value, mean, max(spread, MIN_CONFIDENCE)))


def roc(scores: Floats, inside: NDArray[np.bool_]) -> Roc:
    """The ROC curve over all models and records."""
    false, true, _ = roc_curve(inside.ravel(), scores.ravel(), drop_intermediate=False)
    return Roc(false, true, float(roc_auc_score(inside.ravel(), scores.ravel())))
