"""Laws of the partitions: one owner per record, a guaranteed minimum, and the skew that was asked
for."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chi2_contingency

from sim.data.partition import KINDS, Partition, partition


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def balanced(records: int, classes: int) -> np.ndarray:
    """Labels in random order, as many of each class."""
    return rng(99).permutation(np.arange(records) % classes)


@settings(max_examples=200)
@given(
    kind=st.sampled_from(KINDS),
    records=st.integers(1, 300),
    clients=st.integers(1, 40),
    classes=st.integers(1, 12),
    alpha=st.sampled_from([1e-8, 0.01, 0.5, 10.0, 1e8]),
    shards=st.integers(1, 4),
    wish=st.integers(0, 8),
    seed=st.integers(0, 2**32),
)
def test_each_record_has_one_owner_and_each_client_its_minimum(
    kind: str,
    records: int,
    clients: int,
    classes: int,
    alpha: float,
    shards: int,
    wish: int,
    seed: int,
) -> None:
    labels = rng(seed).integers(0, classes, records)
    minimum = min(wish, records // clients)
    if kind == "shards":
        shards = min(shards, records // clients)
        minimum = min(minimum, shards * (records // (clients * shards)) if shards else 0)
        if shards == 0:
            return
    options = {"alpha": alpha, "shards_per_client": shards, "minimum": minimum}
    parts = partition(labels, clients, kind, rng(seed), **options)
    assert np.array_equal(np.sort(parts.indices), np.arange(records))
    assert (
        parts.clients == clients and parts.sizes.sum() == records and parts.sizes.min() >= minimum
    )
    assert all((np.diff(parts.of(client)) > 0).all() for client in range(clients))
    counts = parts.counts(labels, classes)
    assert np.array_equal(counts[-1], np.bincount(labels[parts.of(clients - 1)], minlength=classes))
    assert np.array_equal(counts.sum(0), np.bincount(labels, minlength=classes))
    again = partition(labels, clients, kind, rng(seed), **options)
    assert np.array_equal(parts.indices, again.indices) and np.array_equal(
        parts.offsets, again.offsets
    )


@pytest.mark.parametrize("kind", KINDS)
def test_another_seed_gives_another_partition(kind: str) -> None:
    labels = balanced(1000, 10)
    assert not np.array_equal(
        partition(labels, 10, kind, rng(0)).indices, partition(labels, 10, kind, rng(1)).indices
    )


def concentration(shares: np.ndarray) -> float:
    """Mean over rows of the sum of squares of each row's shares."""
    shares = shares / shares.sum(1, keepdims=True)
    return float((shares**2).sum(1).mean())


def expected_concentration(alpha: float, clients: int) -> float:
    """The mean sum of squares of a Dirichlet(alpha) draw over the clients."""
    return (alpha + 1) / (alpha * clients + 1)


def dirichlet_shares(alpha: float) -> np.ndarray:
    """How 300 classes of 2,000 records lie on 20 clients [300, 20]."""
    labels = balanced(600_000, 300)
    return partition(labels, 20, "dirichlet", rng(1), alpha=alpha, minimum=0).counts(labels, 300).T


def quantity_shares(alpha: float) -> np.ndarray:
    """The sizes of 20 clients in 300 partitions [300, 20]."""
    labels, stream = np.zeros(2000, np.int64), rng(2)
    return np.stack(
        [
            partition(labels, 20, "quantity", stream, alpha=alpha, minimum=0).sizes
            for _ in range(300)
        ]
    )


@pytest.mark.parametrize("shares_of", [dirichlet_shares, quantity_shares])
@pytest.mark.parametrize("alpha", [0.1, 1.0, 10.0])
def test_shares_are_those_of_a_dirichlet_draw(shares_of, alpha: float) -> None:
    """Over seeds the mean has a deviation of 2.6 %, 1.3 %, 0.2 %; bounds of at least 5 deviations:
    false alarms 1e-6.

    Negative control: half and twice alpha, which move the law by 35 %, 23 %, 4 % or more, are
    rejected.
    """
    bound = {0.1: 0.15, 1.0: 0.08, 10.0: 0.02}[alpha]
    measured = concentration(shares_of(alpha))
    assert abs(measured / expected_concentration(alpha, 20) - 1) < bound
    for wrong in (alpha / 2, alpha * 2):
        assert abs(measured / expected_concentration(wrong, 20) - 1) > bound


