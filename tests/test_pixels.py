"""Images set upright: sheared until rows and columns of their bright pixels are uncorrelated."""

import numpy as np
import torch

from sim.features.pixels import MAX_SHEAR, deskewed


def sheared(shear: float, size: int = 21) -> torch.Tensor:
    """A soft bar [1, 1, size, size] whose columns move by so many pixels with each row."""
    y, x = np.mgrid[:size, :size] - size // 2
    bar = np.exp(-(((x - shear * y) / 1.5) ** 2) - (y / 4) ** 2)
    return torch.from_numpy(bar.astype(np.float32))[None, None]


ROUND = 0.12
"""What bilinear interpolation takes off the bar's top."""


def skew(image: torch.Tensor) -> float:
    """The shear that moments find in an image [C, H, W]."""
    weight = image.double().sum(0).numpy()
    y, x = np.mgrid[: weight.shape[0], : weight.shape[1]]
    y, x = (v - np.average(v, weights=weight) for v in (y, x))
    return float(np.average(x * y, weights=weight) / np.average(y * y, weights=weight))


def test_a_slanted_bar_stands_upright() -> None:
    for shear in (-0.8, 0.5):
        assert abs(skew(sheared(shear)[0]) - shear) < 0.02
        assert torch.allclose(deskewed(sheared(shear)), sheared(0), atol=ROUND)
    assert torch.allclose(deskewed(sheared(0)), sheared(0), atol=1e-5)


def test_strokes_turn_around_their_centre() -> None:
    """A bar in a corner stays where it is."""
    corner = torch.nn.functional.pad(sheared(0.5, 15), (2, 20, 1, 12))
    expected = torch.nn.functional.pad(sheared(0, 15), (2, 20, 1, 12))
    assert torch.allclose(deskewed(corner), expected, atol=ROUND)


def test_nothing_moves_by_more_than_the_largest_shear() -> None:
    moved = deskewed(sheared(2.5, 41))
    assert abs(skew(moved[0]) - (skew(sheared(2.5, 41)[0]) - MAX_SHEAR)) < 0.02


def test_all_channels_move_with_their_sum() -> None:
    image = torch.cat([sheared(0.5), sheared(-0.5)], dim=1)
    assert torch.allclose(deskewed(image), image, atol=1e-5)
    both = torch.cat([sheared(0.5), torch.zeros(1, 1, 21, 21)], dim=1)
    assert torch.allclose(deskewed(both)[:, 0], sheared(0)[0], atol=ROUND)


def test_an_empty_image_and_a_line_across_stay_as_they_are() -> None:
    line = torch.zeros(2, 1, 9, 9)
    line[1, 0, 4] = 1
    assert torch.allclose(deskewed(line), line, atol=1e-5)


def test_what_comes_in_from_outside_is_black() -> None:
    """Bright pixels on the border are not drawn out into rows."""
    image = torch.zeros(1, 1, 9, 9)
    image[0, 0, range(9), range(9)] = 1
    found = deskewed(image)
    assert np.isclose(float(found.sum()), 9, atol=0.1)
    assert torch.allclose(found[0, 0, :, 4], torch.ones(9), atol=1e-4)


def test_an_image_does_not_depend_on_those_beside_it() -> None:
    x = torch.from_numpy(np.random.default_rng(0).random((20, 3, 12, 10), dtype=np.float32))
    together = deskewed(x)
    order = np.random.default_rng(1).permutation(20)
    assert torch.equal(deskewed(x[order]), together[order])
    assert torch.equal(deskewed(x[3:4]), together[3:4])
