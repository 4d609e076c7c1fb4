"""Normal draws from generators on a device; a CPU has such generators, too."""

import pytest
import torch

from mechanisms.device_normals import SMALL, STEPS_AHEAD, DeviceNormals
from tests.devices import Noted
from tests.gaussian import alarms

SIZES = (5, SMALL + 1)


@pytest.mark.parametrize("size", SIZES)
def test_a_clients_draws_are_its_own_whoever_is_drawn_beside_it(device, size):
    together, alone = DeviceNormals([3, 4], device), DeviceNormals([4], device)
    for _ in range(STEPS_AHEAD + 2):
        rows, own = together.draw(size), alone.draw(size)
        assert rows.shape == (2, size) and rows.device.type == device.type
        assert torch.equal(rows[1:], own) and not torch.equal(rows[:1], own)


@pytest.mark.parametrize("size", SIZES)
def test_no_draw_is_given_twice(device, size):
    """Nor where another size comes between. Kills a block that is given again."""
    source = DeviceNormals([3], device)
    drawn = [source.draw(size)[0, :5].tolist() for _ in range(2 * STEPS_AHEAD)]
    drawn += [source.draw(7)[0, :5].tolist(), source.draw(size)[0, :5].tolist()]
    assert len({tuple(one) for one in drawn}) == len(drawn)
    assert DeviceNormals([3], device).draw(size)[0, :5].tolist() == drawn[0]


def test_draws_are_standard_normal(device):
    """False alarm: 1e-6."""
    source = DeviceNormals(range(4), device)
    rows = torch.cat([source.draw(500) for _ in range(3)], dim=1)
    assert alarms(rows.double().cpu().numpy(), 1.0) == set()


def test_a_default_type_moves_no_draw(device):
    """Kills noise of eight bits where a program has set bfloat16."""
    expected = DeviceNormals([3], device).draw(5)
    torch.set_default_dtype(torch.bfloat16)
    try:
        assert torch.equal(DeviceNormals([3], device).draw(5), expected)
    finally:
        torch.set_default_dtype(torch.float32)


def test_small_draws_of_several_steps_take_one_kernel_for_each_client(device):
    kernels = []
    source = DeviceNormals(range(3), device)
    with Noted(lambda func: kernels.append(func) if func is torch.Tensor.normal_ else None):
        for _ in range(STEPS_AHEAD):
            source.draw(5)
        assert len(kernels) == 3
        source.draw(SMALL + 1)
        source.draw(SMALL + 1)
        assert len(kernels) == 9
