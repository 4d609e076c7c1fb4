"""Epsilon for several records of one person: never below that of any records, and hardly above."""

import math

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.special import comb, ndtr
from scipy.stats import hypergeom

from mechanisms.accounting import accountant, group, ledger, mixture, profile, trial_cap
from mechanisms.accounting.events import (
    Allotment,
    DpsurStep,
    Event,
    Gaussian,
    HeterogeneousGaussian,
    PartialPass,
    PublicLabels,
    RandomizedResponse,
    SampledGaussian,
    ScreenedStep,
    TrialCap,
    Unprotected,
    VisibleChoice,
)
from mechanisms.batches import CHARGES as OF_BATCHES
from sim.account import command
from sim.commands.guard import main_guard
from sim.library.result import Result
from sim.showing import wording
from sim.showing.report import write_report
from tests import unequal
from tests.test_account_command import make_run, run
from tests.vouched import vouch

DELTA = 1e-5
LOSSES = np.array([-3.0, -0.2, 0.0, 1e-4, 0.03, 0.4, 2.0, 5.0])
VISIBLE = DpsurStep(0.05, 2.0, 0.03, 2.0, -1.0, "visible")
SELECTIVE = DpsurStep(0.05, 2.0, 0.03, 2.0, -1.0, "selective")


def densities(q: float, s: float, k: int, width: float) -> tuple[np.ndarray, np.ndarray]:
    """Masses with k records that all point the same way and without, on a fine grid."""
    x = np.arange(-11 * s, k + 11 * s, width * s)
    masses = [np.exp(-0.5 * ((x - j) / s) ** 2) for j in range(k + 1)]
    weights = [comb(k, j) * q**j * (1 - q) ** (k - j) for j in range(k + 1)]
    unit = width / math.sqrt(2 * math.pi)
    return unit * sum(w * m for w, m in zip(weights, masses, strict=True)), unit * masses[0]


@pytest.mark.parametrize("k", [2, 3, 8])
@pytest.mark.parametrize(("q", "s"), [(1.0, 3.0), (0.6, 0.7), (0.02, 1.2), (1e-4, 0.4)])
@pytest.mark.parametrize("adding", [False, True])
def test_the_profile_of_several_records_is_the_integral_over_the_best_test(q, s, k, adding):
    """Kills a mixture of other shares, and records in one direction alone."""
    with_records, without = densities(q, s, k, 1e-3)
    p, r = (without, with_records) if adding else (with_records, without)
    pair = profile.both_ways(profile.Part(1.0, 0.0, q, s, k))
    found, error = pair.excess(LOSSES, adding)
    found += np.maximum(-np.expm1(LOSSES), 0.0)
    exact = [float(np.maximum(p - math.exp(loss) * r, 0.0).sum()) for loss in LOSSES]
    assert found == pytest.approx(exact, rel=2e-6, abs=1e-11)
    assert (error >= 0.0).all() and (error <= 1e-12 * np.exp(np.maximum(LOSSES, 0.0))).all()


@pytest.mark.parametrize("rate", [1.0, 0.3, 1e-3])
@pytest.mark.parametrize("s", [0.1, 1.0, 200.0])
def test_one_record_of_a_mixture_is_a_sampled_gaussian(rate, s):
    """Its two formulas agree where the two are far below the rounding of 1, too."""
    for adding in (False, True):
        losses = np.abs(LOSSES)
        one, size = mixture.sampled(rate, s, 1, losses, adding)
        other, known = profile._sampled(rate, s, losses, adding)
        assert (np.abs(one - other) <= 3e-13 * (size + known) + 1e-300).all()


@pytest.mark.parametrize("adding", [False, True])
def test_no_other_directions_of_two_records_are_worse(adding):
    """Orthogonal, opposite and shorter gradients, on a plane."""
    q, s, width = 0.3, 1.0, 0.05
    x, y = np.meshgrid(np.arange(-8, 10, width), np.arange(-8, 10, width))

    def at(a: float, b: float) -> np.ndarray:
        return np.exp(-((x - a) ** 2 + (y - b) ** 2) / (2 * s**2)) * width**2 / (2 * math.pi)

    most = group.epsilon({SampledGaussian(q, s): 1}, DELTA, 2).epsilon
    pair = profile.both_ways(profile.Part(1.0, 0.0, q, s, 2))
    worst, _ = pair.excess(np.array([0.3, most]), adding)
    for a, b in ((0.0, 1.0), (-1.0, 0.0), (0.6, 0.6), (0.5, 0.0)):
        mixed = (1 - q) ** 2 * at(0, 0) + q * (1 - q) * (at(1, 0) + at(a, b)) + q * q * at(1 + a, b)
        p, r = (at(0, 0), mixed) if adding else (mixed, at(0, 0))
        for loss, limit in zip((0.3, most), worst, strict=True):
            assert float(np.maximum(p - math.exp(loss) * r, 0.0).sum()) <= limit


