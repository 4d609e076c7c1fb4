"""The net of pfl-research's CIFAR-10 benchmark without its dropout: two convolutions, one hidden
layer; 1,626,442 parameters. Dropout is left out on both sides, for it would draw from a generator
that nobody names.

For our side: `--model benchmarks.peers.yardstick:TwoLayerCNN`.
"""

from torch import nn


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
