"""The exact delta of one step of the sampled Gaussian mechanism."""

import numpy as np
from scipy.special import ndtr


def exact_delta(q: float, s: float, eps, adding: bool):
    """Both measures of the points at which the loss is above eps, a number or an array."""
    side, sign = (-1.0, -1.0) if adding else (1.0, 1.0)  # with the record the loss grows with x
    with np.errstate(divide="ignore"):
        ratio = np.maximum(np.expm1(sign * np.asarray(eps)) / q, -1.0)
        x = side * (s**2 * np.log1p(ratio) + 0.5)
    without = ndtr(-x / s)
    record = (1 - q) * without + q * ndtr((side - x) / s)
    upper, lower = (without, record) if adding else (record, without)
    return upper - np.exp(eps) * lower