@pytest.mark.parametrize(
    ("q", "s", "k"), [(0.1, 1.0, 2), (0.3, 1.5, 3), (1.0, 4.0, 3), (0.5, 1.0, 5)]
)
def test_two_steps_have_their_exact_epsilon_for_several_records(q, s, k):
    """By an integral over both steps."""
    with_records, without = densities(q, s, k, 0.02)
    losses = np.log(with_records) - np.log(without)
    found = group.epsilon({SampledGaussian(q, s): 2}, DELTA, k)
    assert found.method == "loss distributions"

    def delta(eps: float) -> float:
        both = np.add.outer(losses, losses)
        one = np.multiply.outer(with_records, with_records)
        other = np.multiply.outer(without, without)
        gains = -np.expm1(np.minimum(eps - both, 0.0)), -np.expm1(np.minimum(eps + both, 0.0))
        return max(float((one * gains[0]).sum()), float((other * gains[1]).sum()))

    share = (1 - accountant.IN_PROGRESS) * DELTA
    assert delta(found.epsilon) <= share < delta(0.995 * found.epsilon)


@pytest.mark.parametrize(("q", "s", "k"), [(1.45e-4, 0.822, 20), (0.3, 1.5, 3), (1.0, 4.0, 3)])
def test_outcomes_are_looked_at_as_far_as_they_matter(q, s, k):
    """Beyond the end there is as little as beyond 7 deviations of a normal variable. Kills an end
    beyond batches that hold all records, however rare those are."""
    end, little = mixture.farthest(q, s, k, 7.0), float(ndtr(-7.0))
    weights = [comb(k, j) * q**j * (1 - q) ** (k - j) for j in range(k + 1)]
    beyond = float(np.dot(weights, ndtr((np.arange(k + 1) - end) / s)))
    assert 0.99 * little < beyond <= little * (1 + 1e-9)


def test_many_records_that_are_rarely_together_cost_what_they_do():
    """By a composition on another grid it is 0.6390 to 0.6391. With losses of 20 records at once,
    which no batch will ever hold, it was twice as much: they set the tilt."""
    found = group.epsilon({SampledGaussian(1.45e-4, 0.822): 500}, 2e-5, 20)
    assert found.method == "loss distributions"
    assert 0.639 < found.epsilon < 0.6395


def test_losses_beyond_floats_leave_a_figure():
    """At 50 records in a batch the loss is in the thousands; no batch holds so many."""
    found = group.epsilon({SampledGaussian(1e-3, 0.8): 50}, 1e-6, 50)
    assert found.method == "loss distributions" and found.epsilon < 20.0


CHARGES: dict[str, dict[Event, int]] = {
    "steps": {SampledGaussian(0.05, 1.5): 30, Gaussian(20.0): 1},
    "shaped noise": {HeterogeneousGaussian(0.05, 2.0, 0.6): 10, PublicLabels(): 1},
    "public test": {ScreenedStep(0.1, 3.0, 1.0, 0.5, "public-test"): 10},
    "shared": {VisibleChoice(0.3, 4.0): 1, RandomizedResponse(0.3): 1},
    "tested": {VISIBLE: 20},
    "hidden": {SELECTIVE: 10, TrialCap(0.2, 80): 10},
    "hidden beside Gaussians": {SELECTIVE: 10, TrialCap(0.2, 70): 10, Gaussian(4.0): 40},
    "passes": {Gaussian(4.0): 1, PartialPass(0.3, 4.0): 1},
    "adaptive": {Allotment(6.0, 0.05, 4): 2},
}


