"""Normal draws on a GPU: every client has a generator there, so that its draws are its own."""

from collections.abc import Sequence

import torch
from torch import Tensor

STEPS_AHEAD = 8
"""Steps for which small draws are made together: a draw takes a kernel for each client, however
small it is."""
SMALL = 2**17
"""Maximum size of such a draw; a larger one keeps a GPU busy by itself."""


class DeviceNormals:
    """Standard normal draws of K clients on a device, step after step, from their seeds.

    A client's draws depend on its seed and on the sizes asked for, not on the cohort.
    """

    def __init__(self, seeds: Sequence[int], device: torch.device):
        self._device, self._ahead = device, list[Tensor]()
        self._generators = [torch.Generator(device).manual_seed(seed) for seed in seeds]

    def draw(self, size: int) -> Tensor:
        """The next draws, float32 ``[K, size]``."""
        if not self._ahead or self._ahead[-1].shape[1] != size:
            steps = STEPS_AHEAD if size <= SMALL else 1
            shape = len(self._generators), steps, size
            rows = torch.empty(shape, dtype=torch.float32, device=self._device)
            for generator, row in zip(self._generators, rows, strict=True):
                row.normal_(generator=generator)
            self._ahead = list(rows.unbind(1))[::-1]
        return self._ahead.pop()
