"""Models of records that are sequences of word numbers [T]."""

from collections.abc import Callable

import numpy as np
import torch
from torch import nn

from sim.data.words import Words

WIDTH = 100
"""Numbers of a word's vector, where it is drawn at random."""


class MeanState(nn.Module):
    """The mean over a sequence of what a recurrent layer gives for its steps: [B, T, H] to [B,
    H]."""

    def forward(self, states: tuple[torch.Tensor, object]) -> torch.Tensor:
        """Of the layer's output and its last states, which are not looked at."""
        return states[0].mean(1)


def lstm(
    classes: int, activation: type[nn.Module], words: Words, rng: np.random.Generator
) -> list[nn.Module]:
    """DPSUR's network for IMDb: 21,202 parameters with 2 classes, beside vectors of 100 numbers.

    Vectors of words are standard normal where they are not given. They stay as they are, unless
    they are to be trained; that of the filling is 0 and always stays. All other weights are the
    layers' own.
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
"""From the classes, the activation, the words and a generator to the layers."""

SEQUENCE_MODELS: dict[str, Builder] = {"lstm": lstm}
