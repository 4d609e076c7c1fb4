"""The plots of a run."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.ticker import MaxNLocator

from server.records import Epsilon, RoundRecord
from sim.config.settings import ACCURACY
from sim.drawing.plot import BLUE, GREY, ORANGE, RED, STYLE, WIDTH, Plot
from sim.drawing.plot import svg as svg
from sim.showing import wording

MAX_TOLD = 300
"""Maximum number of rounds that tell their values; of more, the last of each of as many parts."""

MAX_COLUMNS = 200
"""Maximum clients that the partition's plot shows singly; more are drawn in this many bands."""

MAX_STEPS = 1_000
"""Maximum clients whose epsilons are drawn singly; of more, the maximum in this many groups."""

SHEET = 10
"""Images per row of a sheet."""

_SHADES = LinearSegmentedColormap.from_list("shades", [(BLUE, 0.0), (BLUE, 1.0)])
"""From nothing, so that the page shines through, to blue."""


def accuracy_and_loss(
    records: Sequence[RoundRecord], part: str, metric: str = ACCURACY, unit: str = "nats"
) -> tuple[Plot, Plot]:
    """Accuracy, or another metric, and loss by round on the evaluated ``part``, ``test`` or
    ``validation``; the unit is the loss's, empty for none."""
    rounds = [r.round for r in records]
    score = _single(metric, rounds, [r.accuracy for r in records], f"{part} {metric}")
    ylabel = f"{part} loss" + (f" [{unit}]" if unit else "")
    loss = _single("loss", rounds, [r.loss for r in records], ylabel)
    if metric == ACCURACY:
        score.axes[0].set(ylim=(0, 1))
    loss.axes[0].set_ylim(bottom=0)
    return score, loss


@matplotlib.rc_context(STYLE)
def by_class(accuracies: Sequence[float | None]) -> Plot:
    """The accuracy of each class, as bars; none for a class without records."""
    figure = Plot(180)
    axes = figure.subplots()
    axes.bar(np.arange(len(accuracies)), _numbers(accuracies), color=BLUE)
    axes.set(xlabel="class", ylabel="accuracy", ylim=(0, 1))
    axes.xaxis.set_major_locator(_whole_numbers())
    for number, value in enumerate(accuracies):
        text = f"class {number}: {wording.figure(value)}"
        figure.told.append((axes, number - 0.5, number + 0.5, text))
    return figure


@matplotlib.rc_context(STYLE)
def by_client(accuracies: Sequence[float | None]) -> Plot:
    """A histogram of the clients' accuracies, in 20 bins."""
    figure = Plot(180)
    axes = figure.subplots()
    counts, edges, _ = axes.hist(_numbers(accuracies), bins=20, range=(0, 1), color=BLUE)
    axes.set(xlabel="accuracy", ylabel="clients", xlim=(0, 1))
    axes.yaxis.set_major_locator(_whole_numbers())
    for count, left, right in zip(np.asarray(counts), edges[:-1], edges[1:], strict=True):
        text = f"from {left:.2f} to {right:.2f}: clients {count:.0f}"
        figure.told.append((axes, left, right, text))
    return figure


@matplotlib.rc_context(STYLE)
def epsilon_by_round(records: Sequence[RoundRecord], target: Epsilon) -> Plot:
    """Certified (largest and median client) and published epsilon by round, with the target."""
    figure = Plot(220)
    axes = figure.subplots()
    rounds = [r.round for r in records]
    lines: dict[str, Sequence[Epsilon]] = {
        "certified, largest": [r.epsilon_certified_max for r in records],
        "certified, median": [r.epsilon_certified_median for r in records],
        "published, largest": [r.epsilon_published_max for r in records],
    }
    looks = ((BLUE, "-"), (GREY, "--"), (ORANGE, ":"))
    for (label, values), (color, style) in zip(lines.items(), looks, strict=True):
        _by_round(axes, rounds, values, color, label, style)
    _tell_rounds(figure, rounds, lines, wording.epsilon)
    _target(axes, target)
    axes.set(ylabel="epsilon spent")
    axes.set_ylim(bottom=0)
    _legend(axes)
    return figure


