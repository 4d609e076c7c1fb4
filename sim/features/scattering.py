"""Scattering features of images: a fixed cascade of Morlet wavelets and moduli.

Bruna and Mallat, Invariant Scattering Convolution Networks (2013), over J = 2 octaves and L = 8
orientations, as in Tramer and Boneh, Differentially Private Learning Needs Better Features (ICLR
2021). With the average phi over 2^J pixels and the wavelets psi_{j,t} (octave j, orientation t), a
channel x gives

    S_0 = x * phi,    S_1 = |x * psi_{j,t}| * phi,    S_2 = ||x * psi_{0,t}| * psi_{1,s}| * phi,

each sampled at every 2^J-th pixel of both axes: 1 + J L + L^2 J (J - 1) / 2 = 81 features. Filters,
borders (reflected) and order (S_0; S_1 by j, t; S_2 by t, s) are those of kymatio 0.3.0, except for
its 3.1415 in place of pi. Each record is transformed on its own, and the filters depend on the
shape alone, so a guarantee for the features holds for the images.
"""

import functools
import math
from dataclasses import dataclass

import numpy as np
import torch

OCTAVES, ORIENTATIONS = 2, 8
STRIDE = 2**OCTAVES
"""Pixels between two features, on both axes."""
FEATURES = 1 + OCTAVES * ORIENTATIONS + ORIENTATIONS**2 * OCTAVES * (OCTAVES - 1) // 2
"""Features of one channel at one position: 81."""
MIN_PIXELS = 8
"""Minimum pixels per axis; below, the reflected border would be wider than the image."""


@dataclass(frozen=True, eq=False)
class _Filters:
    """Filters for images of one shape; Fourier transforms are real, spatial ones separable.

    Attributes:
        psi: the wavelets' spectra, float32 [L, H', W'] for each octave; H' x W' with the border.
        phi: for each octave j, the averaging of a signal at resolution 2^-j at every feature's
            position, a matrix per axis: float32 [H // 4, H' / 2^j] and [W // 4, W' / 2^j].
    """

    psi: tuple[torch.Tensor, ...]
    phi: tuple[tuple[torch.Tensor, ...], ...]


def scatter(images: torch.Tensor) -> torch.Tensor:
    """Features float32 [N, 81 C, H // 4, W // 4] of images [N, C, H, W], channel by channel.

    Raises:
        ValueError: not images, or with fewer than `MIN_PIXELS` pixels on an axis.
    """
    if images.ndim != 4 or min(images.shape[2:]) < MIN_PIXELS:
        raise ValueError(
            f"records of shape {tuple(images.shape[1:])} have no scattering features: they need "
            f"images [C, H, W] of at least {MIN_PIXELS}x{MIN_PIXELS} pixels; use --features pixels"
        )
    records, channels, height, width = images.shape
    filters = _filters(height, width, images.device)
    (_, top, bottom), (_, left, right) = _sizes(height), _sizes(width)
    sides = (left, right, top, bottom)
    bordered = torch.nn.functional.pad(images.float().flatten(0, 1), sides, mode="reflect")
    u0 = torch.fft.fft2(bordered)
    s = [_average(torch.fft.ifft2(u0).real[:, None], filters.phi[0])]
    fine = _modulus(torch.fft.ifft2(u0[:, None] * filters.psi[0]))
    s.append(_average(fine, filters.phi[0]))
    # |x * psi_1| and all ||x * psi_0| * psi_1|, at half resolution: psi_1's band fits into that
    u = torch.cat([u0[:, None], torch.fft.fft2(fine)], dim=1)
    coarse = _modulus(torch.fft.ifft2(_folded(u[:, :, None] * filters.psi[1])))
    s.append(_average(coarse.flatten(1, 2), filters.phi[1]))
    features = torch.cat(s, dim=1)
    return features.reshape(records, channels * FEATURES, *features.shape[2:])


def _average(u: torch.Tensor, phi: tuple[torch.Tensor, ...]) -> torch.Tensor:
    return phi[0] @ u @ phi[1].T


