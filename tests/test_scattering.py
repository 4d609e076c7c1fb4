"""The scattering transform: its definition, the reference, and the laws of an averaged cascade of
wavelets."""

from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.signal import resample

from sim.features.scattering import FEATURES, STRIDE, scatter

REFERENCE = Path(__file__).parents[2] / "shared" / "reference" / "scattering.npz"
"""Outputs of kymatio 0.3.0's Scattering2D(J=2), of pixels in [0, 1]."""


def blobs(seed: int = 0) -> torch.Tensor:
    """Images [50, 1, 32, 32] in [0, 1] of a few spots, dark at the border as written digits are."""
    rng = np.random.default_rng(seed)
    centres = rng.uniform(0.3, 0.7, (50, 1, 4, 2)) * 32
    grid = np.stack(np.meshgrid(np.arange(32), np.arange(32), indexing="ij"), axis=-1)
    distances = np.square(grid - centres[:, :, :, None, None]).sum(-1)
    return torch.from_numpy(np.exp(-distances).max(axis=2).astype(np.float32))


def noise(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).random(shape, dtype=np.float32))


def by_definition(image: np.ndarray) -> np.ndarray:
    """The features [81, 7, 7] of an image [28, 28] by convolutions at full resolution, subsampled
    in space."""
    y, x = np.meshgrid(*[np.fft.fftfreq(36, 1 / 36)] * 2, indexing="ij")

    def gaussian(
        sigma: float, turn: float = 0, slant: float = 1, frequency: float = 0
    ) -> np.ndarray:
        along, across = y * np.cos(turn) + x * np.sin(turn), x * np.cos(turn) - y * np.sin(turn)
        wave = np.exp(-(along**2 + (slant * across) ** 2) / (2 * sigma**2) + 1j * frequency * along)
        return wave * slant / (2 * np.pi * sigma**2)

    def psi(j: int, t: int) -> np.ndarray:
        shape = {"sigma": 0.8 * 2**j, "turn": np.pi * (3 - t) / 8, "slant": 0.5}
        wave, envelope = gaussian(**shape, frequency=0.75 * np.pi / 2**j), gaussian(**shape)
        return wave - wave.sum() / envelope.sum() * envelope

    def convolved(u: np.ndarray, kernel: np.ndarray) -> np.ndarray:
        return np.fft.ifft2(np.fft.fft2(u) * np.fft.fft2(kernel))

    def coarse(u: np.ndarray) -> np.ndarray:
        """Every second pixel alone, and between them the interpolation without higher
        frequencies."""
        return resample(resample(u[::2, ::2], 36, axis=0), 36, axis=1)

    u0 = np.pad(image, 4, mode="reflect")
    fine = [abs(convolved(u0, psi(0, t))) for t in range(8)]
    parts = [u0, *fine, *(coarse(abs(convolved(u0, psi(1, t)))) for t in range(8))]
    parts += [coarse(abs(convolved(u, psi(1, t)))) for u in fine for t in range(8)]
    return np.stack([convolved(u, gaussian(1.6)).real[4:32:4, 4:32:4] for u in parts])


def norms(x: torch.Tensor) -> torch.Tensor:
    return x.flatten(1).norm(dim=1)


@pytest.mark.skipif(not REFERENCE.is_file(), reason=f"{REFERENCE} is not on this machine")
def test_random_images_have_the_features_of_the_reference() -> None:
    stored = np.load(REFERENCE)
    expected = stored["random_output"].reshape(2, FEATURES, 7, 7)
    np.testing.assert_allclose(
        scatter(torch.from_numpy(stored["random_input"])), expected, rtol=0, atol=1e-4
    )


def test_features_are_those_of_the_definition() -> None:
    images = noise(2, 1, 28, 28)
    expected = np.stack([by_definition(image[0].numpy().astype(np.float64)) for image in images])
    np.testing.assert_allclose(scatter(images), expected, rtol=0, atol=2e-6)


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32), (1, 8, 8), (2, 30, 17)])
def test_there_are_81_features_of_each_channel_at_every_fourth_pixel(
    shape: tuple[int, ...],
) -> None:
    images = noise(3, *shape)
    features = scatter(images)
    assert (
        features.shape == (3, 81 * shape[0], shape[1] // 4, shape[2] // 4)
        and features.dtype == torch.float32
    )
    for channel, own in enumerate(features.split(81, dim=1)):
        alone = scatter(images[:, channel : channel + 1])
        torch.testing.assert_close(own, alone, atol=1e-6, rtol=0)


def test_order_zero_is_linear_and_the_others_are_homogeneous_and_blind_to_brightness() -> None:
    a, b = noise(4, 1, 28, 28), noise(4, 1, 28, 28, seed=1)
    fa, fb, both = scatter(a), scatter(b), scatter(2 * a - 3 * b)
    torch.testing.assert_close(both[:, 0], 2 * fa[:, 0] - 3 * fb[:, 0], atol=1e-5, rtol=0)
    assert (both - (2 * fa - 3 * fb)).abs().max() > 0.1
    torch.testing.assert_close(scatter(-2 * a)[:, 1:], 2 * fa[:, 1:], atol=1e-5, rtol=0)
    brighter = scatter(a + 5)
    torch.testing.assert_close(brighter[:, 0], fa[:, 0] + 5, atol=1e-4, rtol=0)
    torch.testing.assert_close(brighter[:, 1:], fa[:, 1:], atol=1e-5, rtol=0)


def test_neither_energy_nor_distances_grow() -> None:
    """A feature stands for 4 x 4 pixels; most of the energy is kept, or features would say
    little."""
    a, b = blobs(), blobs(seed=1)
    kept = 4 * norms(scatter(a)) / norms(a)
    assert kept.max() <= 1 and kept.min() > 0.7
    assert (4 * norms(scatter(a) - scatter(b)) <= norms(a - b)).all()


def test_a_shift_by_a_pixel_moves_features_far_less_than_pixels() -> None:
    images = blobs()
    shifted = images.roll(1, dims=3)
    pixels = norms(shifted - images) / norms(images)
    features = norms(scatter(shifted) - scatter(images)) / norms(scatter(images))
    assert (features < pixels / 2).all()


@pytest.mark.parametrize("shape", [(2, 64), (2, 1, 7, 28), (2, 1, 28, 7), (28, 28)])
def test_what_is_no_image_of_eight_pixels_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="at least 8x8 pixels; use --features pixels"):
        scatter(torch.zeros(shape))


@pytest.mark.parametrize("side", [9, 11, 13, 14, 15])
def test_a_feature_lies_where_the_border_of_the_reference_puts_it(side):
    """A border of an odd number of pixels is smaller in front, on both axes. Kills features one
    pixel off. The average of one bright pixel is largest at the feature that lies on it."""
    before = ((side // STRIDE + 2) * STRIDE - side) // 2
    images = torch.eye(side * side).reshape(-1, 1, side, side)
    averages = scatter(images)[:, 0]
    for row in range(side // STRIDE):
        for column in range(side // STRIDE):
            brightest = int(averages[:, row, column].argmax())
            place = [STRIDE * (n + 1) - before for n in (row, column)]
            assert list(divmod(brightest, side)) == place