def mechanism_metrics(records: Sequence[RoundRecord]) -> dict[str, Plot]:
    """The mechanism's public metrics by round (acceptance, noise, scales), by name."""
    figures = {}
    for name in sorted({name for record in records for name in record.metrics}):
        shown = [record for record in records if name in record.metrics]
        rounds, values = [r.round for r in shown], [r.metrics[name] for r in shown]
        title = name.replace("_", " ")
        figures[name] = _single(title, rounds, values, title)
    return figures


@matplotlib.rc_context(STYLE)
def epsilon_per_client(
    certified: Sequence[Epsilon], published: Sequence[Epsilon], target: Epsilon
) -> Plot:
    """The clients' epsilons in ascending order of the certified one."""
    figure = Plot(220)
    axes = figure.subplots()
    values, claims = _numbers(certified), _numbers(published)
    ends = np.unique(np.ceil(np.linspace(0, len(values), MAX_STEPS + 1)).astype(np.int64))
    order, edges = np.argsort(values, kind="stable")[ends[1:] - 1], ends + 0.5
    axes.stairs(values[order], edges, fill=True, color=BLUE, alpha=0.15)
    line: Any = {"baseline": None, "linewidth": 1.8}
    axes.stairs(values[order], edges, color=BLUE, label="certified", **line)
    axes.stairs(claims[order], edges, color=ORANGE, linestyle=":", label="published", **line)
    for client, left, right in zip(order.tolist(), ends[:-1], ends[1:], strict=True):
        own = f"client {client}"
        who = own if right == left + 1 else f"{right - left} clients; {own}, the largest"
        spent, claim = wording.epsilon(certified[client]), wording.epsilon(published[client])
        text = f"{who}: certified {spent}, published {claim}"
        figure.told.append((axes, left + 0.5, right + 0.5, text))
    _target(axes, target)
    axes.set(xlabel="clients, by epsilon", ylabel="epsilon spent", xlim=(edges[0], edges[-1]))
    axes.set_ylim(bottom=0)
    axes.xaxis.set_major_locator(_whole_numbers())
    _legend(axes)
    return figure


@matplotlib.rc_context(STYLE)
def curves(
    lines: Mapping[str, Sequence[tuple[float, float]]],
    xlabel: str,
    ylabel: str,
    ticks: Sequence[str] = (),
) -> Plot:
    """Lines by name, each of points (x, y) in the order of x; ``ticks`` name x = 0, 1, ..."""
    longest = max(map(len, lines), default=0)
    figure = Plot(240 + 18 * len(lines), max(WIDTH, 60 + 8 * longest))
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
        _legend(axes, columns=1)
    return figure


@matplotlib.rc_context(STYLE)
def boxes(
    lines: Mapping[str, Sequence[tuple[float, float]]],
    xlabel: str,
    ylabel: str,
    ticks: Sequence[str],
) -> Plot:
    """Boxes by name, side by side, of the y at each x: the median, the middle half, the least and
    the largest. ``ticks`` name x = 0, 1, ..."""
    figure = Plot(240 + 18 * len(lines))
    axes = figure.subplots()
    colors, width = matplotlib.color_sequences["tab10"], 0.8 / max(1, len(lines))
    for number, (name, points) in enumerate(lines.items()):
        at: dict[float, list[float]] = {}
        for x, y in points:
            at.setdefault(x + width * (number - (len(lines) - 1) / 2), []).append(y)
        color = colors[number % len(colors)]
        look: dict[str, Any] = {"boxprops": {"facecolor": color, "alpha": 0.5}}
        look |= {"medianprops": {"color": color}, "widths": 0.9 * width, "whis": (0, 100)}
        look |= {"patch_artist": True, "manage_ticks": False, "label": name}
        axes.boxplot(list(at.values()), positions=list(at), **look)
    axes.set(xlabel=xlabel, ylabel=ylabel)
    axes.set_xticks(range(len(ticks)), ticks)
    if lines:
        _legend(axes, columns=1)
    return figure