def _folded(spectrum: torch.Tensor) -> torch.Tensor:
    """The spectrum [..., H/2, W/2] of every second pixel of both axes, from that of all pixels."""
    # keeping every second sample adds the two halves of a spectrum and divides it by 2, per axis
    height, width = spectrum.shape[-2] // 2, spectrum.shape[-1] // 2
    rows = spectrum[..., :height, :] + spectrum[..., height:, :]
    return (rows[..., :width] + rows[..., width:]).div_(4)


def _modulus(z: torch.Tensor) -> torch.Tensor:
    """|z|, several times faster than `z.abs()`."""
    return (z.real.square() + z.imag.square()).sqrt_()


def _sizes(side: int) -> tuple[int, int, int]:
    """Pixels of an axis with its border, and the border's pixels before and after it."""
    padded = (side // STRIDE + 2) * STRIDE
    return padded, (padded - side) // 2, (padded - side + 1) // 2


@functools.lru_cache(maxsize=4)
def _filters(height: int, width: int, device: torch.device) -> _Filters:
    rows, columns = _sizes(height)[0], _sizes(width)[0]

    def on(array: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(array.astype(np.float32)).to(device)

    turns = [math.pi * (ORIENTATIONS // 2 - 1 - t) / ORIENTATIONS for t in range(ORIENTATIONS)]
    psi = []
    for j in range(OCTAVES):
        waves = np.stack(
            [_morlet(rows, columns, 0.8 * 2**j, turn, 0.75 * math.pi / 2**j) for turn in turns]
        )
        psi.append(on(np.fft.fft2(waves).real))
    phi = [tuple(on(_averaging(size, j)) for size in (rows, columns)) for j in range(OCTAVES)]
    return _Filters(tuple(psi), tuple(phi))


def _wave(rows: int, columns: int, sigma: float, turn: float, frequency: float) -> np.ndarray:
    """A periodic Gabor wave [rows, columns]: a Gaussian, wider across the wave, times the wave."""
    # the sum of 5 x 5 shifted copies is periodic; copies farther away are 10 sigma off, negligible
    slant = 4 / ORIENTATIONS
    y, x = (np.arange(-2 * size, 3 * size) for size in (rows, columns))
    y, x = y[:, None], x[None]
    along, across = math.cos(turn) * y + math.sin(turn) * x, math.cos(turn) * x - math.sin(turn) * y
    wave = np.exp(-(along**2 + slant**2 * across**2) / (2 * sigma**2) + 1j * frequency * along)
    return wave.reshape(5, rows, 5, columns).sum(axis=(0, 2)) * slant / (2 * math.pi * sigma**2)


def _morlet(rows: int, columns: int, sigma: float, turn: float, frequency: float) -> np.ndarray:
    """A Gabor wave minus the multiple of its envelope that makes its mean 0: [rows, columns]."""
    wave = _wave(rows, columns, sigma, turn, frequency)
    envelope = _wave(rows, columns, sigma, turn, 0)
    return wave - wave.sum() / envelope.sum() * envelope


def _averaging(size: int, octave: int) -> np.ndarray:
    """The matrix of phi on an axis of ``size`` pixels, with border: [size/4 - 2, size/2^octave].

    At half resolution phi keeps the lower half of its frequencies: a signal there has no others.
    """
    sigma = 0.8 * 2 ** (OCTAVES - 1)
    place = np.arange(-2 * size, 3 * size)
    gauss = np.exp(-(place**2) / (2 * sigma**2)).reshape(5, size).sum(0)  # 5 copies: periodic
    gauss = gauss / math.sqrt(2 * math.pi) / sigma
    spectrum, kept = np.fft.fft(gauss).real, size >> octave
    spectrum = np.concatenate([spectrum[: (kept + 1) // 2], spectrum[size - kept // 2 :]])
    kernel, step = np.fft.ifft(spectrum).real, STRIDE >> octave
    return np.stack([np.roll(kernel, at) for at in range(step, kept - step, step)])
