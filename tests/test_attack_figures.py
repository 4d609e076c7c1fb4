"""Every number of ``python -m sim.attack``: each under its label, counted as plainly as can be,
intervals that hold."""

import contextlib
import dataclasses
import json
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import stats

from mechanisms.accounting.accountant import epsilon
from mechanisms.accounting.events import SampledGaussian
from mechanisms.plan import planned
from mechanisms.randomness import seed_key
from mechanisms.registry import MECHANISMS, plan_table
from sim.attacking import papers, session, success
from sim.attacking.lira import Roc, halves, likelihood_ratios
from sim.attacking.membership import Tally, judge
from sim.attacking.repetition import Ratios, Repetition
from sim.auditing import trainings
from sim.auditing.trainings import paid_steps, train
from sim.commands.attack import ATTACKS, Question, parse
from sim.config.configuration import load
from sim.config.papers import entry
from sim.phases.build import build
from sim.showing import attack as showing
from sim.showing.attack import RATES, Attacked, Report, Success, notes, one_by_one, show
from tests import unequal


def won(
    attack: str, right: int, guesses: int, width: float, paper: float | None = None, area=None
) -> Success:
    middle = right / guesses
    rates = (None, None, None) if area is None else (area - 0.41, area - 0.32, area - 0.23)
    return Success(
        attack, right, guesses, middle - width, middle + 2 * width, (middle,), paper, area, rates
    )


def kind(mechanism: str, budget, certified, published, accuracy, *successes: Success) -> Attacked:
    return Attacked(mechanism, budget, 612, certified, published, accuracy, successes)


REPORT = Report(
    dataset="fmnist",
    model="mlp",
    targets=3,
    models=17,
    confidence=0.93,
    delta=2e-6,
    bounded="certified",
    seed=77,
    trainings=(
        kind(
            "dpsur",
            1.5,
            1.375,
            1.625,
            0.351,
            won("shadow", 311, 600, 0.011, 0.498),
            won("lira", 5100, 9000, 0.012),
        ),
        kind(
            "dpsur",
            4.0,
            3.875,
            4.25,
            0.452,
            won("shadow", 322, 600, 0.013, 0.506),
            won("lira", 5200, 9000, 0.014),
        ),
        kind(
            "dpsgd",
            1.5,
            1.25,
            1.125,
            0.553,
            won("shadow", 333, 600, 0.015),
            won("lira", 5300, 9000, 0.016),
        ),
        kind(
            "dpsgd",
            4.0,
            3.5,
            3.75,
            0.654,
            won("shadow", 344, 600, 0.017, 0.494),
            won("lira", 5400, 9000, 0.018),
        ),
        kind(
            "none",
            None,
            None,
            None,
            0.955,
            won("shadow", 355, 600, 0.019, 0.582),
            won("lira", 5500, 9000, 0.021),
        ),
    ),
    run_dir="runs/attacked",
)
AREAS = (0.511, 0.522, 0.533, 0.544, 0.755)
REPORT = dataclasses.replace(
    REPORT,
    trainings=tuple(
        dataclasses.replace(
            one,
            successes=(
                one.successes[0],
                won("lira", one.successes[1].right, 9000, 0.01 + a / 100, area=a),
            ),
        )
        for one, a in zip(REPORT.trainings, AREAS, strict=True)
    ),
)


def printed(capsys, report: Report) -> tuple[list[list[list[str]]], str]:
    """The rows of the two tables, heads too, and the text around them."""
    show(report)
    tables: list[list[list[str]]] = []
    text = []
    for line in capsys.readouterr().out.splitlines():
        if line[:1] in "┏":
            tables.append([])
        elif line[:1] in "┃│":
            tables[-1].append(
                [cell.strip() for cell in line.strip("┃│").replace("┃", "│").split("│")]
            )
        elif line[:1] not in "┡├└":
            text.append(line)
    return tables, "\n".join(text)


def cell(found: Success) -> tuple[str, str]:
    return f"{found.right / found.guesses:.3f}", f"{found.low:.3f}-{found.high:.3f}"