@pytest.mark.parametrize("name", CHARGES)
def test_one_record_costs_the_certified_epsilon_and_more_records_more(name):
    """Two records at once cost no more than one after the other. A bound at order 6 alone says
    nothing of 8 records. Each way has the same share of delta, as for one record."""
    charges = CHARGES[name]
    found = [group.epsilon(charges, DELTA, k).epsilon for k in (1, 2, 3, 4, 8)]
    assert found[0] == accountant.epsilon(charges, DELTA).epsilon
    assert found == sorted(found) and found[0] < found[1] < found[2] < found[3] < math.inf
    assert found[4] > found[3] and (found[4] == math.inf) == (name == "adaptive")
    kept = {e: n for e, n in charges.items() if not isinstance(e, TrialCap)}
    lost = accountant.cap_delta(charges)
    own = DELTA * accountant.share_of_the_end(charges)
    least = min(way(kept, own - lost, 2) for way in (group.renyi, group.chain))
    if lost:
        assert found[1] == trial_cap.with_cap(least, lost)
    elif group.epsilon(charges, DELTA, 2).method == "loss distributions":
        assert found[1] <= least
    else:
        assert found[1] == least


def test_what_is_released_of_each_record_alone_is_released_of_several():
    """Kills the record's own noise added up, as in a sum."""
    shared = CHARGES["shared"]
    three = {event: 3 * count for event, count in shared.items()}
    assert group.epsilon(shared, DELTA, 3).epsilon == accountant.epsilon(three, DELTA).epsilon


@pytest.mark.parametrize("k", [2, 3, 6])
@pytest.mark.parametrize(("b", "n", "s"), [(5, 10, 1.0), (40, 50, 4.0), (20, 200, 2.0)])
def test_records_in_one_batch_of_a_pass_cost_what_they_move_its_sum_together(b, n, s, k):
    """The first batch of a pass, by the exact law of how many of them are in it; nearly as much if
    that number is told. Kills records that count as if each had noise of its own, as where each is
    released alone."""
    charges = OF_BATCHES["shuffled"](b / n, n, s, 1)
    found = group.epsilon(charges, DELTA, k).epsilon
    x, width = np.linspace(-9 * s, k + 9 * s, 20_001, retstep=True)
    unit = width / math.sqrt(2 * math.pi) / s
    masses = unit * np.exp(-0.5 * ((x - np.arange(k + 1)[:, None]) / s) ** 2)
    shares, theirs = hypergeom.pmf(np.arange(k + 1), n, k, b)[:, None], masses[0]

    def excess(eps: float, ours: np.ndarray, theirs: np.ndarray) -> float:
        return float(np.maximum(ours - math.exp(eps) * theirs, 0.0).sum()) - DELTA

    laws = (shares.T @ masses, theirs), (shares * masses, shares * theirs)
    least, told = (brentq(excess, 0.0, 200.0, args=law) for law in laws)
    assert least <= found and told <= found <= 1.3 * told
    assert group.epsilon({VisibleChoice(b / n, s): 1}, DELTA, k).epsilon < told


def gaussian_delta(mean: float, eps: float) -> float:
    return float(ndtr(mean / 2 - eps / mean) - math.exp(eps) * ndtr(-mean / 2 - eps / mean))


@pytest.mark.parametrize("k", [2, 3, 4, 7, 8])
def test_the_renyi_bound_of_a_chain_is_nearly_exact_for_gaussians(k):
    """k records of a Gaussian are one Gaussian with a k-th of its noise. Kills a coefficient of the
    triangle inequality, orders that are rounded down, and Mironov's Proposition 2, which is 1.5
    times as large."""
    charges = {Gaussian(9.0): 1}
    grid = accountant.ORDERS
    exact = accountant.epsilon({Gaussian(9.0 / k): 1}, DELTA, orders=grid).epsilon
    assert exact <= group.renyi(charges, DELTA, k) <= 1.06 * exact


@pytest.mark.parametrize("k", [2, 5])
def test_a_chain_pays_for_each_step_out_of_delta(k):
    """Kills equal parts of delta, which are too large."""
    eps = group.chain({Gaussian(9.0): 1}, DELTA, k) / k
    parts = sum(math.exp(n * eps) for n in range(k))
    share = 1 - accountant.IN_PROGRESS
    assert gaussian_delta(1 / 9.0, eps) * parts <= share * DELTA
    assert gaussian_delta(1 / 9.0, 0.98 * eps) * parts > share * DELTA
    assert gaussian_delta(k / 9.0, k * eps) <= DELTA


