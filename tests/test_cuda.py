"""On a GPU: draws, exact sums and gradients are those of the CPU, bit by bit or up to rounding.

Every law runs on the CPU too, where it shows that the test is right. On a machine with a GPU,
``pytest -m cuda tests/test_cuda.py tests/test_cuda_runs.py`` runs the others. Those of this file
need torch, NumPy, SciPy and Hypothesis alone.
"""

import numpy as np
import pytest
import torch

from client.sums import WeightedSum
from mechanisms import grid
from mechanisms.arithmetic import FLOATS, GRID, LossTest
from mechanisms.gradients.passes import Passes
from mechanisms.gradients.products import products
from mechanisms.gradients.record_gradients import RecordGradients
from mechanisms.randomness import Streams, SystemStreams, generator, seed_key
from tests.devices import CPU, on, on_devices
from tests.gaussian import SPOILERS, alarms
from tests.record_models import GENERAL, TAPPED, problem

KEY = seed_key(3)


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Wherever they are."""
    return one.dtype == other.dtype and torch.equal(one.cpu(), other.cpu())


# --- randomness
# --------------------------------------------------------------------------------------------------


def test_coins_and_exact_draws_are_the_cpus_bit_by_bit(device):
    here, there = (Streams(KEY, 2, [5, 0, 7], where) for where in (device, CPU))
    for size in (4, 3):
        draws = here.rounded("noise", size)
        assert draws.device.type == device.type and same_bits(draws, there.rounded("noise", size))
        coins = [
            [source.random(size).tolist() for source in one.of("batch")] for one in (here, there)
        ]
        assert coins[0] == coins[1]


def test_normal_draws_have_a_name_and_no_other_state(device):
    """The same for a client whoever else is in the cohort; others for each purpose, round, client,
    key and step."""
    states = torch.get_rng_state(), torch.cuda.get_rng_state_all() if device.type == "cuda" else []

    def draws(key=KEY, round_=2, clients=(5, 7), purpose="noise", steps=1) -> torch.Tensor:
        streams = Streams(key, round_, clients, device)
        return torch.stack([streams.normal(purpose, 100) for _ in range(steps)])

    first = draws()[0]
    assert (
        first.shape == (2, 100)
        and first.dtype == torch.float32
        and first.device.type == device.type
    )
    assert same_bits(draws(steps=2)[0], first) and same_bits(draws(clients=(7,))[0], first[1:])
    others = [
        draws(seed_key(4))[0, 0],
        draws(round_=3)[0, 0],
        draws(purpose="test")[0, 0],
        first[1],
        draws(steps=2)[1, 0],
    ]
    assert not any((first[0] == other).any() for other in others)
    assert torch.equal(torch.get_rng_state(), states[0])
    assert device.type == "cpu" or all(map(torch.equal, torch.cuda.get_rng_state_all(), states[1]))


def test_normal_draws_are_gaussian_and_independent_between_clients(device):
    """False alarm: 2e-6 in all, with fixed draws."""
    rows = Streams(KEY, 1, range(20), device).normal("noise", 1_000).double().cpu().numpy()
    assert alarms(rows, 1.0) == set() and all(
        alarms(spoil(rows.ravel(), 1.0), 1.0) for spoil in SPOILERS.values()
    )
    products = rows @ rows.T / 1_000**0.5
    assert np.abs(products[np.triu_indices(20, 1)]).max() < 6.2


def test_a_release_draws_from_the_systems_entropy(device):
    """False alarm: 1e-6. Kills float noise, a seed, and draws that are given twice.

    Of 6,000 draws, 0.02 pairs on average agree by chance; four do once in 10^8 times.
    """
    streams = SystemStreams(4, device)
    with pytest.raises(TypeError, match="grid"):
        streams.normal("noise", 3)
    draws = [
        streams.rounded("noise", 500),
        streams.rounded("noise", 500),
        SystemStreams(4, device).rounded("noise", 500),
    ]
    assert all(one.device.type == device.type and one.dtype == torch.int64 for one in draws)
    sample = torch.cat(draws).double().cpu().numpy().ravel() * 2.0**-28
    assert alarms(sample, 1.0) == set() and len(sample) - len(np.unique(sample)) < 4


# --- exact sums
# --------------------------------------------------------------------------------------------------


def test_weighted_sums_of_updates_are_the_cpus_bit_by_bit(device):
    rng = generator(KEY, "updates")
    updates = torch.from_numpy(
        (rng.normal(size=(9, 50)) * 10.0 ** rng.integers(-12, 3, (9, 50))).astype(np.float32)
    )
    weights = rng.integers(1, 2_000, 9)
    sums = []
    for where in (device, CPU):
        total = WeightedSum(50)
        for part in (slice(0, 4), slice(4, 9)):
            total.add(updates[part].to(where), weights[part])
        sums.append((total.total.tolist(), total.weight))
    exact = [
        sum(round(float(u) * 2**32) * int(w) for u, w in zip(column, weights, strict=True))
        for column in updates.T
    ]
    assert sums[0] == sums[1] == (exact, int(weights.sum()))
    for bad in (float("nan"), float("inf"), 2.0**31):
        with pytest.raises(ValueError, match="diverged"):
            WeightedSum(1).add(torch.tensor([[0.0], [bad]]).to(device), np.ones(2, dtype=np.int64))


def test_the_grid_is_the_cpus_bit_by_bit(device):
    """Parts, noisy sums, single releases, means and tests of a loss, from equal records and equal
    draws."""
    rng = generator(KEY, "grid")
    values = torch.from_numpy(rng.normal(size=(3, 40, 17)).astype(np.float32))
    bound, std = torch.tensor([0.5, 3.0, 1e-6]), torch.tensor([0.7, 30.0, 1e-6])
    change, test = (
        torch.from_numpy(rng.normal(size=400)),
        LossTest([0.5] * 400, [0.7] * 400, [-0.3] * 400),
    )
    rows = torch.from_numpy(rng.normal(size=(3, 40)) * 10.0 ** np.arange(40))

    def computed(where: torch.device) -> list[torch.Tensor]:
        here, limits, stds = on(where, values, bound, std)
        streams, many = Streams(KEY, 1, range(3), where), Streams(KEY, 1, range(400), where)
        total = GRID.parts(here, limits).sum(dim=1)
        single = GRID.noised_from(streams.of("single")[0], total, 0.5, 0.7)
        below = GRID.below(change.to(where), test, many, "test")
        return [
            total,
            GRID.noised(total, limits, stds, streams, "noise"),
            single,
            GRID.total(rows.to(where)),
            below,
        ]

    for here, there in zip(computed(device), computed(CPU), strict=True):
        assert here.device.type == device.type and same_bits(here, there)


def test_float_noise_has_its_scale_and_a_release_has_none(device):
    """False alarm: 1e-6."""
    total, bound, std = on(device, torch.zeros(2, 2_000), torch.ones(2), torch.tensor([0.5, 3.0]))
    noisy = FLOATS.noised(total, bound, std, Streams(KEY, 1, range(2), device), "noise")
    assert alarms((noisy / std[:, None]).double().cpu().numpy(), 1.0) == set()
    with pytest.raises(TypeError, match="grid"):
        FLOATS.noised(total, bound, std, SystemStreams(2, device), "noise")


def test_products_of_whole_numbers_are_exact(device, exact_products):
    """Up to the largest that an exact sum has. Kills products that a GPU puts together from shorter
    ones."""
    rng = generator(KEY, "products")
    left, right = (
        torch.from_numpy(rng.integers(-(2**bits), 2**bits + 1, size))
        for bits, size in ((21, (2, 64, 256)), (23, (2, 256, 96)))
    )
    found = products(*on(device, left.double(), right.double()))
    assert torch.equal(found.cpu().long(), left @ right)


# --- gradients
# --------------------------------------------------------------------------------------------------

CASES = {**TAPPED, **GENERAL}


@pytest.mark.parametrize(
    ("device", "name"), on_devices(CASES, "linear", "conv2d", "attention"), indirect=["device"]
)
def test_gradients_norms_and_losses_are_the_cpus(device, name, exact_products):
    """In float64, where the order of additions hardly counts; by the same route."""
    p = problem(CASES[name], clients=2, records=3)
    gradients = RecordGradients(p.module.to(device))
    params, x, y = on(device, p.params, p.x, p.y)
    clip = lambda norms: 0.5 / norms.clamp(min=0.5)  # noqa: E731
    assert gradients.is_tapped(x, y) == p.gradients.is_tapped(p.x, p.y)
    for here, there in zip(
        gradients.scaled_sum(params, x, y, clip),
        p.gradients.scaled_sum(p.params, p.x, p.y, clip),
        strict=True,
    ):
        torch.testing.assert_close(here.cpu(), there, rtol=1e-7, atol=1e-9)
    torch.testing.assert_close(
        gradients.norms(params, x, y).cpu(), p.gradients.norms(p.params, p.x, p.y)
    )
    torch.testing.assert_close(
        gradients.losses(params, x, y).cpu(), p.gradients.losses(p.params, p.x, p.y)
    )


PLACED = ["mlp", "conv2d", "embedding", "lstm", "groupnorm", "own parameter"]


@pytest.mark.parametrize(
    ("device", "name"), on_devices(PLACED, "mlp", "own parameter"), indirect=["device"]
)
def test_a_record_has_the_same_part_in_every_batch(device, name, exact_products):
    """To the last unit, in float32: an exact sum is the sum of what each record gives at another
    place."""
    p = problem(CASES[name], clients=2, records=9)
    gradients = RecordGradients(p.module.float().to(device))
    params, x, y = on(
        device, p.params.float(), p.x.float() if p.x.is_floating_point() else p.x, p.y
    )
    bound, order = (
        torch.tensor([0.5, 3.0], device=device),
        torch.from_numpy(np.random.default_rng(0).permutation(9)),
    )

    def total(chosen: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        clip = lambda norms: bound[:, None] / norms.clamp(min=1e-9) * mask.to(device)  # noqa: E731
        return gradients.whole_sum(params, x[:, chosen], y[:, chosen], clip, bound, 16)[0]

    whole = total(torch.arange(9), torch.ones(9))
    parts = torch.stack([total(torch.arange(9), mask) for mask in torch.eye(9)])
    assert torch.equal(whole, parts.sum(dim=0)) and torch.equal(whole, total(order, torch.ones(9)))
    assert (parts.double().norm(dim=2) <= grid.PART * (1 + 2.0**-22 * params.shape[1] ** 0.5)).all()


def test_a_pass_is_as_large_as_the_device_allows(device):
    """64 MiB on a CPU, 1 GiB elsewhere, or what the user says; of float32 and of float64."""
    memory, x = 2**26 if device.type == "cpu" else 2**30, torch.zeros(1, 1, device=device)
    assert [Passes(None, None, size).held(x) for size in (4, 8)] == [memory // 4, memory // 8]
    assert Passes(None, 2**20, 4).held(x) == 2**18