def test_each_success_stands_at_its_attack_mechanism_and_epsilon(capsys):
    (rows, _), _ = printed(capsys, REPORT)
    assert rows[0] == ["attack", "guesses", "mechanism", "epsilon 1.5", "epsilon 4", "non-private"]
    expected = []
    for number, (label, count) in enumerate((("Black-Box/Shadow", "600"), ("LiRA", "9000"))):
        dpsur1, dpsur4, dpsgd1, dpsgd4, none = (
            cell(one.successes[number]) for one in REPORT.trainings
        )
        first = [list(texts) for texts in zip(dpsur1, dpsur4, none, strict=True)]
        second = [list(texts) for texts in zip(dpsgd1, dpsgd4, strict=True)]
        expected += [[label, count, "dpsur", *first[0]], ["", "", "", *first[1]]]
        expected += [["", "", "in the paper", "0.498", "0.506", "0.582"]] if not number else []
        expected += [["", "", "dpsgd", *second[0], ""], ["", "", "", *second[1], ""]]
        expected += [["", "", "in the paper", "-", "0.494", ""]] if not number else []
    assert rows[1:] == expected


def test_epsilons_and_accuracies_stand_beside_their_training(capsys):
    (_, rows), _ = printed(capsys, REPORT)
    head = [
        "mechanism",
        "budget (certified)",
        "certified epsilon",
        "published epsilon",
        "test accuracy",
    ]
    assert rows[0] == [*head, "LiRA area", "TPR at 0.1 %", "TPR at 1 %", "TPR at 10 %"]
    assert RATES == (0.001, 0.01, 0.1)
    assert rows[1] == [
        "dpsur",
        "1.5",
        "1.375",
        "1.625",
        "0.351",
        "0.511",
        "0.101",
        "0.191",
        "0.281",
    ]
    assert [row[:5] for row in rows[2:]] == [
        ["dpsur", "4", "3.875", "4.25", "0.452"],
        ["dpsgd", "1.5", "1.25", "1.125", "0.553"],
        ["dpsgd", "4", "3.5", "3.75", "0.654"],
        ["none", "none", *["infinite (not private)"] * 2, "0.955"],
    ]
    assert [row[5] for row in rows[1:]] == [f"{area:.3f}" for area in AREAS]


def test_without_lira_and_without_a_budget_nothing_is_shown_of_them(capsys):
    only = [
        dataclasses.replace(one, successes=one.successes[:1], budget=None)
        for one in REPORT.trainings[1::2]
    ]
    only = [
        *only[:1],
        dataclasses.replace(REPORT.trainings[4], successes=REPORT.trainings[4].successes[:1]),
    ]
    only[0] = dataclasses.replace(only[0], test_accuracy=None)
    tables, text = printed(
        capsys, dataclasses.replace(REPORT, trainings=tuple(only), targets=1, bounded="published")
    )
    assert tables[0][0] == ["attack", "guesses", "mechanism", "no budget", "non-private"]
    assert tables[1][0][1:] == [
        "budget (published)",
        "certified epsilon",
        "published epsilon",
        "test accuracy",
    ]
    assert [row[-1] for row in tables[1][1:]] == ["-", "0.955"] and text.startswith(
        "accuracy of membership inference, fmnist, mlp, 1 target\n"
    )


def test_each_field_of_the_report_shows_or_is_in_the_file_alone(capsys):
    """A new field fails here until it is shown, or is said to stand in the file only."""
    before = printed(capsys, REPORT)
    shown = {"dataset": "mnist", "model": "cnn", "targets": 5, "confidence": 0.5, "run_dir": "b"}
    shown |= {"bounded": "published"}
    alone = {"models": 20, "delta": 1e-3, "seed": 1}
    without = notes(dataclasses.replace(REPORT, models=None))
    assert any("TPR" in one for one in notes(REPORT)) and not any("TPR" in one for one in without)
    assert shown.keys() | alone.keys() | {"trainings"} == unequal.names(Report)
    for name, value in (shown | alone).items():
        after = printed(capsys, dataclasses.replace(REPORT, **{name: value}))
        assert (after != before) == (name in shown), name
    assert all(note in before[1] for note in notes(REPORT))
    file = json.loads(json.dumps(REPORT.to_json(), allow_nan=False))
    assert file.keys() == unequal.names(Report) | {"notes"}
    for one, training in zip(file["trainings"], REPORT.trainings, strict=True):
        for entries, found in zip(one["successes"], training.successes, strict=True):
            assert entries["accuracy"] == found.right / found.guesses
            assert entries["advantage"] == pytest.approx(
                (found.right - (found.guesses - found.right)) / found.guesses
            )


