"""Noise that clients make together: shares, their sums, and rounds with too few answers."""

import itertools
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from client.messages import TrainRequest, Upload
from mechanisms import grid, shares
from mechanisms.accounting import accountant, dominating, group, ledger
from mechanisms.accounting.accountant import epsilon
from mechanisms.accounting.calibration import smallest
from mechanisms.accounting.events import Gaussian, SampledGaussian, SummedShares
from mechanisms.plan import planned
from mechanisms.rounded_gaussian import SCALE_BITS, rounded_gaussian
from mechanisms.shares import FAILURE, Shares, shares_of
from server import loop
from server.aggregator import Aggregator
from server.guarantees import guarantees
from sim import run
from sim.phases import training
from sim.verifying import proof
from tests import test_curator as curated
from tests import worlds
from tests.gaussian import SPOILERS, alarms
from tests.refusing import check_refused

CLIENTS, ROUNDS = curated.CLIENTS, curated.ROUNDS
RECORD = {"trust": "aggregate"}
CLIENT_UNIT = {"trust": "aggregate", "unit": "client", "fraction": 0.5, "steps": 3}
UNITS = {"record": RECORD, "client": CLIENT_UNIT}
World = curated.World


def draws(seed: int, *shape: int) -> torch.Tensor:
    words = np.random.default_rng(seed).bit_generator.random_raw
    return torch.from_numpy(rounded_gaussian(words, math.prod(shape))).view(shape)


