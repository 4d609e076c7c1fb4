"""Whitening by synthetic images: what they are, what a matrix does, and that a record stays its
own."""

import numpy as np
import pytest

from sim.features.whitening import DISCS, POWER, RADII, RIDGE, dead_leaves, moments, radii, whiten


def test_radii_have_a_density_that_falls_with_the_cube() -> None:
    """The share of radii above r is (r^-2 - b^-2) / (a^-2 - b^-2)."""
    a, b = (40 * share for share in RADII)
    u = np.linspace(0, 1, 11)
    found = radii(u, 40)
    assert found[0] == pytest.approx(a) and found[-1] == pytest.approx(b)
    np.testing.assert_allclose((found**-2 - b**-2) / (a**-2 - b**-2), 1 - u, atol=1e-12)


@pytest.mark.parametrize(
    "shape, number",
    [((3, 32, 32), 1024), ((1, 8, 8), 1024), ((2, 60, 80), 218), ((1, 200, 90), 64)],
)
def test_dead_leaves_are_discs_that_hide_one_another(shape: tuple[int, ...], number: int) -> None:
    images = dead_leaves(shape)
    assert images.shape == (number, *shape) and images.dtype == np.float32
    assert np.array_equal(images, dead_leaves(shape)), "the same each time"
    assert images.min() >= 0 and images.max() <= 1
    for image in images[:9].reshape(9, shape[0], -1):
        assert 5 < np.unique(image, axis=1).shape[1] <= DISCS
    assert (images == 0).all(axis=1).mean() < 0.02, "hardly anything is left uncovered"


def test_brightness_is_uniform_and_the_same_at_every_place() -> None:
    images = dead_leaves((1, 16, 24))
    assert np.allclose(images.mean(axis=0), 0.5, atol=0.05)
    assert np.allclose(np.quantile(images, [0.1, 0.5, 0.9]), [0.1, 0.5, 0.9], atol=0.03)


def test_edges_are_as_frequent_at_the_border_as_elsewhere() -> None:
    images = dead_leaves((1, 16, 24))
    across = (images[..., 1:] != images[..., :-1]).mean(axis=(0, 1, 2))
    down = (images[:, :, 1:] != images[:, :, :-1]).mean(axis=(0, 1, 3))
    for share in (across, down):
        assert np.ptp(share) < 0.1 * share.mean()


def test_colours_of_a_disc_lie_around_its_brightness() -> None:
    red, green = np.moveaxis(dead_leaves((2, 16, 16)), 1, 0)
    inner = (np.minimum(red, green) > 0.3) & (np.maximum(red, green) < 0.7)
    assert np.corrcoef(red.ravel(), green.ravel())[0, 1] == pytest.approx(0.82, abs=0.04)
    assert 0.1 < (red - green)[inner].std() < 0.2


def test_channels_of_little_variance_are_raised_to_that_of_the_others() -> None:
    """Of variance v and a ridge r, v / (v + r)^POWER is left, and no two channels go together."""
    rng = np.random.default_rng(0)
    axes, _ = np.linalg.qr(rng.normal(size=(4, 4)))
    scales = np.array([30.0, 10.0, 3.0, 0.1])
    x = (axes * scales) @ rng.normal(size=(2000, 4, 6)) + np.array([1.0, -2, 3, 4])[:, None]
    mean, matrix = moments(x.astype(np.float32))
    assert np.allclose(matrix, matrix.T, atol=1e-6)
    white = np.moveaxis(whiten(x.astype(np.float32), mean, matrix), 1, 0).reshape(4, -1)
    ridge = RIDGE * (scales**2).mean()
    assert np.allclose(white.mean(axis=1), 0, atol=1e-4)
    assert np.allclose(
        axes.T @ np.cov(white) @ axes, np.diag(scales**2 / (scales**2 + ridge) ** POWER), atol=0.05
    )


@pytest.mark.parametrize("shape", [(243, 3, 3), (81, 7, 7), (5,)])
def test_a_record_s_features_do_not_depend_on_its_place_among_others(
    shape: tuple[int, ...],
) -> None:
    """Bit for bit, so that a record that is added changes no other one."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(50, *shape)).astype(np.float32)
    found = moments(rng.normal(size=(200, *shape)).astype(np.float32))
    order = rng.permutation(50)
    together, moved = whiten(x.copy(), *found), whiten(x[order].copy(), *found)
    assert np.array_equal(together[order], moved)
    assert np.array_equal(whiten(x[7:8].copy(), *found)[0], together[7])


def test_whitening_is_in_place_and_by_position() -> None:
    rng = np.random.default_rng(2)
    x = rng.normal(size=(3, 4, 2, 5)).astype(np.float32)
    mean, matrix = rng.normal(size=4).astype(np.float32), rng.normal(size=(4, 4)).astype(np.float32)
    before = x.copy()
    assert whiten(x, mean, matrix) is x
    expected = np.einsum("dc,nchw->ndhw", matrix, before - mean[:, None, None])
    np.testing.assert_allclose(x, expected, atol=1e-5)
