"""Models of the user's own, for the runs of `tests.pinned`."""

import torch
from torch import Tensor, nn


class Residual(nn.Module):
    """Convolutions with strides, groups and dilation, a norm, and a way around them."""

    def __init__(self, input_shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        channels = input_shape[0]
        self.first = nn.Conv2d(channels, 4, 3, stride=2, padding=1)
        self.second = nn.Conv2d(4, 4, 3, padding=2, dilation=2, groups=2)
        self.norm = nn.GroupNorm(2, 4)
        self.scale = nn.Parameter(torch.ones(4, 1, 1))
        self.last = nn.Linear(4, classes)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.first(x))
        return self.last((h + self.scale * self.norm(self.second(h))).mean((2, 3)))


class Words(nn.Module):
    """Word vectors, a recurrent layer, and a norm over its outputs."""

    def __init__(self, input_shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.vectors = nn.Embedding(9, 4)
        self.recurrent = nn.LSTM(4, 3, batch_first=True, bidirectional=True)
        self.norm = nn.LayerNorm(6)
        self.last = nn.Linear(6, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.norm(self.recurrent(self.vectors(x.long()))[0]).amax(1))
