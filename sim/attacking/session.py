"""Attacks all requested trainings and writes ``attack.json``."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from mechanisms import durable
from sim.attacking import papers, success
from sim.attacking.membership import Tally
from sim.attacking.repetition import Repetition, repetition, some_records
from sim.commands.attack import Question
from sim.config import configuration
from sim.config.checks import check_classes
from sim.config.fields import Config
from sim.job import rundir
from sim.job.device import in_one_order
from sim.phases.build import build
from sim.showing.attack import FILE, RATES, Attacked, Report, Success, one_by_one


def attack(question: Question) -> Report:
    """Attack every training and write ``attack.json`` and the configuration to a new run directory.

    Raises:
        ValueError: a user error.
    """
    first = question.configs[0]
    check_classes(first, "an attack")
    in_one_order(first)
    chosen = rundir.choose(first, resumes=False)
    report = Report(
        dataset=first.data.dataset,
        model=first.data.model,
        targets=question.targets,
        models=question.models if "lira" in question.attacks else None,
        confidence=question.confidence,
        delta=first.privacy.delta,
        bounded=first.privacy.budget,
        seed=first.run.seed,
        trainings=tuple(_attacked(question, config) for config in one_by_one(question.configs)),
        run_dir=str(chosen),
    )

    def fill(part: Path, folder: Path) -> None:
        configuration.save(first, part / "config.toml")
        told = replace(report, run_dir=str(folder)).to_json()
        durable.write(part / FILE, json.dumps(told, indent=1).encode())

    # a name that was free before the trainings may be another run's now
    return replace(report, run_dir=str(rundir.place(chosen, fill)))


def _attacked(question: Question, config: Config) -> Attacked:
    """All repetitions of the attacks on one kind of training."""
    job, sure = some_records(build(config), question.records), question.confidence
    found = [
        repetition(job, config.run.seed + number, question.attacks, question.models)
        for number in range(question.targets)
    ]
    return Attacked(
        mechanism=config.privacy.mechanism,
        budget=config.privacy.epsilon if job.config.private else None,
        records=len(job.dataset.y),
        epsilon_certified=max(one.certified for one in found),
        epsilon_published=max(one.published for one in found),
        test_accuracy=_mean(one.test_accuracy for one in found if one.test_accuracy is not None),
        successes=tuple(_success(name, config, found, sure) for name in question.attacks),
    )


def _success(name: str, config: Config, found: Sequence[Repetition], sure: float) -> Success:
    """One attack on one kind of training over all repetitions; ``sure`` is the confidence."""
    mechanism, budget = config.privacy.mechanism, config.privacy.epsilon
    ratios = [one.ratios for one in found if name == "lira" and one.ratios is not None]
    if ratios:
        right = np.concatenate([one.right for one in ratios])
        tallies = [Tally(int(one.right.sum()), one.right.size) for one in ratios]
        low, high = success.of_records(right.mean(axis=0), sure)
    else:
        tallies = [one.tallies[name] for one in found]
        low, high = success.of_counts(total(tallies), sure)
    return Success(
        attack=name,
        right=total(tallies).right,
        guesses=total(tallies).guesses,
        low=low,
        high=high,
        by_target=tuple(one.right / one.guesses for one in tallies),
        paper=papers.accuracy(config.data.dataset, name, mechanism, budget),
        area=_mean(one.curve.area for one in ratios),
        true_positives=tuple(_mean(one.curve.at(rate) for one in ratios) for rate in RATES),
    )


def total(tallies: Sequence[Tally]) -> Tally:
    """The sum of several tallies."""
    return Tally(sum(one.right for one in tallies), sum(one.guesses for one in tallies))


def _mean(values: Iterable[float]) -> float | None:
    """The mean; None if there are no values."""
    kept = list(values)
    return sum(kept) / len(kept) if kept else None
