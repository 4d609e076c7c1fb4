"""Is this sample made of independent draws from N(0, std^2)?"""

import numpy as np
from scipy import stats

FALSE_ALARM = 1e-6
"""Bound on the probability that `alarms` names anything for a true Gaussian sample of a thousand
draws or more."""

SPOILERS = {
    "noise x 0.67": lambda sample, std: 0.67 * sample,
    "noise x 1.5": lambda sample, std: 1.5 * sample,
    "Laplace of the same deviation": lambda sample, std: _laplace(len(sample), std),
    "every draw twice": lambda sample, std: np.tile(sample[: len(sample) // 2], 2),
    "shifted": lambda sample, std: sample + 0.2 * std,
}
"""Negative controls: each turns a good flat sample into one that `alarms` must name."""


def alarms(sample: np.ndarray, std: float) -> set[str]:
    """The properties of N(0, std^2) that the sample lacks; each test has a fifth of the false-alarm
    rate."""
    z = np.asarray(sample, dtype=np.float64).ravel() / std
    chi2, power, half = stats.chi2(z.size), float(z @ z), z.size // 2
    p_values = {
        "mean": 2 * stats.norm.sf(abs(z.mean()) * z.size**0.5),
        "variance": 2 * min(chi2.cdf(power), chi2.sf(power)),
        "kurtosis": stats.kurtosistest(z).pvalue,
        "distribution": stats.kstest(z, "norm").pvalue,
        "halves independent": stats.pearsonr(z[:half], z[half : 2 * half]).pvalue,
    }
    return {name for name, p in p_values.items() if not p >= FALSE_ALARM / len(p_values)}


def _laplace(size: int, std: float) -> np.ndarray:
    return np.random.default_rng(0).laplace(scale=std / 2**0.5, size=size)
