"""Draws the figures of docs/theory into its folder: ``python docs/theory/figures.py``."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from mechanisms.accounting.acceptance import Acceptance
from mechanisms.accounting.accountant import ORDERS, Charges, convert, epsilon, rdp
from mechanisms.accounting.events import DpsurStep, Gaussian, PaperClaim
from mechanisms.grid import slack

HERE = Path(__file__).parent
DELTA = 1e-5
MNIST = (0.01707, 1.35, 0.00427, 0.9, -1.0)
"""DPSUR's q_t, s_t, q_v, s_v and beta on MNIST."""
BLUE, RED, ORANGE, GREEN = "#2b6cb0", "#c53030", "#dd7a1b", "#2f855a"


class Worst(NamedTuple):
    """The worst test: ``y``, acceptance without and with the record in its batch, and its
    divergence [nats]."""

    y: NDArray[np.float64]
    without: NDArray[np.float64]
    record: NDArray[np.float64]
    divergence: float


def claimed(steps: int, setting: tuple[float, ...] = MNIST) -> Charges:
    """What DPSUR's paper charges for accepted steps."""
    rate, noise, test_rate, test_noise, _ = setting
    return {PaperClaim(rate, noise): steps, PaperClaim(test_rate, test_noise): steps}


def worst_test(
    rate: float, noise: float, acceptance: Acceptance, order: float, public: bool
) -> Worst:
    """The worst test of a step whose rejections are public or hidden, the record in the numerator.

    At a given m the best test takes a corner at each y (Theorems 5 and 8); m is halved down to
    where it is the ratio of that test's own probabilities.
    """
    y = np.linspace(-order - 9.0 * noise, order + 9.0 * noise, 5_001)
    density = np.exp(-0.5 * (y / noise) ** 2)
    density /= density.sum()
    ratio = 1.0 - rate + rate * np.exp((2.0 * y - 1.0) / (2.0 * noise**2))
    levels = (acceptance.lowest, acceptance.highest)
    corners = np.array([(a, z) for a in levels for z in levels])
    below = corners[:, :1]
    above = (1.0 - acceptance.rate) * below + acceptance.rate * corners[:, 1:]
    gain = above**order * below ** (1.0 - order) * ratio**order
    low, high = 1e-6, 1e6
    while high > low * (1.0 + 1e-9):
        m, price = (low * high) ** 0.5, float(public)
        line = order * m ** (order - 1.0) * above * ratio - (order - 1.0) * m**order * below
        for _ in range(20):
            best = np.argmax(gain - price * line, axis=0)
            moment = float(density @ gain[best, np.arange(y.size)])
            on, off = float(density @ (above[best, 0] * ratio)), float(density @ below[best, 0])
            under = order * m ** (order - 1.0) * on - (order - 1.0) * m**order * off
            if public or under <= 0.0:  # no J is large enough for this m
                break
            price = moment / under
        found = (1.0 - on) / (1.0 - off) if public else on / off
        low, high = (m, high) if found > m else (low, m)
    rejected = (1.0 - on) ** order * (1.0 - off) ** (1.0 - order)
    reached = moment + rejected if public else moment * on**-order * off ** (order - 1.0)
    return Worst(y, *corners[best].T, float(np.log(reached)) / (order - 1.0))


def so_far(noise: float, steps: int, delta: float = DELTA) -> tuple[list[float], list[float]]:
    """Epsilon after each Gaussian step: at the order that is best for all, and the smallest."""
    divergences = [rdp({Gaussian(noise): n}, ORDERS, "certified") for n in range(1, steps + 1)]
    order = convert(divergences[-1], ORDERS, delta).order
    place = ORDERS.index(order) if order else 0
    fixed = [convert(d[[place]], ORDERS[place : place + 1], delta).epsilon for d in divergences]
    return fixed, [convert(d, ORDERS, delta).epsilon for d in divergences]


def modes(axes: Axes) -> None:
    """Epsilon of DPSUR by accepted steps, if trials are accepted in the middle of their range."""
    acceptance = Acceptance.of_noisy_loss(*MNIST[2:])
    often = (acceptance.lowest + acceptance.highest) / 2.0
    steps = list(range(100, 2_001, 100))
    for name, color in (("selective", GREEN), ("every-trial", RED), ("visible", BLUE)):
        step, share = DpsurStep(*MNIST, name), 1.0 if name == "selective" else often
        values = [epsilon({step: round(n / share)}, DELTA).epsilon for n in steps]
        axes.plot(steps, values, color=color, label=f"certified, {name}")
    claims = [epsilon(claimed(n), DELTA, "published").epsilon for n in steps]
    axes.plot(steps, claims, color=ORANGE, linestyle=":", label="published")
    axes.set(xlabel="accepted steps", ylabel="epsilon", xlim=(0, steps[-1]), ylim=0)


def tests(*panels: Axes) -> None:
    """The worst tests of a hidden step and of a public one."""
    acceptance = Acceptance.of_noisy_loss(0.005, 1.0, -1.0)
    for axes, public in zip(panels, (False, True), strict=True):
        worst = worst_test(0.02, 1.0, acceptance, 8.0, public)
        axes.plot(worst.y, worst.record, color=BLUE, label="record in the test's batch")
        axes.plot(worst.y, worst.without, color=RED, linestyle="--", label="not in it")
        axes.set(xlabel="proposal y", xlim=(-2, 5), ylim=(0, 0.8))
        axes.set_title(f"rejections {'public' if public else 'hidden'}")
    panels[0].set_ylabel("probability of acceptance")


def orders(axes: Axes) -> None:
    """Epsilon while 20 Gaussian steps go on."""
    for values, color, name in zip(
        so_far(2.6878, 20), (BLUE, ORANGE), ("one order, in advance", "smallest"), strict=True
    ):
        axes.plot(range(1, 21), values, color=color, label=name)
    axes.set(xlabel="steps", ylabel="epsilon", xlim=(0, 20), ylim=0, xticks=range(0, 21, 5))


def slacks(axes: Axes) -> None:
    """The share by which noise is raised in a release."""
    entries = np.logspace(0, 8, 81)
    for multiplier, color in ((0.5, GREEN), (3.0, BLUE), (30.0, RED)):
        values = [slack(int(m), multiplier) for m in entries]
        axes.loglog(entries, values, color=color, label=f"s = {multiplier:g}")
    axes.set(xlabel="numbers in a sum", ylabel="share of noise", xlim=(1, 1e8))


FIGURES = {
    "modes": (modes, 1),
    "worst_test": (tests, 2),
    "orders": (orders, 1),
    "slack": (slacks, 1),
}
"""What draws a figure, and its number of panels."""


def draw() -> Iterator[tuple[str, Figure]]:
    """Each figure and its name."""
    for name, (content, panels) in FIGURES.items():
        figure = Figure(figsize=(6.4 if panels == 1 else 8.6, 3.1), layout="constrained")
        content(*figure.subplots(1, panels, squeeze=False)[0])
        for axes in figure.axes:
            axes.grid(color="#e2e8f0")
        figure.axes[0].legend(frameon=False, loc="upper left")
        yield name, figure


def main(folder: Path = HERE) -> None:
    """Write all figures, the same bytes each time."""
    with matplotlib.rc_context({"font.size": 9, "svg.hashsalt": "theory"}):
        for name, figure in draw():
            figure.savefig(folder / f"{name}.svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
