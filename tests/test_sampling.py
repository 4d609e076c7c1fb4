"""Poisson batches: every record enters on its own, with the probability that is charged for."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy import stats

from mechanisms import contributions
from mechanisms.arithmetic import FLOATS
from mechanisms.entropy import SystemEntropy
from mechanisms.randomness import generator, seed_key
from mechanisms.sampling import Batch, CohortData, poisson
from mechanisms.sharing import SharingPlan, SingleRecords
from server.curator import Curator
from tests import small
from tests.test_sharing import Counted

RATE, RECORDS, STEPS = 0.3, 100, 3000


def data(*records: list[int]) -> CohortData:
    """Record i is the number i, its label is -i."""
    numbers = torch.arange(1000)
    return CohortData(
        numbers[:, None].float(), -numbers, [np.array(r, dtype=np.int64) for r in records]
    )


def streams(clients: int, seed: int = 0) -> list[np.random.Generator]:
    return [generator(seed_key(seed), "batch", 1, client) for client in range(clients)]


def chosen(batch: Batch) -> list[list[int]]:
    """Each client's record numbers, from x and, the same, from y."""
    rows = [x[m].flatten().long().tolist() for x, m in zip(batch.x, batch.mask, strict=True)]
    assert rows == [(-y[m]).tolist() for y, m in zip(batch.y, batch.mask, strict=True)]
    return rows


def memberships() -> np.ndarray:
    """Bool ``[STEPS, RECORDS]`` of one client's successive batches."""
    numbers, own = data(list(range(RECORDS))), streams(1)
    inside = np.zeros((STEPS, RECORDS), dtype=bool)
    for row in inside:
        row[chosen(poisson(numbers, [RATE], own))[0]] = True
    return inside


def two_sided(z: float) -> float:
    return 2 * stats.norm.sf(abs(z))


def alarms(inside: np.ndarray, rate: float) -> set[str]:
    """What differs from independent entries of probability ``rate``; a false alarm has probability
    below 1e-6."""
    steps, records = inside.shape
    counts, sizes = inside.sum(axis=0), inside.sum(axis=1)
    each = 2 * np.minimum(
        stats.binom.cdf(counts, steps, rate), stats.binom.sf(counts - 1, steps, rate)
    )
    spread = (
        (sizes - records * rate).astype(float)
        @ (sizes - records * rate)
        / (records * rate * (1 - rate))
    )
    again = (inside[1:] & inside[:-1]).sum()
    p_values = {
        "every record's frequency": each.min() * records,
        "mean size": two_sided(
            (sizes.sum() - inside.size * rate) / (inside.size * rate * (1 - rate)) ** 0.5
        ),
        # the size's variance holds all covariances between records; a binomial's fourth moment is
        # near a Gaussian's
        "independence of records": 2
        * min(stats.chi2.cdf(spread, steps), stats.chi2.sf(spread, steps)),
        # the overlap's variance is steps * records * rate^2 (1 - rate) (1 + 3 rate), of which the
        # last two are below 2
        "independence of steps": two_sided(
            (again - (steps - 1) * records * rate**2) / (2 * steps * records * rate**2) ** 0.5
        ),
    }
    return {name for name, p in p_values.items() if p < 1e-6 / 4}


def test_records_enter_independently_with_their_rate():
    assert alarms(memberships(), RATE) == set()


def fixed_size(rng: np.random.Generator) -> np.ndarray:
    ranks = rng.random((STEPS, RECORDS)).argsort(axis=1)
    return ranks < RATE * RECORDS