def test_where_skew_is_extreme_a_class_is_with_one_client_to_its_last_record() -> None:
    """A cut at the wrong record would give that one to another class's client."""
    labels = balanced(240, 8)
    counts = partition(labels, 50, "dirichlet", rng(4), alpha=1e-6, minimum=0).counts(labels, 8)
    assert np.array_equal(counts.max(0), np.bincount(labels))
    assert len(set(counts.argmax(0))) > 5


def label_distance(parts: Partition, labels: np.ndarray) -> float:
    """Mean over clients of the total variation distance between a client's label distribution and
    everyone's."""
    counts = parts.counts(labels, 10).astype(float)
    shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    return float(np.abs(shares - counts.sum(0) / counts.sum()).sum(1).mean() / 2)


def test_label_skew_grows_as_alpha_falls() -> None:
    """A distance has a deviation of at most 0.011 (means 0.04, 0.21, 0.45, 0.79): 0.1 is 5
    deviations off."""
    labels = balanced(40_000, 10)
    skews = [
        label_distance(partition(labels, 50, "dirichlet", rng(3), alpha=a), labels)
        for a in (100, 3, 0.5, 0.05)
    ]
    assert (np.diff(skews) > 0.1).all()
    assert label_distance(partition(labels, 50, "iid", rng(3)), labels) < 0.06


def independence(kind: str, alpha: float) -> float:
    """p-value of labels being independent of the client, over the clients with at least 100
    records."""
    labels = balanced(40_000, 10)
    counts = partition(labels, 50, kind, rng(4), alpha=alpha).counts(labels, 10)
    return float(chi2_contingency(counts[counts.sum(1) >= 100]).pvalue)


def test_labels_are_independent_of_the_client_unless_skew_was_asked_for() -> None:
    """False alarms 1e-4. Negative control: mild label skew is found."""
    assert independence("iid", 1.0) > 1e-4
    assert independence("quantity", 0.3) > 1e-4
    assert independence("dirichlet", 10.0) < 1e-4


@pytest.mark.parametrize(("records", "clients"), [(1000, 7), (5, 5), (9, 2), (3, 8)])
def test_iid_sizes_differ_by_at_most_one(records: int, clients: int) -> None:
    sizes = partition(np.zeros(records, np.int64), clients, "iid", rng(), minimum=0).sizes
    assert sizes.max() - sizes.min() <= 1


@pytest.mark.parametrize("kind", ["dirichlet", "quantity"])
@pytest.mark.parametrize(("records", "clients"), [(10, 3), (17, 5), (1000, 7)])
def test_even_shares_are_cut_at_the_nearest_record(kind: str, records: int, clients: int) -> None:
    """Where one client ends and the next begins, no cut is more than half a record off."""
    sizes = partition(np.zeros(records, np.int64), clients, kind, rng(), alpha=1e8, minimum=0).sizes
    assert sizes.cumsum().tolist() == [round(k * records / clients) for k in range(1, clients + 1)]


@pytest.mark.parametrize("shards", [1, 2, 3])
def test_shards_hold_few_classes(shards: int) -> None:
    """Shards that end with a class hold one each; else at most two, and only at the borders between
    classes."""
    labels = balanced(6000, 10)
    aligned = partition(labels, 20, "shards", rng(5), shards_per_client=shards).counts(labels, 10)
    assert ((aligned > 0).sum(1) <= shards).all()
    assert aligned.sum(1).min() == aligned.sum(1).max() == 300
    labels = labels[:5837]
    held = (
        partition(labels, 17, "shards", rng(5), shards_per_client=shards).counts(labels, 10) > 0
    ).sum(1)
    assert (held <= 2 * shards).all() and held.sum() <= 17 * shards + 9