CURVES = (
    Roc(np.array([0.0, 0.05, 1.0]), np.array([0.2, 0.5, 1.0]), 0.6),
    Roc(np.zeros(2), np.array([0.1, 0.4]), 0.7),
)
RNG = np.random.default_rng(3)
RIGHT = (RNG.random((4, 30)) < 0.8, RNG.random((4, 30)) < 0.6)
FOUND = (
    Repetition(
        0.5,
        {"shadow": Tally(31, 60), "partial": Tally(19, 30)},
        Ratios(RIGHT[0], CURVES[0]),
        1.25,
        1.75,
    ),
    Repetition(
        0.75,
        {"shadow": Tally(42, 60), "partial": Tally(11, 30)},
        Ratios(RIGHT[1], CURVES[1]),
        1.5,
        1.125,
    ),
)


def test_all_targets_are_counted(monkeypatch):
    """The largest epsilons, mean accuracies, and guesses added up; each target has its own seed."""
    seeds = []

    def of_seed(job, seed, attacks, models):
        seeds.append((seed, attacks, models))
        return FOUND[seed - 40]

    monkeypatch.setattr(session, "repetition", of_seed)
    config = load(None, {"seed": 40, "delta": 1e-4, "epsilon": 2.0, "rounds": 1}, central=True)
    found = session._attacked(Question((config,), ATTACKS, 2, 9, 100, 0.9, False), config)
    assert seeds == [(40, ATTACKS, 9), (41, ATTACKS, 9)]
    assert (found.mechanism, found.budget, found.records, found.test_accuracy) == (
        "dpsgd",
        2.0,
        100,
        0.625,
    )
    assert (found.epsilon_certified, found.epsilon_published) == (1.5, 1.75)
    shadow, partial, lira = found.successes
    assert (shadow.right, shadow.guesses, shadow.by_target) == (73, 120, (31 / 60, 42 / 60))
    assert (partial.right, partial.guesses, partial.by_target) == (30, 60, (19 / 30, 11 / 30))
    assert (shadow.low, shadow.high) == success.of_counts(Tally(73, 120), 0.9)
    assert (shadow.area, shadow.true_positives) == (None, (None, None, None))
    assert (lira.right, lira.guesses) == (int(RIGHT[0].sum() + RIGHT[1].sum()), 240)
    assert lira.by_target == (RIGHT[0].mean(), RIGHT[1].mean())
    shares = [np.mean([*RIGHT[0][:, n], *RIGHT[1][:, n]]) for n in range(30)]
    interval = stats.ttest_1samp(shares, 0.0).confidence_interval(0.9)
    assert (lira.low, lira.high) == pytest.approx(tuple(interval))
    assert lira.area == pytest.approx(0.65) and lira.true_positives == pytest.approx(
        (0.3, 0.3, 0.45)
    )


@pytest.mark.parametrize("order", [(0, 1, 2), (1, 2, 0), (2, 0, 1)])
def test_epsilons_are_the_largest_of_all_repetitions_whichever_has_them(monkeypatch, order):
    """Kills the first, the last, and those of one repetition for both columns."""
    epsilons = [((1.5, 1.125), (1.25, 1.75), (1.0, 1.25))[n] for n in order]
    found = [dataclasses.replace(FOUND[0], certified=c, published=p) for c, p in epsilons]
    monkeypatch.setattr(session, "repetition", lambda job, seed, attacks, models: found[seed - 40])
    config = load(None, {"seed": 40, "delta": 1e-4, "epsilon": 2.0, "rounds": 1}, central=True)
    attacked = session._attacked(Question((config,), ATTACKS, 3, 9, 100, 0.9, False), config)
    assert (attacked.epsilon_certified, attacked.epsilon_published) == (1.5, 1.75)


