"""One repetition of the attacks: a split of the records, models trained on it, the guesses."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from mechanisms.randomness import generator, seed_key
from sim.attacking.lira import Roc, confidences, halves, likelihood_ratios, roc
from sim.attacking.membership import Tally, split
from sim.attacking.partial import partial_attack
from sim.attacking.shadow import shadow_attack
from sim.auditing.trainings import Trained, train
from sim.job.job import Job

MODEL_BASED = ("shadow", "partial")
"""Attacks on one target model, with the split 2:1:2:1."""


@dataclass(frozen=True)
class Ratios:
    """LiRA's results, each model being the target of the others.

    Attributes:
        right: bool ``[models, records]``, whether the guess, "member" if the ratio is above 1, is
            right.
        curve: the ROC curve over all models and records.
    """

    right: NDArray[np.bool_]
    curve: Roc


@dataclass(frozen=True)
class Repetition:
    """The results of one repetition.

    Attributes:
        test_accuracy: the target model's, on records that it was not trained on; None without one.
        tallies: guesses of the attacks on one target model, by attack.
        ratios: LiRA's results, or None.
        certified, published: the largest epsilons of the trainings; infinite without a guarantee.
    """

    test_accuracy: float | None
    tallies: dict[str, Tally]
    ratios: Ratios | None
    certified: float
    published: float


def repetition(job: Job, seed: int, attacks: Sequence[str], models: int) -> Repetition:
    """Train the models that the attacks need on the job's records, and attack them.

    Raises:
        ValueError: the budget does not pay for the training, or there are too few records.
    """
    key = seed_key(seed)
    parts = split(len(job.dataset.y), generator(key, "parts"))
    trained, tallies = list[Trained](), dict[str, Tally]()
    accuracy, ratios = None, None
    if set(attacks) & set(MODEL_BASED):
        target = train(job, [parts.target_in], key)
        trained.append(target)
        said = target.probabilities(parts.target_out)[0].argmax(dim=1).numpy()
        accuracy = float((said == job.dataset.y[parts.target_out]).mean())
    if "shadow" in attacks:
        shadow = train(job, [parts.shadow_in], _key(key, "shadow model"))
        trained.append(shadow)
        tallies["shadow"] = shadow_attack(target, shadow, parts, key)
    if "partial" in attacks:
        tallies["partial"] = partial_attack(target, parts, key)
    if "lira" in attacks:
        shadows, ratios = _likelihoods(job, models, key)
        trained.append(shadows)
    certified = max(one.epsilon for one in trained)
    published = max(one.epsilon_published for one in trained)
    return Repetition(accuracy, tallies, ratios, certified, published)


def some_records(job: Job, count: int | None) -> Job:
    """The job with ``count`` random training records, or all for None.

    Raises:
        ValueError: it has fewer.
    """
    if count is None:
        return job
    dataset = job.dataset
    if count > len(dataset.y):
        most = f"the {len(dataset.y)} training records"
        raise ValueError(f"--records {count} must be at most {most}: lower it")
    rng = generator(seed_key(job.config.run.seed), "attacked records")
    chosen = rng.permutation(len(dataset.y))[:count]
    return replace(job, dataset=replace(dataset, x=dataset.x[chosen], y=dataset.y[chosen]))


def _likelihoods(job: Job, models: int, key: bytes) -> tuple[Trained, Ratios]:
    """LiRA's models, each trained on a random half of the records, and its results."""
    records = len(job.dataset.y)
    inside = halves(records, models, key)
    owned = [np.flatnonzero(row) for row in inside]
    trained = train(job, owned, _key(key, "likelihood models"))
    scores = likelihood_ratios(confidences(trained, np.arange(records)), inside)
    return trained, Ratios((scores > 0) == inside, roc(scores, inside))


def _key(key: bytes, purpose: str) -> bytes:
    """A separate key, so that no two trainings share noise."""
    return generator(key, purpose).bytes(len(key))