SPOILED = {
    "rate x 0.9": lambda rng: rng.random((STEPS, RECORDS)) < 0.9 * RATE,
    "rate x 1.1": lambda rng: rng.random((STEPS, RECORDS)) < 1.1 * RATE,
    "batches of a fixed size": fixed_size,
    "one favoured record": lambda rng: (
        rng.random((STEPS, RECORDS)) < np.where(np.arange(RECORDS) == 7, 0.4, RATE)
    ),
    "records in pairs": lambda rng: np.repeat(rng.random((STEPS, RECORDS // 2)) < RATE, 2, axis=1),
    "each batch used twice": lambda rng: np.repeat(
        rng.random((STEPS // 2, RECORDS)) < RATE, 2, axis=0
    ),
}


@pytest.mark.parametrize("spoil", SPOILED.values(), ids=SPOILED)
def test_the_test_of_sampling_rejects_what_it_should(spoil):
    assert alarms(spoil(np.random.default_rng(1)), RATE) != set()


def test_every_client_has_its_own_rate_and_records():
    batch = poisson(data([5, 6, 7], [], [8, 9], [10]), [1.0, 1.0, 1e-12, 1.0], streams(4))
    assert chosen(batch) == [[5, 6, 7], [], [], [10]]


def test_clients_draw_apart():
    """A thousand records each; equal draws would give equal batches."""
    first, second = chosen(
        poisson(data(list(range(1000)), list(range(1000))), [0.5, 0.5], streams(2))
    )
    assert (
        abs(len(set(first) & set(second)) - 250) < 5.2 * (1000 * 3 / 16) ** 0.5
    )  # false alarm below 1e-6


def test_a_cohorts_batches_are_its_clients_batches():
    numbers = [list(range(40)), list(range(40, 100))]
    together = chosen(poisson(data(*numbers), [0.4, 0.2], streams(2)))
    alone = [
        chosen(poisson(data(own), [q], [s]))[0]
        for own, q, s in zip(numbers, [0.4, 0.2], streams(2), strict=True)
    ]
    assert together == alone


def test_steps_that_take_all_records_share_one_batch_and_others_draw():
    """Copies of a large data set cost as much as its gradients."""
    numbers, own = data([3, 1], [4, 5, 6]), streams(2)
    first = poisson(numbers, [1.0, 1.0], own)
    assert chosen(first) == [[3, 1], [4, 5, 6]]
    drawn = [chosen(poisson(numbers, [1.0, 0.5], own)) for _ in range(50)]
    assert all(one == [3, 1] for one, _ in drawn)
    assert {len(other) for _, other in drawn} == {0, 1, 2, 3}
    assert poisson(numbers, [1.0, 1.0], own) is first


def test_batches_are_padded_to_the_largest_and_the_mask_says_where():
    batch = data().gather([np.array([3]), np.array([4, 5, 6]), np.array([], dtype=np.int64)])
    assert batch.mask.tolist() == [[True, False, False], [True, True, True], [False, False, False]]
    assert (
        batch.x.shape == (3, 3, 1)
        and batch.y.shape == (3, 3)
        and chosen(batch) == [[3], [4, 5, 6], []]
    )


def test_one_clients_records_in_a_row_are_not_copied():
    """All of a data set would take its memory again, in each round."""
    for numbers, shared in (([3, 4, 5], True), ([5], True), ([3, 5], False), ([5, 4, 3], False)):
        whole = data(numbers)
        batch = whole.gather(whole.records)
        assert chosen(batch) == [numbers] and batch.mask.all()
        assert (batch.x[0].data_ptr() == whole.x[numbers[0]].data_ptr()) is shared
    both = data([3, 4], [5, 6])
    assert chosen(both.gather(both.records)) == [[3, 4], [5, 6]]


def test_padding_is_nobodys_record():
    """Kills padding with record 0, which belongs to somebody."""
    numbers = CohortData(torch.arange(1.0, 9.0)[:, None], torch.arange(1, 9), [])
    batch = numbers.gather([np.array([3]), np.array([4, 5, 6]), np.array([], dtype=np.int64)])
    assert batch.x[batch.mask].flatten().tolist() == batch.y[batch.mask].tolist() == [4, 5, 6, 7]
    assert not batch.x[~batch.mask].any() and not batch.y[~batch.mask].any()
    assert numbers.x.min() == 1 and numbers.y.min() == 1, "the data set itself is left alone"


def test_a_batch_may_be_empty():
    batch = poisson(data([1, 2], [3]), [1e-12, 1e-12], streams(2))
    assert batch.x.shape == (2, 0, 1) and batch.mask.shape == (2, 0)


def test_sizes_are_those_of_the_clients_not_of_the_batch():
    assert data([1, 2, 3], [], [4]).sizes().tolist() == [3, 0, 1]


def batch_of(coin: float, path) -> int:
    return len(chosen(poisson(data([5]), [0.5], [Counted(coin)]))[0])


def shared_by(coin: float, path) -> int:
    plan = SharingPlan(0.0, 1.0, singly=True, share_rate=0.5)
    source = SimpleNamespace(of=lambda purpose: [Counted(coin)])
    release = SingleRecords(plan, torch.clone, 2)
    return len(release([torch.ones(1, 3)], [torch.zeros(1).long()], source, FLOATS).records["y"])


def sent_by(coin: float, path) -> int:
    streams = SimpleNamespace(of=lambda purpose: [Counted(coin)])
    return int(contributions.entering(SimpleNamespace(streams=streams, exact=lambda name: [0.5])))


def entering(coin: float, path) -> int:
    plans = small.plan_table(contributions.ContributionPlan(1.0, 1, 1.0, 1.0, "flat", 0.0, 0.5))
    server = Curator(path, plans, 1.0, lambda nth: 1.0, None, 0.5, 1.0, float)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SystemEntropy, "random", lambda self, size: np.full(size, coin))
        return len(server.entering(1))


@pytest.mark.parametrize("drawn", [batch_of, shared_by, sent_by, entering])
def test_a_coin_that_equals_the_rate_decides_against(drawn, tmp_path):
    """Coins are multiples of 2^-53 from 0 on: with it one more than is charged would decide for."""
    assert drawn(0.5, tmp_path) == 0 and drawn(0.5 - 2.0**-53, tmp_path) == 1
