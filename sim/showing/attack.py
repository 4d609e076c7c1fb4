"""What attacks on membership found, as records and as tables at the terminal."""

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
"""False-positive rates at which LiRA's true positives are given."""
LABELS = {"shadow": "Black-Box/Shadow", "partial": "White-Box/Partial", "lira": "LiRA"}
"""Attacks as DPSUR's tables call them."""


@dataclass(frozen=True)
class Success(Record):
    """How one attack did against one kind of training.

    Attributes:
        attack: its name.
        right, guesses: of all targets together; half of the records asked about are members.
        low, high: interval around ``right / guesses``, given the trained models.
        by_target: share of right guesses for each target (for LiRA: for each set of models).
        paper: what DPSUR's Table 3 or 4 has in this place, or None.
        area: LiRA's, under the curve of true against false positives, mean over targets; or None.
        true_positives: LiRA's rates at false-positive rates `RATES`, means over targets; or None.
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
        """Share of right guesses; 0.5 is blind guessing."""
        return self.right / self.guesses


@dataclass(frozen=True)
class Attacked(Record):
    """One kind of training and how the attacks did.

    Attributes:
        mechanism: its name.
        budget: epsilon that was asked for, or None.
        records: that were split between members and others.
        epsilon_certified, epsilon_published: the largest of its trainings.
        test_accuracy: of the target models, mean; None where no attack has one.
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
        dataset, model: what was trained on what.
        targets: repetitions, each with a split and models of its own.
        models: of LiRA in each, or None without it.
        confidence: of the intervals.
        delta: of both epsilons.
        bounded: the figure that budgets bound, ``certified`` or ``published``.
        seed: of all draws.
        trainings: private ones first, by mechanism and budget; the one without privacy is the last.
        run_dir: where the file is.
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
        """Everything, with each accuracy, and with what it says and does not."""
        found = super().to_json()
        for training in found["trainings"]:
            for one in training["successes"]:
                one["accuracy"] = one["right"] / one["guesses"]
                one["advantage"] = 2 * one["accuracy"] - 1
        return found | {"notes": list(notes(self))}


def notes(report: Report) -> tuple[str, ...]:
    """What the figures are and what they do not prove, a sentence or two each."""
    interval = f"interval of confidence {report.confidence:g} given the trained models"
    lira = (
        "LiRA's area is that under its curve of true against false positives, 0.5 for blind "
        "guessing; TPR at 1 %: the share of members found where 1 % of the others are accused."
    )
    return (
        "Accuracy: share of right guesses, where half of the records are members; 0.5 is blind "
        f"guessing. Below it an {interval}; other models may differ by more.",
        "Target and shadow models are trained on a third of the records each, LiRA's on a half. "
        "Epsilon is that of one training. The one without privacy clips nothing; its learning rate "
        "is multiplied by the clip norm.",
        *([] if report.models is None else [lira]),
        "A success near 0.5 proves nothing: another attack, or another record, can do better. Only "
        "the certified epsilon bounds all attacks, and python -m sim.audit tries to refute it.",
    )


def one_by_one(configs: Sequence[Config]) -> Iterator[Config]:
    """The same configurations, with a line at a terminal that says which one is under way."""
    with Console(stderr=True, quiet=configs[0].run.quiet).status("") as line:
        for number, config in enumerate(configs, 1):
            privacy = config.privacy
            epsilon = "" if privacy.mechanism == "none" else f" at epsilon {privacy.epsilon}"
            line.update(f"{number} of {len(configs)}: {privacy.mechanism}{epsilon}")
            yield config


def show(report: Report) -> None:
    """Print both tables, and what the figures mean."""
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
    """Each training's epsilons and accuracy, and LiRA's further figures."""
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
