"""Noise that is correlated over rounds: what is released, what it costs, and what it saves."""

import functools
import math

import numpy as np
import pytest
import torch
from dp_accounting.dp_event import GaussianDpEvent, SelfComposedDpEvent
from dp_accounting.pld import PLDAccountant

from client.messages import Upload
from mechanisms import bands, grid
from mechanisms.accounting.accountant import epsilon
from mechanisms.accounting.events import SampledGaussian
from mechanisms.plan import planned
from mechanisms.settings import MAX_BANDS
from server.curator import Curator
from tests import small
from tests.refusing import check_refused
from tests.test_curator import CLIENT_UNIT, CLIENTS, World, plan_of

TURNS = 3
CORRELATED = CLIENT_UNIT | {"fraction": 1.0, "noise_bands": TURNS, "rounds": 7}
RELEASED = CORRELATED | {"release": True, "epsilon": 50.0, "noise_multiplier": 3.0}


def matrix(count: int, rounds: int) -> np.ndarray:
    """C, from the definition of the binomial coefficients."""
    c = [round(64 * math.comb(2 * j, j) / 4**j) / 64 for j in range(count)]
    return sum(np.diag([c[j]] * (rounds - j), -j) for j in range(min(count, rounds)))


def curator(folder, seed: int | None, count: int = TURNS, multiplier: float = 1.7) -> Curator:
    """Of four clients, with clip norm 0.5; means are sums over 40, times -0.3."""
    plans = small.plan_table(plan_of(1.0))
    own = 0.5, lambda nth: multiplier, seed, 1.0, 40.0, lambda n: -0.3
    return Curator(folder / "server.jsonl", plans, *own, bands=count)


def test_bands_are_those_of_the_square_root_of_the_matrix_of_prefix_sums():
    """To a 128th each, and their square is a row of ones. Kalinin and Lampert 2024, Theorem 1."""
    whole = np.array(bands.weights(200)) / 64
    assert np.convolve(whole, whole)[:40] == pytest.approx(np.ones(40), abs=0.02 * 8)
    assert bands.weights(5) == (64, 32, 24, 20, 18) and bands.weights(1) == (64,)
    assert min(bands.weights(MAX_BANDS)) >= 1
    assert sum(bands.weights(MAX_BANDS)) * grid.MAX_POINT + 2.0**40 < 2.0**63


def test_the_error_of_prefix_sums_is_the_published_one():
    """Of the unbanded square root over n rounds, the largest error over s is at most
    ``1 + (log(n) + gamma) / pi`` and no less than it by 0.2 (Henzinger, Upadhyay, Upadhyay 2023;
    Fichtenberger, Henzinger, Upadhyay 2023, Theorem 1)."""
    for rounds in (16, 64, 256):
        c = matrix(rounds, rounds)
        errors = np.linalg.norm(np.tril(np.ones_like(c)) @ np.linalg.inv(c), axis=1)
        found, bound = errors.max() * bands.norm(rounds), 1 + (math.log(rounds) + 0.5772) / math.pi
        assert bound - 0.25 < found < bound + 0.05


@pytest.mark.parametrize("seed", [3, None])
def test_noise_of_rounds_is_white_noise_times_the_inverse_of_the_matrix(tmp_path, seed):
    """Empty rounds: C times what they release is independent noise of deviation s C. Kills bands
    that are left out, in another order, or of another sign, and draws that are used twice."""
    server, rounds = curator(tmp_path, seed), 6
    noise = [server.release(n, 1, 20_000, []) * 40.0 / -0.3 / 0.5 for n in range(1, rounds + 1)]
    white = matrix(TURNS, rounds) @ np.stack(noise)
    assert white.std(axis=1) == pytest.approx(np.full(rounds, 1.7), rel=0.03)
    apart = np.corrcoef(white) - np.eye(rounds)
    assert np.abs(apart).max() < 6 / 20_000**0.5
    assert np.corrcoef(noise[0], noise[1])[0, 1] < -0.3


@pytest.mark.parametrize("seed", [3, None])
def test_what_is_used_of_a_round_is_its_own_sum(tmp_path, seed):
    """With next to no noise: the sums of earlier rounds are subtracted again."""
    server = curator(tmp_path, seed, multiplier=1e-6)
    for number, value in enumerate((0.5, -3.0, 2.0, 0.0, 1.0), 1):
        total = np.full(4, int(value * grid.PART))
        upload = Upload(number, 0, np.array([0]), total, 1)
        found = server.release(number, 1, 4, [upload]) * 40.0 / -0.3 / 0.5
        assert found == pytest.approx(np.full(4, value), abs=1e-4)
    upload = Upload(2, 0, np.array([0]), np.full(4, int(0.25 * grid.PART)), 1)
    again = server.release(2, 1, 4, [upload]) * 40.0 / -0.3 / 0.5
    assert again == pytest.approx(np.full(4, 0.25), abs=1e-4)  # the first of new noise


