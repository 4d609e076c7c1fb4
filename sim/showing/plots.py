"""The plots of a run, drawn without pyplot and without a display."""

import io
import math
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from server.records import Epsilon, RoundRecord
from sim.config.settings import ACCURACY

BLUE, ORANGE, GREY, RED = "#2b6cb0", "#dd7a1b", "#8a94a3", "#c53030"
INK, RULE = "#2d3748", "#e2e8f0"

MAX_COLUMNS = 200
"""Maximum clients that the partition's plot shows singly; more are drawn in this many bands."""

MAX_STEPS = 1_000
"""Maximum clients whose epsilons are drawn singly; of more, the maximum in this many groups."""

SHEET = 10
"""Images per row of a sheet."""

_STYLE: Any = {
    "font.size": 9,
    "font.family": "DejaVu Sans",
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": GREY,
    "axes.titlesize": 9.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": RULE,
    "grid.linewidth": 0.8,
    "xtick.color": INK,
    "ytick.color": INK,
    "lines.linewidth": 1.8,
    "legend.frameon": False,
    "svg.hashsalt": "report",
}


def svg(figure: Figure) -> bytes:
    """A figure as SVG, equal for equal figures."""
    buffer = io.BytesIO()
    with matplotlib.rc_context(_STYLE):
        # `savefig` would draw it twice, the first time for a layout that drawing makes anyway
        FigureCanvasSVG(figure).print_svg(buffer, metadata={"Date": None})
    return buffer.getvalue()


def accuracy_and_loss(
    records: Sequence[RoundRecord], part: str, metric: str = ACCURACY, unit: str = "nats"
) -> Figure:
    """Accuracy, or another metric, and loss by round on the evaluated ``part``, ``test`` or
    ``validation``; the unit is the loss's, empty for none."""
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(8.6, 2.9), layout="constrained")
        left, right = figure.subplots(1, 2)
        rounds = [r.round for r in records]
        _by_round(left, rounds, [r.accuracy for r in records], BLUE)
        left.set(ylabel=f"{part} {metric}")
        if metric == ACCURACY:
            left.set(ylim=(0, 1))
        _by_round(right, rounds, [r.loss for r in records], BLUE)
        right.set(ylabel=f"{part} loss" + (f" [{unit}]" if unit else ""))
        right.set_ylim(bottom=0)
        return figure


def by_class(accuracies: Sequence[float | None]) -> Figure:
    """The accuracy of each class, as bars; none for a class without records."""
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(8.6, 2.9), layout="constrained")
        axes = figure.subplots()
        axes.bar(np.arange(len(accuracies)), _numbers(accuracies), color=BLUE)
        axes.set(xlabel="class", ylabel="accuracy", ylim=(0, 1))
        axes.xaxis.set_major_locator(_whole_numbers())
        return figure


def by_client(accuracies: Sequence[float]) -> Figure:
    """A histogram of the clients' accuracies, in 20 bins."""
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(8.6, 2.9), layout="constrained")
        axes = figure.subplots()
        axes.hist(_numbers(accuracies), bins=20, range=(0, 1), color=BLUE)
        axes.set(xlabel="accuracy", ylabel="clients", xlim=(0, 1))
        axes.yaxis.set_major_locator(_whole_numbers())
        return figure


def epsilon_by_round(records: Sequence[RoundRecord], target: Epsilon) -> Figure:
    """Certified (largest and median client) and published epsilon by round, with the target."""
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(8.6, 2.9), layout="constrained")
        axes = figure.subplots()
        rounds = [r.round for r in records]
        largest = [r.epsilon_certified_max for r in records]
        median = [r.epsilon_certified_median for r in records]
        claims = [r.epsilon_published_max for r in records]
        _by_round(axes, rounds, largest, BLUE, "certified, largest")
        _by_round(axes, rounds, median, GREY, "certified, median", "--")
        _by_round(axes, rounds, claims, ORANGE, "published, largest", ":")
        _target(axes, target)
        axes.set(ylabel="epsilon spent")
        axes.set_ylim(bottom=0)
        axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
        return figure


def mechanism_metrics(records: Sequence[RoundRecord]) -> Figure:
    """The mechanism's public metrics by round (acceptance, noise, scales), a small plot each."""
    names = sorted({name for record in records for name in record.metrics})
    with matplotlib.rc_context(_STYLE):
        rows = math.ceil(len(names) / 2)
        figure = Figure(figsize=(8.6, 2.4 * rows), layout="constrained")
        for axes, name in zip(figure.subplots(rows, 2, squeeze=False).flat, names, strict=False):
            shown = [record for record in records if name in record.metrics]
            _by_round(axes, [r.round for r in shown], [r.metrics[name] for r in shown], BLUE)
            axes.set(ylabel=name.replace("_", " "))
        for axes in figure.axes[len(names) :]:
            axes.remove()
        return figure


def epsilon_per_client(
    certified: Sequence[Epsilon], published: Sequence[Epsilon], target: Epsilon
) -> Figure:
    """The clients' epsilons in ascending order of the certified one."""
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(8.6, 2.9), layout="constrained")
        axes = figure.subplots()
        values, claims = _numbers(certified), _numbers(published)
        ends = np.unique(np.ceil(np.linspace(0, len(values), MAX_STEPS + 1)).astype(np.int64))
        order, edges = np.argsort(values, kind="stable")[ends[1:] - 1], ends + 0.5
        axes.stairs(values[order], edges, fill=True, color=BLUE, alpha=0.15)
        line: Any = {"baseline": None, "linewidth": 1.8}
        axes.stairs(values[order], edges, color=BLUE, label="certified", **line)
        axes.stairs(claims[order], edges, color=ORANGE, linestyle=":", label="published", **line)
        _target(axes, target)
        axes.set(xlabel="clients, by epsilon", ylabel="epsilon spent", xlim=(edges[0], edges[-1]))
        axes.set_ylim(bottom=0)
        axes.xaxis.set_major_locator(_whole_numbers())
        axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
        return figure


