"""What users bring themselves, for the runs of `tests.pinned`: models, records, a metric."""

from pathlib import Path

import numpy as np
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

    def __init__(self, classes: int, words: int) -> None:
        super().__init__()
        self.vectors = nn.Embedding(words, 4, padding_idx=0)
        self.recurrent = nn.LSTM(4, 3, batch_first=True, bidirectional=True)
        self.norm = nn.LayerNorm(6)
        self.last = nn.Linear(6, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.norm(self.recurrent(self.vectors(x))[0]).amax(1))


def cut(outputs: Tensor, targets: Tensor) -> Tensor:
    """The share of right answers. The third time that it is called, in the second round, it fails,
    and the run has to be resumed."""
    calls = Path("calls")
    number = len(calls.read_text()) if calls.exists() else 0
    calls.write_text("x" * (number + 1))
    if number == 2:
        raise OSError("no space left")
    return (outputs.argmax(1) == targets).double().mean()


def spread() -> dict[str, np.ndarray]:
    """Records of clients with names, whose test part is held out."""
    rng = np.random.default_rng(3)
    y = rng.integers(0, 3, 60)
    names = np.repeat(["ada", "bea", "cy", "dan"], (24, 9, 15, 12))
    return {"x": rng.normal(size=(60, 4)) + y[:, None], "y": y, "client": names}
