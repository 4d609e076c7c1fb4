"""Class maps: where in an image a convolutional model sees a class.

Grad-CAM (Selvaraju et al. 2017), as in DP-Hero's Figures 7 and 8.

For a class c with score y_c before the softmax, and the last convolution's output A with channels
A_k, the paper weights each channel by alpha_k, the mean over its pixels of d y_c / d A_k (its
equation 1), and takes ReLU(sum_k alpha_k A_k) (equation 2). The map is enlarged to the image.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def class_maps(model: nn.Module, x: Tensor, classes: Tensor) -> Tensor:
    """Each record's map of one class ``[N, H, W]``, in 0 .. 1.

    A map is divided by its own maximum, so that maps say where, not how much. It is 0 everywhere if
    no pixel speaks for the class. The model's weights, gradients and hooks stay as they are.

    Args:
        model: from records to scores ``[N, C]``, in evaluation mode; no layer mixes records.
        x: images ``[N, channels, H, W]``, as the model takes them.
        classes: int64 ``[N]``, the class of each record's map.

    Raises:
        ValueError: the model calls no Conv2d, or its last one has another output than a map for
            each record; or the map is not finite, as of a model that has diverged.
    """
    with torch.enable_grad(), _recorded(model) as outputs:
        scores = model(x)
        if not outputs or outputs[-1].ndim != 4 or len(outputs[-1]) != len(x):
            raise ValueError(
                f"{type(model).__name__} has no Conv2d layer whose output is a map for each "
                "record, and class maps are of that: use a convolutional model, such as lenet"
            )
        last = outputs[-1]
        chosen = scores.gather(1, classes[:, None]).sum()  # of records that do not mix
        (slopes,) = torch.autograd.grad(chosen, last, allow_unused=True, materialize_grads=True)
    alpha = slopes.mean(dim=(2, 3), keepdim=True)
    small = torch.relu((alpha * last.detach()).sum(dim=1, keepdim=True))
    size = x.shape[-2:]
    maps = F.interpolate(small, size=size, mode="bilinear", align_corners=False)[:, 0]
    if not maps.isfinite().all():
        raise ValueError(
            f"{type(model).__name__} has a class map that is not finite, so its weights or "
            "scores are too large: train it with a lower --lr"
        )
    highest = maps.amax(dim=(1, 2), keepdim=True)
    return torch.where(highest > 0, maps / highest, 0.0)


@contextmanager
def _recorded(model: nn.Module) -> Iterator[list[Tensor]]:
    """The outputs of the Conv2d layers, in the order of their calls.

    Each is a leaf that needs a gradient, whether the layers before it are frozen or not. The model
    goes on with a copy, as an activation may overwrite it.
    """
    outputs: list[Tensor] = []

    def record(layer: nn.Module, given: object, output: Tensor) -> Tensor:
        outputs.append(output.detach().requires_grad_())
        return outputs[-1].clone()

    hooks = [m.register_forward_hook(record) for m in model.modules() if isinstance(m, nn.Conv2d)]
    try:
        yield outputs
    finally:
        for hook in hooks:
            hook.remove()
