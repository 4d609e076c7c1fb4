"""Batches of a fixed size and shuffled passes: what is drawn is what the plan charges for."""

import dataclasses
import itertools
import json

import numpy as np
import pytest
import torch
from scipy import stats

from mechanisms.accounting.accountant import epsilon
from mechanisms.accounting.events import FixedBatchGaussian, Gaussian, PartialPass
from mechanisms.arithmetic import GRID
from mechanisms.batches import passes
from mechanisms.entropy import SystemEntropy
from mechanisms.mechanism import local_round
from mechanisms.plan import planned
from mechanisms.registry import MECHANISMS, plan_table
from mechanisms.sampling import fixed, shuffled
from mechanisms.settings import Privacy, whole
from sim import account
from sim.commands.flags import parse
from sim.commands.guard import main_guard
from tests import releases, small
from tests.test_sampling import chosen, data, streams


@pytest.mark.parametrize("sampling", ["fixed", "shuffled"])
@pytest.mark.parametrize("source", ["seeded", "system"])
def test_every_batch_of_a_size_is_equally_likely(sampling, source):
    """Also the second one, given the first: after a draw of a fixed size each pair of all, after
    part of a pass each pair of the rest. Chi-squared at level 1e-6; a favoured record is
    noticed."""
    own, counts = data(*[list(range(5))] * 300), np.zeros((5, 5, 5, 5))
    system = SystemEntropy(np.random.default_rng(0).bytes)
    draws = streams(300) if source == "seeded" else [system] * 300
    for _ in range(5):
        unseen: dict[int, np.ndarray] = {}
        first, second = (
            chosen(
                fixed(own, [2] * 300, draws)
                if sampling == "fixed"
                else shuffled(own, [2] * 300, draws, unseen)
            )
            for _ in range(2)
        )
        for one, two in zip(first, second, strict=True):
            counts[*sorted(one), *sorted(two)] += 1
    pairs = list(itertools.combinations(range(5), 2))
    likely = [(*a, *b) for a in pairs for b in pairs if sampling == "fixed" or not set(a) & set(b)]
    seen = np.array([counts[place] for place in likely])
    assert seen.sum() == 1_500 and len(likely) == {"fixed": 100, "shuffled": 30}[sampling]
    assert stats.chisquare(seen).pvalue > 1e-6
    favoured = np.array([2.0 if 0 in place[:2] else 1.0 for place in likely])
    assert stats.chisquare(seen, favoured / favoured.sum() * 1_500).pvalue < 1e-6


def test_clients_have_their_own_sizes_and_passes():
    own, source, unseen = data([1, 2, 3], [7, 8]), streams(2), {}
    first, second = (chosen(shuffled(own, [2, 1], source, unseen)) for _ in range(2))
    assert [len(each) for each in (*first, *second)] == [2, 1, 1, 1]
    assert sorted(first[0] + second[0]) == [1, 2, 3] and sorted(first[1] + second[1]) == [7, 8]
    assert [len(each) for each in chosen(fixed(own, [3, 1], source))] == [3, 1]


@pytest.mark.parametrize(("records", "size", "steps"), [(7, 3, 5), (6, 2, 3), (6, 2, 4), (5, 5, 3)])
def test_records_are_in_as_many_batches_of_a_round_as_are_charged(records, size, steps):
    """Every record is in each pass once; so many of them were seen in the last one. Kills a pass
    that is not charged, and a batch larger than planned."""
    begun, share = passes(size / records, records, steps)
    own, source, unseen = data(list(range(records))), streams(1), {}
    batches = [chosen(shuffled(own, [size], source, unseen))[0] for _ in range(steps)]
    assert all(len(batch) <= size for batch in batches)
    visits = np.bincount(np.concatenate(batches), minlength=records)
    assert set(visits) <= {begun, begun - 1}
    assert (visits == begun).sum() == pytest.approx(share * records)
    assert whole(size / records, records) == size


def totals(sampling: str, held: bool, steps: int) -> torch.Tensor:
    """The sums of a client's steps ``[steps, P]``, all from the same model, with the last record or
    the null record in its place, for the same draws."""
    plan = releases.VARIANTS[f"dpsgd, {sampling}"]
    plan = dataclasses.replace(plan, sample_rate=5 / releases.RECORDS, steps=steps)
    watched, own = releases.Watched(GRID), releases.owned(np.array([held]))
    world = releases.cohort(plan, own, small.streams([0]), watched)
    world = dataclasses.replace(world, learning_rate=torch.zeros_like)
    local_round(MECHANISMS["dpsgd"], world, torch.zeros(world.gradients.layout.size))
    return torch.cat([one.real() for one in watched.seen])