@matplotlib.rc_context(STYLE)
def partition(counts: np.ndarray) -> Plot:
    """The partition: records per client above, their classes as a heat map below.

    Args:
        counts: int64 ``[clients, classes]``. More than ``MAX_COLUMNS`` clients are sorted by their
            main class and drawn as the means of neighbours.
    """
    bands, label = _bands(counts)
    clients, classes = counts.shape
    figure = Plot(160 + 14 * min(classes, 20))
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(1, 2))
    edges = np.linspace(-0.5, clients - 0.5, len(bands) + 1)
    above.stairs(bands.sum(axis=1), edges, fill=True, color=BLUE, alpha=0.8)
    above.set(ylabel="records")
    extent = (-0.5, clients - 0.5, classes - 0.5, -0.5)
    image = below.imshow(
        bands.T, aspect="auto", interpolation="nearest", cmap=_SHADES, vmin=0, extent=extent
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


@matplotlib.rc_context(STYLE)
def sheet(records: np.ndarray, labels: np.ndarray) -> Plot:
    """Records ``[M, ...]`` as small images in rows of ten, each below its label."""
    rows = max(1, -(-len(labels) // SHEET))
    figure = Plot(48 * rows)
    for place, axes in enumerate(figure.subplots(rows, SHEET, squeeze=False).flat):
        axes.set_axis_off()
        if place < len(labels):
            image = _pixels(records[place])
            axes.imshow(image, cmap="gray", aspect="auto", interpolation="nearest")
            axes.set_title(str(labels[place]), pad=2)
    return figure


def _pixels(record: np.ndarray) -> np.ndarray:
    """A record ``[...]`` as an image ``[H, W]`` or ``[H, W, 3]``, scaled to its own range."""
    low, high = float(record.min()), float(record.max())
    scaled = (record - low) / (high - low) if high > low else np.zeros_like(record)
    if scaled.ndim == 3 and len(scaled) in (1, 3):
        return scaled[0] if len(scaled) == 1 else scaled.transpose(1, 2, 0)
    return scaled.reshape(len(scaled), -1) if scaled.ndim > 1 else scaled[None]


@matplotlib.rc_context(STYLE)
def _single(name: str, rounds: Sequence[int], values: Sequence[float | None], ylabel: str) -> Plot:
    """One value by round."""
    figure = Plot(180)
    axes = figure.subplots()
    _by_round(axes, rounds, values, BLUE)
    axes.set(ylabel=ylabel)
    _tell_rounds(figure, rounds, {name: values}, wording.figure)
    return figure


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


def _tell_rounds(
    figure: Plot,
    rounds: Sequence[int],
    lines: Mapping[str, Sequence[float | None]],
    word: Callable[[float | None], str],
) -> None:
    """Have each round tell the values of all lines."""
    for part in np.array_split(np.arange(len(rounds)), min(len(rounds), MAX_TOLD)):
        first, last = rounds[part[0]], rounds[part[-1]]
        texts = (f"{name} {word(values[part[-1]])}" for name, values in lines.items())
        text = "\n".join((f"round {last}", *texts))
        figure.told.append((figure.axes[0], first - 0.5, last + 0.5, text))


def _legend(axes: Axes, columns: int = 2) -> None:
    """Above the axes, so that they are as wide as the figure."""
    place: Any = {"loc": "lower left", "bbox_to_anchor": (0.0, 1.0)}
    axes.legend(**place, ncols=columns, labelspacing=0.2, columnspacing=1.0, handlelength=1.6)


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
