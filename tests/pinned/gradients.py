"""How per-record gradients are computed for each kind of layer, and what comes out."""

from typing import Any

import torch
from torch import Tensor

from mechanisms.gradients.record_gradients import RecordGradients
from tests.pinned.sums import sums
from tests.record_models import GENERAL, TAPPED, Case

CASES = {
    "gradients-tapped": {
        name: TAPPED[name]
        for name in (
            "no bias",
            "long sequence",
            "positions in two axes",
            "conv2d, dilated, stride",
            "conv2d, groups at one pixel",
            "conv2d, reflect",
            "conv2d, circular, same",
            "conv1d",
            "conv3d",
            "groupnorm on vectors",
            "layernorm on planes",
            "embedding",
            "one index",
            "lstm, no bias",
            "lstm, frozen input weights",
            "in place",
            "frozen bias",
        )
    },
    "gradients-general": {
        name: GENERAL[name]
        for name in (
            "tied",
            "twice",
            "read around",
            "own parameter",
            "scaled by frequency",
            "lstm, given states",
            "gru",
            "transposed",
        )
    },
}
"""By the name of an outcome, the models that it tells of."""
CLIENTS, RECORDS = 2, 3


def computed(cases: dict[str, Case]) -> dict[str, Any]:
    """By model, the route, what it holds, norms, losses, and sums in floats and whole numbers."""
    return {name: _computed(case) for name, case in cases.items()}


def _computed(case: Case) -> dict[str, Any]:
    with torch.random.fork_rng():
        torch.manual_seed(7)
        module = case.model()
        start = RecordGradients(module).layout.initial(module)
        params = start + 0.3 * torch.randn(CLIENTS, len(start))
        shape = (CLIENTS, RECORDS, *case.shape)
        x = torch.randint(0, 7, shape) if case.indices else torch.randn(shape)
        y = torch.randint(0, 3, (CLIENTS, RECORDS))
    gradients = RecordGradients(module, max_records=2)
    total, norms = gradients.scaled_sum(params, x, y, _clipped)
    whole, _ = gradients.whole_sum(params, x, y, _clipped, torch.full((CLIENTS,), 0.5), 2)
    losses, logits = gradients.losses(params, x, y), gradients.logits(params, x)
    return {
        "tapped": gradients.is_tapped(x, y),
        "entries": gradients.entries(x, y),
        "tensors": [*sums(total), *sums(whole.double() / 2**44), *sums(norms)],
        "loss": [*sums(losses), *sums(logits)],
    }


def _clipped(norms: Tensor) -> Tensor:
    return (0.5 / norms).clamp(max=1.0)
