"""The example that is trained in pfl-research, in Flower and here: pfl's own benchmark, in numbers,
nets and records.

`TwoLayerCNN` is the net of pfl's CIFAR-10 benchmark without its dropout: two convolutions, one
hidden layer; 1,626,442 parameters. Dropout is left out on all sides, for it would draw from a
generator that nobody names. `SmallCNN`, for MNIST, is small enough (26,010 parameters) for whole
clients to be protected by the noise that 50 of them can carry.

For our side: `--model benchmarks.peers.yardstick:TwoLayerCNN`.
"""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

USERS, IMAGES, COHORT, BATCH, RATE = 1_000, 50, 50, 10, 0.1
"""Users, images of each, users a round, images of a local step, its rate; one local epoch."""
CLIP_NORM = 0.4
"""Bound on a user's update, where users are protected."""


class TwoLayerCNN(nn.Sequential):
    """Records are [3, 32, 32], with 10 classes."""

    def __init__(self) -> None:
        super().__init__(
            nn.Conv2d(3, 32, 3),
            nn.ReLU(),
            nn.Conv2d(32, 64, 3),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(12544, 128),
            nn.ReLU(),
            nn.Linear(128, 10),
        )


class SmallCNN(nn.Sequential):
    """Records are [1, 28, 28], with 10 classes."""

    def __init__(self) -> None:
        super().__init__(
            nn.Conv2d(1, 16, 8, stride=2, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(2, stride=1),
            nn.Conv2d(16, 32, 4, stride=2),
            nn.ReLU(),
            nn.MaxPool2d(2, stride=1),
            nn.Flatten(),
            nn.Linear(512, 32),
            nn.ReLU(),
            nn.Linear(32, 10),
        )


NETS = {net.__name__: net for net in (TwoLayerCNN, SmallCNN)}


def records(path: Path) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """`x, y, x_test, y_test` of an .npz; pixels, stored in uint8, as floats in [0, 1]."""
    with np.load(path) as arrays:
        x, y, x_test, y_test = (
            torch.from_numpy(arrays[name]) for name in ("x", "y", "x_test", "y_test")
        )
    return x.float() / 255, y, x_test.float() / 255, y_test


def split(labels: Tensor, seed: int) -> Tensor:
    """Places of each user's images, `[USERS, IMAGES]`: all users alike, at random."""
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    return order[: USERS * IMAGES].view(USERS, IMAGES)


def accuracy(module: nn.Module, x: Tensor, y: Tensor) -> float:
    """Share of the records that are put in their class."""
    with torch.inference_mode():
        right = sum(
            int((module(a).argmax(1) == b).sum())
            for a, b in zip(x.split(1000), y.split(1000), strict=True)
        )
    return right / len(y)
