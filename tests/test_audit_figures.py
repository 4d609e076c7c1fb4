"""Every number of an audit: counts of guesses against plain counting, and each figure under its
name."""

import dataclasses
import json

import numpy as np
import pytest
import torch

from mechanisms.accounting.accountant import epsilon
from mechanisms.mechanism import local_round
from mechanisms.plan import planned
from mechanisms.randomness import seed_key
from server import sealed_json
from sim.auditing import session
from sim.auditing.bounds import MAX_EPSILON, one_run_epsilon, one_run_p_value
from sim.auditing.one_run import SHARES, Guesses, guess
from sim.auditing.trainings import train
from sim.commands.flags import parse
from sim.job.job import Job
from sim.phases.build import build
from sim.showing.audit import Audit, section
from tests import unequal

DELTA, CONFIDENCE = 1e-5, 0.9


def counted(scores: list[float], included: list[bool]) -> list[Guesses]:
    """Each choice of how many to guess, by plain counting."""
    ranked = sorted(zip(scores, included, strict=True), reverse=True)
    found = []
    for share in SHARES:
        side = int(len(scores) * share / 2)
        inside, outside = ranked[:side], ranked[len(ranked) - side :]
        right = sum(coin for _, coin in inside) + sum(not coin for _, coin in outside)
        bound = one_run_epsilon(
            2 * side, right, len(scores), DELTA, 1 - (1 - CONFIDENCE) / len(SHARES)
        )
        found.append(Guesses(len(scores), 2 * side, right, bound))
    return found


def attack(
    informed: float, wrong: float, coins: int, included: int
) -> tuple[np.ndarray, np.ndarray]:
    """Scores and coins: this share of the coins is known, the surer the further from 0, but some
    wrongly."""
    rng = np.random.default_rng(0)
    out = rng.permutation(coins) >= included
    sure, guessed = rng.permutation(coins) / coins, np.where(rng.random(coins) < 0.5, 1e-6, -1e-6)
    believed = np.where(out ^ (rng.random(coins) < wrong), -1.0, 1.0)
    return sure * np.where(sure >= 1 - informed, believed, guessed), ~out


@pytest.mark.parametrize("informed", [0.03, 0.1, 0.2, 0.5, 1.0])
@pytest.mark.parametrize(
    "ends", [(1.0, 1.0), (1.0, 1e-9), (1e-9, 1.0)], ids=["both", "above", "below"]
)
def test_guesses_are_counted_as_they_are_made(informed, ends):
    """An odd number of coins, more out than in, of which those at one end or both are known, some
    wrongly. Kills a side that is not counted, an end that is taken for the other, and the count of
    another choice."""
    scores, included = attack(informed, 0.1, 1_001, 430)
    scores = scores * np.where(scores > 0, *ends)
    choices = counted(scores.tolist(), included.tolist())
    found = guess(scores, included, DELTA, CONFIDENCE)
    assert found in choices and found.epsilon == max(one.epsilon for one in choices)
    assert found.coins == 1_001 and found.right < found.guesses
    assert found.epsilon > 0 or informed < 0.2 or ends != (1.0, 1.0)


@pytest.mark.parametrize("informed", [0.02, 0.05, 0.1, 0.2, 0.5, 1.0])
def test_what_is_known_decides_how_much_is_guessed(informed):
    """Else the test above would not see one share in the place of another's."""
    sure, included = np.arange(4_000, 0, -1) / 4_000, np.arange(4_000) % 2 == 0
    guessed = np.where(np.random.default_rng(0).random(4_000) < 0.5, 1e-6, -1e-6)
    scores = sure * np.where(sure > 1 - informed, np.where(included, 1.0, -1.0), guessed)
    assert guess(scores, included, 0.0, CONFIDENCE).guesses == informed * 4_000


def test_ties_are_broken_before_the_coins_are_seen():
    """Equal scores of a useless attack: by place, so that nobody is guessed rightly on purpose."""
    included = np.arange(400) < 200
    assert guess(np.zeros(400), included, DELTA, CONFIDENCE).epsilon == 0
    assert guess(np.zeros(400), ~included, DELTA, CONFIDENCE).right == 400


