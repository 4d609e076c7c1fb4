"""Whitening of features: synthetic images say how natural ones vary, so no record has to.

Features of images vary much in a few directions, and a private step adds the same noise to all: a
linear model learns more of channels that vary alike. Second moments of the records would have to be
released. Those of dead leaves, discs that hide one another (Lee, Mumford and Huang, Occlusion
Models for Natural Images, IJCV 2001), depend on no record; Tang et al. (NeurIPS 2023) pretrain
networks for private training on such images.
"""

import numpy as np
import torch

from mechanisms.randomness import generator, seed_key

PIXELS, IMAGES = 2**20, (64, 1024)
"""About so many pixels of all images together, and the least and largest number of images."""
DISCS = 400
"""Discs of an image, enough to cover it."""
RADII = (1 / 20, 3 / 4)
"""The least and largest radius, as a share of the longer side; between them of density r^-3."""
CHROMA = 0.15
"""Standard deviation of a disc's colours around its brightness."""
RIDGE = 0.1
"""Share of the mean variance that is added to every variance."""
POWER = 0.7
"""Exponent of the deviations' inverses: with 1 all variances would be alike, with 0 as they were.
In between more is learned on CIFAR-10 (docs/decisions/0018)."""


def dead_leaves(shape: tuple[int, ...]) -> np.ndarray:
    """Images float32 [N, C, H, W] in [0, 1] for a shape (C, H, W), the same each time.

    A disc has one brightness, uniform in [0, 1], and hides what was there before.
    """
    channels, height, width = shape
    number = min(max(PIXELS // (height * width), IMAGES[0]), IMAGES[1])
    rng = generator(seed_key(0), "dead leaves")
    y, x = np.ogrid[:height, :width]
    images = np.zeros((number, channels, height, width), np.float32)
    for _ in range(DISCS):
        radius = radii(rng.random((number, 1, 1)), max(height, width))
        top, left = (
            rng.random((number, 1, 1)) * (size + 2 * radius) - radius for size in (height, width)
        )
        inside = (y - top) ** 2 + (x - left) ** 2 <= radius**2
        colour = rng.random((number, 1)) + np.zeros(channels)
        if channels > 1:
            colour += CHROMA * rng.standard_normal((number, channels))
        colour = colour.clip(0, 1)[:, :, None, None]
        np.copyto(images, colour, where=inside[:, None], casting="same_kind")
    return images


def radii(u: np.ndarray, side: int) -> np.ndarray:
    """Radii by their quantiles in [0, 1], for images whose longer side has so many pixels."""
    least, largest = (side * share for share in RADII)
    return (u * largest**-2 + (1 - u) * least**-2) ** -0.5


def moments(features: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean float32 [C] and whitening matrix [C, C] of the channels of features [N, C, ...].

    The matrix is (S + r I)^(-POWER / 2), for covariances S over records and positions, ridge r.
    """
    x = features.reshape(*features.shape[:2], -1).astype(np.float64)
    mean = x.mean(axis=(0, 2))
    x = np.moveaxis(x - mean[:, None], 1, 0).reshape(len(mean), -1)
    variances, axes = np.linalg.eigh(x @ x.T / x.shape[1])
    matrix = axes * (variances + RIDGE * variances.mean()) ** (-POWER / 2) @ axes.T
    return mean.astype(np.float32), matrix.astype(np.float32)


def whiten(x: np.ndarray, mean: np.ndarray, matrix: np.ndarray) -> np.ndarray:
    """Features [N, C, ...] with their channels whitened, in place, each record by itself."""
    shift, map_ = torch.from_numpy(mean)[:, None], torch.from_numpy(matrix)
    for record in torch.from_numpy(x.reshape(*x.shape[:2], -1)):
        record.copy_(map_ @ (record - shift))
    return x