def test_what_has_no_guarantee_for_one_has_none_for_two():
    for charges in ({Unprotected(0.5): 1}, {SELECTIVE: 1, TrialCap(0.2, 1): 1}):
        assert group.epsilon(charges, DELTA, 2) == group.Guarantee(math.inf, "")
    assert group.epsilon({}, DELTA, 2) == group.Guarantee(0.0, "")


CONFIG = "[privacy]\ndelta = 1e-6\n[data]\nclients = 3\n"


def test_a_ledger_is_priced_for_several_records(capsys, tmp_path, monkeypatch):
    """Of each client, in JSON, the table and Python; only when the run is over."""
    folder = make_run(tmp_path / "run", CONFIG)
    arguments = ["--ledger", str(folder), "--group", "3"]
    (folder / "summary.json").unlink()
    assert main_guard(command, arguments) == 2
    assert "--group 3 needs a finished run" in capsys.readouterr().err
    vouch(folder, finished=True)
    found = run(capsys, *arguments)["clients"]
    paid = {SampledGaussian(0.01, 1.1): 600, SampledGaussian(1.0, 50.0): 1}
    expected = group.epsilon(paid, 1e-6, 3)
    assert found[0]["epsilon_group"] == expected.epsilon < found[2]["epsilon_group"]
    assert [row["group"] for row in found] == [3] * 3 and found[1]["epsilon_group"] == 0.0
    assert found[0]["group_method"] == expected.method
    monkeypatch.setenv("COLUMNS", "200")
    assert main_guard(command, arguments) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "of 3 records" in shown and wording.epsilon(expected.epsilon, digits=6) in shown


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("--group 0 --ledger", "group = 0 must be 1 to 100"),
        ("--group 101 --ledger", "group = 101 must be 1 to 100"),
        ("--group many --ledger", "--group many must be an integer"),
        ("--group 2 --records", "add --ledger"),
        ("dpsgd --sample-rate 0.1 --noise-multiplier 1 --group 2 --steps", "--group dpsgd"),
    ],
)
def test_a_bad_group_is_one_clear_line_and_status_2(capsys, tmp_path, arguments, words):
    last = str(make_run(tmp_path, CONFIG)) if "--ledger" in arguments else "4"
    vouch(tmp_path, finished=True)
    assert main_guard(command, [*arguments.split(), last]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and all(word in err for word in words.split())


def test_records_of_a_person_are_not_counted_where_clients_are_protected(capsys, tmp_path):
    folder = make_run(tmp_path, CONFIG.replace("delta", 'unit = "client"\ndelta'))
    vouch(tmp_path, finished=True)
    assert main_guard(command, ["--ledger", str(folder), "--group", "2"]) == 2
    assert "protects each client with all of its records: drop --group" in capsys.readouterr().err


def test_the_report_and_python_have_epsilons_of_several_records(tmp_path):
    """The report's are those of the client with the largest epsilon, the third; Python's is the
    largest of all."""
    folder = unequal.run_directory(tmp_path / "run")
    make_run(folder, (folder / "config.toml").read_text())
    page = write_report(folder).read_text()
    rows = unequal.rows(unequal.section(page, "Privacy spent"))
    (place,) = [n for n, row in enumerate(rows) if row[0] == "Records of one person"]
    paid = ledger.read(folder / "ledger")[2]
    assert paid[SampledGaussian(0.01, 1.1)] == 1000
    sizes = [1, 2, 4, 8]
    assert rows[place][1:] == [str(size) for size in sizes] and "client 2" in page
    for size, shown in zip(sizes, rows[place + 1][1:], strict=True):
        exact = group.epsilon(paid, 2e-6, size).epsilon
        assert exact <= float(shown) <= exact * 1.001
    assert Result(folder).epsilon_of_group(4) == group.epsilon(paid, 2e-6, 4).epsilon


def test_where_a_share_is_a_small_difference_its_digits_count_as_unknown():
    edge = -3.0 * math.log1p(-0.2)  # of all outcomes without a record of three
    _, size = mixture.sampled(0.2, 1.0, 3, np.array([edge - 1e-10]), True)
    assert size >= 0.99 * math.expm1(edge)