def test_the_file_says_what_was_asked_for(tmp_path, monkeypatch):
    monkeypatch.setattr(session, "repetition", lambda job, seed, attacks, models: FOUND[0])
    flags = (
        f"--model=mlp --seed=9 --delta=1e-4 --epsilon=3 --targets=1 --records=90 --out={tmp_path}"
    )
    report = session.attack(
        parse([*flags.split(), "--name=a", "--models=12", "--confidence=0.7", "--budget=published"])
    )
    said = (
        report.dataset,
        report.model,
        report.seed,
        report.delta,
        report.confidence,
        report.bounded,
    )
    assert said == ("digits", "mlp", 9, 1e-4, 0.7, "published")
    assert (report.targets, report.models, report.run_dir) == (1, 12, str(tmp_path / "a"))
    assert [(one.mechanism, one.budget, one.records) for one in report.trainings] == [
        ("dpsgd", 3.0, 90),
        ("none", None, 90),
    ]
    monkeypatch.setattr(session.rundir, "choose", lambda config, resumes: tmp_path / "b")
    assert session.attack(parse([*flags.split(), "--attacks=partial"])).models is None


@pytest.mark.parametrize("guesses", [1, 7, 40])
@pytest.mark.parametrize("confidence", [0.5, 0.95])
def test_an_interval_of_counts_holds_as_often_as_it_says(guesses, confidence):
    """Summed up exactly, for 199 probabilities; too wide by no more than the steps of a count."""
    ends = [success.of_counts(Tally(right, guesses), confidence) for right in range(guesses + 1)]
    assert ends[0][0] == 0.0 and ends[-1][1] == 1.0 and all(low < high for low, high in ends)
    for p in np.linspace(0.005, 0.995, 199):
        held = np.array([low <= p <= high for low, high in ends])
        assert stats.binom.pmf(np.arange(guesses + 1), guesses, p)[held].sum() >= confidence
    for right in range(1, guesses):
        low, high = ends[right]
        assert stats.binom.sf(right - 1, guesses, low) == pytest.approx((1 - confidence) / 2)
        assert stats.binom.cdf(right, guesses, high) == pytest.approx((1 - confidence) / 2)


def test_an_interval_of_records_does_not_shrink_with_models_that_repeat_each_other():
    shares = np.random.default_rng(0).random(50)
    low, high = success.of_records(shares, 0.9)
    assert (low, high) == pytest.approx(
        tuple(stats.ttest_1samp(shares, 0.0).confidence_interval(0.9))
    )
    assert success.of_records(np.array([0.0, 1.0]), 0.99) == (0.0, 1.0)


def test_intervals_of_likelihood_ratios_hold_where_there_is_nothing_to_find():
    """400 times: models of two kinds, so that guesses about a record hang together, and coins that
    no confidence knows.

    Intervals of confidence 0.9 miss one half too often with probability 0.001; those that take
    every guess for independent, the negative control, miss it every third time.
    """
    rng, of_records, of_guesses = np.random.default_rng(0), 0, 0
    for seed in range(400):
        inside = halves(60, 16, seed_key(seed))
        kind = (np.arange(16) % 2)[:, None] * rng.normal(size=60)
        right = (likelihood_ratios(6.0 * kind + rng.normal(size=(16, 60)), inside) > 0) == inside
        low, high = success.of_records(right.mean(axis=0), 0.9)
        of_records += low <= 0.5 <= high
        low, high = success.of_counts(Tally(int(right.sum()), right.size), 0.9)
        of_guesses += low <= 0.5 <= high
    assert of_records / 400 > 0.85 > 0.8 > of_guesses / 400


