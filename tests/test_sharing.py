"""What clients release before training: clip, noise, charges and draws of class sums and of single
records."""

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
import torch
from scipy import stats

from mechanisms.accounting.curves import rdp
from mechanisms.accounting.events import (
    Gaussian,
    PublicLabels,
    RandomizedResponse,
    Unprotected,
    VisibleChoice,
)
from mechanisms.arithmetic import FLOATS, GRID
from mechanisms.randomness import Streams, seed_key
from mechanisms.sharing import ClassSums, SharingPlan, SingleRecords, Sum, clipped

CPU, CLASSES, WIDTH, BOUND = torch.device("cpu"), 4, 6, 2.0
RNG = np.random.default_rng(1)
SIZES = (5, 1, 30)
X = [torch.from_numpy(3 * RNG.normal(size=(n, 2, 3)).astype(np.float32)) for n in SIZES]
Y = [torch.from_numpy(RNG.integers(0, CLASSES - 1, n)) for n in SIZES]
"""Three clients; nobody has a record of the last class."""

SINGLY = SharingPlan(0.7, BOUND, singly=True, label_epsilon=1.5)


def flat(x: torch.Tensor) -> torch.Tensor:
    return x.flatten(1)


def streams(clients=(0, 1, 2), seed: int = 3) -> Streams:
    return Streams(seed_key(seed), 0, clients, CPU)


def sums(plan: SharingPlan, x=X, y=Y, clients=(0, 1, 2)) -> torch.Tensor:
    return ClassSums(plan, flat, CLASSES, WIDTH)(x, y, streams(clients), FLOATS).sums


def records(plan: SharingPlan, x=X, y=Y, clients=(0, 1, 2), seed: int = 3) -> dict[str, np.ndarray]:
    return SingleRecords(plan, flat, CLASSES)(x, y, streams(clients, seed), FLOATS).records


@pytest.mark.parametrize(
    ("plan", "charges"),
    [
        (SharingPlan(0.7, BOUND), {Gaussian(0.7): 1}),
        (SINGLY, {VisibleChoice(1.0, 0.7): 1, RandomizedResponse(1.5): 1}),
        (
            replace(SINGLY, views=4, share_rate=0.2),
            {VisibleChoice(0.2, 0.35): 1, RandomizedResponse(1.5): 1},
        ),
        (replace(SINGLY, label_epsilon=None), {VisibleChoice(1.0, 0.7): 1, PublicLabels(): 1}),
        (replace(SINGLY, noise_multiplier=0.0), {Unprotected(1.0): 1}),
    ],
)
def test_every_view_and_every_label_is_charged(plan, charges):
    assert plan.round_charges(1) == charges


@pytest.mark.parametrize(("rate", "views"), [(0.1, 2), (0.5, 3), (1.0, 2)])
def test_views_that_share_a_coin_cost_what_the_pair_of_releases_diverges_by(rate, views):
    """Order 2 by hand: given the coin, V looks of sensitivity 1 behind noise s have the second
    moment exp(V / s^2).

    Kills a charge of one event for each view, which is too little at a rate below 1.
    """
    plan = replace(SINGLY, share_rate=rate, views=views, label_epsilon=None)
    exact = math.log(1 - rate + rate * math.exp(views / 0.7**2))
    charged = sum(
        count * float(rdp(event, (2.0,), "certified")[0])
        for event, count in plan.round_charges(1).items()
    )
    assert charged == pytest.approx(exact, rel=1e-9)


def test_no_feature_leaves_longer_than_the_bound():
    wild = torch.cat(
        [flat(X[2]), torch.tensor([[math.nan] + [0.0] * 5, [math.inf] + [1.0] * 5, [0.1] * 6])]
    )
    sent = clipped(wild, SINGLY)
    norms, before = sent.norm(dim=1), flat(X[2]).norm(dim=1)
    assert (norms <= BOUND * (1 + 1e-6)).all() and (before > BOUND).any() and (before < BOUND).any()
    assert torch.equal(sent[-3:-1], torch.zeros(2, 6)) and torch.equal(sent[-1], wild[-1])
    assert torch.equal(sent[:-3][before <= BOUND], flat(X[2])[before <= BOUND])


