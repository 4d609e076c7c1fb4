"""Are these integers independent draws of round(2^28 Z), Z standard normal? Counts are added up
block by block."""

from collections.abc import Callable, Iterable

import numpy as np
from scipy import special, stats

from mechanisms.rounded_gaussian import SCALE_BITS

FALSE_ALARM = 1e-6
"""Bound on the probability that `alarms` names anything for true draws, shared out equally among
the p-values."""

UNIT = 2**SCALE_BITS
BINS, LOW_BITS, BLOCK = 256, 12, 2**20
TAILS, MIDDLES = (3, 4, 5, 5.5), (2**20, 2**16)
EDGES = np.ceil(special.ndtri(np.arange(1, BINS) / BINS) * UNIT)

Draw = Callable[[int], np.ndarray]


class Tally:
    """What the p-values need of all draws so far."""

    def __init__(self) -> None:
        self.size = self.positive = self.negative = self.pairs = 0
        self.bins, self.low = np.zeros(BINS, dtype=np.int64), np.zeros(2**LOW_BITS, dtype=np.int64)
        self.tails, self.middles = (np.zeros(len(all_), np.int64) for all_ in (TAILS, MIDDLES))
        self.hermite, self.lagged = np.zeros(4), np.zeros(2)

    def add(self, draws: np.ndarray) -> "Tally":
        z, magnitudes = draws / UNIT, np.abs(draws)
        self.size, self.pairs = self.size + len(z), self.pairs + len(z) - 1
        self.positive += (draws > 0).sum()
        self.negative += (draws < 0).sum()
        self.bins += np.bincount(np.searchsorted(EDGES, draws, side="right"), minlength=BINS)
        self.low += np.bincount(draws & (2**LOW_BITS - 1), minlength=2**LOW_BITS)
        self.tails += [(magnitudes > a * UNIT).sum() for a in TAILS]
        self.middles += [(magnitudes <= m).sum() for m in MIDDLES]
        square = z * z
        polynomials = (z, square - 1, (square - 3) * z, (square - 6) * square + 3)
        self.hermite += [p.sum() for p in polynomials]
        self.lagged += [p[1:] @ p[:-1] for p in polynomials[:2]]
        return self

    def p_values(self) -> dict[str, float]:
        """By name; each is uniform, or larger, for true draws.

        Probabilities come from the normal distribution function at half integers, to 1e-13. The low
        bits are uniform up to exp(-2 pi^2 2^32). Sums of Hermite polynomials and products of
        neighbours have means 0 and known variances; their laws are normal in the limit, and at 10^6
        draws near enough for one part in 10^7.
        """
        found = {
            f"{BINS} bins": _chi_square(self.bins, np.diff(_below(EDGES), prepend=0, append=1))
        }
        for bits in (1, 4, LOW_BITS):
            counts = self.low.reshape(-1, 2**bits).sum(axis=0)
            found[f"low bits: {bits}"] = _chi_square(counts, np.full(2**bits, 2.0**-bits))
        beyond = 2 * special.ndtr([-(np.floor(a * UNIT) + 0.5) / UNIT for a in TAILS])
        for a, count, p in zip(TAILS, self.tails, beyond, strict=True):
            found[f"beyond {a}"] = two_sided(count, self.size, p)
        for m, count in zip(MIDDLES, self.middles, strict=True):
            found[f"within 2^{np.log2(m / UNIT):.0f}"] = two_sided(
                count, self.size, special.erf((m + 0.5) / UNIT / 2**0.5)
            )
        found["signs"] = two_sided(self.positive, self.positive + self.negative, 0.5)
        for name, total, variance in zip(
            ("mean", "variance", "skewness", "kurtosis"), self.hermite, (1, 2, 6, 24), strict=True
        ):
            found[name] = _normal(total, variance * self.size)
        for name, total, variance in zip(
            ("neighbours", "neighbours' squares"), self.lagged, (1, 4), strict=True
        ):
            found[name] = _normal(total, variance * self.pairs)
        return found

    def alarms(self) -> set[str]:
        p_values = self.p_values()
        return {name for name, p in p_values.items() if not p >= FALSE_ALARM / len(p_values)}


def tally(draw: Draw, size: int) -> Tally:
    """The tally of so many draws, a block at a time."""
    total = Tally()
    for start in range(0, size, BLOCK):
        total.add(draw(min(BLOCK, size - start)))
    return total


def spoilers(stream: np.random.Generator, scale: float, cut: float) -> dict[str, Draw]:
    """Negative controls: samplers that `Tally.alarms` must tell from the true one."""

    def rounded(z: np.ndarray) -> np.ndarray:
        return np.rint(z * UNIT).astype(np.int64)

    def clipped(n: int) -> np.ndarray:
        z = stream.standard_normal(n)
        return rounded(np.where(np.abs(z) < cut, z, stream.standard_normal(n)))

    return {
        f"scale x {scale}": lambda n: rounded(scale * stream.standard_normal(n)),
        f"no tail beyond {cut}": clipped,
        "Laplace": lambda n: rounded(stream.laplace(scale=0.5**0.5, size=n)),
        "float32": lambda n: rounded(stream.standard_normal(n, dtype=np.float32)),
        "every draw twice": lambda n: np.repeat(rounded(stream.standard_normal(-(-n // 2))), 2)[:n],
    }


def tail_p_values(draws: Iterable[int], a: int) -> dict[str, float]:
    """Of the magnitudes beyond a, given that they are: 16 equally likely bins, and counts beyond a
    + 1/4 ... a + 1.

    The law is that of |Z| given |Z| > a; rounding changes a probability by less than 2^-24 of
    itself.
    """
    magnitudes = np.abs(np.asarray(draws)) / UNIT
    magnitudes = magnitudes[magnitudes > a]
    share = special.ndtr(-magnitudes) / special.ndtr(-a)
    found = {"16 bins": _chi_square(np.histogram(share, 16, (0, 1))[0], np.full(16, 1 / 16))}
    for more in (0.25, 0.5, 0.75, 1):
        chance = special.ndtr(-a - more) / special.ndtr(-a)
        found[f"beyond {a + more}"] = two_sided(
            (magnitudes > a + more).sum(), len(magnitudes), chance
        )
    return found


def two_sided(count: int, size: int, p: float) -> float:
    law = stats.binom(size, p)
    return float(min(1, 2 * min(law.cdf(count), law.sf(count - 1))))


def _below(edges: np.ndarray) -> np.ndarray:
    """The probability of an integer below each edge."""
    return special.ndtr((edges - 0.5) / UNIT)


def _chi_square(counts: np.ndarray, probabilities: np.ndarray) -> float:
    return float(stats.chisquare(counts, probabilities * counts.sum()).pvalue)


def _normal(total: float, variance: float) -> float:
    return float(2 * stats.norm.sf(abs(total) / variance**0.5))
