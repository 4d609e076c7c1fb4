"""Batch normalization becomes group normalization: each record by itself, and all is reported."""

import pytest
import torch
from torch import nn

import sim
from mechanisms.gradients.independence import refuse_mixing_layers


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(96, eps=0.5)
        self.shared = nn.Sequential(nn.Conv2d(96, 96, 1), self.norm)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.shared(self.norm(x))


def network() -> nn.Sequential:
    torch.manual_seed(0)
    module = nn.Sequential(
        nn.Conv2d(3, 96, 3), Residual(), nn.Flatten(), nn.LazyLinear(10), nn.BatchNorm1d(10)
    )
    module(torch.randn(2, 3, 4, 4))
    return module.eval()


def test_every_batch_normalization_is_replaced_and_reported():
    module = network()
    scale, shift = module[1].norm.weight, module[4].bias
    said = sim.to_group_norm(module)
    refuse_mixing_layers(module)
    assert [line.partition(": ")[0] for line in said] == ["1.norm", "4"]
    assert said[0].startswith("1.norm: BatchNorm2d(96, eps=0.5,")
    assert " -> GroupNorm(6, 96, eps=0.5," in said[0]
    assert " -> GroupNorm(1, 10, eps=1e-05," in said[1]
    assert module[1].norm is module[1].shared[1] and not module[1].norm.training
    assert module[1].norm.weight is scale and module[4].bias is shift
    assert sim.to_group_norm(module) == []


def test_a_record_has_the_same_output_alone_and_in_any_batch():
    module = network().train()
    sim.to_group_norm(module)
    x = torch.randn(5, 3, 4, 4)
    alone = torch.cat([module(x[n : n + 1]) for n in range(5)])
    assert torch.allclose(module(x), alone, atol=1e-5)


@pytest.mark.parametrize(
    ("channels", "groups"), [(1, 1), (8, 1), (31, 1), (32, 2), (54, 3), (100, 5), (1024, 32)]
)
def test_groups_have_sixteen_channels_or_more_and_divide_them(channels, groups):
    """One channel in a group would be 0 for a record of single numbers."""
    module = nn.Sequential(nn.BatchNorm1d(channels))
    sim.to_group_norm(module)
    assert module[0].num_groups == groups


def test_without_scale_and_shift_there_is_none_after():
    module = nn.Sequential(nn.BatchNorm2d(4, affine=False))
    sim.to_group_norm(module)
    assert list(module.parameters()) == [] and not module[0].affine


@pytest.mark.parametrize(
    ("module", "said"),
    [
        (nn.BatchNorm2d(3), r"the module \(BatchNorm2d\) is the whole module"),
        (nn.Sequential(nn.BatchNorm1d(2), nn.LazyBatchNorm1d()), r"1 \(LazyBatchNorm1d\) has not"),
    ],
)
def test_what_cannot_be_replaced_is_told_and_nothing_is_changed(module, said):
    before = str(module)
    with pytest.raises(ValueError, match=said):
        sim.to_group_norm(module)
    assert str(module) == before
