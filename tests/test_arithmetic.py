"""The two arithmetics through one interface: what differs is rounding alone, client by client and
under any metric."""

import numpy as np
import pytest
import torch

from mechanisms import grid
from mechanisms.arithmetic import FLOATS, GRID
from mechanisms.clipping import clip_factors
from mechanisms.gradients.passes import Passes
from mechanisms.gradients.record_gradients import RecordGradients
from mechanisms.randomness import generator
from mechanisms.rounded_gaussian import SCALE_BITS
from mechanisms.sampling import Batch
from tests.small import X, Y, model, start, streams

BOUND = torch.tensor([0.5, 3.0])


def batch() -> Batch:
    """Two clients with seven records."""
    mask = torch.ones(2, 7, dtype=torch.bool)
    return Batch(torch.stack([X[:7], X[20:27]]), torch.stack([Y[:7], Y[20:27]]), mask)


@pytest.mark.parametrize("layers", [(), ("0",), ("0", "2")])
def test_sums_norms_and_losses_agree_to_rounding(layers):
    """Under metrics of each client's own, clipped at bounds of each client's own."""
    rng = torch.Generator().manual_seed(0)
    sides = {"0": 5, "2": 3}
    metric = {
        name: torch.eye(sides[name]) + 0.4 * torch.randn(2, *[sides[name]] * 2, generator=rng)
        for name in layers
    }
    gradients, own = RecordGradients(model()), batch()
    params = start(model()) * torch.tensor([[1.0], [0.6]])
    factors = lambda norms: clip_factors(norms, BOUND)  # noqa: E731
    total, norms = FLOATS.gradient_sum(gradients, params, own, factors, BOUND, None, metric)
    whole, found = GRID.gradient_sum(gradients, params, own, factors, BOUND, 7, metric)
    torch.testing.assert_close(found.float(), norms, rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(
        (whole.double() * BOUND[:, None] / grid.PART).float(), total, rtol=1e-4, atol=1e-5
    )
    if not layers:
        for measure in ("norms", "losses"):
            floats = getattr(FLOATS, measure)(gradients, params, own, None)
            torch.testing.assert_close(
                getattr(GRID, measure)(gradients, params, own, 7).float(), floats
            )


def test_only_clients_with_noise_get_noise():
    total, std = torch.arange(6.0).view(2, 3), torch.tensor([0.0, 2.0])
    noisy = FLOATS.noised(total, BOUND, std, streams([4, 9]), "noise")
    expected = total + std[:, None] * streams([4, 9]).normal("noise", 3)
    assert (
        torch.equal(noisy, expected)
        and torch.equal(noisy[0], total[0])
        and not torch.equal(noisy[1], total[1])
    )
    assert torch.equal(FLOATS.noised(total, BOUND, 0 * std, streams([4, 9]), "noise"), total)


def test_a_pass_of_a_release_has_room_for_the_expected_records():
    """At least one, so that a pass is never empty; in a simulation its shape may vary."""
    assert [GRID.width(records) for records in (0, 1, 7)] == [1, 1, 7]
    assert FLOATS.width(7) is None


@pytest.mark.parametrize(("arithmetic", "width"), [(GRID, 16), (FLOATS, None)])
def test_a_pass_has_the_width_that_its_arithmetic_gives_whoever_was_drawn(
    arithmetic, width, monkeypatch
):
    """Seven records were. Kills a width that a sum, a norm or a loss forgets: the shape of a pass
    would tell a coin to all other records."""
    seen, cut = [], Passes.cut

    def noted(passes, x, entries, alone, width=None):
        seen.append(width)
        return cut(passes, x, entries, alone, width)

    monkeypatch.setattr(Passes, "cut", noted)
    gradients, own = RecordGradients(model()), (start(model()).expand(2, -1), batch())
    summed = lambda norms: clip_factors(norms, BOUND)  # noqa: E731
    arithmetic.gradient_sum(gradients, *own, summed, BOUND, width, {})
    for measure in (arithmetic.norms, arithmetic.losses):
        measure(gradients, *own, width)
    assert len(seen) == 3 and set(seen) == {width}


def test_totals_of_one_client_are_in_units_of_their_bound():
    """Both arithmetics release the totals themselves, up to their noise; kills a total that is
    read in another unit than its parts were made in."""
    values = torch.from_numpy(np.random.default_rng(0).normal(size=(3, 4)))
    for bound in (0.3, 5.0):
        for arithmetic in (FLOATS, GRID):
            parts = arithmetic.parts(values, torch.full((3,), bound, dtype=torch.float64))
            found = arithmetic.noised_from(generator(b"key", "noise"), parts, bound, 1e-4)
            torch.testing.assert_close(found, values, rtol=0, atol=1e-3)


@pytest.mark.parametrize("multiplier", [0.5, 3.0, 40.0])
def test_a_point_of_the_grid_is_the_nearest_one(multiplier):
    """Without draws the released number is within half a step of the sum, and on both sides of
    it."""
    bound = torch.tensor([0.5, 3.0], dtype=torch.float64)
    rng = np.random.default_rng(0)
    total = torch.from_numpy(rng.integers(-(2**46), 2**46, (2, 500)))
    found = grid.noised(total, bound, multiplier * bound, torch.zeros_like(total))
    step = multiplier * (1 + grid.slack(500, multiplier)) * 2.0**-SCALE_BITS * bound[:, None]
    away = (found - total.double() / grid.PART * bound[:, None]) / step
    assert away.abs().max() <= 0.5 + 1e-3 and away.min() < -0.4 and away.max() > 0.4
