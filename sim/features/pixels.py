"""What scattering sees of an image: its pixels in [0, 1], colours normalised by public constants,
and strokes set upright. Each image is prepared by itself.
"""

import torch
import torch.nn.functional as F

from sim.config.settings import Data
from sim.sources.backbones import DEVIATION, MEAN

OPPONENT = (
    (3**-0.5, 3**-0.5, 3**-0.5),
    (4.5**0.5, 0.0, -(4.5**0.5)),
    (1.5**0.5, -(6**0.5), 1.5**0.5),
)
"""Brightness and two differences of colours, the axes of Ohta, Kanade and Sakai (1980) for natural
images; differences, which are smaller, are taken three times."""
MAX_SHEAR = 1.0
"""Pixels by which two neighbouring rows are moved against each other at most."""


def coloured(x: torch.Tensor, data: Data) -> torch.Tensor:
    """Images [N, C, H, W] in [0, 1] in the colours of `feature_pixels`; those of ImageNet are as
    Tramer and Boneh's public code (ftramer/Handcrafted-DP, data.py) normalises CIFAR-10's.

    Raises:
        ValueError: colours are asked for, and the images have not three.
    """
    if data.feature_pixels == "unit":
        return x
    if x.ndim != 4 or x.shape[1] != 3:
        raise ValueError(
            f"feature_pixels is {data.feature_pixels}, but records of shape "
            f"{tuple(x.shape[1:])} are not images of three colours: set --feature-pixels unit"
        )
    mean, deviation = (x.new_tensor(part)[:, None, None] for part in (MEAN, DEVIATION))
    x = (x - mean) / deviation
    if data.feature_pixels == "opponent":
        x = torch.einsum("ac,nchw->nahw", x.new_tensor(OPPONENT), x).contiguous()
    return x


def deskewed(x: torch.Tensor) -> torch.Tensor:
    """Images [N, C, H, W] of bright strokes on black, sheared so that they stand upright.

    Rows are moved sideways, around the centre of brightness, until columns and rows of the bright
    pixels are uncorrelated (LeCun et al., Gradient-Based Learning Applied to Document Recognition,
    1998, "deslanted" digits), by bilinear interpolation; what comes in from outside is black.
    """
    height, width = x.shape[2:]
    y, x_ = torch.meshgrid(
        *(torch.arange(size, dtype=torch.float64, device=x.device) for size in (height, width)),
        indexing="ij",
    )
    weight = x.double().sum(1)
    total = weight.sum((1, 2)).clamp_min(torch.finfo(torch.float64).tiny)[:, None, None]

    def mean(values: torch.Tensor) -> torch.Tensor:
        return (weight * values).sum((1, 2), keepdim=True) / total

    down, right = y - mean(y), x_ - mean(x_)
    variance = mean(down**2)
    shear = torch.where(variance > 0, mean(down * right) / variance, 0)
    columns = x_ + shear.clamp(-MAX_SHEAR, MAX_SHEAR) * down
    grid = torch.stack(
        [2 * columns / (width - 1) - 1, (2 * y / (height - 1) - 1).expand_as(columns)], dim=-1
    )
    return F.grid_sample(x, grid.to(x.dtype), align_corners=True)