def test_the_bound_of_a_perfect_attack_ends_at_the_largest():
    assert one_run_epsilon(10**6, 10**6, 10**6, 0.0, 1 - 1e-9) < MAX_EPSILON
    assert one_run_p_value(4, 4, 4, 0.0, 0.0) == 1 / 16
    assert (
        one_run_epsilon(4, 4, 4, 0.0, 1 - 1 / 16) == 0.0 < one_run_epsilon(5, 5, 5, 0.0, 1 - 1 / 16)
    )


AUDIT = Audit(
    view="white-box",
    confidence=0.97,
    delta=2e-6,
    canaries=331,
    guesses=124,
    right=93,
    epsilon_lower=1.2346,
    epsilon_certified=7.25,
    epsilon_published=8.375,
    clients=((0, 87, 0.5, 4.375), (2, 244, 0.75, 7.25)),
    run_dir="runs/audited",
)


def printed(capsys, found: Audit) -> dict[str, str]:
    session.show(found)
    lines = capsys.readouterr().out.splitlines()
    return {line[:18].strip(): line[18:].strip() for line in lines}


def test_the_terminal_has_each_figure_under_its_name(capsys):
    assert printed(capsys, AUDIT) == {
        "lower bound": "1.234 with confidence 0.97",
        "certified epsilon": "7.25",
        "published epsilon": "8.375",
        "attacker": "93 of 124 guesses right, 331 canaries, white-box",
        "run directory": "runs/audited",
    }


def test_the_reports_section_has_each_figure_under_its_name(tmp_path):
    (tmp_path / "audit.json").write_bytes(sealed_json.dumps(AUDIT.to_json()))
    page = section(tmp_path)
    assert "<p>white-box: 93 of 124 guesses right, 331 canaries. A client&#x27;s own bound" in page
    assert unequal.rows(page) == [
        ["Client", "Canaries", "Lower bound, confidence 0.97", "Certified epsilon"],
        ["all", "331", "1.234", "7.25"],
        ["0", "87", "0.5", "4.375"],
        ["2", "244", "0.75", "7.25"],
    ]


def test_each_field_of_an_audit_shows_in_its_line(capsys):
    """A new field fails here until it has its line, or is said to have none."""
    before = printed(capsys, AUDIT)
    other = {
        "view": "black-box",
        "confidence": 0.5,
        "canaries": 500,
        "guesses": 200,
        "right": 99,
        "run_dir": "b",
    }
    other |= {"epsilon_lower": 0.5, "epsilon_certified": 9.5, "epsilon_published": 9.0}
    assert other.keys() | {"delta", "clients", "run"} == unequal.names(Audit)
    lines = {
        "confidence": "lower bound",
        "epsilon_lower": "lower bound",
        "epsilon_certified": "certified epsilon",
    }
    lines |= {"epsilon_published": "published epsilon", "run_dir": "run directory"}
    for name, value in other.items():
        after = printed(capsys, dataclasses.replace(AUDIT, **{name: value}))
        assert {line for line in before if before[line] != after[line]} == {
            lines.get(name, "attacker")
        }


def test_the_result_is_what_was_guessed_beside_what_was_spent():
    """Clients without canaries have no line, and the others' certified figures are their own."""
    clients = {0: Guesses(87, 40, 31, 0.5), 2: Guesses(244, 84, 62, 0.75), 4: Guesses(9, 2, 1, 0.0)}
    closing = unequal.summary(run_dir="runs/other")
    found = session._result(closing, Guesses(331, 124, 93, 1.2346), clients, "white-box", 0.97)
    expected = dataclasses.replace(
        AUDIT,
        clients=((0, 87, 0.5, 4.375), (2, 244, 0.75, 7.25), (4, 9, 0.0, 2.5)),
        run_dir="runs/other",
    )
    assert found == expected
    back = Audit.from_json(json.loads(json.dumps(found.to_json())))
    assert back.to_json() == found.to_json()


def test_of_an_audit_a_lower_bound_is_not_rounded_up(capsys):
    for bound in (1.23456, 0.99999, 12.3456):
        shown = printed(capsys, dataclasses.replace(AUDIT, epsilon_lower=bound))["lower bound"]
        assert bound - 0.01 < float(shown.split()[0]) <= bound