def curves(
    lines: Mapping[str, Sequence[tuple[float, float]]],
    xlabel: str,
    ylabel: str,
    ticks: Sequence[str] = (),
) -> Figure:
    """Lines by name, each of points (x, y) in the order of x; ``ticks`` name x = 0, 1, ..."""
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(8.6, 4.2), layout="constrained")
        axes = figure.subplots()
        colors = matplotlib.color_sequences["tab10"]
        for number, (name, points) in enumerate(lines.items()):
            style = ("-", "--", ":")[number // len(colors) % 3]
            marker = "o" if len(points) <= 20 else ""
            xs, ys = zip(*points, strict=True)
            color = colors[number % len(colors)]
            axes.plot(xs, ys, label=name, color=color, linestyle=style, marker=marker, markersize=4)
        axes.set(xlabel=xlabel, ylabel=ylabel)
        if ticks:
            axes.set_xticks(range(len(ticks)), ticks)
        if lines:
            axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
        return figure


def partition(counts: np.ndarray) -> Figure:
    """The partition: records per client above, their classes as a heat map below.

    Args:
        counts: int64 ``[clients, classes]``. More than ``MAX_COLUMNS`` clients are sorted by their
            main class and drawn as the means of neighbours.
    """
    bands, label = _bands(counts)
    clients, classes = counts.shape
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(8.6, 1.9 + 0.19 * min(classes, 20)), layout="constrained")
        above, below = figure.subplots(2, 1, sharex=True, height_ratios=(1, 2))
        edges = np.linspace(-0.5, clients - 0.5, len(bands) + 1)
        above.stairs(bands.sum(axis=1), edges, fill=True, color=BLUE, alpha=0.8)
        above.set(ylabel="records")
        extent = (-0.5, clients - 0.5, classes - 0.5, -0.5)
        image = below.imshow(
            bands.T, aspect="auto", interpolation="nearest", cmap="Blues", vmin=0, extent=extent
        )
        below.set(xlabel=label, ylabel="class")
        below.grid(False)
        below.xaxis.set_major_locator(_whole_numbers())
        below.yaxis.set_major_locator(_whole_numbers())
        figure.colorbar(image, ax=below, label="records", pad=0.01)
        return figure


def _bands(counts: np.ndarray) -> tuple[np.ndarray, str]:
    """Rows to draw, float64 ``[at most MAX_COLUMNS, classes]``, and what they are."""
    if len(counts) <= MAX_COLUMNS:
        return counts.astype(np.float64), "client"
    order = np.lexsort((counts.sum(axis=1), counts.argmax(axis=1)))
    bands = np.array([counts[part].mean(axis=0) for part in np.array_split(order, MAX_COLUMNS)])
    return bands, f"clients, sorted by their main class (means of {MAX_COLUMNS} bands)"


def sheet(records: np.ndarray, labels: np.ndarray) -> Figure:
    """Records ``[M, ...]`` as small images in rows of ten, each below its label."""
    rows = max(1, -(-len(labels) // SHEET))
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(8.6, 0.95 * rows), layout="constrained")
        for place, axes in enumerate(figure.subplots(rows, SHEET, squeeze=False).flat):
            axes.set_axis_off()
            if place < len(labels):
                image = _pixels(records[place])
                axes.imshow(image, cmap="gray", aspect="auto", interpolation="nearest")
                axes.set_title(str(labels[place]), fontsize=7)
    return figure


def _pixels(record: np.ndarray) -> np.ndarray:
    """A record ``[...]`` as an image ``[H, W]`` or ``[H, W, 3]``, scaled to its own range."""
    low, high = float(record.min()), float(record.max())
    scaled = (record - low) / (high - low) if high > low else np.zeros_like(record)
    if scaled.ndim == 3 and len(scaled) in (1, 3):
        return scaled[0] if len(scaled) == 1 else scaled.transpose(1, 2, 0)
    return scaled.reshape(len(scaled), -1) if scaled.ndim > 1 else scaled[None]


def _by_round(
    axes: Axes,
    rounds: Sequence[int],
    values: Sequence[float | None],
    color: str,
    label: str = "",
    style: str = "-",
) -> None:
    marker = "o" if len(rounds) <= 40 and style == "-" else ""
    look: Any = {"color": color, "linestyle": style, "marker": marker, "markersize": 3}
    axes.plot(rounds, _numbers(values), label=label, **look)
    axes.set(xlabel="round", xlim=(0, max(rounds) + 0.5))
    axes.xaxis.set_major_locator(_whole_numbers())


def _whole_numbers() -> MaxNLocator:
    return MaxNLocator(integer=True, steps=[1, 2, 5, 10], min_n_ticks=1)


def _target(axes: Axes, target: Epsilon) -> None:
    if target is not None:
        label = f"target {target:g}"
        axes.axhline(target, color=RED, linewidth=1.2, linestyle=(0, (6, 3)), label=label)


def _numbers(values: Sequence[float | None]) -> np.ndarray:
    """The values as float64; None and non-finite ones become NaN, which is not drawn."""
    numbers = np.array([math.nan if value is None else value for value in values], dtype=np.float64)
    return np.where(np.isfinite(numbers), numbers, math.nan)