def test_a_record_moves_the_sums_of_its_class_alone_and_by_the_bound_at_most():
    """Kills sums without a clip, and a record that counts in two classes."""
    quiet = SharingPlan(1e-9, BOUND)
    whole = sums(quiet)
    for record in range(SIZES[2]):
        kept = np.delete(np.arange(SIZES[2]), record)
        moved = (whole - sums(quiet, [*X[:2], X[2][kept]], [*Y[:2], Y[2][kept]]))[2].view(
            CLASSES, WIDTH
        )
        label = int(Y[2][record])
        assert moved[label].norm() <= BOUND + 1e-4
        assert torch.allclose(
            moved[label], clipped(flat(X[2][record : record + 1]), quiet)[0].float(), atol=1e-4
        )
        assert moved[torch.arange(CLASSES) != label].abs().max() < 1e-4


@pytest.mark.parametrize("kind", ["classes", "sum"])
def test_a_record_among_many_moves_a_sum_by_no_more_than_itself(kind):
    """Rounded partial sums, just below 2^18, are moved by half a unit in each of 40,000 additions:
    in float32, class sums move by 46 times the bound (Casacuberta, Shoemate, Vadhan, Wagaman, CCS
    2022)."""
    bound, top, unit = 14.0, 2.0**18, 2.0**-5
    head = [bound] * int(top // bound)
    head.append(top - sum(head) - 4 * unit)
    pairs = [0.5 * unit + unit / 64, -0.5 * unit + unit / 64] * 20_000
    plan = SharingPlan(1e-12, bound)

    def total(record: float) -> float:
        x = torch.tensor([*head, record, *pairs])[:, None]
        release = ClassSums(plan, flat, 1, 1) if kind == "classes" else Sum(plan, flat, 1)
        return release(
            [x], [torch.zeros(len(x), dtype=torch.int64)], streams((0,)), FLOATS
        ).sums.item()

    # one unit for the rounding of the release itself, which comes after the noise
    assert abs(total(8 * unit) - total(0.0) - 8 * unit) <= unit


def test_a_class_without_records_is_released_as_noise():
    """Its absence would tell that there is none."""
    assert (sums(SharingPlan(0.7, BOUND)).view(3, CLASSES, WIDTH)[:, -1] != 0).all()


@pytest.mark.parametrize("release", ["sums", "records"])
def test_the_noise_is_gaussian_with_the_charged_scale_and_each_record_has_its_own(release):
    """Kills one noise image for a whole batch, noise without the bound, and noise used for two
    views.

    Kolmogorov-Smirnov and correlation tests at level 1e-6 each; half the noise must fail both.
    """
    x, y = [torch.zeros(2_000, WIDTH)], [torch.zeros(2_000, dtype=torch.int64)]
    if release == "records":
        plan = replace(SINGLY, views=2)
        noise = records(plan, x, y, clients=(0,))["x"]
        assert len(noise) == 4_000 and len(np.unique(noise, axis=0)) == 4_000
        assert abs(
            stats.pearsonr(noise[:2_000].ravel(), noise[2_000:].ravel()).statistic
        ) < 4.9 / math.sqrt(12_000)
    else:
        plan = SharingPlan(0.7, BOUND)
        rows = ClassSums(plan, flat, 2_000, WIDTH)(
            [x[0][:0]], [y[0][:0]], streams((0,)), FLOATS
        ).sums
        noise = rows.numpy().reshape(2_000, WIDTH)
    scaled = noise.ravel() / (0.7 * BOUND)
    assert stats.kstest(scaled, "norm").pvalue > 1e-6
    assert stats.kstest(scaled / 2, "norm").pvalue < 1e-6
    correlation = np.corrcoef(noise[:-1].ravel(), noise[1:].ravel())[0, 1]
    assert abs(correlation) < 4.9 / math.sqrt(scaled.size - WIDTH)


def test_labels_go_through_randomized_response():
    """Truth with probability e^eps / (e^eps + k - 1), every other label alike; exact binomial tests
    at level 1e-6."""
    truth = torch.ones(20_000, dtype=torch.int64)
    answers = records(SINGLY, [torch.zeros(20_000, 1)], [truth], clients=(0,))["y"]
    truthful = math.exp(1.5) / (math.exp(1.5) + CLASSES - 1)
    counts = np.bincount(answers, minlength=CLASSES)
    for label, count in enumerate(counts):
        share = truthful if label == 1 else (1 - truthful) / (CLASSES - 1)
        assert stats.binomtest(int(count), 20_000, share).pvalue > 1e-6
    assert stats.binomtest(int(counts[1]), 20_000, 0.9).pvalue < 1e-6
    public = records(
        replace(SINGLY, label_epsilon=None), [torch.zeros(9, 1)], [truth[:9]], clients=(0,)
    )["y"]
    assert public.tolist() == [1] * 9


def test_a_label_is_answered_once_for_all_views_of_its_record():
    """As it is charged: of several answers the most frequent one would tell. Kills an answer with
    each view."""
    truth = [torch.ones(500, dtype=torch.int64)]
    answers = records(replace(SINGLY, views=3), [torch.zeros(500, 1)], truth, clients=(0,))[
        "y"
    ].reshape(3, 500)
    assert (answers == answers[0]).all() and len(np.unique(answers)) > 1


def test_a_chosen_record_keeps_its_label():
    plan = replace(SINGLY, share_rate=0.5, noise_multiplier=1e-6, label_epsilon=None)
    labels = torch.arange(60) % 7 % 3
    found = records(plan, [torch.eye(3)[labels]], [labels], clients=(0,))
    assert 10 < len(found["y"]) < 50
    assert np.array_equal(found["x"].argmax(axis=1), found["y"])


def test_slots_are_chosen_by_coins_that_do_not_look_at_records():
    plan = replace(SINGLY, share_rate=0.3)
    first = records(plan)
    second = records(plan, [torch.zeros_like(x) for x in X], [y.clone().fill_(2) for y in Y])
    assert np.array_equal(first["client"], second["client"])
    shares = [len(records(plan, seed=seed)["y"]) for seed in range(200)]
    assert stats.binomtest(sum(shares), 200 * sum(SIZES), 0.3).pvalue > 1e-6


def test_a_client_of_one_record_and_one_without_a_chosen_record_release_what_they_can():
    plan = replace(SINGLY, share_rate=0.02)
    found = [records(plan, seed=seed) for seed in range(8)]
    assert any(len(one["y"]) == 0 for one in found), "no slot chosen anywhere"
    for one in found:
        assert one["x"].shape == (len(one["y"]), WIDTH) and one["x"].dtype == np.float32
    assert (records(SINGLY)["client"] == 1).sum() == 1


@pytest.mark.parametrize(
    "plan", [SharingPlan(0.7, BOUND), replace(SINGLY, share_rate=0.5, views=2)]
)
def test_a_cohort_releases_what_its_clients_would_alone(plan):
    if not plan.singly:
        alone = [sums(plan, X[k : k + 1], Y[k : k + 1], (k,)) for k in range(3)]
        assert torch.equal(sums(plan), torch.cat(alone))
        return
    whole = records(plan)
    for k in range(3):
        alone = records(plan, X[k : k + 1], Y[k : k + 1], (k,))
        assert np.array_equal(whole["x"][whole["client"] == k], alone["x"])
        assert np.array_equal(whole["y"][whole["client"] == k], alone["y"])


class Counted:
    """A source whose coins are chosen, and whose other draws are 1."""

    def __init__(self, coin: float):
        self._coin = coin

    def random(self, size: int) -> np.ndarray:
        return np.full(size, self._coin)

    def integers(self, low: int, high: int, size: int) -> np.ndarray:
        return np.ones(size, dtype=np.int64)


@pytest.mark.parametrize("epsilon", [0.1, 2.0, 20.0, 34.0, 36.5, 40.0, 700.0, 1e4])
@pytest.mark.parametrize("classes", [2, 10])
def test_a_label_is_never_told_more_often_than_is_charged(epsilon, classes):
    """The number of coins that lie, out of 2^53, exactly: truth over a lie is at most e^epsilon.

    Kills a probability that is rounded towards the truth: at 37 and more no coin would lie.
    """
    release = SingleRecords(SharingPlan(1.0, 1.0, True, label_epsilon=epsilon), flat, classes)

    def lies(count: int) -> bool:
        return int(release._answers(np.array([0]), Counted(count * 2.0**-53))[0]) != 0

    low, high = 0, 2**53
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if lies(middle) else (low, middle)
    assert lies(0)
    lying = Fraction(high, 2**53)
    ratio = (1 - lying) / (lying / (classes - 1))
    assert math.log(ratio) <= epsilon * (1 + 1e-12)
    assert math.log(ratio) >= min(epsilon, 30.0) - 1e-5


def test_without_noise_there_is_none_whatever_the_bound():
    """Kills 0 times an infinite bound, which is no number, and a grid in units of such a bound."""
    for bound in (1.0, math.inf):
        assert SharingPlan(0.0, bound).noise_std == 0.0 and SharingPlan(2.0, 0.5).noise_std == 1.0
        assert SharingPlan(0.0, bound).arithmetic(GRID) is FLOATS
    for of_run in (GRID, FLOATS):
        assert SharingPlan(2.0, 0.5).arithmetic(of_run) is of_run
