"""The results of membership-inference attacks, as records and as tables at the terminal."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

from server.records import Epsilon, Record
from sim.config.fields import Config
from sim.showing import wording

FILE = "attack.json"
RATES = (0.001, 0.01, 0.1)
"""False-positive rates at which LiRA's true-positive rate is reported."""
LABELS = {"shadow": "Black-Box/Shadow", "partial": "White-Box/Partial", "lira": "LiRA"}
"""Names of the attacks in DPSUR's tables."""


@dataclass(frozen=True)
class Success(Record):
    """How one attack did against one kind of training.

    Attributes:
        attack: the attack's name.
        right, guesses: totals over all targets; half of the guesses are about members.
        low, high: interval around ``right / guesses``, given the trained models.
        by_target: fraction of right guesses for each target (for LiRA: for each set of models).
        paper: the result in DPSUR's Table 3 or 4, or None.
        area: LiRA's area under the ROC curve, mean over targets; or None.
        true_positives: LiRA's true-positive rates at `RATES`, means over targets; or None.
    """

    attack: str
    right: int
    guesses: int
    low: float
    high: float
    by_target: tuple[float, ...]
    paper: float | None
    area: float | None
    true_positives: tuple[float | None, ...]

    @property
    def accuracy(self) -> float:
        """Fraction of right guesses; 0.5 is blind guessing."""
        return self.right / self.guesses


@dataclass(frozen=True)
class Attacked(Record):
    """One kind of training and how the attacks did.

    Attributes:
        mechanism: the mechanism's name.
        budget: the requested epsilon, or None.
        records: number of records that were split between members and others.
        epsilon_certified, epsilon_published: the largest of its trainings.
        test_accuracy: mean over the target models; None if no attack has one.
        successes: one for each attack.
    """

    mechanism: str
    budget: Epsilon
    records: int
    epsilon_certified: Epsilon
    epsilon_published: Epsilon
    test_accuracy: float | None
    successes: tuple[Success, ...]


@dataclass(frozen=True)
class Report(Record):
    """All that ``python -m sim.attack`` found: ``attack.json``.

    Attributes:
        dataset, model: names of the data set and the model.
        targets: repetitions, each with its own split and models.
        models: LiRA's models per repetition, or None without it.
        confidence: confidence of the intervals.
        delta: delta of both epsilons.
        bounded: the epsilon that budgets bound, ``certified`` or ``published``.
        seed: seed of all draws.
        trainings: private ones by mechanism and budget; the last is without privacy.
        run_dir: the run directory.
    """

    dataset: str
    model: str
    targets: int
    models: int | None
    confidence: float
    delta: float
    bounded: str
    seed: int
    trainings: tuple[Attacked, ...]
    run_dir: str

    def to_json(self) -> dict[str, Any]:
        """All fields, with accuracies, advantages and notes."""
        found = super().to_json()
        for training in found["trainings"]:
            for one in training["successes"]:
                one["accuracy"] = one["right"] / one["guesses"]
                one["advantage"] = 2 * one["accuracy"] - 1
        return found | {"notes": list(notes(self))}


def notes(report: Report) -> tuple[str, ...]:
    """What the numbers mean and what they do not prove, a sentence or two each."""
    interval = f"{report.confidence:g} confidence interval given the trained models"
    lira = (
        "LiRA's area is that under its ROC curve, 0.5 for blind guessing. TPR at 1 %: the fraction "
        "of members found if 1 % of the others are accused."
    )
    return (
        "Accuracy: fraction of right guesses, where half of the records are members; 0.5 is blind "
        f"guessing. Below it is the {interval}; other models may differ by more.",
        "Target and shadow models are trained on a third of the records each, LiRA's on a half. "
        "Epsilon is that of one training. The training without privacy does not clip; its learning "
        "rate is multiplied by the clip norm.",
        *([] if report.models is None else [lira]),
        "An accuracy near 0.5 proves nothing: another attack, or another record, can do better. "
        "Only the certified epsilon bounds all attacks; python -m sim.audit tries to refute it.",
    )


def one_by_one(configs: Sequence[Config]) -> Iterator[Config]:
    """Yield the configurations, with a terminal line that shows which one is being attacked."""
    with Console(stderr=True, quiet=configs[0].run.quiet).status("") as line:
        for number, config in enumerate(configs, 1):
            privacy = config.privacy
            epsilon = "" if privacy.mechanism == "none" else f" at epsilon {privacy.epsilon}"
            line.update(f"{number} of {len(configs)}: {privacy.mechanism}{epsilon}")
            yield config


def show(report: Report) -> None:
    """Print both tables and the notes."""
    console = Console(highlight=False)
    targets = "1 target" if report.targets == 1 else f"{report.targets} targets"
    title = f"accuracy of membership inference, {report.dataset}, {report.model}, {targets}"
    console.print(title, style="bold", soft_wrap=True)
    for table in (successes(report), trainings(report)):
        width = Measurement.get(console, console.options.update(max_width=1000), table).maximum
        table.width = width
        console.print(table, soft_wrap=True)
    for note in notes(report):
        console.print(note, style="yellow", soft_wrap=True)
    console.print(f"run directory {report.run_dir}", soft_wrap=True)


def successes(report: Report) -> Table:
    """Attack and mechanism by epsilon, in the form of DPSUR's Tables 3 and 4."""
    *private, plain = report.trainings
    budgets = list(dict.fromkeys(one.budget for one in private))
    mechanisms = list(dict.fromkeys(one.mechanism for one in private))
    by_place = {(one.mechanism, one.budget): one.successes for one in private}
    columns = ["no budget" if value is None else f"epsilon {value:g}" for value in budgets]
    table = Table("attack", "guesses", "mechanism", *columns, "non-private")
    for number, beside in enumerate(plain.successes):
        label, count, last = LABELS[beside.attack], str(beside.guesses), [beside]
        for mechanism in mechanisms:
            cells = [by_place[mechanism, budget][number] for budget in budgets] + last
            table.add_row(label, count, mechanism, *map(_cell, cells))
            if any(cell.paper is not None for cell in cells):
                table.add_row("", "", "  in the paper", *(_share(cell.paper) for cell in cells))
            label, count, last = "", "", []
        table.add_section()
    return table


def trainings(report: Report) -> Table:
    """Each training's epsilons and accuracy, and LiRA's ROC results."""
    lira = [one for one in report.trainings[0].successes if one.area is not None]
    head = ["mechanism", f"budget ({report.bounded})", "certified epsilon", "published epsilon"]
    further = ["LiRA area", *(f"TPR at {100 * rate:g} %" for rate in RATES)] if lira else []
    table = Table(*head, "test accuracy", *further)
    for one in report.trainings:
        found = [success for success in one.successes if success.area is not None]
        further = [_share(v) for s in found for v in (s.area, *s.true_positives)]
        table.add_row(
            one.mechanism,
            "none" if one.budget is None else f"{one.budget:g}",
            wording.epsilon(one.epsilon_certified),
            wording.epsilon(one.epsilon_published),
            _share(one.test_accuracy),
            *further,
        )
    return table


def _cell(found: Success) -> str:
    return f"{found.accuracy:.3f}\n{found.low:.3f}-{found.high:.3f}"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