@pytest.fixture
def job(tmp_path) -> Job:
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 60)
    x = (rng.normal(size=(60, 5)) + 2.0 * y[:, None]).astype(np.float32)
    np.savez(tmp_path / "data.npz", x=x, y=y, x_test=x[:5], y_test=y[:5])
    flags = (
        f"--dataset {tmp_path / 'data.npz'} --epsilon 4 --delta 1e-3 --rounds 3 --batch-size 20 "
        "--epochs 1 --lr 1"
    )
    flags += " --clip-norm 0.3"
    return build(parse(flags.split(), "", "", central=True).config)


def test_trainings_have_draws_of_their_own_whatever_the_cohorts(job, monkeypatch):
    """Four trainings on the same records: four models; in cohorts of one, as in one cohort."""
    owned = [np.arange(40)] * 4
    together = train(job, owned, seed_key(3)).params.double()
    assert torch.pdist(together).min() > 1e-2
    monkeypatch.setattr("sim.auditing.trainings.AT_A_TIME", 1)
    torch.testing.assert_close(
        train(job, owned, seed_key(3)).params.double(), together, atol=1e-4, rtol=1e-4
    )


def test_a_training_has_as_many_steps_as_a_run_of_its_size(job, monkeypatch):
    """An epoch a round, three rounds; the rate falls over all of them, and the budget pays for all
    of them."""
    seen = []

    def watched(mechanism, cohort, params):
        seen.append(cohort)
        return local_round(mechanism, cohort, params)

    monkeypatch.setattr("sim.auditing.trainings.local_round", watched)
    local = job.config.local.model_copy(update={"lr_schedule": "linear"})
    falling = dataclasses.replace(job, config=job.config.model_copy(update={"local": local}))
    sizes = (40, 60, 20)
    trained = train(falling, [np.arange(size) for size in sizes], seed_key(3))
    (cohort,) = seen
    assert [(one.steps, one.sample_rate) for one in cohort.plans] == [
        (6, 0.5),
        (9, 20 / 60),
        (3, 1.0),
    ]
    assert [len(own) for own in cohort.data.records] == list(sizes) and cohort.nth == [1, 1, 1]
    rates = cohort.learning_rate(torch.tensor([3.0, 3.0, 3.0]))
    assert rates.tolist() == pytest.approx([0.5, 2 / 3, 0.0])
    assert 3.9 < trained.epsilon <= 4.0 and len(trained.params) == 3
    assert len(cohort.optimizer.init(trained.params)) == 1  # the momentum's velocity


def test_the_epsilon_of_trainings_is_the_largest_and_each_has_its_own_plan(job, monkeypatch):
    """Under a given noise, where sizes differ in rate and steps; in cohorts of one."""
    seen = []

    def watched(mechanism, cohort, params):
        seen.extend(cohort.plans)
        return local_round(mechanism, cohort, params)

    monkeypatch.setattr("sim.auditing.trainings.local_round", watched)
    monkeypatch.setattr("sim.auditing.trainings.AT_A_TIME", 1)
    privacy = job.config.privacy.model_copy(update={"noise_multiplier": 3.0, "epsilon": None})
    given = dataclasses.replace(job, config=job.config.model_copy(update={"privacy": privacy}))
    trained = train(given, [np.arange(size) for size in (60, 20, 40)], seed_key(3))
    assert [one.sample_rate for one in seen] == [20 / 60, 1.0, 0.5]
    spent = [epsilon(planned(one, 1), 1e-3).epsilon for one in seen]
    assert trained.epsilon == max(spent) == spent[1] and len(set(spent)) == 3


@pytest.mark.parametrize(
    ("most", "count", "black_box", "planted"),
    [
        (1_000, None, False, 6),
        (1_000, None, True, 30),
        (4, None, True, 4),
        (4, 7, False, 7),
        (4, 60, True, 60),
    ],
)
def test_how_many_canaries_there_are_where_nobody_says(
    job, monkeypatch, most, count, black_box, planted
):
    """Half of the 60 records, or of the 12 parameters for gradient canaries; at most
    `MAX_CANARIES`."""
    monkeypatch.setattr("sim.auditing.one_run.MAX_CANARIES", most)
    found = session._plant(job, count, black_box)
    assert len(found.records) == planted and found.planted.size == (0.0 if black_box else 3.0)
    assert bool(len(found.coordinates)) is not black_box