def test_the_paper_s_figure_stands_beside_the_same_attack_on_the_same_data_and_mechanism():
    found = [SimpleNamespace(tallies={"shadow": Tally(3, 4)}, ratios=None)]
    asked = {"dataset": "fmnist", "mechanism": "dpsgd", "epsilon": 3.0}
    shown = session._success("shadow", load(None, asked), found, 0.95)
    assert shown.paper == 0.493 and shown.right == 3


def test_the_papers_figures_are_those_of_its_tables():
    """Every number of Tables 3 and 4 is found in its place, and no other place has one."""
    found = {}
    for dataset in ("fmnist", "cifar10", "mnist", "digits"):
        for attack in ATTACKS:
            for mechanism in MECHANISMS:
                for budget in (None, 1.0, 2.0, 2.5, 3.0, 4.0):
                    value = papers.accuracy(dataset, attack, mechanism, budget)
                    found |= {} if value is None else {(dataset, attack, mechanism, budget): value}
    private = {key: value for key, value in found.items() if key[2] != "none"}
    assert len(private) == 32 and {key[3] for key in private} == {1.0, 2.0, 3.0, 4.0}
    table = entry("dpsur-pvldb-2024/table-4/White-Box Partial")
    assert private["cifar10", "partial", "dpsur", 3.0] == table["DPSUR"]["3"] == 0.502
    assert private["fmnist", "shadow", "dpsgd", 3.0] == 0.493
    assert (
        found["fmnist", "shadow", "none", None] == 0.582
        and found["cifar10", "partial", "none", 4.0] == 0.743
    )


def test_guesses_are_counted_on_both_sides():
    """An attack that always says "member", or never, is right about half; one that sees everything,
    always."""
    rng = np.random.default_rng(0)
    members, others = rng.normal(1.0, 0.1, (30, 2)), rng.normal(-1.0, 0.1, (30, 2))
    assert judge((members, others), (members, others), 0) == Tally(60, 60)
    assert judge((members, others), (members, members[:20]), 0) == Tally(30, 50)
    assert judge((members, others), (others[:20], others), 0) == Tally(30, 50)


def test_what_overflows_is_the_largest_feature_of_all():
    """Training was lost: the classifier refuses infinite values."""
    small, large = np.zeros((20, 1)), np.full((20, 1), np.inf)
    assert judge((large, small), (large, small), 0) == Tally(40, 40)
    assert judge((-large, small), (-large, small), 0) == Tally(40, 40)
    unknown = np.full((20, 1), np.nan)
    assert judge((unknown, large), (unknown, large), 0) == Tally(40, 40)


PRICED = {"dpsgd": (), "dpsur": ("--dpsur-accounting=visible",), "dpis": ()}


@pytest.mark.parametrize("mechanism", PRICED)
def test_at_a_given_noise_training_ends_with_the_last_round_that_the_budget_pays_for(mechanism):
    flags = (
        "--noise-multiplier=2",
        "--epsilon=4",
        "--rounds=60",
        "--steps=3",
        "--batch-size=20",
        "--delta=1e-3",
    )
    config = parse([*flags, f"--mechanism={mechanism}", *PRICED[mechanism]]).configs[0]
    own = getattr(config, mechanism, None)

    def cost(steps: int) -> float:
        unbounded = config.privacy.model_copy(update={"epsilon": 1e6})
        table = plan_table(unbounded, own, steps, 1, np.array([90]))
        return epsilon(planned(table.plans[0], 1), 1e-3).epsilon

    paid = paid_steps(config, 180, 90)
    assert paid % 3 == 0 and 3 <= paid < 180
    if mechanism != "dpis":  # which spends its budget, whatever it is
        assert cost(paid) <= 4.0 < cost(paid + 3)
    unlike = {"noise_multiplier": None}, {"epsilon": None}, {"mechanism": "none"}, {"epsilon": 1e5}
    for update in unlike[: 2 if mechanism == "dpis" else 4]:
        other = config.model_copy(update={"privacy": config.privacy.model_copy(update=update)})
        assert paid_steps(other, 180, 90) == 180