def test_noise_makes_up_for_rounding_to_the_grid(monkeypatch):
    """By as much as the grid says, which is too little to be seen."""
    monkeypatch.setattr(grid, "slack", lambda count, multiplier, bits: 0.25)
    draws = torch.full((1, 3), 2**28)
    found = bands.Correlated(2).released(torch.zeros(1, 3, dtype=torch.int64), 2.0, draws)
    assert found.tolist() == [[2.5] * 3]


def test_a_round_s_mean_is_over_those_whose_turn_it_is(tmp_path):
    """Kills steps that are as much shorter as there are turns."""
    alone, by_turns = (
        World(tmp_path / str(n), CORRELATED | given).federation.curator
        for n, given in enumerate(({"noise_bands": 1}, {}))
    )
    assert by_turns.expected == pytest.approx(alone.expected / TURNS)


@functools.cache
def moved(slots: int, contributed: int) -> np.ndarray:
    """By how many deviations a unit that contributes to a round moves each released Y."""
    ours, other = bands.Correlated(slots), bands.Correlated(slots)
    rng, zeros, steps = np.random.default_rng(0), torch.zeros(1, 4, dtype=torch.int64), []
    for number in range(1, 13):
        total = torch.from_numpy(rng.integers(-(2**44), 2**44, (1, 4)))
        part = torch.zeros_like(total)
        if number % slots == contributed % slots:
            part[0, number % 4] = int(grid.PART)
        pair = ours.released(total + part, 2.0, zeros), other.released(total, 2.0, zeros)
        steps.append((pair[0] - pair[1])[0].numpy())
    return matrix(slots, 12) @ np.stack(steps) / (2.0 * (1 + grid.slack(4, 2.0, 22)))


@pytest.mark.parametrize("slots", [1, 2, 3, 5])
def test_a_client_moves_what_is_released_by_no_more_than_is_charged(slots):
    """Over all its rounds, at least ``slots`` apart: the squared distance is the number of rounds
    over the square of the charged multiplier, 2 / |c|, and next to nothing less."""
    for first in range(1, slots + 1):
        times = len(range(first, 14 - slots, slots))
        whole = moved(slots, first)
        ends = first - 1 + times * slots
        distance = (whole[:ends] ** 2).sum()
        charged = times * (bands.norm(slots) / 2.0) ** 2
        assert charged * (1 - 1e-4) < distance <= charged


