"""Models for records that are sequences of word numbers [T]."""

from collections.abc import Callable

import numpy as np
import torch
from torch import nn

from sim.data.words import Words

WIDTH = 100
"""Length of randomly drawn word vectors."""


class MeanState(nn.Module):
    """The mean of a recurrent layer's outputs over the sequence: [B, T, H] to [B, H]."""

    def forward(self, states: tuple[torch.Tensor, object]) -> torch.Tensor:
        """The mean output; the layer's last states are ignored."""
        return states[0].mean(1)


def lstm(
    classes: int, activation: type[nn.Module], words: Words, rng: np.random.Generator
) -> list[nn.Module]:
    """DPSUR's network for IMDb: 21,202 parameters with 2 classes, beside vectors of 100 numbers.

    Word vectors that are not given are standard normal. They are constants unless trained; that of
    the padding is always 0. `sim.models.networks` draws all other weights.
    """
    drawn = rng.standard_normal((words.count, WIDTH)) if words.vectors is None else words.vectors
    vectors = torch.from_numpy(drawn.astype(np.float32))
    vectors[0] = 0
    return [
        nn.Embedding.from_pretrained(vectors, freeze=not words.trained, padding_idx=0),
        nn.Linear(vectors.shape[1], 32),
        activation(),
        nn.LSTM(32, 32, batch_first=True, bidirectional=True),
        MeanState(),
        nn.Linear(64, 16),
        activation(),
        nn.Linear(16, classes),
    ]


Builder = Callable[[int, type[nn.Module], Words, np.random.Generator], list[nn.Module]]
"""Function from classes, activation, words and generator to the layers."""

SEQUENCE_MODELS: dict[str, Builder] = {"lstm": lstm}