@pytest.mark.parametrize("accounting", ["visible", "selective", "every-trial"])
def test_the_papers_epsilon_is_that_of_the_steps_that_were_accepted(accounting, monkeypatch):
    flags = (
        f"--mechanism=dpsur --dpsur-accounting={accounting} --noise-multiplier=2 --epsilon=none "
        "--delta=1e-4 --rounds=2"
    )
    job, ends = (
        build(parse([*flags.split(), "--rounds=2", "--steps=20", "--batch-size=20"]).configs[0]),
        [],
    )
    real = trainings.local_round
    monkeypatch.setattr(
        trainings, "local_round", lambda *given: ends.append(real(*given)) or ends[-1]
    )
    found = train(job, [np.arange(90), np.arange(300)], seed_key(0))
    table = plan_table(job.config.privacy, job.config.dpsur, 40, 1, np.array([90, 300]))
    claims = [table.of(n).claims(int(taken), 1) for n, taken in enumerate(ends[0].taken.tolist())]
    assert found.epsilon_published == max(
        epsilon(one, 1e-4, "published").epsilon for one in claims if one
    )
    assert (min(ends[0].taken) < 40) == (accounting != "selective")


def test_a_training_that_ends_early_has_the_rates_of_the_whole_and_meets_its_budget(monkeypatch):
    """Each of another size has its own end; rates fall over the planned length, as in a run that
    ends early."""
    flags = (
        "--noise-multiplier=2 --epsilon=4 --rounds=60 --steps=3 --batch-size=20 --delta=1e-3 "
        "--lr-schedule=linear"
    )
    job, seen = build(parse([*flags.split(), "--lr=1"]).configs[0]), []
    real = trainings.local_round
    monkeypatch.setattr(
        trainings,
        "local_round",
        lambda row, cohort, start: seen.append(cohort) or real(row, cohort, start),
    )
    found = train(job, [np.arange(90), np.arange(300)], seed_key(0))
    steps = [plan.steps for plan in seen[0].plans]
    assert steps == [paid_steps(job.config, 180, 90), 180] and steps[0] < 180
    assert seen[0].learning_rate(np.array([90.0, 45.0])) == pytest.approx([0.5, 0.75])
    assert 3.5 < found.epsilon <= 4.0 and found.epsilon_published == pytest.approx(
        found.epsilon, rel=0.2
    )
    assert found.epsilon_published != found.epsilon


def test_of_several_trainings_the_one_that_costs_most_counts():
    """The smaller one stops further from the budget, for a round of its own costs more."""
    flags = "--noise-multiplier=2 --epsilon=2.7 --rounds=3 --steps=30 --batch-size=20 --delta=1e-3"
    job = build(parse(flags.split()).configs[0])
    found = train(job, [np.arange(90), np.arange(120)], seed_key(0))
    costs = [
        epsilon({SampledGaussian(20 / size, 2.0): paid_steps(job.config, 90, size)}, 1e-3).epsilon
        for size in (90, 120)
    ]
    assert costs[0] < costs[1] - 0.1 and found.epsilon == pytest.approx(costs[1])


def test_the_terminal_says_which_training_is_attacked(monkeypatch):
    """With its number and its budget; nothing where the run is quiet."""
    lines, made = [], []

    class Terminal:
        def __init__(self, **given):
            made.append(given)

        @contextlib.contextmanager
        def status(self, first):
            lines.append(first)
            yield SimpleNamespace(update=lines.append)

    monkeypatch.setattr(showing, "Console", Terminal)
    configs = parse(["--epsilons=2,4", "--quiet"]).configs
    assert list(one_by_one(configs)) == list(configs)
    texts = ["1 of 3: dpsgd at epsilon 2.0", "2 of 3: dpsgd at epsilon 4.0", "3 of 3: none"]
    assert lines == ["", *texts] and made == [{"stderr": True, "quiet": True}]
    assert list(one_by_one(parse([]).configs)) and made[1] == {"stderr": True, "quiet": False}