def test_clients_take_turns_and_pay_for_theirs(tmp_path):
    """Before a request leaves. Kills turns that come too soon, charges of all, and one multiplier
    for another."""
    world = World(tmp_path, CORRELATED)
    end, paid_before = world.run_and_payments()
    for number in range(1, 8):
        asked = {int(c) for r in world.asked if r.round == number for c in r.clients}
        assert asked == {c for c in range(CLIENTS) if c % TURNS == (number - 1) % TURNS}
        assert paid_before[number - 1] == {
            c: times for c in range(CLIENTS) if (times := -(-(number - c % TURNS) // TURNS)) > 0
        }
    plan = world.job.plans.of(0)
    event = SampledGaussian(1.0, plan.noise_multiplier / bands.norm(TURNS))
    assert world.paid == {c: {event: 3 if c % TURNS == 0 else 2} for c in range(CLIENTS)}
    assert end.now.taken.tolist() == [3, 2, 2] * (CLIENTS // TURNS)
    assert epsilon(planned(plan, 3), 1e-5).epsilon == pytest.approx(8.0, abs=0.01)
    assert [record.retired for record in end.records] == [0] * 6 + [CLIENTS // TURNS]


def test_epsilon_is_that_of_the_whole_matrix(tmp_path):
    """A Gaussian of deviation s, and a client in three rounds that moves it by |c| each: what
    dp-accounting says of one Gaussian of the multiplier ``s / (|c| sqrt(3))``."""
    world = World(tmp_path, CORRELATED | {"noise_multiplier": 4.0})
    world.run()
    distance = np.linalg.norm(matrix(TURNS, 9)[:, [0, 3, 6]].sum(axis=1))
    accountant = PLDAccountant()
    accountant.compose(SelfComposedDpEvent(GaussianDpEvent(4.0 / distance), 1))
    found = epsilon(world.paid[0], 1e-5).epsilon
    assert found == pytest.approx(accountant.get_epsilon(1e-5), rel=2e-3)


def test_groups_engines_and_resumption_change_no_bit(tmp_path):
    whole = World(tmp_path / "a", CORRELATED | {"groups": 1, "chunk_clients": 4}).run()
    other = World(tmp_path / "b", CORRELATED | {"groups": 2, "chunk_clients": 4}).run()
    assert np.array_equal(whole.now.params, other.now.params)
    broken = World(tmp_path / "c", CORRELATED | {"groups": 1, "chunk_clients": 4}).crashed(5, 0)
    assert np.array_equal(whole.now.params, broken.run().now.params)
    assert broken.releases() == [f"round-{n}" for n in range(1, 8)]


def test_a_release_that_goes_on_begins_its_noise_anew(tmp_path):
    """Those whose turn it was pay again, and nothing that was not noised is on disk. Kills a round
    whose noise follows from noise of which nothing is left."""
    world = World(tmp_path, RELEASED).crashed(5, 1)
    assert not list(tmp_path.rglob("uploads/*"))
    end = world.run()
    rounds = [int(name.split("-")[1]) for name in world.releases()]
    assert rounds == [1, 2, 3, 4, 5, 5, 6, 7]
    times = {c: sum(events.values()) for c, events in world.paid.items()}
    assert times == {c: (3, 3, 2)[c % TURNS] for c in range(CLIENTS)}
    assert len(end.records) == 7
    server = World(tmp_path / "b", RELEASED).federation.curator
    later = [server.release(n, 1, 20_000, []) for n in (5, 6, 7)]
    white = matrix(TURNS, 3) @ np.stack(later)
    assert white.std(axis=1) == pytest.approx([white[0].std()] * 3, rel=0.03)


def test_a_round_that_is_released_twice_is_the_first_of_new_noise(tmp_path):
    """Clients that contribute twice would move one matrix's rounds in a row."""
    server = curator(tmp_path, None)
    for number in (1, 2):
        server.release(number, 1, 20_000, [])
    again = [server.release(n, 1, 20_000, []) * 40.0 / -0.3 / 0.5 for n in (2, 3)]
    assert again[0].std() == pytest.approx(1.7, rel=0.03)
    assert (again[1] + 0.5 * again[0]).std() == pytest.approx(1.7, rel=0.03)


def test_who_cannot_pay_for_its_turn_ends_the_run(tmp_path):
    """And not whoever cannot pay for a turn that is still to come."""
    given = {"noise_multiplier": 5.0, "epsilon": 3.0, "rounds": 60}
    world = World(tmp_path, CORRELATED | given)
    standing = world.run()
    taken, spent = standing.now.taken, standing.budgets.epsilons("certified")
    assert 2 < taken.max() < 20 and set(taken) == {taken.max()}
    assert spent.max() <= 3.0 and standing.records[-1].retired == CLIENTS
    third = CLIENTS // TURNS
    assert [one.retired for one in standing.records][-4:] == [0, third, 2 * third, CLIENTS]


def test_correlated_noise_is_less_at_larger_budgets(tmp_path):
    """On the last model, at the same epsilon, against coins of the same rate, over 60 rounds."""

    def error(given: dict, c: np.ndarray) -> float:
        world = World(tmp_path / str(len(given)), CORRELATED | {"rounds": 60} | given)
        noise = world.job.plans.of(0).noise_multiplier
        return noise * float(np.linalg.norm((np.tril(np.ones((60, 60))) @ np.linalg.inv(c))[-1]))

    coins = {"noise_bands": 1, "fraction": 1 / 10}
    assert error({"noise_bands": 10}, matrix(10, 60)) < 0.75 * error(coins, np.eye(60))


REFUSED = {
    "--noise-bands=13": "noise_bands is 13, but 12 clients cannot take so many turns",
    "--noise-bands=2 --fraction=0.5": "fraction is 0.5, but with --noise-bands 2 each client",
    "--noise-bands=2 --noise-decay=0.1": "noise_decay is 0.1, but with --noise-bands 2",
    "--noise-bands=2 --unit=record": "noise_bands is 2",
}


@pytest.mark.parametrize("flags", REFUSED)
def test_what_has_no_room_beside_turns_is_refused_in_one_line(flags, tmp_path):
    words = ["--trust=server", "--unit=client", "--clients=12", *flags.split()]
    check_refused(words, REFUSED[flags], tmp_path / "runs")


def test_as_many_turns_as_clients_are_possible(tmp_path):
    world = World(tmp_path, CORRELATED | {"noise_bands": CLIENTS, "rounds": CLIENTS})
    assert world.run().now.taken.tolist() == [1] * CLIENTS
