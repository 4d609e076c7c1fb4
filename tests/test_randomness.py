"""Named streams: a draw depends on (key, purpose, round, client) and on nothing else."""

import hashlib
import itertools

import numpy as np
import pytest
import torch

from mechanisms import randomness
from mechanisms.randomness import SERVER, Streams, SystemStreams, fresh_key, generator, seed_key
from tests.gaussian import SPOILERS, alarms

KEY = seed_key(5)
DEVICES = [
    "cpu",
    "generators",
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA")),
]


class OfGenerators(Streams):
    """The draws that a GPU has, from generators of the CPU."""

    def normal(self, purpose: str, size: int) -> torch.Tensor:
        return self._normals(purpose).draw(size)


def streams(*clients: int, key: bytes = KEY, round_: int = 1, device: str = "cpu") -> Streams:
    if device == "generators":
        return OfGenerators(key, round_, clients, torch.device("cpu"))
    return Streams(key, round_, clients, torch.device(device))


def test_the_same_name_gives_the_same_draws():
    assert (
        generator(KEY, "noise", 3, 7).random(4).tolist()
        == generator(KEY, "noise", 3, 7).random(4).tolist()
    )


def test_any_other_name_gives_other_draws():
    """Kills a name that leaves out the key, the purpose, the round or the client, or runs two of
    them together."""
    keys = [
        seed_key(0),
        seed_key(1),
        seed_key(10),
        seed_key(1001),
        seed_key(2**32 + 1),
        seed_key(2**62),
        bytes(32),
    ]
    names = itertools.product(keys, ("noise", "batch"), (0, 1, 11, 12), (SERVER, 0, 1, 11, 2))
    draws = [int(generator(*name).integers(2**63)) for name in names]
    assert len(set(draws)) == len(draws) == 280


@pytest.mark.parametrize("device", DEVICES)
def test_a_clients_draws_do_not_depend_on_its_cohort(device):
    """Kills one generator for the whole cohort, and seeding by the row's number."""
    together, order = streams(4, 9, 2, device=device), [4, 9, 2]
    steps = [together.normal("noise", 5) for _ in range(3)]
    for row, client in enumerate(order):
        alone = streams(client, device=device)
        assert all(torch.equal(step[row], alone.normal("noise", 5)[0]) for step in steps)


@pytest.mark.parametrize("device", DEVICES)
def test_purposes_do_not_disturb_each_other(device):
    mixed, plain = streams(3, device=device), streams(3, device=device)
    mixed.of("batch")[0].random(17)
    assert torch.equal(mixed.normal("noise", 8), plain.normal("noise", 8))


@pytest.mark.parametrize("device", DEVICES)
def test_no_two_draws_of_noise_are_the_same(device):
    """Over purposes, steps, clients, rounds and keys. Kills noise that is drawn once and used
    twice."""
    rows = [
        row
        for key, round_ in itertools.product((KEY, fresh_key()), (1, 2))
        for cohort in [streams(0, 1, key=key, round_=round_, device=device)]
        for purpose in ("noise", "count", "noise")
        for row in cohort.normal(purpose, 2000)
    ]
    correlations = torch.corrcoef(torch.stack(rows)).cpu() - torch.eye(len(rows))
    # 276 pairs: a false alarm has probability 276 * 2e-9 < 1e-6
    assert len(rows) == 24 and correlations.abs().max() < 6.0 / 2000**0.5


@pytest.mark.parametrize("device", DEVICES)
def test_normal_draws_are_standard_normal(device):
    rows = streams(*range(10), device=device).normal("noise", 4000)
    assert rows.dtype == torch.float32 and rows.shape == (10, 4000)
    assert alarms(rows.cpu().numpy(), 1.0) == set()


@pytest.mark.parametrize("spoil", SPOILERS.values(), ids=SPOILERS)
def test_the_test_of_normality_rejects_what_it_should(spoil):
    """Negative controls, at a tenth of the sample's size."""
    good = streams(0).normal("noise", 4000)[0].numpy()
    assert alarms(good, 1.0) == set() and alarms(spoil(good, 1.0), 1.0) != set()


def test_a_fresh_key_is_fresh():
    keys = {fresh_key() for _ in range(100)}
    assert len(keys) == 100 and {len(key) for key in keys} == {32}


def test_global_random_state_is_neither_read_nor_written():
    def states() -> list[bytes]:
        of_numpy = np.random.get_state()[1]  # noqa: NPY002
        return [torch.get_rng_state().numpy().tobytes(), of_numpy.tobytes()]

    before, first = states(), streams(1).normal("noise", 3)
    assert states() == before
    torch.rand(1)
    assert torch.equal(streams(1).normal("noise", 3), first)


def test_nothing_to_draw():
    assert streams().normal("noise", 3).shape == (0, 3)
    assert streams(1).normal("noise", 0).shape == (1, 0)


def test_exact_draws_are_each_clients_own_for_each_purpose_and_step():
    """Of a release as well: no row is given twice."""
    cohort, rows = streams(4, 9, 2), []
    for purpose in ("noise", "noise", "count"):
        rows += cohort.rounded(purpose, 6).tolist()
    alone = [streams(client).rounded("noise", 6)[0].tolist() for client in (4, 9, 2)]
    assert rows[:3] == alone
    system = SystemStreams(3, torch.device("cpu"))
    rows += [*system.rounded("noise", 6).tolist(), *system.rounded("noise", 6).tolist()]
    assert len(rows) == len({tuple(row) for row in rows}) == 15


def test_a_stream_is_philox_with_the_digest_of_its_name():
    """The bits of all runs so far. Kills another order of the key's halves or of its bytes."""
    for client in (SERVER, 0, 7):
        name, key = f"noise|3|{client}".encode(), hashlib.sha256(KEY).digest()
        digest = hashlib.blake2b(name, key=key, digest_size=16).digest()
        plain = np.random.Generator(np.random.Philox(key=int.from_bytes(digest)))
        assert generator(KEY, "noise", 3, client).random(9).tolist() == plain.random(9).tolist()


def test_a_generator_that_nobody_draws_from_is_not_made(monkeypatch):
    """At rate 1 no batch is drawn; ten thousand generators would be a tenth of such a round."""
    made = []
    monkeypatch.setattr(
        randomness, "generator", lambda *name: made.append(name) or generator(*name)
    )
    own = streams(4, 9, 2).of("batch")
    assert len(own) == 3 and not made
    assert own[1] is own[1] and made == [(KEY, "batch", 1, 9)]
