"""The comparisons' CNN on 8x8 digits: 9,258 parameters, as `cnn` in the peer's script.

For our side: `--model benchmarks.digits_cnn:DigitsCNN` (our own `cnn` is made for 28x28 images).
"""

from torch import nn


class DigitsCNN(nn.Sequential):
    """Two 3x3 convolutions with max-pooling and one hidden layer; records are [1, 8, 8]."""

    def __init__(self) -> None:
        super().__init__(
            nn.Conv2d(1, 16, 3, padding=1),
            nn.Tanh(),
            nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.Tanh(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(128, 32),
            nn.Tanh(),
            nn.Linear(32, 10),
        )