@pytest.mark.parametrize("kind", ["dirichlet", "quantity"])
def test_repair_takes_from_the_largest_only(kind: str) -> None:
    """The clients between the minimum and the common level keep their records; the small ones lose
    none of theirs."""
    labels, minimum = balanced(5000, 10), 20
    before = partition(labels, 100, kind, rng(6), alpha=0.1, minimum=0)
    after = partition(labels, 100, kind, rng(6), alpha=0.1, minimum=minimum)
    small, lowered = before.sizes < minimum, before.sizes > after.sizes
    assert small.any() and lowered.any() and (after.sizes[small] == minimum).all()
    level = after.sizes[lowered]
    assert level.max() - level.min() <= 1 and after.sizes.max() == level.max()
    for client in range(100):
        old, new = set(before.of(client)), set(after.of(client))
        assert old <= new if small[client] else new <= old
        assert small[client] or lowered[client] or old == new


@pytest.mark.parametrize("kind", KINDS)
def test_a_records_owner_does_not_follow_from_its_place_in_the_file(kind: str) -> None:
    """One class, two clients: a mean place strays by 0.29 / sqrt(1,000) = 0.009; 6 deviations:
    below 1e-8."""
    parts = partition(np.zeros(4000, np.int64), 2, kind, rng(7), alpha=50.0)
    assert parts.sizes.min() > 1000
    assert all(abs(parts.of(client).mean() / 4000 - 0.5) < 0.055 for client in range(2))


def test_which_records_the_largest_give_up_does_not_follow_from_their_place() -> None:
    """Ranks among the giver's own, in [0, 1]: means of some 1,100 of them stray by 0.009; bound of
    6 deviations."""
    labels = np.zeros(5000, np.int64)
    before = partition(labels, 100, "dirichlet", rng(6), alpha=0.1, minimum=0)
    after = partition(labels, 100, "dirichlet", rng(6), alpha=0.1, minimum=20)
    ranks = [
        np.flatnonzero(~np.isin(before.of(k), after.of(k))) / max(before.sizes[k], 1)
        for k in range(100)
    ]
    given = np.concatenate([own for k, own in enumerate(ranks) if before.sizes[k] > after.sizes[k]])
    assert len(given) > 900 and abs(given.mean() - 0.5) < 0.055


def test_ten_thousand_clients_share_all_records() -> None:
    labels = balanced(200_000, 10)
    for kind in KINDS:
        sizes = partition(labels, 10_000, kind, rng(), alpha=0.1, minimum=5).sizes
        assert sizes.sum() == 200_000 and sizes.min() >= 5


FAULTS = [
    ({"kind": "dirchlet"}, "'dirchlet' is unknown: did you mean 'dirichlet'"),
    ({"clients": 0}, "clients = 0"),
    ({"clients": 2.5}, "clients = 2.5"),
    ({"clients": True}, "clients = True"),
    ({"clients": 101}, "need more than the 100 records"),
    ({"clients": 51, "minimum": 2}, "at most --clients 50"),
    ({"minimum": -1}, "minimum = -1"),
    ({"alpha": 0.0}, "alpha = 0.0"),
    ({"alpha": -1.0}, "alpha = -1.0"),
    ({"alpha": float("nan")}, "alpha = nan"),
    ({"alpha": float("inf")}, "alpha = inf"),
    ({"shards_per_client": 0}, "shards_per_client = 0"),
    ({"kind": "shards", "clients": 60}, "more shards than records"),
    (
        {"kind": "shards", "clients": 9, "shards_per_client": 2, "minimum": 11},
        "smallest client's 10",
    ),
    ({"labels": np.zeros(0, np.int64)}, "shape (0,)"),
    ({"labels": np.zeros((5, 1), np.int64)}, "shape (5, 1)"),
    ({"labels": np.zeros(5)}, "float64"),
]


@pytest.mark.parametrize(("change", "words"), FAULTS)
def test_faulty_arguments_are_named(change: dict, words: str) -> None:
    arguments = {"labels": balanced(100, 10), "clients": 10, "kind": "iid", "rng": rng()} | change
    with pytest.raises(ValueError) as caught:
        partition(**arguments)
    assert words in str(caught.value) and "\n" not in str(caught.value)


def test_partition_refuses_unknown_clients_and_strange_labels() -> None:
    parts = partition(balanced(100, 10), 10, "iid", rng())
    for client in (-1, 10):
        with pytest.raises(ValueError, match=f"client = {client} is outside 0 .. 9"):
            parts.of(client)
    for labels in (balanced(99, 10), balanced(100, 11)):
        with pytest.raises(ValueError, match="do not fit 100 records of 10 classes"):
            parts.counts(labels, 10)