def sum_of_shares(deviation: float, number: int) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities of whole numbers: of a sum of rounded Gaussians, and of a rounded Gaussian to
    which uniform noise was added before."""
    k = np.arange(-400, 401)
    one = np.diff(stats.norm.cdf(np.append(k, 401) - 0.5, scale=deviation))
    law = one
    for _ in range(number - 1):
        law = np.convolve(law, one, mode="same")
    # the ideal law's characteristic function is that of the whole cells, to this power
    w = np.linspace(-8, 8, 640_001)
    wave = np.exp(-2 * (np.pi * deviation * w) ** 2) * np.sinc(w)
    ideal = np.trapezoid(wave**number * np.cos(2 * np.pi * np.outer(k[395:406], w)), w, axis=1)
    return law[395:406], ideal


@pytest.mark.parametrize("number", [2, 3, 6])
@pytest.mark.parametrize("deviation", [0.3, 0.5, 0.8])
def test_a_sum_of_rounded_gaussians_is_nearly_one_of_a_gaussian(deviation, number):
    """The bound of the proof, ``15 n exp(-pi^2 sigma^2)`` for each probability, where it can be
    seen; without its factor it does not hold."""
    law, ideal = sum_of_shares(deviation, number)
    gap = np.abs(law - ideal).max()
    assert gap <= 15 * number * math.exp(-((math.pi * deviation) ** 2)) + 1e-12
    assert gap > 1e-3 * math.exp(-((math.pi * deviation) ** 2))


def test_at_the_coarsest_grid_the_proved_part_of_delta_is_far_from_used_up():
    """Over 2^40 numbers, 2^20 rounds and shares, for epsilons up to 300; in bits."""
    deviation = 2.0**shares.MIN_FINENESS
    cell = math.log2(15) + 20 - (math.pi * deviation) ** 2 * math.log2(math.e)
    outcomes, numbers, rounds, factor = 201, 40, 20, 1 + 300 * math.log2(math.e)
    assert cell + outcomes + numbers + rounds + factor < -180 < math.log2(FAILURE / 2)


@settings(max_examples=100, deadline=None)
@given(
    st.integers(2, 9),
    st.integers(20, 62),
    st.integers(3, SCALE_BITS),
    st.floats(0.05, 0.8),
    st.integers(0, 99),
)
def test_the_opened_sum_is_the_sum_of_points_and_shares(clients, bits, fineness, noise, seed):
    """Modulo 2^b, whatever each client's number is. Kills another modulus on one side, a sign that
    is lost, and shares of another fineness."""
    rng = np.random.default_rng(seed)
    own = Shares(clients, bits, fineness, noise, 5)
    whole = torch.from_numpy(rng.integers(-(2**44), 2**44, (clients, 5)))
    drawn = draws(seed, clients, 5)
    sent = own.added(whole, drawn)
    assert int(sent.min()) >= 0 and int(sent.max()) < 2**bits
    exact = grid.points(whole, own.raised, fineness)
    exact += torch.floor(drawn.double() / 2.0 ** (SCALE_BITS - fineness) + 0.5).to(torch.int64)
    total = exact.sum(dim=0)
    half = 2 ** (bits - 1)
    expected = [((one + half) % 2**bits) - half for one in total.tolist()]
    unit = own.raised / 2.0**fineness
    assert own.opened(sent.sum(dim=0)).tolist() == [one * unit for one in expected]


@pytest.mark.parametrize("bits", [20, 32, 62])
def test_the_least_number_of_shares_has_the_charged_noise(bits):
    """Of those who answer at least, all but the one who looks: deviation s C. False alarm 1e-6.
    Kills shares for one client more or fewer, and noise that is lost on a coarse grid."""
    own = shares_of(2.0, 20, 0.4, 30.0, 20_000, bits)
    assert own.least == 8
    nothing = torch.zeros(own.least - 1, 20_000, dtype=torch.int64)
    sample = own.opened(own.added(nothing, draws(5, 7, 20_000)).sum(dim=0)).numpy()
    raised = 1 + grid.slack(20_000, own.multiplier, own.fineness)
    assert alarms(sample, 2.0 * raised) == set() and (raised < 1.001 or bits == 20)
    assert all(alarms(spoil(sample, 2.0), 2.0) for spoil in SPOILERS.values())


@pytest.mark.parametrize("entries", [1, 650, 26_010])
@pytest.mark.parametrize("bits", [24, 32, 62])
@pytest.mark.parametrize("noise", [0.3, 3.0])
def test_the_multiplier_is_at_least_the_charged_one(entries, bits, noise):
    """Deviation of all but one of the shares, over what a unit moves with all its roundings."""
    own = shares_of(noise, 50, 0.6, 50.0, entries, bits)
    moved = 2.0**own.fineness / own.raised * (1 + 2.0**-22 * math.sqrt(entries) + 2.0**-21)
    moved += 2 * math.sqrt(entries)
    assert 2.0**own.fineness * math.sqrt(own.least - 1) >= noise * moved
    rng = np.random.default_rng(entries)
    part = rng.normal(size=entries)
    part = np.rint(part / np.linalg.norm(part) * grid.PART)
    sums = torch.from_numpy(rng.integers(-(2**50), 2**50, (1, entries)))
    both = [sums, sums + torch.from_numpy(part).to(torch.int64)]
    one, other = (grid.points(s, own.raised, own.fineness).double() for s in both)
    assert float((one - other).norm()) <= moved


def test_a_sum_has_room_for_the_clients_with_the_most_records(tmp_path):
    """Whoever is asked. Kills room for the smallest, whose modulus lets larger sums wrap around."""
    given = RECORD | {"fraction": 0.5, "partition": "quantity", "dirichlet": 0.5}
    given |= {"noise_multiplier": 0.3, "epsilon": None, "aggregate_bits": 16, "honest": 0.7}
    job = World(tmp_path, given | {"sample_rate": 1.0}).job
    sizes, number = np.sort(job.partition.sizes), CLIENTS // 2
    entries = job.gradients.layout.size
    most, least = (
        shares_of(0.3, number, 0.7, float(some.sum()), entries, 16)
        for some in (sizes[-number:], sizes[:number])
    )
    assert most != least
    assert training.federation(job, tmp_path).aggregator.shares == most


@pytest.mark.parametrize(
    ("noise", "asked", "honest", "norms"), [(2.0, 100, 0.7, 1437.0), (200.0, 10_000, 0.25, 50.0)]
)
def test_sums_fit_but_for_a_probability_that_is_charged(noise, asked, honest, norms):
    """The largest sum, and noise of all who are asked; the next finer grid has no room for them,
    where contributions are most of a sum and where noise is."""
    own = shares_of(noise, asked, honest, norms, 650, 32)
    reach = math.sqrt(2 * math.log(2 * 650 / FAILURE))
    assert 650 * 2 * stats.norm.sf(reach) <= FAILURE / 2

    def room(fineness: int) -> bool:
        size = norms / own.multiplier * 2.0**fineness + reach * 2.0**fineness * math.sqrt(asked)
        return size + 2 * asked <= 2.0**31

    assert room(own.fineness) and not room(own.fineness + 1)
    assert shares_of(noise, asked, honest, norms, 650, 62).fineness == SCALE_BITS


def test_shares_are_never_coarser_than_is_proved():
    """Few numbers and little noise, for which a coarser grid would still be fine enough."""
    assert shares_of(0.1, 2, 1.0, 2.0, 1, 10).fineness == shares.MIN_FINENESS
    with pytest.raises(ValueError, match="need 10 on the coarsest grid that is proved"):
        shares_of(0.1, 2, 1.0, 2.0, 1, 9)


@pytest.mark.parametrize("unit", UNITS)
def test_whoever_is_asked_pays_for_a_sum_with_the_noise_of_all(tmp_path, unit):
    """In the clients' own ledgers, with what the sum may fail by. Kills a charge with an
    amplification by sampling that the server sees through."""
    world = World(tmp_path, UNITS[unit])
    world.run()
    plan, asked = world.job.plans.of(0), dict.fromkeys(range(CLIENTS), 0)
    for request in world.asked:
        for client in request.clients.tolist():
            asked[client] += 1
    rate = 0.5 if unit == "record" else 1.0
    noisy, failing = SampledGaussian(rate, plan.noise_multiplier), SummedShares(FAILURE)
    assert world.paid == {c: {noisy: n, failing: n} for c, n in asked.items() if n}
    if unit == "record":
        assert set(asked.values()) == {ROUNDS}
    rounds = ROUNDS if unit == "record" else ROUNDS // 2
    assert epsilon(planned(plan, rounds), 1e-5).epsilon == pytest.approx(8.0, abs=0.01)


def test_what_a_sum_may_fail_by_is_a_part_of_delta():
    """By loss distributions, by Renyi orders, for groups, and by the second path."""
    noisy, failing = SampledGaussian(0.1, 1.5), SummedShares(1e-6)
    charges, delta = {noisy: 20, failing: 3}, 1e-5
    left = 0.995 * delta - 3e-6
    found = epsilon(charges, delta)
    assert (
        found.epsilon
        == accountant.composed({noisy: 20}, left, dominating.ways)
        > 1.01 * (epsilon({noisy: 20}, delta).epsilon)
    )
    low, high = proof.interval(charges, str(0.995 * delta), None, found.epsilon)
    assert high <= found.epsilon <= 1.001 * low
    at = accountant.guarantee(charges, delta, "certified", [8.0]).epsilon
    assert at > accountant.guarantee({noisy: 20}, delta - 3e-6, "certified", [8.0]).epsilon
    both = [group.epsilon(one, delta, 2).epsilon for one in ({noisy: 20}, charges)]
    assert both[0] < both[1] < math.inf
    for count in (11, 20):
        assert epsilon({noisy: 20, failing: count}, delta).epsilon == math.inf
        assert proof.interval({noisy: 20, failing: count}, "1e-5", None, 1.0)[0] == math.inf
        assert group.epsilon({noisy: 20, failing: count}, delta, 2).epsilon == math.inf


def test_what_shares_are_proved_for_ends_at_an_epsilon():
    """Proposition 24 says nothing beyond: by one order, by the best, for groups, by the second
    path. Kills an end for other charges, too."""
    noisy, failing = {Gaussian(0.1): 5}, {SummedShares(2.0**-60): 5}
    few = {Gaussian(0.1): 1}
    assert 50.0 < epsilon(few | failing, 1e-5).epsilon < SummedShares.REACH
    assert SummedShares.REACH < epsilon(noisy, 1e-5).epsilon < math.inf
    assert epsilon(noisy | failing, 1e-5).epsilon == math.inf
    assert epsilon(noisy | failing, 1e-5, orders=(1.5,)).epsilon == math.inf
    assert group.epsilon(noisy, 1e-5, 2).epsilon < math.inf
    for charges, records in ((noisy, 2), (few, 3)):
        assert group.epsilon(charges | failing, 1e-5, records).epsilon == math.inf
    for charges, ends in ((noisy, False), (few | failing, False), (noisy | failing, True)):
        assert (proof.interval(charges, "1e-5", 1.5, 1.0)[1] == math.inf) is ends


def test_answers_without_noise_cost_what_the_page_says():
    """30 of 100 cheat, and 20 of 100 drop out, so that 56 honest answers are left of 70."""
    noise = smallest(lambda s: {Gaussian(s): 20}, 8.0, 1e-5, "certified", False)
    left = {Gaussian(noise * math.sqrt((56 - 1) / (70 - 1))): 20}
    page = (Path(__file__).parents[1] / "docs" / "trust.md").read_text()
    assert f"epsilon 8 is {epsilon(left, 1e-5).epsilon:.1f}." in page


@pytest.mark.parametrize("unit", UNITS)
def test_groups_and_resumption_change_no_bit(tmp_path, unit):
    given = UNITS[unit] | {"honest": 0.3, "dropout": 0.4}
    whole = World(tmp_path / "a", given).run()
    one = World(tmp_path / "b", given | {"groups": 1, "chunk_clients": 4}).run()
    two = World(tmp_path / "c", given | {"groups": 2, "chunk_clients": 4}).run()
    assert np.array_equal(one.now.params, two.now.params)
    broken = World(tmp_path / "d", given).crashed(3, 1)
    resumed = broken.run()
    assert np.array_equal(whole.now.params, resumed.now.params)
    totals = [sum(events.values()) for events in broken.paid.values()]
    assert max(totals) <= 2 * ROUNDS


def test_fewer_bits_change_the_noise_by_their_rounding_alone(tmp_path):
    ends = [
        World(tmp_path / str(bits), RECORD | {"aggregate_bits": bits}).run().now.params
        for bits in (28, 40, 62)
    ]
    scale = np.abs(ends[2]).max()
    assert 0 < np.abs(ends[0] - ends[2]).max() < 1e-2 * scale
    assert np.abs(ends[1] - ends[2]).max() < 1e-4 * scale


def test_a_round_is_opened_if_and_only_if_enough_clients_answer(tmp_path):
    """Else the model and the server's state stay, and the round stays paid. Kills a sum that is
    opened with too little noise, and one that is thrown away with enough."""
    given = {"dropout": 0.35, "honest": 0.7, "rounds": 24, "noise_multiplier": 2.0}
    world = World(tmp_path, RECORD | given | {"epsilon": None})
    federation = world.federation
    store, models, answers = world.store, [federation.initial], []

    def exchange(requests):
        uploads = list(world.exchange(tmp_path, None)(requests))
        answers.append(sum(upload.weight for upload in uploads))
        return uploads

    def watch(record):
        models.append(store.checkpoints.newest().params)

    standing = loop.run(federation, exchange, store, loop.restore(federation, store), [watch])
    least = math.ceil(0.7 * CLIENTS)
    opened = [n >= least for n in answers]
    moved = [not np.array_equal(a, b) for a, b in itertools.pairwise(models)]
    assert moved == opened and 4 < sum(opened) < 20
    assert [record.metrics["opened"] for record in standing.records] == opened
    assert [record.metrics["answered"] * CLIENTS for record in standing.records] == pytest.approx(
        answers
    )
    assert {events[SummedShares(FAILURE)] for events in world.paid.values()} == {24}
    expected = stats.binom(CLIENTS * 24, 0.65)
    assert 1e-6 < expected.cdf(sum(answers)) < 1 - 1e-6 and len(set(answers)) > 3


SLOWLY = [pytest.param(share, marks=pytest.mark.slow) for share in (0.1, 0.2, 0.29, 0.31, 0.4)]


@pytest.mark.parametrize("dropout", [0.0, 0.3, 0.5, *SLOWLY])
def test_of_2000_clients_no_sum_is_opened_with_too_little_noise(dropout, tmp_path, monkeypatch):
    """And none with enough is lost. An opened sum is nearly noise alone here: it has the deviation
    of all shares that were sent, at level 1e-6."""
    monkeypatch.setattr(worlds, "RECORDS", 2_000)
    given = {"dropout": dropout, "honest": 0.7, "noise_multiplier": 1e5, "groups": 1}
    given |= {"clients": 2_000, "min_records": 1, "epsilon": None, "aggregate_bits": 48}
    world, rounds = World(tmp_path, RECORD | given), 6 if dropout in (0.29, 0.31) else 1
    federation = world.federation
    asked, least, opened = np.arange(2_000), 1_400, []
    for number in range(1, rounds + 1):
        name, nth = f"round-{number}", np.full(2_000, number)
        request = TrainRequest(number, 0, name, asked, nth, federation.initial)
        uploads = list(world.exchange(tmp_path, None)([request]))
        answers, mean = uploads[0].weight, federation.aggregator.mean(number, uploads)
        expected = stats.binom(2_000, 1 - dropout)
        assert min(expected.cdf(answers), expected.sf(answers - 1)) > 1e-6
        assert (mean is not None) == (answers >= least)
        if mean is not None:
            total = -mean * 0.5 * answers  # of which 1e5 is what is charged
            opened += (total / 1e5 / math.sqrt(answers / (least - 1))).tolist()
    if opened:
        law, found = stats.chi2(len(opened)), float(np.square(opened).sum())
        assert 1e-6 < law.cdf(found) < 1 - 1e-6
    assert bool(opened) == (dropout < 0.3) or dropout in (0.29, 0.3, 0.31)


def test_the_mean_is_that_of_those_who_answered(tmp_path):
    """Little noise: the clipped sums of who answered, over what they were expected to add; and if
    all do, those of clients that trust the server."""
    given = {"sample_rate": 1.0, "noise_multiplier": 1e-3, "epsilon": None, "aggregate_bits": 62}
    world = World(tmp_path, RECORD | given | {"dropout": 0.3, "honest": 0.2})
    uploads = list(world.exchange(tmp_path, None)(curated.requests(world)))
    answers = sum(upload.weight for upload in uploads)
    aggregator = world.federation.aggregator
    found = aggregator.mean(1, uploads)
    points = sum(upload.total for upload in uploads) & (2**62 - 1)
    points = points - (points >= 2**61) * 2**62
    sums = points * (aggregator.shares.raised / 2.0**aggregator.shares.fineness)
    assert 3 < answers < CLIENTS and np.abs(sums).max() > 1
    assert found == pytest.approx(-sums / (answers * worlds.RECORDS / CLIENTS))
    everybody = World(tmp_path / "all", {"trust": "server"} | given)
    own = list(everybody.exchange(everybody.folder, None)(curated.requests(everybody)))
    all_ = sum(upload.total.astype(np.float64) for upload in own) / grid.PART
    assert np.abs(sums - all_).max() > 0.1  # of those who did not answer
    full = World(tmp_path / "full", RECORD | given)
    answered = list(full.exchange(full.folder, None)(curated.requests(full)))
    found = full.federation.aggregator.mean(1, answered)
    assert found == pytest.approx(-all_ / worlds.RECORDS, abs=8e-3 / worlds.RECORDS)


def test_a_mean_is_over_what_those_who_were_asked_are_expected_to_add():
    """Clients of several sizes, half of whom are asked."""
    own = shares_of(0.1, 2, 1.0, 30.0, 5, 40)
    upload = Upload(1, 0, np.array([0, 2]), draws(3, 5).numpy() & (2**40 - 1), 2)
    means = [
        Aggregator(own, 1.0, np.array(expected), lambda round_: 1.0).mean(1, [upload])
        for expected in ([3.0, 50.0, 5.0, 70.0], [4.0, 4.0, 4.0, 4.0])
    ]
    np.testing.assert_array_equal(*means)


def test_an_interrupted_release_keeps_no_sum_that_has_too_little_noise(tmp_path):
    given = {"release": True, "epsilon": 50.0, "noise_multiplier": 3.0}
    world = World(tmp_path, RECORD | given).crashed(2, 1)
    assert not list(tmp_path.rglob("uploads/*"))
    world.run()
    totals = {c: events[SummedShares(FAILURE)] for c, events in world.paid.items()}
    first = set(world.asked[3].clients.tolist())
    assert {totals[c] for c in first} == {ROUNDS + 1} and min(totals.values()) == ROUNDS


def test_the_run_ends_when_too_few_clients_are_left_for_a_sum(tmp_path):
    """Clients with different rates retire at different times; nobody pays for a round that cannot
    be opened."""

    class Unequal(World):
        settings = curated.UNEQUAL

    given = {"noise_multiplier": 3.0, "epsilon": 2.5, "rounds": 90, "honest": 0.3}
    world = Unequal(tmp_path, RECORD | given)
    standing = world.run()
    asked = dict.fromkeys(range(1, len(standing.records) + 1), 0)
    for request in world.asked:
        asked[request.round] += len(request.clients)
    assert min(asked.values()) >= math.ceil(0.3 * CLIENTS) and len(set(asked.values())) > 1
    assert standing.records[-1].retired == CLIENTS and 1 < len(asked) < 90
    assert standing.budgets.epsilons("certified").max() <= 2.5


REFUSED = {
    "--aggregate-bits=12": "aggregate_bits is 12",
    "--honest=0.01": "honest = 0.01 of 100 clients",
    "--clients=1 --partition=iid": "honest = 1 of 1 clients",
    "--noise-decay=0.1": "noise_decay is 0.1",
    "--steps=3": "steps is 3",
    "--mechanism=dpis": "mechanism is dpis",
    "--keep-state": "keep_state is on",
    "--strategy=fednova": "strategy is fednova",
}


@pytest.mark.parametrize("flags", REFUSED)
def test_what_shares_of_noise_do_not_cover_is_refused_in_one_line(flags, tmp_path):
    check_refused(["--trust=aggregate", *flags.split()], REFUSED[flags], tmp_path / "runs")


def test_a_figure_holds_against_all_but_the_aggregation():
    rows = guarantees("aggregate", "client", 9, 3.0)
    assert [(row["adversary"], row["sees"], row["epsilon"]) for row in rows] == [
        ("the server", "each round's sum", 3.0),
        ("other clients", "every round's model", 3.0),
        ("anyone else", "the final model", 3.0),
        ("the protocol", "what clients send", None),
    ]


def test_a_run_says_whom_it_trusts(tmp_path, capsys):
    flags = "--trust=aggregate --clients=10 --rounds=2 --engine=inline --name=run"
    run.command([*flags.split(), f"--out={tmp_path}"])
    shown = capsys.readouterr().out
    assert "from the protocol  not at all: trusted with what clients send" in shown
    assert "Secure aggregation is assumed" in shown
    report = (tmp_path / "run" / "report.html").read_text()
    assert "Secure aggregation is trusted" in report and "The server is trusted" not in report
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    spent = summary["epsilon_certified"][0]
    assert summary["guarantees"] == list(guarantees("aggregate", "record", 10, spent))
    assert epsilon(ledger.read(tmp_path / "run" / "ledger")[0], 1e-5).epsilon == spent