@pytest.mark.parametrize("sampling", ["fixed", "shuffled"])
def test_a_record_touches_one_step_of_a_shuffled_pass_and_no_other(sampling):
    """By at most the clip bound; passes have three batches. Batches of a fixed size know no passes.
    Kills a pass that is drawn again in each step, and one whose order follows the records."""
    moved = (totals(sampling, True, 30) - totals(sampling, False, 30)).norm(dim=1)
    touched = (moved > 0).view(10, 3)
    assert touched.any() and ((touched.sum(dim=1) == 1).all() == (sampling == "shuffled"))
    assert len(set(touched.int().argmax(dim=1).tolist())) > 1
    assert moved.max() <= 0.5 * (1 + 1e-6)


@pytest.mark.parametrize(
    ("sampling", "steps", "charges"),
    [
        ("fixed", 4, {FixedBatchGaussian(3, 10, 2.0): 4}),
        ("shuffled", 8, {Gaussian(2.0): 2}),
        ("shuffled", 4, {Gaussian(2.0): 1}),
        ("shuffled", 2, {PartialPass(0.6, 2.0): 1}),
        ("shuffled", 9, {Gaussian(2.0): 2, PartialPass(0.3, 2.0): 1}),
    ],
)
def test_a_round_is_charged_for_its_batches(sampling, steps, charges):
    """Of 3 of 10 records: four batches are a pass, whose last has the tenth."""
    privacy = Privacy(sampling=sampling, batch_size=3, noise_multiplier=2.0, epsilon=None)
    plan = plan_table(privacy, None, steps, 1, np.array([10])).of(0)
    assert plan.round_charges(1) == charges and plan.sample_rate == 0.3


@pytest.mark.parametrize("sampling", ["fixed", "shuffled"])
def test_clients_of_many_sizes_each_have_the_least_noise_that_meets_the_budget(sampling):
    """Whose passes end within a round, too. Kills noise that is interpolated between clients of
    other numbers of passes."""
    sizes = np.array([40, 42, 44, 47])
    privacy = Privacy(sampling=sampling, batch_size=6, epsilon=3.0)
    table = plan_table(privacy, None, 8, 4, sizes)
    for client, size in enumerate(sizes):
        plan = table.of(client)
        assert plan.records == size
        spent = epsilon(planned(plan, 4), privacy.delta).epsilon
        assert 0.995 * privacy.epsilon < spent <= privacy.epsilon


def test_a_rate_becomes_a_whole_number_of_records():
    for sampling, rate in (("poisson", 0.25), ("fixed", 0.2), ("shuffled", 0.2)):
        assert Privacy(sampling=sampling, sample_rate=0.25).rate(5) == rate
    tiny = Privacy(sampling="fixed", sample_rate=0.01)
    assert tiny.rate(5) == 0.2 and tiny.of_size(5).rate(5) == 0.2


def test_a_rate_has_its_own_batch_at_each_client():
    """Also without a number of records for all of them."""
    privacy = Privacy(sampling="fixed", sample_rate=0.25, noise_multiplier=3.0, epsilon=None)
    table = plan_table(privacy, None, 2, 1, np.array([8, 9]))
    charged = [set(table.of(client).round_charges(1)) for client in range(2)]
    assert charged == [{FixedBatchGaussian(2, 8, 3.0)}, {FixedBatchGaussian(2, 9, 3.0)}]


def test_a_price_of_a_fixed_batch_needs_the_number_of_records(capsys):
    """Kills one that is for a single record."""
    asked = "dpsgd --sampling fixed --sample-rate 0.1 --noise-multiplier 2 --steps 10 --json"
    assert main_guard(account.command, asked.split()) == 2
    assert "--records is missing" in capsys.readouterr().err
    assert main_guard(account.command, [*asked.split(), "--records", "100"]) == 0
    found = json.loads(capsys.readouterr().out)["epsilon_certified"]
    assert found == epsilon({FixedBatchGaussian(10, 100, 2.0): 10}, 1e-5).epsilon


@pytest.mark.parametrize("mechanism", ["dpsur", "dpis", "dphero", "screening", "dpagd", "none"])
def test_other_mechanisms_have_coins_alone(mechanism):
    with pytest.raises(ValueError, match=r"^sampling is fixed, which .* but --mechanism dpsgd"):
        parse(["--mechanism", mechanism, "--sampling", "fixed"], "run", "")
